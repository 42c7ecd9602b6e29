"""Whether a head is right, weak or broken, and by what: its settings, its parts, and what needs no head."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import accumulate
from operator import mul
from typing import Any

import attrs
import torch

from draftwood.strategies.blocks.head import BlockHead
from draftwood.strategies.drafters.medusa import Heads
from draftwood.strategies.heads.hydra import HydraHead
from draftwood.strategies.heads.peagle import PEagleHead
from draftwood.strategies.mtp.head import MtpHead

from ..distil.rows import Rows
from .floors import Floors
from .known_text import known_text
from .loading import CheckedHead
from .parts import Added
from .settings import Found

_OF_FIRST = 0.4  # share of the first token's, below which the second says that drafting on fails
_OF_SETTING = 0.05  # of tokens, by which a setting must be better where leaving a part out is better too
_OF_MAP = 0.1  # of first tokens, by which another map must be better before the map is blamed


class Grade(StrEnum):
    """The three verdicts of `check-head`."""

    right = "right"
    weak = "weak"
    broken = "broken"


@attrs.frozen
class Verdict:
    """The verdict of `check-head` on a head.

    Attributes:
        grade: right; weak: it works as it was trained to, and was trained little; or broken.
        sentence: why, and what to do.
    """

    grade: Grade
    sentence: str

    @property
    def broken(self) -> bool:
        """Whether it does not follow its target as it was trained to."""
        return self.grade is Grade.broken


def verdict_of(
    target: Any,
    head: CheckedHead,
    prompts: Sequence[Rows],
    found: Sequence[Found],
    floors: Floors,
    added: Sequence[Added],
) -> Verdict:
    """Returns whether `head` is broken, weak or right.

    Args:
        target: the transformers model that it was made for.
        head: as its files describe it.
        prompts: what the target wrote.
        found: its settings, the configured one first.
        floors: on the same texts.
        added: the use of its parts.
    """
    cause = _cause(target, head, prompts, found, floors, added)
    if cause is not None:
        return Verdict(Grade.broken, cause)
    first = found[0].by_depth[0]
    if first >= floors.least:
        doubt = _doubt(head, added)
        if doubt is not None:
            return Verdict(Grade.weak, doubt)
        return Verdict(
            Grade.right, "The configured setting is the best of these, and above what needs no head."
        )
    gained = sum(accumulate(found[0].by_depth, mul))
    lookup = " Prompt lookup guesses more here." if floors.lookup > first else ""
    return Verdict(
        Grade.weak,
        f"The head is weak: {first:.3f} of first tokens are right, where one that is well trained has "
        f"{floors.least:.3f} at least, so a chain of {len(found[0].by_depth)} gains {gained:.2f} tokens per "
        f"round.{lookup} Each of its parts helps, so train it longer.",
    )


def _doubt(head: CheckedHead, added: Sequence[Added]) -> str | None:
    """Returns what makes a head that works weaker than it could be; None where nothing does."""
    idle = " and ".join(one.name for one in added if one.idle)
    if idle:
        return (
            f"The head is weaker than it could be: without {idle} its guesses are no worse, so those weights "
            "are damaged or hardly trained. Copy them again, or train the head longer."
        )
    may = "The head may be weaker than it could be:"
    flat = _flat_norm(head)
    if flat is not None:
        return (
            f"{may} {flat} is one number throughout, as before any training, which its other norms are not. "
            "Copy it again, or train the head longer."
        )
    if isinstance(head, Heads) and not head.weight.any():
        return (
            f"{may} its residual blocks are zero throughout, as before any training. That is right for one "
            "that was published without them; else copy it again, or train it longer."
        )
    doubtful = next((one for one in added if one.doubtful), None)
    if doubtful is not None:
        name = f"{'without' if doubtful.piece else 'with less of'} {doubtful.name}"
        return (
            f"{may} {name} its guesses are likelier, by {max(-doubtful.gain, doubtful.weaker):.3f} nats per "
            "token, so those weights may be damaged or hardly trained. Copy them again, or train the head "
            "longer."
        )
    lopsided = next((one for one in added if one.lopsided), None)
    if lopsided is not None:
        return (
            f"{may} {lopsided.name} adds {lopsided.gain:.3f} nats per token, where the other half adds "
            f"{lopsided.other_half:.3f}, so those weights may be damaged or another head's. Copy them again."
        )
    return None


def _cause(
    target: Any,
    head: CheckedHead,
    prompts: Sequence[Rows],
    found: Sequence[Found],
    floors: Floors,
    added: Sequence[Added],
) -> str | None:
    """Returns what is broken in a head, and what to do; None where nothing is."""
    for name, weight in head.named_parameters():
        if not torch.isfinite(weight).all():
            return f"The head is broken: {name} holds values that are not finite; copy it again."
        if _is_blank(name, weight):
            return f"The head is broken: {name} holds nothing but zeros; copy it again."
        if any(_is_blank(name, half) for half in weight.tensor_split(2) if len(half)):
            return f"The head is broken: {name} holds nothing but zeros in half of its rows; copy it again."
    first = found[0].by_depth[0]
    below = first < floors.least
    # A setting that stays below the floor too does not mend the head, however clearly it is better.
    mending = [one for one in found[1:] if not below or one.by_depth[0] >= floors.least]
    best = None
    if any(one.clear for one in mending):
        # The cause is the setting that mends most, which need not be the surest.
        best = max((one for one in mending if one.gain >= 0), key=lambda one: one.likelier)
    if below and _map_is_wrong(target, head, prompts, first, floors):
        return (
            "The head is broken: its map d2t names wrong tokens, for its guesses do tell what follows; "
            "copy the map of this very head."
        )
    harmful = _worst(one for one in added if not one.piece)
    if best is not None and (harmful is None or best.gain > _OF_SETTING):
        return (
            f"Another setting than the configured one is better: {best.name}, by {best.gain:.3f} of the "
            f"tokens and {best.likelier:.2f} nats per token. So {best.cause}."
        )
    if harmful is not None:
        return _without(harmful)
    if first < floors.chance:
        return (
            f"The head is broken: {first:.3f} of first tokens are right, no more than {floors.chance:.3f} by "
            f"chance, and none of {len(found) - 1} other settings mends it. Its weights are not trained, "
            "damaged, or another target's."
        )
    strong = max((one for one in added if one.too_strong), key=lambda one: one.weaker, default=None)
    if strong is not None:
        return (
            f"The head is broken: with less of {strong.name} its guesses are better, by {strong.weaker:.3f} "
            "nats per token. Those weights are damaged or of another scale; copy them again."
        )
    harmful = _worst(one for one in added if one.piece)
    if harmful is not None:
        return _without(harmful)
    idle = next((one for one in added if one.idle), None)
    if below and idle is not None:
        return (
            f"The head is broken: {first:.3f} of first tokens are right, where one that was made for this "
            f"target has {floors.least:.3f} at least, and without {idle.name} its guesses are no worse. Its "
            "weights are not trained, damaged, or another target's."
        )
    return _cause_of_second(head, found[0].by_depth, len(found) - 1, floors)


def _worst(added: Iterable[Added]) -> Added | None:
    """Returns what harms most; None where nothing does."""
    return min((one for one in added if one.harms), key=lambda one: one.gain, default=None)


def _without(harmful: Added) -> str:
    return (
        f"The head is broken: without {harmful.name} its guesses are better, by {-harmful.gain:.3f} nats per "
        "token. Those weights, or those that read it, are damaged or another head's; copy them again."
    )


def _flat_norm(head: CheckedHead) -> str | None:
    """Returns the name of a norm whose weights are all equal, where another norm has weights that differ."""
    norms = {
        name: one for name, one in head.named_parameters() if name.endswith("norm.weight") and one.dim() == 1
    }
    flat = [name for name, weight in norms.items() if (weight == weight[0]).all()]
    return flat[0] if flat and len(flat) < len(norms) else None


def _is_blank(name: str, weight: torch.Tensor) -> bool:
    """Whether a matrix that drafting uses is zero throughout, which training leaves none."""
    return weight.dim() == 2 and not name.startswith("confidence_head") and not weight.any()


def _cause_of_second(head: CheckedHead, by_depth: Sequence[float], others: int, floors: Floors) -> str | None:
    """Returns why second tokens are wrong where first ones are right."""
    if len(by_depth) < 2 or _trained_for_one(head):
        return None
    first, second = by_depth[:2]
    if second >= (floors.unigram if _is_blind(head) else _OF_FIRST * first):
        return None
    return (
        f"The head is broken: {first:.3f} of first tokens are right and {second:.3f} of second ones, "
        f"and no other setting mends it. So {_cause_of_depth(head)}."
    )


def _trained_for_one(head: CheckedHead) -> bool:
    return isinstance(head, MtpHead) and head.layout.trained_depths == 1


def _is_blind(head: CheckedHead) -> bool:
    """Whether its guess of a second token does not know the first, so that few are right of any head."""
    return isinstance(head, PEagleHead | Heads) or (isinstance(head, BlockHead) and not head.corrects)


def _cause_of_depth(head: CheckedHead) -> str:
    if isinstance(head, Heads | HydraHead):
        return "its second head is damaged or another one's; copy it again"
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
    if isinstance(head, MtpHead | Heads | HydraHead) or head.all_tokens:
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
