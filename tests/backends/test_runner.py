"""A custom runner: the pass as a pure function of its inputs and of past keys and values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from draftwood.backends.kinds.transformer import TransformerBackend
from draftwood.backends.model.model_pass import ModelPass
from draftwood.backends.model.runner import AsItIs, Runner
from draftwood.backends.nodes.pass_inputs import PassInputs
from draftwood.backends.structure.forward import cache_argument
from draftwood.protocols.model_prompt import ModelPrompt
from draftwood.testing.backends import StateBackendTests
from tests.backends.attention_models import VOCAB, tiny, words
from tests.backends.test_architectures import pair


class Given:
    """A cache that reads what it is given, and keeps what a pass adds."""

    is_compileable = False
    is_sliding = (False,)

    def __init__(self, past: list[tuple[Tensor, Tensor]]) -> None:
        self.past, self.new = past, dict[int, tuple[Tensor, Tensor]]()

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.new[layer] = keys, values
        old_keys, old_values = self.past[layer]
        return torch.cat([old_keys, keys], 2), torch.cat([old_values, values], 2)

    def get_seq_length(self, *_: Any) -> int:
        return self.past[0][0].shape[2]

    def get_mask_sizes(self, query_length: int, *_: Any) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0


class Engine(Runner):
    """Runs passes over trees by a function of tensors, as an engine would that knows nothing of draftwood."""

    def __init__(self, model: Any, model_pass: ModelPass) -> None:
        self.model, self.passes = model, 0
        self._pass, self._first = model_pass, AsItIs(model_pass)

    def make_room(self, *, rows: int, text: int, stop: int) -> None:
        self._first.make_room(rows=rows, text=text, stop=stop)

    def function(
        self, tokens: Tensor, positions: Tensor, visible: Tensor, past: list[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        cache = Given(past)
        mask = torch.where(visible, 0.0, torch.finfo(torch.float32).min)
        options = {"position_ids": positions, "attention_mask": mask, cache_argument(self.model): cache}
        logits = self.model(input_ids=tokens, use_cache=True, **options).logits
        return logits, [cache.new[layer] for layer in sorted(cache.new)]

    def run(self, inputs: PassInputs) -> tuple[Tensor, Tensor | None]:
        one = self._pass
        if inputs.texts is not None or not one.cache.settled or one.reader is not None:
            return self._first.run(inputs)
        self.passes += 1
        one.cache.reserve(rows=inputs.shape.rows, slots=inputs.stop)
        arrays = {name: torch.from_numpy(array) for name, array in inputs.arrays(one.numbers).items()}
        held: Any = one.cache.layers
        rows, start, stop = inputs.shape.rows, inputs.start, inputs.stop
        past = [(layer.keys[:rows, :, :start], layer.values[:rows, :, :start]) for layer in held]
        visible = arrays["visible of full_attention"]
        logits, new = self.function(arrays["tokens"], arrays["positions"], visible, past)
        for layer, (keys, values) in zip(held, new, strict=True):
            layer.keys[:rows, :, start:stop] = keys
            layer.values[:rows, :, start:stop] = values
        return inputs.in_call(logits, arrays), None

    def joined(self, rows: int) -> None:
        pass


def engine_backend(model: Any) -> Any:
    backend = TransformerBackend(model, chunk=16)
    backend._runner = Engine(model, backend._pass)
    return backend


class TestLawS(StateBackendTests):
    vocab_size, examples = VOCAB, 8

    @pytest.fixture(autouse=True)
    def _model(self) -> None:
        self.model, self.logits_after = pair("llama", torch.float32)  # type: ignore[method-assign]

    def make_backend(self) -> Any:
        return engine_backend(self.model)


def test_an_engine_gives_what_passes_give_as_they_are() -> None:
    model = tiny()
    backends = [engine_backend(model), TransformerBackend(model)]
    for round_ in range(3):
        logits = []
        for backend in backends:
            if not round_:
                backend.prefill([torch.tensor(words(length)) for length in (40, 3)])
            first = backend.extend(
                torch.tensor([[1, 2, 3], [4, 5, 0]]), torch.tensor([[-1, 0, 0], [-1, -1, -1]]), [3, 2]
            )
            second = backend.extend(torch.tensor([[6], [7]]), torch.tensor([[2], [1]]))
            backend.commit([[0, 2, 3], [1]])
            logits.append(torch.cat([first[0], first[1, :2], second[:, 0]]))
        by_engine, as_it_is = logits
        assert torch.allclose(by_engine, as_it_is, rtol=1e-4, atol=1e-5)
    assert backends[0]._runner.passes == 6


class Told(AsItIs):
    """Notes how many rows it is told of when rows have joined."""

    def __init__(self, model_pass: Any, **_: Any) -> None:
        super().__init__(model_pass)
        self.rows: list[int] = []

    def joined(self, rows: int) -> None:
        self.rows.append(rows)


def test_a_runner_is_told_of_rows_that_were_read_elsewhere() -> None:
    """A captured runner lays out its buffers there: from a cache, from a prompt, and from tokens."""
    model = tiny()
    backend = TransformerBackend(model, runner=Told)
    runner = backend._runner
    assert isinstance(runner, Told)
    backend.prefill([torch.tensor([3, 4, 5])])
    cache = DynamicCache(config=model.config)
    ids = torch.tensor([[7, 8, 9], [9, 8, 7]])
    with torch.no_grad():
        model(ids, **{cache_argument(model): cache})
    backend.take_over(cache, [3, 3])
    backend.read_prompt(ModelPrompt.of(model, inputs_embeds=torch.randn(1, 4, 32)))
    assert runner.rows == [1, 3, 4]
    assert backend.lengths == [3, 3, 3, 4]
