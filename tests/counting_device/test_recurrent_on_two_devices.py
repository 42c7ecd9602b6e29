"""Recurrent layers on two devices of one process, as accelerate places them: the CPU and the stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import accelerate
import pytest
import torch
from torch import Tensor

from draftwood import SamplingParams, SpeculativeDecoder, StateBackend, load
from draftwood.backends.kinds.ssm import HybridBackend, SSMBackend
from draftwood.backends.structure.layers import decoder_layers, layer_list
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.testing.backends import StateBackendTests
from tests.backends.recurrent_models import PURES, RECURRENT, VOCAB, Stepwise, build
from tests.counting_device.counts import Counts
from tests.counting_device.device import CountingDevice, counting_device
from tests.counting_device.models import to_device
from tests.thorough import marks_unless

FIRST, SECOND = 0, 1
OFTEN = [("mamba", FIRST), ("mamba2", SECOND), ("falcon_h1", FIRST)]


def placed(name: str, there: int) -> Any:
    """A model, every second layer of which is on the stand-in: from number `there` on."""
    model = build(name)
    layers, embedding = decoder_layers(model), model.get_input_embeddings()
    for layer in layers[there::2]:
        to_device(layer)
    if there == FIRST:
        to_device(embedding)
    outer = layer_list(model)
    assert outer is not None
    places: dict[str, str] = {}

    def place(module: torch.nn.Module, prefix: str) -> None:
        for child_name, child in module.named_children():
            full = prefix + child_name
            if full == outer:
                for number in range(len(layers)):
                    places[f"{full}.{number}"] = "cuda:0" if number % 2 == there else "cpu"
            elif outer.startswith(f"{full}."):
                place(child, f"{full}.")
            else:
                places[full] = "cuda:0" if child is embedding and there == FIRST else "cpu"

    place(model, "")
    return accelerate.dispatch_model(model, places, main_device="cpu")


def kind_of(name: str) -> type[SSMBackend] | type[HybridBackend]:
    return SSMBackend if name in PURES else HybridBackend


def texts(target: StateBackend, draft: StateBackend) -> list[list[list[int]]]:
    """Returns the texts of a pair after two prompts, greedily and at 0.8."""
    written = []
    for verifier, temperature in ((Greedy(), 0.0), (RecursiveRejection(), 0.8)):
        policy = LayeredDySpec(6, law="top-k") if temperature == 0 else LayeredDySpec(6)
        decoder = SpeculativeDecoder(target, ModelDrafter(draft), policy, verifier)
        found: Any = decoder.generate(
            [[1, 2, 3, 4, 5], [6, 7]],
            max_new_tokens=8,
            sampling=SamplingParams(temperature=temperature),
            seed=3,
            eos_token_id=(),
            return_dict_in_generate=True,
        )
        written.append(found.tokens)
    return written


@pytest.mark.parametrize(
    ("name", "there"),
    [
        pytest.param(name, there, marks=marks_unless((name, there) in OFTEN))
        for name in RECURRENT
        for there in (FIRST, SECOND)
    ],
)
def test_texts_are_those_of_one_device(device: CountingDevice, name: str, there: int) -> None:
    wanted = texts(load(build(name)), load(build(name)))
    target, draft = load(placed(name, there)), load(placed(name, SECOND))
    assert type(target) is type(draft) is kind_of(name)
    assert target.device.type == ("cuda" if there == FIRST else "cpu")
    assert texts(target, draft) == wanted


@pytest.mark.parametrize("name", ["mamba", "mamba2", "zamba"])
def test_a_state_lies_with_its_layer(device: CountingDevice, name: str) -> None:
    backend: Any = kind_of(name)(placed(name, SECOND))
    backend.prefill([torch.tensor([1, 2, 3])])
    backend.extend(torch.tensor([[4, 5]]), torch.tensor([[-1, 0]]))
    devices = {state.name: state.committed.device.type for state in backend._states.layers}
    assert set(devices.values()) == {"cpu", "cuda"}
    for state in backend._states.layers:
        assert {vector.device for vector in state.nodes} == {state.committed.device}


def test_who_sees_whom_is_sent_once_a_pass(device: CountingDevice) -> None:
    backend: Any = HybridBackend(placed("zamba", SECOND))
    backend.prefill([torch.tensor([1, 2, 3])])
    device.counts = Counts()
    backend.extend(torch.tensor([[4, 5]]), torch.tensor([[-1, 0]]))
    there = [state for state in backend._states.layers if state.committed.device.type == "cuda"]
    assert len(there) == 4  # of two layers, convolution and scan
    sent = [
        times
        for event, times in device.counts.events.items()
        if event.operation == "to the device" and event.line.startswith("backends/recurrent/passes.py")
    ]
    assert sum(sent) == 2  # `visible` and `prompts`


def test_features_and_fewer_layers(device: CountingDevice) -> None:
    def found(backend: Any) -> list[Tensor]:
        backend.keep_features([0, 1])
        logits = [backend.first_logits([torch.tensor([1, 2, 3])])]
        features = backend.take_features()
        smaller = backend.without_layers([0])
        smaller.prefill([torch.tensor([1, 2, 3])])
        logits.append(smaller.extend(torch.tensor([[4, 5]]), torch.tensor([[-1, 0]])))
        return [one.cpu() for one in (*logits, *features)]

    wanted = found(SSMBackend(build("mamba")))
    for there in (FIRST, SECOND):
        for one, other in zip(found(SSMBackend(placed("mamba", there))), wanted, strict=True):
            torch.testing.assert_close(one, other)


@cache
def backend_and_oracle(name: str) -> tuple[StateBackend, Any]:
    return kind_of(name)(placed(name, SECOND)), Stepwise(build(name))


@pytest.mark.thorough
@pytest.mark.parametrize("name", RECURRENT)
class TestLawS(StateBackendTests):
    vocab_size = VOCAB
    examples = 3
    longest = 40

    @pytest.fixture(autouse=True)
    def _model(self, name: str) -> Iterator[None]:
        with counting_device():
            backend, oracle = backend_and_oracle(name)
            self.backend, self.logits_after = backend, oracle  # type: ignore[method-assign]
            yield

    def make_backend(self) -> StateBackend:
        self.backend.release()
        return self.backend
