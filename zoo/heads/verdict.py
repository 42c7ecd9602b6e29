"""Whether a head is broken, and by what: its settings against the floors that every head exceeds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import attrs
import torch

from draftwood.strategies.blocks.head import BlockHead
from draftwood.strategies.heads.peagle import PEagleHead
from draftwood.strategies.mtp.head import MtpHead

from ..distil.rows import Rows
from .floors import Floors
from .known_text import known_text
from .loading import CheckedHead
from .settings import Found

_OF_FIRST = 0.4  # share of the first token's, below which the second says that drafting on fails
_OF_MAP = 0.1  # of first tokens, by which another map must be better before the map is blamed


@attrs.frozen
class Verdict:
    """The verdict of `check-head` on a head.

    Attributes:
        broken: it does not follow its target as it was trained to.
        sentence: why, and what to do.
    """

    broken: bool
    sentence: str


def verdict_of(
    target: Any,
    head: CheckedHead,
    prompts: Sequence[Rows],
    found: Sequence[Found],
    floors: Floors,
) -> Verdict:
    """Returns whether `head` is broken.

    Args:
        target: the transformers model that it was made for.
        head: as its files describe it.
        prompts: what the target wrote.
        found: its settings, the configured one first.
        floors: on the same texts.
    """
    for name, weight in head.named_parameters():
        if not torch.isfinite(weight).all():
            return Verdict(
                True, f"The head is broken: {name} holds values that are not finite; copy it again."
            )
    first = found[0].by_depth[0]
    below = first < floors.least
    # A setting that stays below the floor too does not mend the head, however clearly it is better.
    mending = [one for one in found if one.clear and (not below or one.by_depth[0] >= floors.least)]
    best = max(mending, key=lambda one: one.gain, default=None)
    if below and _map_is_wrong(target, head, prompts, first, floors):
        return Verdict(
            True,
            "The head is broken: its map d2t names wrong tokens, for its guesses do tell what follows; "
            "copy the map of this very head.",
        )
    if best is not None:
        return Verdict(
            True,
            f"Another setting than the configured one is better: {best.name}, by {best.gain:.3f} of the "
            f"tokens. So {best.cause}.",
        )
    if below:
        return Verdict(
            True,
            f"The head is broken: {first:.3f} of first tokens are right, where one that was made for this "
            f"target has {floors.least:.3f} at least, and none of {len(found) - 1} other settings mends it. "
            "Its weights are not trained enough, damaged, or another target's.",
        )
    if len(found[0].by_depth) > 1 and not _trained_for_one(head):
        second = found[0].by_depth[1]
        if second < (floors.unigram if _is_blind(head) else _OF_FIRST * first):
            return Verdict(
                True,
                f"The head is broken: {first:.3f} of first tokens are right and {second:.3f} of second ones, "
                f"and no other setting mends it. So {_cause_of_depth(head)}.",
            )
    return Verdict(
        False, "The configured setting is the best of these, and better than guesses without a head."
    )


def _trained_for_one(head: CheckedHead) -> bool:
    return isinstance(head, MtpHead) and head.layout.trained_depths == 1


def _is_blind(head: CheckedHead) -> bool:
    """Whether its guess of a second token does not know the first, so that few are right of any head."""
    return isinstance(head, PEagleHead) or (isinstance(head, BlockHead) and not head.corrects)


def _cause_of_depth(head: CheckedHead) -> str:
    if isinstance(head, BlockHead | PEagleHead):
        return (
            "mask_token_id is another token than in its training, or its layers see other slots, or it is "
            "not trained enough for second tokens; write the right token into its config, or train it longer"
        )
    return "what it recycles is not what it was trained on; train it with drafted tokens, or use another"


@torch.no_grad()
def _map_is_wrong(
    target: Any,
    head: CheckedHead,
    prompts: Sequence[Rows],
    first: float,
    floors: Floors,
) -> bool:
    """Whether the head's own most likely tokens tell what follows, though not by its map.

    Each of its tokens is taken for that of the target which most often follows it in the other texts.
    """
    if isinstance(head, MtpHead) or head.all_tokens:
        return False
    layers = int(target.config.get_text_config(decoder=True).num_hidden_layers)
    seen: list[list[tuple[int, int]]] = []
    for rows in prompts:
        text = known_text(target, rows.tokens, head.taps_in(layers))
        place = max(rows.prompt - 2, 0)
        (guess,) = text.guesses(target, head, depths=1, first=place)
        likely = guess.argmax(-1).flatten().tolist()
        seen.append(list(zip(likely, rows.tokens[:, 2:][:, place:].flatten().tolist(), strict=True)))
    follows: dict[int, Counter[int]] = defaultdict(Counter)
    for pairs in seen:
        for ours, theirs in pairs:
            follows[ours][theirs] += 1
    right = total = 0
    for pairs in seen:
        own: dict[int, Counter[int]] = defaultdict(Counter)
        for ours, theirs in pairs:
            own[ours][theirs] += 1
        for ours, theirs in pairs:
            others = follows[ours] - own[ours]
            right += bool(others) and others.most_common(1)[0][0] == theirs
            total += 1
    return right / max(total, 1) > max(first, floors.unigram) + _OF_MAP
