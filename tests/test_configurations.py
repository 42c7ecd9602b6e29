"""Random configurations of the families; `python -m tests.configurations` compares many."""

import pytest

from draftwood.kernels.mamba2_tree import prompt
from tests.configurations.__main__ import quiet
from tests.configurations.attention import ATTENTION
from tests.configurations.case import FAMILIES, Case
from tests.configurations.compare import EQUAL, FINE, UNEXPECTED, verdict
from tests.configurations.recurrent import RECURRENT
from tests.thorough import marks_unless

OFTEN = {*RECURRENT, *sorted(ATTENTION)[::4]}


@pytest.mark.parametrize(
    "family", [pytest.param(family, marks=marks_unless(family in OFTEN)) for family in FAMILIES]
)
def test_a_configuration_of_a_family_writes_what_generate_writes(family):
    quiet()
    found = verdict(Case.of(sorted(FAMILIES).index(family), families=(family,)))
    assert found.kind in FINE, f"{found.kind}: {found.detail}\n{found.case}"


def test_rounding_that_one_row_alone_shows_is_no_reason_to_refuse():
    """Four hidden numbers nearly cancel at one token of the first row, so that rounding there grows."""
    quiet()
    assert verdict(Case.of(50, seed=11)).kind == EQUAL


def test_a_prompt_that_is_forgotten_sooner_is_seen(monkeypatch):
    quiet()
    case = Case.of(0, families=("mamba2",))
    assert verdict(case).kind == EQUAL
    read = prompt.read
    monkeypatch.setattr(prompt, "read", lambda *, decay, **others: read(decay=decay * 1.1, **others))
    assert verdict(case).kind == UNEXPECTED
