"""Declared capabilities of backends: leaving out layers, and the hidden state behind the last token."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood.backends.layers import count_layers
from draftwood.backends.loading import load
from draftwood.backends.transformer import TransformerBackend
from draftwood.backends.unrolled import UnrolledBackend
from draftwood.errors import InvalidInput, UnsupportedModel
from draftwood.protocols import StateBackend
from draftwood.testing import ToyBackend, ToyModel
from draftwood.testing.backends import Mirror, StateBackendTests
from tests.backends.attention_models import plain
from tests.backends.test_architectures import MASKED, UNROLLED, VOCAB, build

FAMILIES = [*MASKED, *UNROLLED]


def backend_for(name: str, model: Any, **options: Any) -> Any:
    return (TransformerBackend if name in MASKED else UnrolledBackend)(model, **options)


def passing_through(model: Any, layers: list[int]) -> Any:
    """A copy of `model` in which these layers compute what they do, and hand on what they were given."""
    copied = copy.deepcopy(model)
    (found,) = [
        module
        for name, module in copied.named_modules()
        if name
        in (
            "model.layers",
            "backbone.layers",
            "gpt_neox.layers",
            "model.decoder.layers",
            "transformer.h",
            "transformer.blocks",
        )
    ]

    def through(_: Any, given: Any, named: Any, output: Any) -> Any:
        states = given[0] if given else named["hidden_states"]
        return (states, *output[1:]) if isinstance(output, tuple) else states

    for layer in layers:
        found[layer].register_forward_hook(through, with_kwargs=True)
    return copied


def rounds(mirror: Mirror, seed: int, check: Any = lambda: None) -> None:
    """Random calls on all of a backend's methods, with `check` after each."""
    rng = random.Random(seed)

    def text(longest: int) -> list[int]:
        return [rng.randrange(VOCAB) for _ in range(rng.randint(0, longest))]

    mirror.prefill([text(11), text(3)])
    for _ in range(4):
        check()
        if rng.random() < 0.5 and len(mirror.texts) < 4:
            mirror.prefill([text(9) for _ in range(rng.randint(1, 2))])
            check()
        for _ in range(rng.randint(1, 2)):
            new = []
            for held in mirror.nodes:
                places = range(len(held), len(held) + rng.randint(0, 3))
                new.append([(rng.randrange(VOCAB), rng.randint(-1, place - 1)) for place in places])
            mirror.extend(new)
            check()
        if rng.random() < 0.4 and len(mirror.texts) > 1:
            mirror.release([rng.randrange(len(mirror.texts))])
            check()
        ends = [rng.randint(-1, len(held) - 1) for held in mirror.nodes]
        mirror.commit([mirror.path(row, end) for row, end in enumerate(ends)])
    check()


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_left_is_the_model_whose_skipped_layers_do_nothing(name: str) -> None:
    model = build(name)
    whole = copy.deepcopy(model)
    backend = backend_for(name, model)
    assert backend.skippable_layers == model.config.get_text_config().num_hidden_layers
    for layer in range(backend.skippable_layers):
        oracle = passing_through(model, [layer])
        smaller = backend.without_layers([layer])
        assert type(smaller) is type(backend)
        rounds(Mirror(smaller, lambda tokens, o=oracle: plain(o, tokens)), seed=layer)  # type: ignore[misc]
    rounds(Mirror(backend, lambda tokens: plain(whole, tokens)), seed=9)


class TestWithoutLayers(StateBackendTests):
    """Law S for every sequence of calls, while the whole model is decoding beside it."""

    vocab_size = VOCAB

    @pytest.fixture(autouse=True)
    def _model(self) -> None:
        self.model = build("gemma3")
        self.oracle = passing_through(self.model, [1])

    def make_backend(self) -> StateBackend:
        beside = TransformerBackend(self.model)
        beside.prefill([torch.arange(7)])
        return beside.without_layers([1])

    def logits_after(self, tokens: list[int]) -> torch.Tensor:
        return plain(self.oracle, tokens)


