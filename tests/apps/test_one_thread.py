"""Proofs compute with one thread of torch, and leave the number of threads as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from draftwood.base.one_thread import one_thread
from draftwood.testing import prove_sampler
from tests.framework import foreign_samplers as foreign


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_the_number_of_threads_comes_back_also_after_an_error() -> None:
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3
    with pytest.raises(ValueError, match="mine"), one_thread():
        raise ValueError("mine")
    assert torch.get_num_threads() == 3


def test_a_sampler_is_proved_with_one_thread() -> None:
    seen = set()

    def sampler(case):  # type: ignore[no-untyped-def]
        seen.add(torch.get_num_threads())
        return foreign.chain(case)

    prove_sampler(sampler, parents=(0,), uniforms=2)
    assert seen == {1}
    assert torch.get_num_threads() == 3


THREADS = """
import torch
from draftwood.policies import Chain

class Threads(Chain):
    def grow(self, root, rng):
        assert torch.get_num_threads() == 1
        return super().grow(root, rng)
"""


def test_a_policy_is_checked_with_one_thread(draftwood, own_module):
    own_module(THREADS)
    result = draftwood("check", "mine:Threads", "--models", 2)
    assert "checks passed" in result.output
    assert torch.get_num_threads() == 3


WALKS = """
import torch
from draftwood.verifiers import RecursiveRejection

class Walks(RecursiveRejection):
    def verify(self, tree, target_probs, rng):
        assert torch.get_num_threads() == 1
        return super().verify(tree, target_probs, rng)
"""


def test_verifiers_are_proved_in_this_process_with_one_thread(draftwood, own_module):
    own_module(WALKS)
    result = draftwood("prove", "--policy", "chain", "--verifier", "mine:Walks", "--models", 1)
    assert result.exit_code == 0, result.output
    assert "5 ok, 1 refused" in result.output
    assert torch.get_num_threads() == 3
