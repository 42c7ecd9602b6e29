"""Captured passes: law S, logits compared with uncaptured passes, number of passes, and refusals.

Graphs run as they are traced, which takes half a second each; Inductor's are for `make thorough`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from typing import Any

import pytest
import torch
import transformers as hf

from draftwood import LevelPlan, SpeculativeDecoder, create
from draftwood.backends.kinds.transformer import TransformerBackend
from draftwood.backends.kinds.unrolled import UnrolledBackend
from draftwood.backends.loading.captured_loading import with_capture
from draftwood.backends.loading.loader import load
from draftwood.backends.nodes.buckets import columns_bucket, nodes_bucket, rows_bucket, text_bucket
from draftwood.base.errors import InvalidInput, UnsupportedModel
from draftwood.protocols import StateBackend
from draftwood.testing.backends import StateBackendTests
from tests.backends.attention_models import VOCAB, bloom, tiny, words
from tests.backends.captured_models import Both, as_traced, few_shapes
from tests.backends.test_architectures import MASKED, pair
from tests.backends.test_context import phi3

SOME = ("llama", "gemma3")
"""Grouped heads; and windows shorter than the texts, beside layers without."""

CASES = [
    pytest.param("llama", as_traced, few_shapes, id="llama-few-shapes"),
    *(pytest.param(name, as_traced, nullcontext, id=name, marks=pytest.mark.thorough) for name in MASKED),
    *(
        pytest.param(name, "compile", nullcontext, id=f"{name}-inductor", marks=pytest.mark.thorough)
        for name in SOME
    ),
]


@cache
def both(name: str, capture: Any, shapes: Any) -> Both:
    """One for all tests of a model, so that a shape is compiled once."""
    return Both(pair(name, torch.float32)[0], capture)


@pytest.mark.parametrize(("name", "capture", "shapes"), CASES)
class TestLawS(StateBackendTests):
    vocab_size, examples = VOCAB, 4

    @pytest.fixture(autouse=True)
    def _model(self, name: str, capture: Any, shapes: Any) -> Iterator[None]:
        self.both = both(name, capture, shapes)
        self.logits_after = pair(name, torch.float32)[1]  # type: ignore[method-assign]
        self.vocab_size = self.both.vocab_size
        if self.both.max_length is not None:
            self.longest = self.both.max_length
        with shapes():
            yield

    def make_backend(self) -> StateBackend:
        self.both.release()
        return self.both


def grown(backend: Any, *, prompt: int, length: int, nodes: int) -> None:
    """Let one row grow to `length` tokens by chains of `nodes`, of which every second round keeps half."""
    backend.prefill([torch.tensor(words(prompt))])
    round_ = 0
    while (have := backend.lengths[0]) + nodes <= length:
        tokens = torch.tensor([words(have + nodes)[have:]])
        backend.extend(tokens, torch.arange(-1, nodes - 1).unsqueeze(0))
        backend.commit([range(nodes if round_ % 2 else nodes // 2)])
        round_ += 1
    backend.release()


def test_a_growing_text_takes_a_graph_a_bucket() -> None:
    backend = Both(
        tiny(hf.MistralConfig, sliding_window=300, num_hidden_layers=1, max_position_embeddings=4096)
    )
    grown(backend, prompt=40, length=2000, nodes=24)
    assert backend.graphs == len({text_bucket(tokens) for tokens in range(40, 2000)}) == 4
    grown(backend, prompt=300, length=1500, nodes=24)
    assert backend.graphs == 4
    grown(backend, prompt=10, length=100, nodes=3)
    assert backend.graphs == 5


def test_buffers_that_moved_are_found_again() -> None:
    """The longest of four rows outgrows the buffers and leaves; the others come back to an old shape."""
    backend = Both(tiny(num_hidden_layers=1))
    backend.prefill([torch.tensor(words(length)) for length in (4, 3, 2, 254)])
    tokens, parents = torch.arange(16).view(4, 4), torch.tensor([[-1, 0, 1, 2]] * 4)
    for _ in range(2):
        backend.extend(tokens, parents)
        backend.commit([range(4)] * 4)
    backend.release([3])
    backend.extend(tokens[:3], parents[:3])
    assert backend.graphs == 2


def test_a_wide_pass_reads_its_buffers_to_the_end() -> None:
    backend = Both(tiny(num_hidden_layers=1))
    backend.prefill([torch.tensor(words(5))])
    backend.extend(torch.tensor([words(512)]), torch.arange(512).unsqueeze(0) // 2 - 1)
    backend.commit([[]])


def test_buckets_hold_what_they_are_asked_for() -> None:
    for bucket, sizes in ((nodes_bucket, range(1, 700)), (rows_bucket, range(1, 70))):
        found = [bucket(size) for size in sizes]
        assert found == sorted(found)
        assert all(size <= bucket(size) == bucket(bucket(size)) for size in sizes)
    assert [text_bucket(tokens) for tokens in (0, 256, 257, 1024, 1025)] == [256, 256, 512, 1024, 2048]
    assert [text_bucket(tokens, longest=300) for tokens in (0, 257, 300)] == [256, 320, 320]
    assert text_bucket(10, longest=100) == 128
    assert [columns_bucket(columns) for columns in (1, 128, 129, 600)] == [128, 128, 512, 2048]


def test_passes_are_replayed_without_dynamo() -> None:
    backend: Any = TransformerBackend(tiny(), capture=as_traced)
    backend.prefill([torch.tensor(words(5))])
    tokens, parents = torch.tensor([[1, 2]]), torch.tensor([[-1, 0]])
    once = backend.extend(tokens, parents)
    backend.commit([[]])
    (graph,) = backend.captured._by_shape.values()
    traced, graph._traced = graph._traced, None
    assert torch.equal(backend.extend(tokens, parents), once)
    backend.commit([[0, 1]])
    # What rows read may be elsewhere when another joins.
    backend.prefill([torch.tensor(words(3))])
    backend.release([1])
    with pytest.raises(TypeError):
        backend.extend(tokens, parents)
    graph._traced = traced
    backend.extend(tokens, parents)


def test_weights_that_are_exchanged_serve_the_next_text() -> None:
    model = tiny()
    backend = Both(model)
    for scale in (1, -1):
        model.lm_head.weight = torch.nn.Parameter(scale * model.lm_head.weight.detach())
        backend.prefill([torch.tensor(words(5))])
        for token in (3, 4):
            backend.extend(torch.tensor([[token]]), torch.tensor([[-1]]))
            backend.commit([[0]])
        backend.release()
    assert backend.graphs == 1


@pytest.mark.parametrize("capture", [as_traced, pytest.param("compile", marks=pytest.mark.thorough)])
def test_weights_that_lie_otherwise_are_compiled_anew(capture: Any) -> None:
    model = tiny()
    backend = Both(model, capture)
    for graphs in (1, 2):
        backend.prefill([torch.tensor(words(5))])
        backend.extend(torch.tensor([[3]]), torch.tensor([[-1]]))
        backend.commit([[0]])
        backend.release()
        assert backend.graphs == graphs
        weight = model.lm_head.weight.detach()
        model.lm_head.weight = torch.nn.Parameter(-weight.t().contiguous().t())


def test_autocast_is_followed_from_pass_to_pass() -> None:
    backend = Both(tiny())
    backend.prefill([torch.tensor(words(5))])
    exact = backend.extend(torch.tensor([[3]]), torch.tensor([[-1]]))
    backend.commit([[]])
    with torch.autocast("cpu", torch.bfloat16):
        coarse = backend.backend.extend(torch.tensor([[3]]), torch.tensor([[-1]]))
    backend.backend.commit([[]])
    again = backend.extend(torch.tensor([[3]]), torch.tensor([[-1]]))
    assert torch.equal(exact, again)
    assert not torch.equal(exact, coarse.to(exact.dtype))
    assert backend.graphs == 2


PLAN = LevelPlan(depth=4, width=3, branching=5, budget=9)
LEVELS = [
    pytest.param(lambda: tiny(num_hidden_layers=1), as_traced, id="llama"),
    pytest.param(
        lambda: tiny(hf.MistralConfig, sliding_window=9, num_hidden_layers=1),
        as_traced,
        id="window",
        marks=pytest.mark.thorough,
    ),
    pytest.param(
        lambda: pair("gemma3", torch.float32)[0], as_traced, id="gemma3", marks=pytest.mark.thorough
    ),
    pytest.param(tiny, "compile", id="llama-inductor", marks=pytest.mark.thorough),
]


def path_to(node: int, parents: list[int]) -> list[int]:
    """Region indices from the first to `node`."""
    return [*path_to(parents[node], parents), node] if node >= 0 else []


@pytest.mark.parametrize(("make", "capture"), LEVELS)
def test_levels_in_one_pass_are_those_one_by_one(make: Any, capture: Any) -> None:
    backend = Both(make(), capture)
    backend.prefill([torch.tensor(words(length)) for length in (14, 3)])
    for temperature, last in ((1.0, 5), (0.7, 10)):
        # The first row lacks a token, the second does not.
        tokens, parents = torch.tensor([[3, 4], [0, 6]]), torch.tensor([[-1, 0], [-1, -1]])
        levels = backend.extend_levels(tokens, parents, PLAN, temperature=temperature)
        assert levels is not None
        assert levels.widths == (1, 3, 3, 3)
        above = torch.cat([parents, torch.from_numpy(levels.nodes(root=1)[1])], 1).tolist()
        backend.extend(torch.tensor([[5], [7]]), torch.tensor([[10], [4]]))
        backend.commit([path_to(last, of_row) for of_row in above])
    assert backend.graphs == 3


def test_levels_are_left_to_single_passes_where_windows_end_in_the_tree() -> None:
    backend = Both(tiny(hf.MistralConfig, sliding_window=5, num_hidden_layers=1))
    tokens, parents = torch.tensor([[3, 4]]), torch.tensor([[-1, 0]])
    backend.prefill([torch.tensor(words(14))])
    assert backend.extend_levels(tokens, parents, PLAN) is None
    # Nothing was kept of it, as little as where passes are not captured.
    backend.extend(tokens, parents)
    assert backend.extend_levels(tokens, parents, PLAN) is None
    assert backend.eager.extend_levels(tokens, parents, PLAN) is None
    backend.commit([[0, 1]])


def test_levels_that_prove_too_narrow_leave_nothing() -> None:
    """A level of eight equal nodes is wider than what a CPU expands of it."""
    model = tiny(num_hidden_layers=1)
    torch.nn.init.normal_(model.lm_head.weight, std=1e-3)
    backend = Both(model)
    backend.prefill([torch.tensor(words(5))])
    tokens, parents = torch.tensor([[3, 4]]), torch.tensor([[-1, 0]])
    flat = LevelPlan(depth=2, width=8, branching=8, budget=8)
    assert backend.extend_levels(tokens, parents, flat) is None
    assert backend.graphs == 1
    backend.extend(tokens, parents)
    backend.commit([[0, 1]])


def test_greedy_text_is_that_of_generate() -> None:
    target, draft = tiny(max_position_embeddings=4096), Both(tiny(num_hidden_layers=1))
    options = {"depth": 3, "branching": 3, "width": 2, "budget": 7}
    decoder = SpeculativeDecoder(
        target=Both(target),
        drafter=create("drafters", "model", {"backend": draft}),
        policy=create("policies", "expand-rerank", options),
        verifier=create("verifiers", "recursive-rejection"),
    )
    prompts = [words(length) for length in (3, 17)]
    written: Any = decoder.generate(prompts, max_new_tokens=12, eos_token_id=[], return_dict_in_generate=True)
    for prompt, text in zip(prompts, written.tokens, strict=True):
        ids = torch.tensor([prompt])
        expected = target.generate(
            ids,
            attention_mask=torch.ones_like(ids),  # without one it takes words for padding
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=None,
        )
        assert text == expected[0, len(prompt) :].tolist()
    assert draft.planned


def test_layers_left_out_stay_captured() -> None:
    model = tiny(num_hidden_layers=3)
    backend: Any = TransformerBackend(model, chunk=7, capture=as_traced)
    smaller: Any = backend.without_layers([1])
    eager: Any = TransformerBackend(model).without_layers([1])
    assert eager.captured is None
    assert (smaller.chunk, smaller.captured.graphs) == (7, 0)
    for one in (smaller, eager):
        one.prefill([torch.tensor(words(9))])
    tokens, parents = torch.tensor([[1, 2, 3]]), torch.tensor([[-1, 0, 0]])
    assert torch.allclose(smaller.extend(tokens, parents), eager.extend(tokens, parents), atol=1e-5)
    assert smaller.captured.graphs == 1
    assert backend.captured.graphs == 0


@pytest.mark.parametrize("capture", [as_traced, pytest.param("compile", marks=pytest.mark.thorough)])
def test_captured_passes_give_features(capture: Any) -> None:
    model = tiny()
    backend = Both(model, capture)
    tokens, parents = torch.tensor([[1, 2, 3]] * 2), torch.tensor([[-1, 0, 0]] * 2)
    for layers in ([0, 2, 1], [2]):
        backend.keep_features(layers, last=6, through=lambda features: 2 * features)
        backend.prefill([torch.tensor(words(length)) for length in (9, 4)])
        for paths in ([[0, 2], []], [[0], [0, 1]]):
            backend.extend(tokens, parents)
            backend.commit(paths)
        assert [len(of_row) for of_row in backend.take_features()] == [6, 6]
        backend.release()
    captured = backend.backend.captured
    assert captured is not None
    assert captured.graphs == 2
    # Without Dynamo, too.
    assert list(captured._by_shape.values())[-1]._direct is not None


def test_a_compilation_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    backend = TransformerBackend(tiny(), capture=as_traced)
    backend.prefill([torch.tensor(words(5))] * 3)
    with caplog.at_level(logging.INFO):
        backend.extend(torch.ones(3, 5).long(), torch.zeros(3, 5).long() - 1)
    assert "Captured pass 1 of LlamaForCausalLM: 4 rows of 8 nodes after texts of up to 256" in caplog.text


def test_what_is_not_captured_is_refused() -> None:
    model = tiny()
    with pytest.raises(InvalidInput, match="capture is 'sometimes'; it must be"):
        load(model, capture="sometimes")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="LlamaForCausalLM is on the CPU, which has no CUDA graphs"):
        load(model, capture="cuda-graphs")
    with pytest.raises(UnsupportedModel, match="decodes one path per row, so its passes are not captured"):
        load(bloom(), capture="compile")
    with pytest.raises(UnsupportedModel, match="rotated by the length of its text"):
        load(phi3(), capture="compile")
    assert isinstance(load(bloom()), UnrolledBackend)


def test_a_model_that_cannot_be_traced_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    backend = load(model)
    mlp = model.model.layers[0].mlp
    forward = mlp.forward

    def looks(states: torch.Tensor) -> torch.Tensor:
        return forward(states if float(states.sum()) < 1e9 else states / 2)

    monkeypatch.setattr(mlp, "forward", looks)
    with pytest.raises(UnsupportedModel, match=r'cannot be captured \(.*load it with capture="off"'):
        with_capture(backend, "compile")
