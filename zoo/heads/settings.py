"""A head under other settings than its file names: which of them follows the target best.

A wrong setting is no error anywhere: the text stays the target's, and few drafted tokens are accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any

import attrs
import torch

from draftwood.base.errors import InvalidInput
from draftwood.strategies.blocks.head import BlockHead
from draftwood.strategies.drafters.medusa import Heads
from draftwood.strategies.heads.eagle3 import Eagle3Head
from draftwood.strategies.heads.hydra import HydraHead
from draftwood.strategies.heads.peagle import PEagleHead
from draftwood.strategies.mtp.head import MtpHead

from ..distil.rows import Rows
from .agreement import judged_text
from .known_text import KnownText, read_text
from .loading import CheckedHead, depths_of
from .misstored import restored, with_weights
from .variants import mask_variants, medusa_variants, weight_variants, with_config

AS_CONFIGURED = "as configured"
_MARGIN = 0.02  # of agreement, below which a difference is not worth a word
_ERRORS = 2.0  # standard errors, likewise
_OF_FEATURES = 0.1  # of tokens: features of a later token tell any head more, and a damaged one most
_NATS, _ERRORS_OF_NATS = 0.05, 2.5  # likewise of the log-likelihood, which tells more of few tokens
# A head that is worse by more than these after some prompts is worse, so the others are not read.
_WORSE, _ERRORS_OF_WORSE, _SOME = 0.3, 6.0, 4


@attrs.frozen
class Setting:
    """One way of running a head.

    Attributes:
        name: in words.
        head: with the same weights.
        taps: layers of the target whose input is read.
        back: tokens by which the features of each place come earlier than they should.
        shift: added to the positions of drafted tokens.
        cause: what is wrong where this setting is better than the configured one, and what to do.
    """

    name: str
    head: CheckedHead
    taps: tuple[int, ...]
    shift: int = 0
    cause: str = ""
    back: int = 0


@attrs.frozen(kw_only=True)
class Found:
    """The agreement of a head with its target under a setting.

    Attributes:
        name: of the setting.
        cause: as of the setting.
        by_depth: shares of the target's greedy tokens that are the head's most likely ones, by their place in
            the draft.
        gain: by how much the mean of these is above that of the configured setting.
        likelier: the same of the log-likelihood of these tokens, in nats a token.
        clear: whether that is more than chance, from prompt to prompt, and worth a change.
    """

    name: str
    cause: str = ""
    by_depth: tuple[float, ...]
    gain: float
    likelier: float
    clear: bool


def settings(head: CheckedHead, target: Any) -> Iterator[Setting]:
    """The configured setting, and every one that differs in one thing.

    Args:
        head: the head.
        target: the transformers model that it was made for.
    """
    layers = int(target.config.get_text_config(decoder=True).num_hidden_layers)
    taps = head.taps_in(layers)
    yield Setting(AS_CONFIGURED, head, taps)
    if not isinstance(head, Heads):
        for back, words in ((1, "earlier"), (-1, "later")):
            cause = f"it was trained on features of one token {words} than it is given; train it anew"
            yield Setting(f"features of one token {words}", head, taps, cause=cause, back=back)
    if isinstance(head, MtpHead):
        yield from _of_a_layer(head, taps)
        return
    if isinstance(head, Heads):
        for variant in medusa_variants(head, target):
            yield Setting(variant.name, variant.head, taps, cause=variant.cause)
    if isinstance(head, HydraHead):
        for one in restored(head):
            yield Setting(one.name, with_weights(head, one.weights), taps, cause=one.cause)
    if isinstance(head, Heads | HydraHead):
        yield Setting("states of one layer lower", head, (taps[0] - 1,), cause=_TAPS)
        return
    yield from _of_taps(head, taps, layers)
    for shift in (-1, 1):
        yield Setting(f"positions of drafted tokens {shift:+d}", head, taps, shift, _POSITIONS)
    for variant in weight_variants(head, target):
        yield Setting(variant.name, variant.head, taps, cause=variant.cause)
    if isinstance(head, BlockHead | PEagleHead):
        for variant in mask_variants(head, target):
            yield Setting(variant.name, variant.head, taps, cause=variant.cause)
    yield from _of_blocks(head, taps) if isinstance(head, BlockHead) else _of_norms(head, taps)


_POSITIONS = (
    "the positions of drafted tokens are others than in its training; this head needs another program"
)
_TAPS = "it reads other layers of the target than its config names; write these there"
_BY_OPTION = ", or give -o taps="  # which block drafters and MTP layers do not have
_OPPOSITE = "taps in the opposite order"
_TURNED = "fc.weight expects its taps in descending order, which no config can say; reverse its parts"


def _of_taps(
    head: Eagle3Head | BlockHead | PEagleHead, taps: tuple[int, ...], layers: int
) -> Iterator[Setting]:
    """Neighbours of the taps, the usual ones of other makers, and the same in another order."""
    count = len(taps)
    tried: dict[tuple[int, ...], str] = {taps: ""}
    last = layers - 1
    more = {
        "taps one layer lower": tuple(min(tap, layers) - 1 for tap in taps),
        # The last layer's output is numbered after what the target's output head reads.
        "taps one layer higher": tuple(tap + 1 + (tap == last) for tap in taps),
        _OPPOSITE: taps[::-1],
        "the usual taps of EAGLE-3": (2, layers // 2, layers - 3),
        "the usual taps of DFlash": tuple(
            round(1 + place * (layers - 4) / max(count - 1, 1)) + 1 for place in range(count)
        ),
        "taps spread over all layers": tuple(
            round(place * last / max(count - 1, 1)) for place in range(count)
        ),
        "the last layers as taps": tuple(range(layers - count, layers)),
        "the first layers as taps": tuple(range(count)),
    }
    for words, other in more.items():
        exists = all(0 <= tap < layers or tap == layers + 1 for tap in other)
        if len(other) == count and exists and other not in tried:
            tried[other] = words
            cause = _TAPS if isinstance(head, BlockHead) else _TAPS + _BY_OPTION
            cause = _TURNED if words == _OPPOSITE else cause
            yield Setting(f"{words} ({', '.join(map(str, other))})", head, other, cause=cause)


def _of_norms(head: Eagle3Head | PEagleHead, taps: tuple[int, ...]) -> Iterator[Setting]:
    config = head.config.head if isinstance(head, PEagleHead) else head.config
    # A norm without weights cannot be tried, but one can be left out; P-EAGLE recycles nothing.
    switches = ["norm_before_residual", *([] if isinstance(head, PEagleHead) else ["norm_output"])]
    switches += [name for name in ("norm_before_fc", "fc_norm") if getattr(config, name)]
    for name in switches:
        change = {name: not getattr(config, name)}
        words = f"{name} {str(change[name]).lower()}"
        cause = f"its config has this norm wrong; write {words.replace(' ', ': ')} there"
        yield Setting(words, with_config(head, change), taps, cause=cause)


def _of_blocks(head: BlockHead, taps: tuple[int, ...]) -> Iterator[Setting]:
    """Returns open settings of block drafters: which slots see later slots, and which guesses first."""
    config = head.config
    causal = not any(config.causal)
    changed: list[tuple[str, str, dict[str, Any]]] = [
        (
            f"causal {str(causal).lower()}",
            "its slots see others than in its training; write dflash_config.causal into its config",
            {"causal": (causal,) * len(config.causal)},
        )
    ]
    if config.block_size > 1:
        guesses = not config.root_guesses
        words = "guesses" if guesses else "guesses nothing"
        cause = "its slots guess other places than in its training; write sample_from_anchor or its class"
        changed.append((f"the root's slot {words}", cause, {"root_guesses": guesses}))
    for name, cause, change in changed:
        yield Setting(name, with_config(head, change), taps, cause=cause)


def _of_a_layer(head: MtpHead, taps: tuple[int, ...]) -> Iterator[Setting]:
    if head.layout.family.rotary is not None:
        for shift in (-1, 1):
            yield Setting(f"positions of drafted tokens {shift:+d}", head, taps, shift, _POSITIONS)
    for one in restored(head):
        yield Setting(one.name, with_weights(head, one.weights), taps, cause=one.cause)
    # A copy of only the module, over the same weights.
    exchanged, family = copy(head), head.layout.family
    exchanged.layout = attrs.evolve(
        head.layout, family=attrs.evolve(family, state_first=not family.state_first)
    )
    cause = "its projection expects the state before the embedding, or the reverse; its family is another"
    yield Setting("embedding and state exchanged", exchanged, taps, cause=cause)
    yield Setting("states of one layer lower", head, tuple(tap - 1 for tap in taps), cause=_TAPS)


@torch.no_grad()
def compared(target: Any, head: CheckedHead, prompts: Sequence[Rows], *, depths: int) -> list[Found]:
    """Returns every setting on the target's own greedy text after each of `prompts`, the configured first.

    Raises:
        InvalidInput: a text that is too short, or none.
    """
    if not prompts or any(rows.tokens.shape[1] < 4 for rows in prompts):
        raise InvalidInput("Each prompt needs a text of four tokens or more after it; give longer texts.")
    depths = depths_of(head, depths)
    texts = [read_text(target, rows.tokens) for rows in prompts]
    found: list[Found] = []
    before: torch.Tensor | None = None
    for setting in settings(head, target):
        if before is not None and max(setting.taps) >= len(texts[0].hidden):
            continue  # of some models the last layer is not found
        read = [_moved(text.at(setting.taps), setting.back) for text in texts]
        known = None if before is None else before[1]
        right, likely, _, total = judged(
            target, setting.head, prompts, read, depths=depths, shift=setting.shift, known=known
        )
        own = torch.stack([right.sum(1), likely.sum(1)]) / total.sum(1).clamp(min=1)
        before = own if before is None else before
        gain, error = mean_and_error(own - before[:, : own.shape[1]])
        found.append(
            Found(
                name=setting.name,
                cause=setting.cause,
                by_depth=tuple((right.sum(0) / total.sum(0).clamp(min=1)).tolist()),
                gain=float(gain[0]),
                likelier=float(gain[1]),
                # One of the two is more than chance, and the other does not deny it.
                clear=bool(not setting.back or gain[0] > _OF_FEATURES)
                and bool(
                    (gain[1] > 0 and gain[0] > max(_MARGIN, _ERRORS * float(error[0])))
                    or (gain[0] >= 0 and gain[1] > max(_NATS, _ERRORS_OF_NATS * float(error[1])))
                ),
            )
        )
    return found


def _moved(text: KnownText, back: int) -> KnownText:
    """Returns the text with the features of each place exchanged for the features `back` places before it."""
    return attrs.evolve(text, features=text.features.roll(back, 1)) if back else text


def judged(
    target: Any,
    head: CheckedHead,
    prompts: Sequence[Rows],
    texts: Sequence[KnownText],
    *,
    depths: int,
    shift: int = 0,
    known: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Returns the four sums of `judged_text` for each prompt, `[prompts, depths]`.

    With `known`, the log-likelihoods of another head in nats a token by prompt, only for the first prompts
    where these tell that `head` is clearly worse.
    """
    each: list[tuple[torch.Tensor, ...]] = []
    for rows, text in zip(prompts, texts, strict=True):
        each.append(judged_text(target, head, rows, text, depths=depths, shift=shift))
        if known is not None and len(each) >= _SOME:
            likely, total = (torch.stack([one[which] for one in each]).sum(1) for which in (1, 3))
            lost, error = mean_and_error(known[: len(each)] - likely / total.clamp(min=1))
            if lost > max(_WORSE, _ERRORS_OF_WORSE * float(error)):
                break
    return tuple(torch.stack(some) for some in zip(*each, strict=True))


def mean_and_error(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns means over prompts of `[..., prompts]`, and their standard errors; of one prompt infinite."""
    count = values.shape[-1]
    if count < 2:
        return values.mean(-1), torch.full_like(values.mean(-1), float("inf"))
    return values.mean(-1), values.std(-1) / count**0.5