def test_both_models_are_used_in_turn_on_one_set_of_weights() -> None:
    model = build("llama")
    structure = {name: id(module) for name, module in model.named_modules()}
    attributes = {name: dict(vars(module)) for name, module in model.named_modules()}
    backend = load(model)
    smaller: Any = backend.without_layers([0])
    small, whole = passing_through(model, [0]), copy.deepcopy(model)
    a = Mirror(backend, lambda tokens: plain(whole, tokens))
    b = Mirror(smaller, lambda tokens: plain(small, tokens))
    for mirror in (a, b):
        mirror.prefill([[1, 2, 3]])
    for _ in range(3):
        for mirror in (a, b):
            mirror.extend([[(4, -1), (5, 0), (6, 0)]])
        for mirror in (b, a):
            mirror.commit([[0, 2]])
    assert {name: id(module) for name, module in model.named_modules()} == structure
    for name, module in model.named_modules():
        assert vars(module).keys() == attributes[name].keys()
    assert torch.equal(plain(model, [1, 2, 3]), plain(whole, [1, 2, 3]))
    ours = {id(weight) for weight in model.parameters()}
    assert {id(weight) for weight in smaller.model.parameters()} < ours
    layer = sum(p.numel() * p.element_size() for p in model.model.layers[0].parameters())
    assert smaller.weight_bytes == backend.weight_bytes - layer
    # Nothing left out: a second state for the same model.
    again = backend.without_layers([])
    assert again.weight_bytes == backend.weight_bytes
    rounds(Mirror(again, lambda tokens: plain(whole, tokens)), seed=3)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([2], "no layer 2 to leave out; the model's are 0 to 1"),
        ([-1], "no layer -1"),
        ([1, 1], r"\[1, 1\], name one twice"),
        ([0, 1], "All 2 layers"),
    ],
)
def test_layers_that_cannot_be_left_out(layers: list[int], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        load(build("llama")).without_layers(layers)


def test_a_model_whose_layers_are_not_found_says_so() -> None:
    model = build("llama")
    # Two lists of layers, and nothing tells which of them is the model's.
    model.model.others = torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(2)])
    assert count_layers(model) == 0
    backend = TransformerBackend(model)
    assert backend.skippable_layers == 0
    with pytest.raises(UnsupportedModel, match="layers of LlamaForCausalLM are not found"):
        backend.without_layers([0])


def test_a_model_that_breaks_without_a_layer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama")
    fails = copy.deepcopy(model)
    fails.model.layers[1].mlp.forward = None
    with pytest.raises(UnsupportedModel, match=r"does not work without the layers \[0\] \(TypeError"):
        TransformerBackend(fails).without_layers([0])


def hidden_after(model: Any, tokens: list[int]) -> torch.Tensor:
    body = model.model if model.base_model is model else model.base_model
    with torch.no_grad():
        states: torch.Tensor = body(torch.tensor([tokens]), use_cache=False).last_hidden_state
    return states[0, -1]


@pytest.mark.parametrize("name", FAMILIES)
def test_hidden_states_are_those_of_a_plain_forward(name: str) -> None:
    model = build(name)
    stock = copy.deepcopy(model)
    backend = backend_for(name, model, chunk=3)
    backend.keep_hidden()
    check_hidden(backend, stock, seed=3)
    assert not model.get_output_embeddings()._forward_pre_hooks


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.sampled_from([1, 4, 512]))
def test_hidden_states_after_random_calls(seed: int, chunk: int) -> None:
    model = build("llama")
    for kind in (TransformerBackend, UnrolledBackend):
        backend = kind(model, chunk=chunk)
        backend.keep_hidden()
        check_hidden(backend, model, seed=seed)


