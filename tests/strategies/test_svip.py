"""`SVIP`: chains that end where the draft's entropy is high, and their law."""

import math

import pytest
import torch

from draftwood import CounterRandomness, InvalidInput
from draftwood.drafters import ModelDrafter
from draftwood.policies import SVIP
from draftwood.testing import ToyBackend, ToyModel, assert_lossless
from draftwood.trees.growth import by_distributions
from draftwood.verifiers import Block, RecursiveRejection

SURE, UNSURE = torch.tensor([[0.98, 0.01, 0.01]]), torch.tensor([[0.4, 0.3, 0.3]])


def length(policy, answers):
    """Drafted tokens where the draft answers with these distributions, and how many of them were asked."""
    rng = CounterRandomness.seeded(0)
    growing = by_distributions(policy.grow(0, rng), rng)
    next(growing)
    for asked, answer in enumerate(answers, start=1):
        try:
            growing.send(answer)
        except StopIteration as finished:
            return len(finished.value) - 1, asked
    raise AssertionError("it asked for more")


def test_a_chain_ends_before_a_token_of_high_entropy():
    assert length(SVIP(5, 0.6), [SURE, SURE, UNSURE]) == (2, 3)
    assert length(SVIP(5, 0.6), [UNSURE, SURE, UNSURE]) == (2, 3)  # a first token is always drafted
    assert length(SVIP(3, 0.6), [SURE] * 3) == (3, 3)
    assert length(SVIP(3, 2.0), [UNSURE] * 3) == (3, 3)
    assert length(SVIP(3, 0.6, "top-k"), [SURE, torch.zeros(1, 3)]) == (1, 2)  # nothing to propose


def test_the_stop_above_is_of_the_root_of_the_entropy_in_nats():
    root = math.sqrt(-sum(p * math.log(p) for p in UNSURE[0].tolist()))
    assert length(SVIP(2, root + 1e-6), [SURE, UNSURE])[0] == 2
    assert length(SVIP(2, root - 1e-6), [SURE, UNSURE])[0] == 1


@pytest.mark.parametrize(
    ("verifier", "law"),
    [
        (RecursiveRejection(), "without-replacement"),
        (RecursiveRejection(), "top-k"),
        (Block(), "without-replacement"),
    ],
)
def test_it_keeps_the_targets_law(verifier, law):
    target, draft = ToyModel(3, seed=1, sharpness=2.0), ToyModel(3, seed=2, sharpness=2.0)
    drafter = ModelDrafter(ToyBackend(draft))
    assert_lossless(SVIP(3, 0.8, law), verifier, target=target, drafter=drafter, prompt=(0,), tokens=3)


@pytest.mark.parametrize("stop_above", [-0.1, math.nan, math.inf])
def test_a_stop_above_that_is_none_is_refused(stop_above):
    with pytest.raises(InvalidInput, match="stop_above is .*; give a number of at least 0"):
        SVIP(stop_above=stop_above)
