"""Passes of recurrent and hybrid models that OpenVINO runs. `make test-openvino` runs these."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch

pytest.importorskip("openvino", reason="the extra `openvino` brings it")

from draftwood import load
from draftwood.backends.openvino.runner import OpenVinoRunner
from draftwood.backends.recurrent.conv import ConvState
from draftwood.base.errors import UnsupportedModel
from draftwood.testing.backends import StateBackendTests
from tests.backends.attention_models import words
from tests.backends.recurrent_models import RECURRENT, VOCAB, Stepwise, build
from tests.backends.test_openvino import by_generate, decoder, written
from tests.thorough import some_of

pytestmark = pytest.mark.openvino

REFUSED = ("mamba", "falcon_mamba", "zamba", "jamba")
"""Families with Mamba-1 layers."""

FAMILIES = [name for name in RECURRENT if name not in REFUSED]

KINDS = ["lfm2", "mamba2", "qwen3_next", "recurrent_gemma", "kimi_linear"]
"""Short convolution, Mamba-2 without attention, gated delta rule, RG-LRU, KDA."""


@cache
def model_of(name: str) -> Any:
    return build(name, experts=None)


@cache
def served(name: str) -> Any:
    """A backend, which is converted once; every example of law S begins without rows."""
    return type(load(model_of(name)))(model_of(name), chunk=16, runner=OpenVinoRunner)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", some_of(FAMILIES, KINDS))
class TestLawS(StateBackendTests):
    vocab_size, examples, tolerance, longest = VOCAB, 6, 2e-4, 60

    @pytest.fixture(autouse=True)
    def _model(self, name: str) -> None:
        self.name = name
        self.logits_after = Stepwise(model_of(name))  # type: ignore[method-assign]

    def make_backend(self) -> Any:
        backend = served(self.name)
        backend.release()
        return backend


@pytest.mark.parametrize("name", some_of(FAMILIES, ["lfm2", "qwen3_5"]))
def test_texts_are_those_of_generate(name: str) -> None:
    model = model_of(name)
    one = decoder(load(model, engine="openvino"), load(model, engine="openvino"))
    prompts = [words(length) for length in (30, 3, 11)]
    assert written(one, prompts) == by_generate(copy.deepcopy(model), prompts)


@pytest.mark.parametrize("name", ["lfm2", "mamba2"])
def test_trees_run_over_openvino_and_what_is_long_or_deep_by_torch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends: list[Any] = [served(name), load(model_of(name))]
    served(name).release()
    seen, attend = list[int](), ConvState.attend

    def watched(self: Any, state: Any, old: Any, new: Any, now: Any) -> Any:
        seen.append(new[0].shape[1])
        return attend(self, state, old, new, now)

    for backend in backends:
        backend.prefill([torch.tensor(words(12)), torch.tensor(words(5))])
        backend.extend(torch.tensor([[1]] * 2), torch.tensor([[-1]] * 2), keep=False)  # it may be converted
    monkeypatch.setattr(ConvState, "attend", watched)
    for nodes in (7, 31, 32, 66):
        chain = torch.tensor([words(nodes)] * 2), torch.arange(-1, nodes - 1).expand(2, -1)
        flat = chain[0], torch.full_like(chain[1], -1)
        for tokens, parents in (chain, flat):
            logits = []
            for backend in backends:
                seen.clear()
                logits.append(backend.extend(tokens, parents))
                is_deep = parents is chain[1] and nodes > 31
                by_torch = backend is backends[1] or is_deep or nodes > 65
                assert bool(seen) == by_torch, nodes
                backend.commit([[0], [0]])
            assert torch.allclose(logits[0], logits[1], rtol=1e-3, atol=1e-4)


def test_a_column_that_was_older_is_not_seen_by_the_next_tree() -> None:
    # Both passes over one node have a request of one shape, with an older column or without.
    backends: list[Any] = [served("lfm2"), load(model_of("lfm2"))]
    served("lfm2").release()
    one, root, below = torch.tensor([[7]]), torch.tensor([[-1]]), torch.tensor([[0]])
    logits = []
    for backend in backends:
        backend.prefill([torch.tensor(words(12))])
        for _ in range(2):
            logits += [backend.extend(one, root), backend.extend(one + 1, below)]
            backend.commit([[0, 1]])
        logits += [backend.extend(one, root, keep=False), backend.extend(one + 2, root)]
    half = len(logits) // 2
    assert torch.allclose(torch.cat(logits[:half]), torch.cat(logits[half:]), rtol=1e-3, atol=1e-4)


def test_features_are_those_of_passes_as_they_are() -> None:
    taken = []
    for backend in (load(model_of("lfm2"), engine="openvino"), load(model_of("lfm2"))):
        backend.keep_features([1, 2])
        backend.prefill([torch.tensor(words(12)), torch.tensor(words(5))])
        for _ in range(2):
            backend.extend(torch.tensor([[1, 2, 3]] * 2), torch.tensor([[-1, 0, 0]] * 2))
            backend.commit([[0, 2], [0]])
        taken.append(backend.take_features())
    for ours, theirs in zip(*taken, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_other_layers_are_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UnsupportedModel,
        match=r"has recurrent layers \(.*mixer, Mamba1State\) that torch runs faster, so OpenVINO",
    ):
        load(model_of("mamba"), engine="openvino")
    monkeypatch.setattr(ConvState, "traceable", False)
    with pytest.raises(UnsupportedModel, match="ConvState.* whose passes go from level to level of a tree"):
        load(model_of("lfm2"), engine="openvino")
    with pytest.raises(UnsupportedModel, match="read prompts by torch, without weights='int8'"):
        load(model_of("lfm2"), engine="openvino", weights="int8")
