"""A round asks of the device no more than its budget."""

import attrs
import pytest

from tests.counting_device.budgets import BUDGETS, CALLS, ROUNDS, ROWS, Budget
from tests.counting_device.rounds import count_rounds

pytestmark = pytest.mark.triton

SLACK = 1.1
"""What a round accepts, and so how many nodes and calls the next one has, may depend on the machine."""


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", CALLS)
def test_a_round_keeps_to_its_budget(name: str, rows: int) -> None:
    counted = count_rounds(attrs.evolve(CALLS[name], rows=rows), rounds=ROUNDS)
    asked, allowed = attrs.asdict(Budget.of(counted)), attrs.asdict(BUDGETS[name, rows])
    beyond = {
        figure: (asked[figure], allowed[figure])
        for figure in asked
        if asked[figure] > SLACK * allowed[figure]
    }
    assert not beyond, f"A round asks for more (now, allowed): {beyond}\n{counted.table()}"


def test_every_call_has_a_budget() -> None:
    assert BUDGETS.keys() == {(name, rows) for name in CALLS for rows in ROWS}
