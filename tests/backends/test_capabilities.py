"""Declared capabilities of backends: leaving out layers, features of committed tokens, the output head."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood.backends.kinds.transformer import TransformerBackend
from draftwood.backends.kinds.unrolled import UnrolledBackend
from draftwood.backends.loading.loader import load
from draftwood.backends.model.features import Features
from draftwood.backends.structure.layers import count_layers
from draftwood.base.errors import InvalidInput, UnsupportedModel
from draftwood.protocols import StateBackend
from draftwood.testing import ToyBackend, ToyModel
from draftwood.testing.backends import Mirror, StateBackendTests
from tests.backends import recurrent_models
from tests.backends.attention_models import plain
from tests.backends.recurrent_models import Doubled, features_after
from tests.backends.test_architectures import MASKED, UNROLLED, VOCAB, build
from tests.thorough import every

FAMILIES = [*MASKED, *UNROLLED]


def backend_for(name: str, model: Any, **options: Any) -> Any:
    return (TransformerBackend if name in MASKED else UnrolledBackend)(model, **options)


def passing_through(model: Any, layers: list[int]) -> Any:
    """A copy of `model` in which these layers compute what they do, and hand on what they got."""
    copied = copy.deepcopy(model)
    (decoder,) = [
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

    def through(_: Any, args: Any, kwargs: Any, output: Any) -> Any:
        states = args[0] if args else kwargs["hidden_states"]
        return (states, *output[1:]) if isinstance(output, tuple) else states

    for layer in layers:
        decoder[layer].register_forward_hook(through, with_kwargs=True)
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
            for nodes in mirror.nodes:
                added = range(len(nodes), len(nodes) + rng.randint(0, 3))
                new.append([(rng.randrange(VOCAB), rng.randint(-1, node - 1)) for node in added])
            mirror.extend(new)
            check()
        if rng.random() < 0.4 and len(mirror.texts) > 1:
            mirror.release([rng.randrange(len(mirror.texts))])
            check()
        ends = [rng.randint(-1, len(nodes) - 1) for nodes in mirror.nodes]
        mirror.commit([mirror.path(row, end) for row, end in enumerate(ends)])
    check()


@pytest.mark.parametrize("name", every(3, FAMILIES))
def test_what_is_left_is_the_model_whose_skipped_layers_do_nothing(name: str) -> None:
    model = build(name)
    stock = copy.deepcopy(model)
    backend = backend_for(name, model)
    assert backend.skippable_layers == model.config.get_text_config().num_hidden_layers
    for layer in range(backend.skippable_layers):
        oracle = passing_through(model, [layer])
        smaller = backend.without_layers([layer])
        assert type(smaller) is type(backend)
        rounds(Mirror(smaller, lambda tokens, o=oracle: plain(o, tokens)), seed=layer)  # type: ignore[misc]
    rounds(Mirror(backend, lambda tokens: plain(stock, tokens)), seed=9)


class TestWithoutLayers(StateBackendTests):
    """Law S for every sequence of calls, while the whole model is decoding too."""

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
    small, stock = passing_through(model, [0]), copy.deepcopy(model)
    a = Mirror(backend, lambda tokens: plain(stock, tokens))
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
    assert torch.equal(plain(model, [1, 2, 3]), plain(stock, [1, 2, 3]))
    ours = {id(weight) for weight in model.parameters()}
    assert {id(weight) for weight in smaller.model.parameters()} < ours
    layer = sum(p.numel() * p.element_size() for p in model.model.layers[0].parameters())
    assert smaller.weight_bytes == backend.weight_bytes - layer
    # Nothing left out: a second state for the same model.
    again = backend.without_layers([])
    assert again.weight_bytes == backend.weight_bytes
    rounds(Mirror(again, lambda tokens: plain(stock, tokens)), seed=3)


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


def body_of(model: Any) -> Any:
    return model.model if model.base_model is model else model.base_model


class Taking(Mirror):
    """Counts, for every row, the tokens whose features were taken."""

    def __init__(self, backend: Any, stock: Any) -> None:
        super().__init__(backend, lambda tokens: plain(stock, tokens))
        self.taken: list[int] = []

    def prefill(self, rows: Any) -> None:
        super().prefill(rows)
        self.taken += [0] * len(rows)

    def release(self, rows: Any) -> None:
        super().release(rows)
        self.taken = [n for row, n in enumerate(self.taken) if rows is not None and row not in rows]


def check_features(backend: Any, stock: Any, *, seed: int, last: int | None = None) -> None:
    """Features of all layers, taken after every call, equal those that `stock` gives for the whole text."""
    layers = list(range(backend.feature_layers, -1, -1))
    backend.keep_features(layers, last=last)
    mirror = Taking(backend, stock)

    def check() -> None:
        features = backend.take_features()
        for text, taken, states in zip(mirror.texts, mirror.taken, features, strict=True):
            new = len(text) - taken if last is None else min(len(text) - taken, last)
            assert states.shape == (new, len(layers) * backend.hidden_size)
            if new:
                expected = features_after(stock, text)[-new:, layers].flatten(1)
                assert (states - expected).abs().max() < 1e-4 * expected.abs().max().clamp(min=1)
        mirror.taken = [len(text) for text in mirror.texts]

    rounds(mirror, seed, check)
    mirror.release(None)
    check()
    mirror.prefill([[1, 2, 3]])
    check()


@pytest.mark.parametrize("name", every(3, FAMILIES))
def test_features_are_the_hidden_states_of_a_plain_forward(name: str) -> None:
    model = build(name)
    stock = copy.deepcopy(model)
    check_features(backend_for(name, model, chunk=3), stock, seed=3)
    assert not any(part._forward_pre_hooks or part._forward_hooks for part in model.modules())


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.sampled_from([1, 4, 512]), st.sampled_from([None, 1, 3]))
def test_features_after_random_calls(seed: int, chunk: int, last: int | None) -> None:
    model = build("llama")
    for kind in (TransformerBackend, UnrolledBackend):
        check_features(kind(model, chunk=chunk), model, seed=seed, last=last)


@pytest.mark.parametrize("name", ["gemma2", "bamba"])
@pytest.mark.parametrize("attention", ["mask", "paths"])
def test_features_in_double_precision(name: str, attention: Any) -> None:
    with Doubled():
        model = recurrent_models.build(name).double() if name == "bamba" else build(name).double()
        backend: Any = load(model, attention=attention)
        backend.chunk = 4
        backend.keep_features([1, backend.feature_layers])
        backend.prefill([torch.arange(11), torch.arange(3)])
        for path in ([0, 2, 3], [0, 1], [0]):
            backend.extend(torch.tensor([[5, 6, 7, 8]] * 2), torch.tensor([[-1, 0, 0, 2]] * 2))
            backend.commit([path, path])
        for length, states in zip((11, 3), backend.take_features(), strict=True):
            expected = features_after(model, [*range(length), 5, 7, 8, 5, 6, 5])[:, [1, -1]].flatten(1)
            assert states.dtype == torch.float64
            assert (states - expected).abs().max() < 1e-9


@pytest.mark.parametrize("kind", [TransformerBackend, UnrolledBackend])
def test_an_error_leaves_the_features(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama")
    backend = kind(model, chunk=2)
    backend.keep_features([2])
    backend.prefill([torch.arange(5), torch.arange(3)])
    node = torch.zeros(2, 1, dtype=torch.int64)
    for wrong in (lambda: backend.extend(node, node + 3), lambda: backend.commit([[0], [0]])):
        with pytest.raises(Exception, match="parent 3|names node 0"):
            wrong()
    calls: list[int] = []
    right = model.lm_head.forward

    def fails_at_the_second(states: torch.Tensor) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("a bug")
        return right(states)

    with monkeypatch.context() as failing:
        failing.setattr(model.lm_head, "forward", fails_at_the_second)
        with pytest.raises(RuntimeError, match="a bug"):
            backend.prefill([torch.arange(4)])
    assert backend.lengths == [5, 3]
    backend.extend(node + 4, node - 1)
    backend.commit([[], [0]])
    first, other = backend.take_features()
    assert torch.allclose(first, features_after(model, [0, 1, 2, 3, 4])[:, 2], atol=1e-4)
    assert torch.allclose(other, features_after(model, [0, 1, 2, 4])[:, 2], atol=1e-4)
    # What was handed out is the caller's.
    other.fill_(7)
    assert [len(states) for states in backend.take_features()] == [0, 0]


def test_a_prompts_features_go_through_a_function_chunk_by_chunk() -> None:
    model = build("llama")
    for kind in (TransformerBackend, UnrolledBackend):
        shapes = []

        def halved(states: torch.Tensor) -> torch.Tensor:
            shapes.append(tuple(states.shape))  # noqa: B023
            return states[..., ::2] + 1

        backend: Any = kind(model, chunk=4)
        backend.keep_features([0, 2], through=halved)
        backend.prefill([torch.arange(10)])
        assert shapes == [(1, 4, 64), (1, 4, 64), (1, 2, 64)]
        backend.prefill([torch.arange(0)])
        features, empty = backend.take_features()
        assert torch.allclose(
            features, features_after(model, [*range(10)])[:, [0, 2]].flatten(1)[:, ::2] + 1, atol=1e-4
        )
        assert empty.shape == (0, 32)


def test_only_the_last_tokens_features_are_held() -> None:
    backend: Any = TransformerBackend(build("llama"), chunk=64)
    backend.keep_features([2], last=1)
    backend.prefill([torch.arange(100) % VOCAB, torch.arange(7)])
    for _ in range(3):
        backend.extend(torch.tensor([[1, 2, 3]] * 2), torch.tensor([[-1, 0, 1]] * 2))
        backend.commit([[0, 1, 2], [0]])
        kept = [piece for row in backend._rows for piece in row.features]
        assert [len(piece) for piece in kept] == [1, 1]
        assert all(piece.untyped_storage().nbytes() <= 4 * 32 * 4 for piece in kept)


def test_nobody_asks_and_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Features, "read", None)
    for backend in (TransformerBackend(build("llama")), UnrolledBackend(build("llama"))):
        backend.prefill([torch.arange(4)])
        backend.extend(torch.tensor([[1]]), torch.tensor([[-1]]))
        with pytest.raises(UnsupportedModel, match="call keep_features"):
            backend.take_features()
        with pytest.raises(
            InvalidInput, match=r"1 row\(s\) have joined without the features .* before rows join"
        ):
            backend.keep_features([1])
        backend.keep_features([])
        backend.release()
        backend.keep_features([1, 2], last=3)
        backend.keep_features((1, 2), last=3)


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        (([4],), r"no features of layer 4; name layers from 0 \(.*\) to 2 \(.*\), or 3"),
        (([-1],), "no features of layer -1"),
        (([0], 0), "last is 0"),
    ],
)
def test_features_that_cannot_be_kept(given_: Any, message: str) -> None:
    layers, *last = given_
    with pytest.raises(InvalidInput, match=message):
        load(build("llama")).keep_features(layers, last=next(iter(last), None))


def test_prefill_computes_logits_only_of_the_last_place() -> None:
    model = build("llama")
    backend = TransformerBackend(model, chunk=8)
    backend.keep_features([2])
    widths = []
    model.lm_head.register_forward_hook(lambda _, args, output: widths.append(output.shape[1]))
    backend.prefill([torch.arange(20), torch.arange(18), torch.arange(3), torch.arange(20)])
    assert widths == [1, 1, 1]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_output_head_gives_the_models_logits(name: str) -> None:
    model = build(name)
    backend, tokens = backend_for(name, model), torch.arange(6)
    with torch.no_grad():
        states = body_of(model)(tokens[None], use_cache=False).last_hidden_state
        expected = model(tokens[None], use_cache=False).logits
    assert torch.allclose(backend.output_head(states), expected, atol=1e-5)
    assert torch.allclose(backend.output_head(states[0, 3]), expected[0, 3], atol=1e-5)
    assert torch.equal(backend.input_embeddings(tokens), model.get_input_embeddings()(tokens))
    # The model itself is as it was.
    with torch.no_grad():
        assert torch.equal(model(tokens[None], use_cache=False).logits, expected)


def test_a_head_that_does_not_stand_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama")
    backend, plain_forward = TransformerBackend(model), type(model).forward

    def adds(self: Any, input_ids: Any = None, **named: Any) -> Any:
        output = plain_forward(self, input_ids, **named)
        output.logits = output.logits + input_ids.unsqueeze(-1)
        return output

    monkeypatch.setattr(type(model), "forward", adds)
    with pytest.raises(UnsupportedModel, match=r"no output head that can be used separately \(its logits"):
        backend.output_head(torch.zeros(1, 32))


def test_a_head_of_unknown_width_or_layers_that_do_not_run() -> None:
    model = build("llama")
    model.get_output_embeddings = lambda: None
    backend = TransformerBackend(model)
    assert backend.hidden_size is None
    assert backend.feature_layers == 0
    with pytest.raises(UnsupportedModel, match="gives no features: its feature_layers is 0"):
        backend.keep_features([0])
    with pytest.raises(UnsupportedModel, match="gives no output head"):
        backend.output_head(torch.zeros(1, 32))
    model = build("llama")
    backend = TransformerBackend(model)
    backend.keep_features([1])
    model.model.layers[1].forward, model.model.layers = None, model.model.layers[:1]
    with pytest.raises(UnsupportedModel, match=r"layer 1: for tokens of shape .* that layer read nothing"):
        backend.prefill([torch.arange(3)])
    assert backend.lengths == []


def test_a_backend_that_declares_nothing_refuses() -> None:
    backend = ToyBackend(ToyModel(3))
    assert backend.skippable_layers == 0
    assert backend.feature_layers == 0
    token = torch.tensor([1])
    for call in (
        lambda: backend.without_layers([0]),
        lambda: backend.keep_features([0]),
        backend.take_features,
        lambda: backend.input_embeddings(token),
        lambda: backend.output_head(token),
    ):
        with pytest.raises(UnsupportedModel, match="ToyBackend"):
            call()
