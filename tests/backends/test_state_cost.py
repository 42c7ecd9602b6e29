"""Methods for recurrent states other than replay: law S by recomputing, their memory, and the choice."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import transformers as hf

from draftwood import zoo
from draftwood.backends.kinds.recompute import RecomputingBackend
from draftwood.backends.kinds.state_cost import (
    METHODS,
    StateCost,
    allocations,
    backend_for,
    cheapest,
    measured,
)
from draftwood.base.errors import InvalidInput, InvalidTree, OutOfMemory, UnsupportedModel
from draftwood.protocols import StateBackend
from draftwood.testing.backends import Mirror, StateBackendTests
from tests.backends.attention_models import plain
from tests.backends.recurrent_models import SMALL, VOCAB, Stepwise, build
from tests.backends.test_capabilities import check_features, passing_through, rounds
from tests.thorough import some_of

KINDS = ["mamba2", "mamba", "bamba", "qwen3_5", "lfm2", "recurrent_gemma"]


@cache
def oracle(name: str) -> Stepwise:
    return Stepwise(build(name))


# Mamba-2 is there beside attention, as bamba.
@pytest.mark.parametrize("name", some_of(KINDS, ["mamba", "bamba", "qwen3_5", "lfm2"]))
class TestRecomputing(StateBackendTests):
    vocab_size = VOCAB
    examples, longest = 3, 50

    @pytest.fixture(autouse=True)
    def _model(self, name: str) -> None:
        self.backend, self.logits_after = backend_for(build(name), "recompute"), oracle(name)  # type: ignore[method-assign]

    def make_backend(self) -> StateBackend:
        self.backend.release()
        return self.backend


@pytest.mark.parametrize("name", ["mamba2", "bamba"])
def test_nothing_is_kept_of_a_node(name: str) -> None:
    backend: Any = backend_for(build(name), "recompute")
    backend.prefill([torch.arange(5)])
    backend.extend(torch.tensor([[1, 2]]), torch.tensor([[-1, 0]]))
    inner = backend.backend
    assert not any(layer.nodes or layer._staged for layer in inner._states.layers)
    assert inner._region.columns == 0


@pytest.mark.parametrize("name", ["mamba2", "bamba"])
def test_features_and_layers_left_out(name: str) -> None:
    backend = backend_for(build(name), "recompute")
    check_features(backend, build(name), seed=4)
    smaller, left_out = (
        backend_for(build(name), "recompute").without_layers([0]),
        passing_through(build(name), [0]),
    )
    assert isinstance(smaller, RecomputingBackend)
    rounds(Mirror(smaller, lambda tokens: plain(left_out, tokens)), seed=1)


@pytest.mark.parametrize("name", ["mamba2", "bamba"])
def test_a_failing_commit_leaves_the_state(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = backend_for(build(name), "recompute")
    mirror = Mirror(backend, oracle(name))
    mirror.prefill([[1, 2, 3], [4]])
    mirror.extend([[(1, -1), (2, 0), (3, 0)], [(5, -1)]])
    last = backend.backend._states.layers[-1]

    def fails(*_: Any) -> None:
        raise RuntimeError("a bug")

    # Layers of a kind are replayed together.
    for broken, name in ((last, "attend"), (type(last), "replay_all")):
        with monkeypatch.context() as patch:
            patch.setattr(broken, name, fails)
            with pytest.raises(RuntimeError, match="a bug"):
                backend.commit([[0, 2], []])
    with pytest.raises(InvalidTree, match="follows parent to child"):
        backend.commit([[0, 1, 2], []])
    mirror.extend([[(4, 2)], [(6, 0), (7, 0)]])
    mirror.commit([[0, 2, 3], [0, 2]])
    mirror.check_state()


def test_what_the_ways_take_on_a_real_model() -> None:
    model = zoo.load("mamba2-5m")
    costs = {cost.method: cost for cost in measured(model, nodes=32, repetitions=1)}
    assert list(costs) == list(METHODS)
    least = cheapest(list(costs.values()), memory=costs["recompute"].memory)
    assert isinstance(backend_for(model, least.method), RecomputingBackend)
    assert costs["recompute"].memory < costs["replay"].memory < costs["snapshots"].memory / 5
    assert all(cost.seconds > 0 for cost in costs.values())


def test_the_fastest_way_that_fits_is_chosen() -> None:
    costs = [StateCost("replay", 50, 2.0), StateCost("snapshots", 900, 1.0), StateCost("recompute", 9, 3.0)]
    chosen = {memory: cheapest(costs, memory=memory).method for memory in (None, 900, 899, 50, 49, 9)}
    assert chosen == {
        None: "snapshots",
        900: "snapshots",
        899: "replay",
        50: "replay",
        49: "recompute",
        9: "recompute",
    }
    with pytest.raises(OutOfMemory, match="takes 8 bytes or less; recompute takes 9"):
        cheapest(costs, memory=8)


def test_peaks_are_told_from_what_stays() -> None:
    kept: list[torch.Tensor] = []

    def call() -> None:
        kept.append(torch.zeros(1000).add(1))

    left, most = allocations(call)
    assert left == 4000
    assert 8000 <= most < 9000


def test_bad_input() -> None:
    model = build("mamba2")
    with pytest.raises(InvalidInput, match="no method 'rewind' for recurrent states; give one of replay"):
        backend_for(model, "rewind")
    with pytest.raises(InvalidInput, match="path of 9 nodes is not in a tree of 8"):
        measured(model, nodes=8, depth=9)
    with pytest.raises(UnsupportedModel, match="LlamaForCausalLM keeps recurrent states in layers that are"):
        backend_for(hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL)).eval(), "replay")
