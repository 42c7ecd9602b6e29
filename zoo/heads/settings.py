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
from draftwood.strategies.heads.config import Eagle3Config
from draftwood.strategies.heads.eagle3 import Eagle3Head
from draftwood.strategies.mtp.head import MtpHead

from ..distil.rows import Rows
from .agreement import agreement_of_rows

AS_CONFIGURED = "as configured"
_MARGIN = 0.01  # of agreement, below which a difference is not worth a word
_ERRORS = 2.0  # standard errors, likewise


@attrs.frozen
class Setting:
    """One way of running a head.

    Attributes:
        name: in words.
        head: with the same weights.
        taps: layers of the target whose input is read.
        shift: added to the positions of drafted tokens.
    """

    name: str
    head: Eagle3Head | BlockHead | MtpHead
    taps: tuple[int, ...]
    shift: int = 0


@attrs.frozen(kw_only=True)
class Found:
    """How a head agrees with its target under a setting.

    Attributes:
        name: of the setting.
        by_depth: shares of the target's greedy tokens that are the head's most likely ones, by their place in
            the draft.
        gain: by how much the mean of these is above that of the configured setting.
        clear: whether that is more than chance, from prompt to prompt, and worth a change.
    """

    name: str
    by_depth: tuple[float, ...]
    gain: float
    clear: bool


def settings(head: Eagle3Head | BlockHead | MtpHead, layers: int) -> Iterator[Setting]:
    """The configured setting, and every one that differs in one thing.

    Args:
        head: the head.
        layers: of the target.
    """
    taps = head.taps_in(layers)
    yield Setting(AS_CONFIGURED, head, taps)
    if isinstance(head, MtpHead):
        yield from _of_a_layer(head, taps)
        return
    for step, words in ((-1, "one layer lower"), (1, "one layer higher")):
        moved = tuple(tap + step for tap in taps)
        if moved[0] >= 0 and moved[-1] < layers:
            yield Setting(f"taps {words} ({', '.join(map(str, moved))})", head, moved)
    for shift in (-1, 1):
        yield Setting(f"positions of drafted tokens {shift:+d}", head, taps, shift)
    if isinstance(head, BlockHead):
        yield from _of_blocks(head, taps)
        return
    switches = ["norm_before_residual", "norm_output"]
    # A norm without weights cannot be tried, but one can be left out.
    switches += [name for name in ("norm_before_fc", "fc_norm") if getattr(head.config, name)]
    for name in switches:
        change: dict[str, Any] = {name: not getattr(head.config, name)}
        other = switched(head, attrs.evolve(head.config, **change))
        yield Setting(f"{name} {str(change[name]).lower()}", other, taps)


def _of_blocks(head: BlockHead, taps: tuple[int, ...]) -> Iterator[Setting]:
    """What files of block drafters leave open: which slots see those behind them, and which guesses first."""
    config = head.config
    causal = not any(config.causal)
    changed: list[tuple[str, dict[str, Any]]] = [
        (f"causal {str(causal).lower()}", {"causal": (causal,) * len(config.causal)})
    ]
    if config.block_size > 1:
        guesses = not config.root_guesses
        words = "guesses" if guesses else "guesses nothing"
        changed.append((f"the root's slot {words}", {"root_guesses": guesses}))
    for name, change in changed:
        with torch.device("meta"):
            other = BlockHead(attrs.evolve(config, **change), target_ids=head.target_ids.cpu())
        other.load_state_dict(head.state_dict(), assign=True)
        yield Setting(name, other.to(head.fc.weight).eval(), taps)


def _of_a_layer(head: MtpHead, taps: tuple[int, ...]) -> Iterator[Setting]:
    if head.layout.family.rotary is not None:
        for shift in (-1, 1):
            yield Setting(f"positions of drafted tokens {shift:+d}", head, taps, shift)
    # A copy of the module alone, over the same weights.
    exchanged, family = copy(head), head.layout.family
    exchanged.layout = attrs.evolve(
        head.layout, family=attrs.evolve(family, state_first=not family.state_first)
    )
    yield Setting("embedding and state exchanged", exchanged, taps)
    yield Setting("states of one layer lower", head, tuple(tap - 1 for tap in taps))


def switched(head: Eagle3Head, config: Eagle3Config) -> Eagle3Head:
    """The same weights under another `config`, which may leave out norms."""
    with torch.device("meta"):
        other = Eagle3Head(config, target_ids=head.target_ids.cpu())
    weights = head.state_dict()
    other.load_state_dict({name: weights[name] for name in other.state_dict()}, assign=True)
    other.lent = head.lent
    return other.to(head.fc.weight).eval()


def compared(
    target: Any, head: Eagle3Head | BlockHead | MtpHead, prompts: Sequence[Rows], *, depths: int
) -> Iterator[Found]:
    """Every setting on the target's own greedy text behind each of `prompts`, the configured one first.

    Raises:
        InvalidInput: a text that is too short, or none.
    """
    if not prompts or any(rows.tokens.shape[1] < 4 for rows in prompts):
        raise InvalidInput("A text of four tokens or more behind each of the prompts is needed; give some.")
    if isinstance(head, BlockHead):
        depths = min(depths, max(head.config.block_size - 1, 1))
    before: torch.Tensor | None = None
    for setting in settings(head, int(target.config.get_text_config(decoder=True).num_hidden_layers)):
        kept, total = torch.zeros(len(prompts), depths).double(), torch.zeros(len(prompts), depths).double()
        for place, rows in enumerate(prompts):
            chances, weights = agreement_of_rows(
                target, setting.head, rows, taps=setting.taps, depths=depths, shift=setting.shift
            )
            kept[place] = (chances * weights).sum((1, 2))
            total[place] = weights.sum((1, 2))
        own = kept.sum(1) / total.sum(1).clamp(min=1)
        before = own if before is None else before
        apart = own - before
        error = float(apart.std() / len(apart) ** 0.5) if len(apart) > 1 else float("inf")
        gain = float(apart.mean())
        yield Found(
            name=setting.name,
            by_depth=tuple((kept.sum(0) / total.sum(0).clamp(min=1)).tolist()),
            gain=gain,
            clear=gain > max(_MARGIN, _ERRORS * error),
        )
