"""Recurrent layers of other packages: found by entry point, by what they come from, or refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood.backends.kinds.ssm import HybridBackend, SSMBackend
from draftwood.backends.loading.loader import load
from draftwood.backends.recurrent.mamba2 import Mamba2Mixer
from draftwood.backends.recurrent.mixer_registry import mixer_for
from draftwood.backends.recurrent.snapshots import Snapshots
from draftwood.base.errors import InvalidInput, UnsupportedModel
from draftwood.protocols import registry
from draftwood.testing import check_strategy
from tests.backends.recurrent_models import build

ELSEWHERE = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from draftwood.backends.recurrent import LRUState, Mixer, Recurrence, precise


class MovingAverage(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inputs, self.outputs = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
        self.rate = torch.nn.Parameter(torch.linspace(-1, 2, width))

    def forward(self, hidden_states, **_):
        keep, states, state = self.rate.sigmoid(), [], torch.zeros_like(hidden_states[:, 0])
        for inputs in self.inputs(hidden_states).unbind(1):
            state = keep * state + (1 - keep) * inputs
            states.append(state)
        return self.outputs(torch.stack(states, 1)), None


class Closed(MovingAverage):
    'Served by another mixer.'


class Inherits(MovingAverage):
    def __init__(self, width):
        super().__init__(width)

    def extra_repr(self):
        return 'the same'

    def unasked(self):
        return 1


class Louder(MovingAverage):
    def forward(self, hidden_states, **_):
        out, nothing = super().forward(hidden_states)
        return 2 * out, nothing


class OfTwo(Louder):
    'Nothing of its own, but of Louder.'


class Mean(MovingAverage):
    'The mean of all inputs and of one zero.'

    def forward(self, hidden_states, **_):
        counts = torch.arange(2, hidden_states.shape[1] + 2).unsqueeze(1)
        return self.outputs(self.inputs(hidden_states).cumsum(1) / counts), None


class SumAndCount(Recurrence):
    def blank(self, new):
        return torch.zeros_like(new[0][:, 0]), torch.ones_like(new[0][:, 0, 0])

    def step(self, state, inputs):
        total, count = state
        total, count = total + inputs, count + 1
        return (total, count), total / count.unsqueeze(1)


class MeanMixer(Mixer):
    def __init__(self, original, states):
        super().__init__(original, states)
        self.mean = self.keeps(SumAndCount())

    def forward(self, hidden_states, **_):
        out = self.run(self.mean, precise(self.original.inputs(hidden_states)))
        return self.original.outputs(out.to(hidden_states.dtype)), None


class NoMixer(torch.nn.Module):
    'Registered with something that is none.'


class Average(Recurrence):
    def __init__(self, original):
        super().__init__()
        self.original = original

    def blank(self, new):
        return torch.zeros_like(new[0][:, 0])

    def step(self, state, inputs):
        keep = self.original.rate.sigmoid()
        state = keep * state + (1 - keep) * inputs
        return state, state


class AverageMixer(Mixer):
    def __init__(self, original, states):
        super().__init__(original, states)
        self.average = self.keeps(Average(original))

    def forward(self, hidden_states, **_):
        out = self.run(self.average, precise(self.original.inputs(hidden_states)))
        return self.original.outputs(out.to(hidden_states.dtype)), None


class ClosedMixer(Mixer):
    def __init__(self, original, states):
        super().__init__(original, states)
        self.average = self.keeps(LRUState())

    def forward(self, hidden_states, **_):
        inputs, keep = precise(self.original.inputs(hidden_states)), precise(self.original.rate).sigmoid()
        out = self.run(self.average, (1 - keep) * inputs, keep.log().expand_as(inputs))
        return self.original.outputs(out.to(hidden_states.dtype)), None


def model(kind, layers=2):
    torch.manual_seed(0)
    types = ['linear_attention' if layer % 2 == 0 else 'full_attention' for layer in range(layers)]
    sizes = {'hidden_size': 32, 'intermediate_size': 48, 'num_hidden_layers': layers}
    config = LlamaConfig(vocab_size=61, num_attention_heads=4, layer_types=types, **sizes)
    model = LlamaForCausalLM(config)
    for layer in model.model.layers[::2]:
        layer.self_attn = kind(32)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.25)
    return model.eval()
"""
ENTRIES = """[draftwood.mixers]
MovingAverage = elsewhere:AverageMixer
elsewhere.Closed = elsewhere:ClosedMixer
elsewhere.Mean = elsewhere:MeanMixer
NoMixer = elsewhere:model
"""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A package of somebody else's, installed."""
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE)
    info = tmp_path / "elsewhere-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(tmp_path)
    registry._entries.cache_clear()
    yield import_module("elsewhere")
    registry._entries.cache_clear()
    del sys.modules["elsewhere"]


def test_a_layer_of_another_package_keeps_law_s(elsewhere: Any) -> None:
    backend: Any = load(elsewhere.model(elsewhere.MovingAverage, layers=3))
    assert type(backend) is HybridBackend
    states: Any = backend._states
    assert [type(layer) for layer in states.layers] == [elsewhere.Average] * 2
    check_strategy(backend)


