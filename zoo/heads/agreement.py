"""Agreement of a head with its target, by the depth of the drafted token, on text that the target wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood.base.errors import InvalidInput
from draftwood.strategies.blocks.head import BlockHead
from draftwood.strategies.drafters.medusa import Heads
from draftwood.strategies.heads.pairs import PairHead
from draftwood.strategies.heads.peagle import PEagleHead

from ..distil.rows import Rows, ends_of_text, position_weights
from .floors import looked_up
from .known_text import KnownText, known_text
from .loops import loop_start

DEPTHS = 4
_UNLIKELY = -20.0


@attrs.frozen(kw_only=True)
class Agreement:
    """The agreement of a head with a target at one temperature, on the target's own text at it.

    Attributes:
        temperature: of target and head; 0 is greedy.
        positions: tokens of the text.
        lookup: share of the same tokens that prompt lookup guesses; None where it was not asked for.
        by_depth: mean of `sum(min(T, D))`, the chance that a drafted token is accepted, where the tokens
            drafted above it are the text's: of the root's children, then of theirs. At 0: how often the
            head's most likely token is the text's.
    """

    temperature: float
    positions: int
    by_depth: tuple[float, ...]
    lookup: float | None = None


@torch.no_grad()
def agreement_of_rows(
    target: Any,
    head: PairHead | BlockHead | PEagleHead | Heads,
    rows: Rows,
    *,
    taps: Sequence[int],
    depths: int = DEPTHS,
) -> tuple[Tensor, Tensor]:
    """Computes `agreement_of_text` of rows that are not read yet."""
    return agreement_of_text(target, head, rows, known_text(target, rows.tokens, taps), depths=depths)


@torch.no_grad()
def agreement_of_text(
    target: Any,
    head: PairHead | BlockHead | PEagleHead | Heads,
    rows: Rows,
    text: KnownText,
    *,
    depths: int,
    shift: int = 0,
) -> tuple[Tensor, Tensor]:
    """Returns the chances that drafted tokens are accepted, float64 `[depths, rows, places]`, and weights.

    Places are `KnownText`'s whose guess is part of the continuation. Weights are 0 after an end of
    text, and where a draft would have begun in front of the text.
    """
    wanted = text.logits[:, max(rows.prompt - 2, 0) :].float()
    chances, valid = [], []
    for guess, following, weights in guesses_of_text(target, head, rows, text, depths=depths, shift=shift):
        if rows.temperature == 0:
            chance = (guess.argmax(-1).cpu() == following).double()
        else:
            ours, theirs = (some.div(rows.temperature).softmax(-1) for some in (wanted, guess))
            chance = torch.minimum(ours, theirs).sum(-1).double().cpu()
        chances.append(chance)
        valid.append(weights)
    return torch.stack(chances), torch.stack(valid)


def guesses_of_text(
    target: Any,
    head: PairHead | BlockHead | PEagleHead | Heads,
    rows: Rows,
    text: KnownText,
    *,
    depths: int,
    shift: int = 0,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yields, of each depth, logits `[rows, places, vocab]`, the tokens that followed, and float64 weights.

    Tokens and weights are `[rows, places]`, on the CPU; see `agreement_of_text`.
    """
    weights = position_weights(rows, ends=ends_of_text(target), real=0.0)[:, 1:].double()
    first = max(rows.prompt - 2, 0)
    following = rows.tokens[:, 2:][:, first:]
    for depth, logits in enumerate(text.guesses(target, head, depths=depths, shift=shift, first=first)):
        begun = torch.arange(first, first + logits.shape[1]) >= depth
        yield logits.float(), following, weights[:, first:] * begun


def judged_text(
    target: Any,
    head: PairHead | BlockHead | PEagleHead | Heads,
    rows: Rows,
    text: KnownText,
    *,
    depths: int,
    shift: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns sums by depth, each float64 `[depths]`.

    They are the number of greedy tokens that are right, the log-likelihoods of these tokens, the chances that
    a drafted token is accepted at temperature 1, and the number of tokens. The log-likelihood of a token that
    is never proposed counts as -20.
    """
    theirs = text.logits[:, max(rows.prompt - 2, 0) :].float().softmax(-1)
    sums: list[Tensor] = []
    for guess, following, weights in guesses_of_text(target, head, rows, text, depths=depths, shift=shift):
        ours = guess.log_softmax(-1)
        likely = ours.cpu().gather(-1, following.unsqueeze(-1)).squeeze(-1).clamp(min=_UNLIKELY)
        accepted = torch.minimum(theirs, ours.exp()).sum(-1).cpu()
        right = guess.argmax(-1).cpu() == following
        each = torch.stack([right.double(), likely.double(), accepted.double(), torch.ones_like(weights)])
        sums.append((each * weights).sum((1, 2)))
    right, likely, accepted, total = torch.stack(sums, 1)
    return right, likely, accepted, total


def agreement(
    target: Any,
    head: PairHead | BlockHead | PEagleHead | Heads,
    shards: Iterable[Rows],
    *,
    depths: int = DEPTHS,
    tokens_at_once: int = 4096,
    without_loops: bool = False,
) -> Agreement:
    """Compare `head` with `target` on rows that the target wrote at one temperature.

    Args:
        target: the transformers model.
        head: the drafter.
        shards: rows of one temperature.
        depths: drafted tokens that are compared.
        tokens_at_once: of rows that are read together.
        without_loops: leave out what only repeats the text before it, which everything guesses, and say what
            prompt lookup guesses of the rest.

    Raises:
        InvalidInput: there is no row, or rows of two temperatures.
    """
    taps = head.taps_in(int(target.config.num_hidden_layers))
    found = asked = 0
    kept, total, temperatures = torch.zeros(depths).double(), torch.zeros(depths).double(), set[float]()
    for shard in shards:
        temperatures.add(shard.temperature)
        for tokens in shard.tokens.split(max(1, tokens_at_once // shard.tokens.shape[1])):
            rows = attrs.evolve(shard, tokens=tokens)
            chances, weights = agreement_of_rows(target, head, rows, taps=taps, depths=depths)
            if without_loops:
                ends = torch.tensor([loop_start(row) for row in tokens.tolist()])
                guessed = max(rows.prompt - 2, 0) + torch.arange(weights.shape[2]) + 2
                weights = weights * (guessed < ends.unsqueeze(1))
                found += sum(
                    looked_up(row[:end], rows.prompt)
                    for row, end in zip(tokens.tolist(), ends.tolist(), strict=True)
                )
                asked += int((ends - rows.prompt).clamp(min=0).sum())
            kept += (chances * weights).sum((1, 2))
            total += weights.sum((1, 2))
    if len(temperatures) != 1 or not total.all():
        raise InvalidInput(
            f"the rows have the temperatures {sorted(temperatures)}; give rows of one temperature."
        )
    return Agreement(
        temperature=temperatures.pop(),
        positions=round(float(total[0])),
        by_depth=tuple((kept / total).tolist()),
        lookup=found / max(asked, 1) if without_loops else None,
    )
