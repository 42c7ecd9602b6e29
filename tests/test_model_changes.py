"""A model changes between calls: a used decoder gives what a fresh one gives, or refuses (law R)."""

import pytest

from tests.model_changes.__main__ import search
from tests.model_changes.machine import Changing, ChangingCaptured


@pytest.mark.parametrize(
    ("machine", "sequences"),
    [
        (Changing, 10),
        pytest.param(Changing, 100, marks=pytest.mark.thorough),
        pytest.param(ChangingCaptured, 10, marks=pytest.mark.thorough),  # every change is traced anew
    ],
)
def test_a_used_decoder_gives_what_a_fresh_one_gives(machine, sequences):
    search(machine, sequences, seeded=True)
