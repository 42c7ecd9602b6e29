"""A short run of every part of the soak; `make soak` runs them at length."""

import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

from tests.soak.ends import ends
from tests.soak.faults import faults
from tests.soak.hostile import hostile
from tests.soak.kills import BENCH
from tests.soak.long_text import long_text
from tests.soak.shared_faults import SUBJECTS, shared_faults
from tests.soak.texts import TEXTS

pytestmark = pytest.mark.linux

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def quiet():
    transformers.utils.logging.set_verbosity_error()


def survived(result):
    assert result.done
    assert not result.failures, str(result)


@pytest.mark.thorough
def test_faults_in_calls_of_all_kinds():
    result = faults(60, per_subject=4)
    survived(result)
    parts = {kind.split()[1].split(".")[0] for kind in result.attempts}
    assert {"target", "draft", "drafter", "policy", "verifier", "of"} <= parts


def test_faults_in_a_shared_decoder():
    survived(shared_faults(30, subjects=SUBJECTS[:3]))


@pytest.mark.thorough  # Ctrl-C in each command has a test of its own
def test_ctrl_c_at_random_moments():
    # In a process of its own, as users have it: Hypothesis listens to garbage collections here, and swallows
    # what is raised in them.
    words = ["-m", "tests.soak", "interrupts", "--interrupts", "25", "--commands", "1"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "25 of 25" in done.stdout


@pytest.mark.parametrize(
    ("name", "tokens"),
    [pytest.param("mamba2-5m", 150, marks=pytest.mark.thorough), ("tiny Transformer", 300)],
)
def test_a_text_keeps_no_more_than_what_happened_in_its_rounds(name, tokens):
    survived(long_text(name, tokens, timed=False))


@pytest.mark.thorough
@pytest.mark.parametrize("subject", [TEXTS, BENCH], ids=lambda subject: subject.name)
def test_what_ends_early_loses_nothing(subject):
    survived(ends(subject, 4, most=2, context=multiprocessing.get_context("fork")))


@pytest.mark.thorough
def test_hostile_files():
    survived(hostile(66))
