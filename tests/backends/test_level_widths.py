"""The nodes of each level that one call over all levels expands."""

from __future__ import annotations

import pytest
import torch

from draftwood import LevelPlan
from draftwood.backends.passes.captured_levels import widths_that_pay

CPU = torch.device("cpu")


def widths(plan: LevelPlan, *, rows: int = 1, device: torch.device = CPU) -> tuple[int, ...] | None:
    return widths_that_pay(plan, rows=rows, nodes=2, layers=1, vocab_size=4096, device=device)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [(4, (1, 3, 2, 1)), (8, (1, 6, 4, 3, 3, 2)), (16, (1, 12, 9, 7, 5, 4))],
)
def test_levels_of_the_most_likely_paths_narrow_on_a_cpu(budget: int, expected: tuple[int, ...]) -> None:
    assert widths(LevelPlan(6, budget, branching=budget, budget=budget)) == expected


@pytest.mark.parametrize("depth", [2, 6, 12])
def test_a_beam_stays_as_wide_as_it_is(depth: int) -> None:
    plan = LevelPlan(depth, 4, branching=4, budget=4 * depth, candidates=4)
    found = widths(plan)
    assert found is not None
    assert found[1:] == (4,) * (depth - 1)


def test_rows_share_what_a_cpu_expands() -> None:
    plan = LevelPlan(3, 16, branching=16, budget=16)
    assert widths(plan, rows=4) == (1, 8, 8)
    assert widths(plan, rows=5) is None


def test_a_graphics_card_expands_all_that_a_tree_may_need() -> None:
    plan = LevelPlan(4, 16, branching=16, budget=16)
    assert widths(plan, device=torch.device("cuda")) == (1, 15, 14, 13)
