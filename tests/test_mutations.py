"""The harness catches every mistake of the suite, and only the mistakes."""

import io

import attrs
import pytest
from rich.console import Console

from draftwood.testing import assert_proposal_law
from tests.mutations import MUTATIONS
from tests.mutations.__main__ import report
from tests.mutations.case import BETRAYED, CLEAN
from tests.thorough import every

BY_NAME = {one.name: one for one in MUTATIONS}


@pytest.mark.parametrize("name", every(6, BY_NAME))
def test_the_mistake_is_caught_and_the_case_is_exact_without_it(name):
    mutation = BY_NAME[name]
    assert mutation.betrayal().error >= BETRAYED
    assert mutation.clean <= CLEAN


def test_names_are_distinct():
    assert len(BY_NAME) == len(MUTATIONS)


@pytest.mark.parametrize("name", [one.name for one in MUTATIONS if one.breaks_law_p])
def test_the_proof_of_law_p_names_a_policy_that_breaks_it(name):
    def prove(case):
        assert_proposal_law(case.policy, case.drafter, prompt=case.prompt, temperature=case.temperature)

    prove(BY_NAME[name].twin)
    with pytest.raises(AssertionError, match=r"(?s)^Changed\(.* breaks law P after .* declares"):
        prove(BY_NAME[name].case)


def test_the_other_mistakes_leave_the_policy_as_it_is():
    others = [one for one in MUTATIONS if not one.breaks_law_p]
    assert others
    assert all(one.case.policy is one.twin.policy for one in others)


@pytest.mark.parametrize(
    "name",
    ["the coin's test is coin <= p, and the coin may be 0", "an inverse CDF whose test is not strict"],
)
def test_a_draw_at_zero_emits_a_token_that_the_target_forbids(name, monkeypatch):
    mutation = BY_NAME[name]
    if mutation.patch:
        monkeypatch.setattr(*mutation.patch)
    expected = mutation.twin.expected()
    assert any(chance > 0 and expected.get(text, 0) == 0 for text, chance in mutation.case.actual().items())


def test_the_report_counts_a_mistake_that_is_none():
    harmless = attrs.evolve(MUTATIONS[0], name="nothing is wrong", changes={})
    shown = io.StringIO()
    console = Console(file=shown, width=200)
    assert report([MUTATIONS[0], harmless], console) == 1
    printed = shown.getvalue()
    assert "caught" in printed
    assert "survives" in printed
    assert "1 of 2 mistakes were caught." in printed
