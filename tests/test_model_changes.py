"""A model changes between calls: a used decoder gives what a fresh one gives, or refuses (law R)."""

import pytest

from tests.model_changes.__main__ import search
from tests.model_changes.machine import Changing, ChangingCaptured


@pytest.mark.parametrize("machine", [Changing, ChangingCaptured])
def test_a_used_decoder_gives_what_a_fresh_one_gives(machine):
    search(machine, 12 if machine is Changing else 2, seeded=True)
