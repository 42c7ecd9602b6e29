"""Agreement of a draft with its target, on text that the target wrote."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood.base.errors import InvalidInput

from .rows import Rows, ends_of_text, position_weights

CHAIN = 4
EDGES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)


@attrs.frozen
class Bin:
    """Draft tokens whose draft probability lies above the bin before and up to `edge`.

    Attributes:
        edge: the upper one.
        share: of all draft tokens.
        accepted: the chance of one to be accepted; None where the bin is empty.
    """

    edge: float
    share: float
    accepted: float | None


@attrs.frozen(kw_only=True)
class Fit:
    """The agreement of a draft with its target at one temperature, on the target's own text at it.

    Attributes:
        temperature: of target and draft; 0 is greedy.
        positions: tokens of the text.
        overlap: mean of `sum(min(T, D))`, the chance that one draft token is accepted. At 0: how often the
            draft's most likely token is the target's.
        chain: mean tokens of a round that drafts a chain of four, the bonus token included.
        calibration: acceptance by the draft's probability of its token; at 0, by that at temperature 1.
    """

    temperature: float
    positions: int
    overlap: float
    chain: float
    calibration: tuple[Bin, ...]


@attrs.define
class _Sums:
    positions: float = 0.0
    overlap: float = 0.0
    rounds: float = 0.0
    drawn: Tensor = attrs.field(factory=lambda: torch.zeros(len(EDGES) - 1, dtype=torch.float64))
    kept: Tensor = attrs.field(factory=lambda: torch.zeros(len(EDGES) - 1, dtype=torch.float64))


@torch.inference_mode()
def fit(target: Any, draft: Any, shards: Iterable[Rows], *, tokens_at_once: int = 4096) -> Fit:
    """Compare `draft` with `target` on rows that the target wrote at one temperature.

    Nothing is drawn. A token x of the target's text is an accepted draft token with chance
    `min(1, D(x) / T(x))` where a draft token stood there, and rounds are followed through the text by these
    chances (Leviathan et al., arXiv 2211.17192, section 2.3 and corollary 3.6).

    Raises:
        InvalidInput: there is no row, or rows of two temperatures.
    """
    sums, temperatures = _Sums(), set[float]()
    for shard in shards:
        temperatures.add(shard.temperature)
        for tokens in shard.tokens.split(max(1, tokens_at_once // shard.tokens.shape[1])):
            _add(sums, target, draft, attrs.evolve(shard, tokens=tokens))
    if len(temperatures) != 1 or not sums.positions:
        raise InvalidInput(
            f"the rows have the temperatures {sorted(temperatures)}; give rows of one temperature."
        )
    drawn, kept = sums.drawn.tolist(), sums.kept.tolist()
    return Fit(
        temperature=temperatures.pop(),
        positions=round(sums.positions),
        overlap=sums.overlap / sums.positions,
        chain=sums.positions / sums.rounds,
        calibration=tuple(
            Bin(edge, some / sum(drawn), hits / some if some else None)
            for edge, some, hits in zip(EDGES[1:], drawn, kept, strict=True)
        ),
    )


def _add(sums: _Sums, target: Any, draft: Any, rows: Rows) -> None:
    first = rows.prompt - 1
    valid = position_weights(rows, ends=ends_of_text(target), real=0.0)[:, first:].double()
    new = rows.tokens[:, rows.prompt :]
    ours, theirs = (_logits(model, rows.tokens[:, :-1], first) for model in (target, draft))
    if rows.temperature == 0:
        guess = theirs.argmax(-1, keepdim=True)
        chance = (guess.squeeze(-1) == new).double()
        overlap, sure = chance, theirs.softmax(-1).gather(-1, guess)
        drawn, kept = torch.ones_like(sure), chance[..., None]
    else:
        wanted, drawn = (logits.div(rows.temperature).softmax(-1) for logits in (ours, theirs))
        kept = torch.minimum(wanted, drawn)
        overlap, sure = kept.sum(-1).double(), drawn
        there, had = (probs.gather(-1, new[..., None]).squeeze(-1) for probs in (wanted, drawn))
        chance = (had / there).clamp(max=1.0).nan_to_num(0.0).double()
    sums.positions += float(valid.sum())
    sums.overlap += float((overlap * valid).sum())
    sums.rounds += float(round_starts(chance * valid, length=CHAIN).mul(valid).sum())
    for index, (low, high) in enumerate(pairwise(EDGES)):
        inside = ((sure > low) & (sure <= high)) * valid[..., None]
        sums.drawn[index] += (drawn * inside).sum()
        sums.kept[index] += (kept * inside).sum()


def _logits(model: Any, tokens: Tensor, first: int) -> Tensor:
    logits: Tensor = model(tokens.to(model.device), use_cache=False).logits[:, first:]
    return logits.float().cpu()


def round_starts(chance: Tensor, *, length: int) -> Tensor:
    """The chance that a round begins at each token of a text, float64 `[rows, tokens]`.

    Args:
        chance: of each token to be an accepted draft token where there is one, float64 `[rows, tokens]`.
        length: of the drafted chain. A round gives what is accepted and one token more.
    """
    rows, tokens = chance.shape
    starts = torch.zeros(rows, tokens + length + 1, dtype=torch.float64)
    starts[:, 0] = 1.0
    padded = torch.cat([chance, chance.new_zeros(rows, length)], 1)
    for place in range(tokens):
        going = starts[:, place]
        for step in range(length):
            hit = padded[:, place + step]
            starts[:, place + step + 1] += going * (1 - hit)
            going = going * hit
        starts[:, place + length + 1] += going
    return starts[:, :tokens]
