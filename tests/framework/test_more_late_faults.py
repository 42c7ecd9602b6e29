"""Faults that show at default settings only are told, each by the check that is made for its kind."""

from __future__ import annotations

import pytest

from draftwood.testing import LawBroken, checks_for
from draftwood.testing.proofs.decoded_laws import assert_decoded_laws
from tests.framework.more_late_faults import WRONG, SharedDraws
from tests.framework.odd_strategies import RIGHT
from tests.thorough import some_of

BY_PROOF = {
    "SharedDraws": "rows-at-once",
    "SharedCoins": "together",
    "ResidualOfTheBest": "wide-WithReplacement",
    "SmallRatios": "wide-WithReplacement",
    "EqualModels": "lossless-WithReplacement",
    "LongPathsCut": "deep-WithReplacement",
}
"""Checks that tell what samples do not: rows that are not independent, and small biases."""


@pytest.mark.parametrize(
    "name",
    some_of(
        [name for name in WRONG if name not in BY_PROOF],
        {"ATokenLeftOut", "TiesToTheFirst", "SameTokenThrice", "RowsOfSixteen"},
    ),
)
def test_a_fault_of_larger_settings_is_told(name: str) -> None:
    with pytest.raises(LawBroken, match="breaks law"):
        assert_decoded_laws(*WRONG[name])


@pytest.mark.parametrize("name", BY_PROOF)
def test_a_fault_that_samples_do_not_show_is_told_by_a_proof(name: str) -> None:
    strategy = SharedDraws(2) if name == "SharedDraws" else WRONG[name][1]
    with pytest.raises(LawBroken):
        dict(checks_for(strategy))[BY_PROOF[name]]()


@pytest.mark.parametrize("name", some_of(RIGHT, {"EndsBeforeTheDraw", "NotTheBonus"}))
def test_what_is_right_and_odd_passes(name: str) -> None:
    assert "biases of" in assert_decoded_laws(*RIGHT[name])
