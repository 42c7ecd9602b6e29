"""Captured passes: law S, their logits beside those of passes as they are, their number, what is refused.

Graphs run as they are traced, which takes a tenth of a second each; Inductor's are for `make thorough`.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import pytest
import torch
import transformers as hf

from draftwood import SpeculativeDecoder, create
from draftwood.backends.buckets import columns_bucket, nodes_bucket, rows_bucket, text_bucket
from draftwood.backends.captured_loading import with_capture
from draftwood.backends.loading import load
from draftwood.backends.transformer import TransformerBackend
from draftwood.backends.unrolled import UnrolledBackend
from draftwood.errors import InvalidInput, UnsupportedModel
from draftwood.protocols import StateBackend
from draftwood.testing.backends import StateBackendTests
from tests.backends import recurrent_models
from tests.backends.attention_models import VOCAB, bloom, tiny, words
from tests.backends.captured_models import Both, as_traced
from tests.backends.test_architectures import MASKED, pair
from tests.backends.test_context import phi3
from tests.thorough import marks_unless

SOME = ("llama", "gemma3")
"""Grouped heads; and windows shorter than the texts, beside layers without."""

CASES = [pytest.param(name, as_traced, id=name, marks=marks_unless(name == "llama")) for name in MASKED] + [
    pytest.param(name, "compile", id=f"{name}-inductor", marks=pytest.mark.thorough) for name in SOME
]


@cache
def both(name: str, capture: Any) -> Both:
    """One for all tests of a model, so that a shape is compiled once."""
    return Both(pair(name, torch.float32)[0], capture)


@pytest.mark.parametrize(("name", "capture"), CASES)
class TestLawS(StateBackendTests):
    vocab_size = VOCAB

    @pytest.fixture(autouse=True)
    def _model(self, name: str, capture: Any) -> None:
        self.both = both(name, capture)
        self.logits_after = pair(name, torch.float32)[1]  # type: ignore[method-assign]
        self.vocab_size = self.both.vocab_size
        if self.both.max_length is not None:
            self.longest = self.both.max_length

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


def test_greedy_text_is_that_of_generate() -> None:
    target, draft = tiny(max_position_embeddings=4096), tiny(num_hidden_layers=1)
    recipe = create("recipes", "opt-tree", {"budget": 7, "depth": 3})
    decoder = SpeculativeDecoder(
        target=Both(target),
        drafter=create("drafters", "model", {"backend": Both(draft)}),
        policy=recipe.policy,
        verifier=recipe.verifier,
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


def test_a_compilation_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    backend = TransformerBackend(tiny(), capture=as_traced)
    backend.prefill([torch.tensor(words(5))] * 3)
    with caplog.at_level(logging.INFO):
        backend.extend(torch.ones(3, 5).long(), torch.zeros(3, 5).long() - 1)
    assert "Captured pass 1 of LlamaForCausalLM: 4 rows of 8 nodes behind texts of up to 256" in caplog.text


def test_what_is_not_captured_is_refused() -> None:
    model = tiny()
    with pytest.raises(InvalidInput, match="capture is 'sometimes'; it must be"):
        load(model, capture="sometimes")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="LlamaForCausalLM is on the CPU, which has no CUDA graphs"):
        load(model, capture="cuda-graphs")
    with pytest.raises(UnsupportedModel, match="served one path a row, so its passes are not captured"):
        load(bloom(), capture="compile")
    with pytest.raises(UnsupportedModel, match="has recurrent layers"):
        load(recurrent_models.build("mamba2"), capture="compile")
    with pytest.raises(UnsupportedModel, match="rotated by the length of its text"):
        load(phi3(), capture="compile")
    backend = TransformerBackend(model, capture=as_traced)
    assert backend.feature_layers == 0
    with pytest.raises(UnsupportedModel, match="are captured and give no features"):
        backend.keep_features([0])
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
