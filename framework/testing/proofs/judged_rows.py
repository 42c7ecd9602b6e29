"""Rows that are judged together, compared with each row judged by itself."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from draftwood.base.errors import InvalidDistribution
from draftwood.laws.randomness import CounterRandomness, TapeRandomness
from draftwood.protocols import Verifier
from draftwood.trees.tree import TokenTree


def assert_judged_alike(
    verifier: Verifier, trees: Sequence[TokenTree], rows: Sequence[Tensor], seed: int
) -> None:
    """Check that `verify_rows` gives each row the outcome and the draws that it has by itself."""
    alone, together = _tapes(seed, len(trees)), _tapes(seed, len(trees))
    try:
        expected = [verifier.verify(*row) for row in zip(trees, rows, alone, strict=True)]
    except InvalidDistribution:
        return
    outcomes = verifier.verify_rows(trees, rows, together)
    assert len(outcomes) == len(trees), f"{verifier} gives {len(outcomes)} outcomes for {len(trees)} rows."
    for row, (outcome, expected_outcome) in enumerate(zip(outcomes, expected, strict=True)):
        assert outcome == expected_outcome, (
            f"{verifier} gives row {row} of {len(trees)} {outcome}, but {expected_outcome} if it is the "
            "only row."
        )
        used, needed = together[row].used, alone[row].used
        assert used == needed, (
            f"{verifier} makes {used} draws for row {row} of {len(trees)}, but {needed} if it is the only "
            "row."
        )


def _tapes(seed: int, rows: int) -> list[TapeRandomness]:
    return [TapeRandomness(CounterRandomness.seeded(seed + row).uniforms(1000)) for row in range(rows)]