def test_a_state_may_be_several_tensors_and_begin_with_other_numbers_than_zero(elsewhere: Any) -> None:
    """Also for rows without text that join others."""
    backend: Any = load(elsewhere.model(elsewhere.Mean, layers=3))
    assert type(backend) is HybridBackend
    check_strategy(backend)
    by_snapshots: Any = HybridBackend(elsewhere.model(elsewhere.Mean), snapshots=True)
    check_strategy(by_snapshots)


def test_tensors_of_a_state_have_one_dtype(elsewhere: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def several(self: Any, new: Any) -> Any:
        return torch.zeros_like(new[0][:, 0]), torch.ones(len(new[0]), dtype=torch.float64)

    monkeypatch.setattr(elsewhere.SumAndCount, "blank", several)
    with pytest.raises(UnsupportedModel, match=r"has tensors in torch.float32, torch.float64; give them one"):
        load(elsewhere.model(elsewhere.Mean))


def test_a_closed_form_is_registered_by_the_qualified_name(elsewhere: Any) -> None:
    backend: Any = load(elsewhere.model(elsewhere.Closed))
    assert type(backend._module.model.layers[0].self_attn) is elsewhere.ClosedMixer
    check_strategy(backend)


def test_both_give_the_same_in_half_precision_too(elsewhere: Any) -> None:
    plain, closed = elsewhere.model(elsewhere.MovingAverage), elsewhere.model(elsewhere.Closed)
    logits = []
    for model in (plain, closed):
        backend = load(model.to(torch.bfloat16))
        backend.prefill([torch.arange(150) % 61, torch.arange(3)])
        backend.extend(torch.tensor([[1, 2, 3]] * 2), torch.tensor([[-1, 0, 0]] * 2))
        backend.commit([[0, 2], [0, 1]])
        logits.append(backend.extend(torch.tensor([[4], [5]]), torch.tensor([[-1], [-1]])))
    one, other = logits
    assert torch.allclose(one, other, atol=0.1)


def test_snapshots_of_a_layer_of_another_package(elsewhere: Any) -> None:
    model = elsewhere.model(elsewhere.Closed)
    backend: Any = HybridBackend(model, snapshots=True)
    assert {type(layer) for layer in backend._states.layers} == {Snapshots}
    check_strategy(backend)


def test_a_subclass_is_served_as_what_it_comes_from(elsewhere: Any) -> None:
    backend: Any = load(elsewhere.model(elsewhere.Inherits))
    assert type(backend._module.model.layers[0].self_attn) is elsewhere.AverageMixer
    ours = build("mamba2")
    theirs = type(ours.backbone.layers[0].mixer)
    fresh = type("FreshMixer", (theirs,), {"__init__": lambda self: None, "more": lambda self: 1})
    assert mixer_for(fresh) is Mamba2Mixer
    ours.backbone.layers[0].mixer.__class__ = fresh
    assert isinstance(load(ours), SSMBackend)


@pytest.mark.parametrize("name", ["Louder", "OfTwo"])
def test_a_subclass_that_may_compute_something_else_is_refused(name: str, elsewhere: Any) -> None:
    model = elsewhere.model(getattr(elsewhere, name))
    with pytest.raises(UnsupportedModel, match=f"{name} is a MovingAverage with its own forward, so it"):
        load(model)


def test_methods_of_ours_that_a_subclass_replaces_are_named() -> None:
    theirs = type(build("qwen3_next").model.layers[0].linear_attn)
    order = "fix_query_key_value_ordering"
    for names in (["forward"], [order], [order, "forward"], ["__call__"]):
        fresh = type("FreshNet", (theirs,), dict.fromkeys(names, lambda self: None))
        with pytest.raises(UnsupportedModel, match=f"DeltaNet with its own {', '.join(names)}, so"):
            mixer_for(fresh)


def test_a_mixer_that_is_wrong_is_found_out(elsewhere: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def unweighed(self: Any, state: Any, inputs: Any) -> Any:
        state = self.original.rate.sigmoid() * state + inputs
        return state, state

    monkeypatch.setattr(elsewhere.Average, "step", unweighed)
    with pytest.raises(UnsupportedModel, match=r"mixers of .* do not compute what its recurrent layers do"):
        load(elsewhere.model(elsewhere.MovingAverage))


def test_an_error_of_a_pass_is_not_taken_for_a_wrong_mixer(
    elsewhere: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(self: Any, state: Any, inputs: Any) -> Any:
        raise ValueError("needs its own cache")

    monkeypatch.setattr(elsewhere.Average, "step", raises)
    with pytest.raises(UnsupportedModel, match=r"\(ValueError: needs its own cache\), so nothing was"):
        load(elsewhere.model(elsewhere.MovingAverage))


def test_an_entry_that_is_no_mixer(elsewhere: Any) -> None:
    with pytest.raises(InvalidInput, match=r"entry point 'NoMixer' of draftwood\.mixers leads to <function"):
        mixer_for(elsewhere.NoMixer)
    assert mixer_for(torch.nn.Linear) is None


def test_ours_go_through_the_same_door() -> None:
    names = registry.names("mixers")
    assert {"Mamba2Mixer", "Qwen3_5MoeGatedDeltaNet", "ZambaMambaMixer"} <= set(names)
    assert all(isinstance(registry.get("mixers", name), type) for name in names)