def check_hidden(backend: Any, stock: Any, *, seed: int) -> None:
    mirror = Mirror(backend, lambda tokens: plain(stock, tokens))

    def check() -> None:
        found = backend.last_hidden()
        assert found.shape == (len(mirror.texts), backend.hidden_size)
        for row, text in enumerate(mirror.texts):
            if text:
                assert (found[row] - hidden_after(stock, text)).abs().max() < 1e-4

    rounds(mirror, seed, check)
    mirror.release(None)
    check()
    mirror.prefill([[1, 2, 3]])
    check()


def test_an_error_leaves_the_hidden_states(monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = TransformerBackend(build("llama"))
    backend.keep_hidden()
    backend.prefill([torch.arange(5), torch.arange(3)])
    before = backend.last_hidden()
    node = torch.zeros(2, 1, dtype=torch.int64)
    for wrong in (lambda: backend.extend(node, node + 3), lambda: backend.commit([[0], [0]])):
        with pytest.raises(Exception, match="parent 3|names node 0"):
            wrong()
    with monkeypatch.context() as failing:
        failing.setattr(backend.model.model, "forward", None)
        with pytest.raises(TypeError):
            backend.prefill([torch.arange(4)])
    assert torch.equal(backend.last_hidden(), before)
    backend.extend(node + 4, node - 1)
    backend.commit([[], [0]])
    assert torch.equal(backend.last_hidden()[0], before[0])
    expected = hidden_after(backend.model, [0, 1, 2, 4])
    assert torch.allclose(backend.last_hidden()[1], expected, atol=1e-4)
    # What was handed out is the caller's.
    assert torch.equal(before[0], backend.last_hidden()[0])
    assert not torch.equal(before[1], backend.last_hidden()[1])


def test_nobody_asks_and_nothing_is_kept() -> None:
    for backend in (TransformerBackend(build("llama")), UnrolledBackend(build("llama"))):
        watched = list[Any]()
        backend._watched = watched.append  # type: ignore[assignment,method-assign]
        backend.prefill([torch.arange(4)])
        backend.extend(torch.tensor([[1]]), torch.tensor([[-1]]))
        assert not watched
        with pytest.raises(UnsupportedModel, match="call keep_hidden"):
            backend.last_hidden()
        with pytest.raises(InvalidInput, match=r"hidden states of 1 row.* before rows join"):
            backend.keep_hidden()


def test_prefill_computes_logits_only_where_a_row_ends() -> None:
    model = build("llama")
    backend = TransformerBackend(model, chunk=8)
    backend.keep_hidden()
    widths = []
    model.lm_head.register_forward_hook(lambda _, given, output: widths.append(output.shape[1]))
    backend.prefill([torch.arange(20), torch.arange(18), torch.arange(3), torch.arange(20)])
    assert widths == [1, 1, 2]


def test_a_head_of_unknown_width_or_that_is_not_called() -> None:
    model = build("llama")
    model.lm_head.forward, plain_forward = None, model.lm_head.forward
    model.get_output_embeddings = lambda: None
    backend = TransformerBackend(model)
    assert backend.hidden_size is None
    with pytest.raises(UnsupportedModel, match="gives no hidden states"):
        backend.keep_hidden()
    model.lm_head.forward = plain_forward
    model.get_output_embeddings = lambda: model.model.layers[0].mlp.gate_proj.__class__(32, VOCAB)
    backend = TransformerBackend(model)
    backend.keep_hidden()
    with pytest.raises(UnsupportedModel, match="called its LM head 0 times"):
        backend.prefill([torch.arange(3)])
    assert backend.lengths == []


def test_a_backend_that_declares_nothing_refuses() -> None:
    backend = ToyBackend(ToyModel(3))
    assert backend.skippable_layers == 0
    assert backend.hidden_size is None
    for call in (lambda: backend.without_layers([0]), backend.keep_hidden, backend.last_hidden):
        with pytest.raises(UnsupportedModel, match="ToyBackend"):
            call()
