"""Forms of a converted model for shapes that return often. `make test-openvino` runs these."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("openvino", reason="the extra `openvino` brings it")

from draftwood import LevelPlan, load
from draftwood.backends.loading.openvino_loading import CHUNK
from draftwood.backends.openvino import bound_request
from draftwood.backends.openvino.bound_request import BoundRequest
from tests.backends.attention_models import tiny, words

pytestmark = pytest.mark.openvino

PLAN = LevelPlan(depth=4, width=4, branching=4, budget=6)


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every request that has run three times: whether it is one of fixed sizes from then on."""
    found = list[bool]()
    fix = BoundRequest._fix

    def noting(request: BoundRequest) -> None:
        fix(request)
        found.append(request._form is not request._compiled.form)

    monkeypatch.setattr(bound_request, "OFTEN", 3)
    monkeypatch.setattr(bound_request, "PAYS", 0)
    monkeypatch.setattr(BoundRequest, "_fix", noting)
    return found


def passes(backend: Any, count: int) -> list[torch.Tensor]:
    """Logits of `count` passes over trees of the same shape, each after one token more."""
    found = []
    parents = torch.tensor([[-1, 0, 0]])
    for number in range(count):
        found.append(backend.extend(torch.tensor([[5 + number, 7, 9 + number]]), parents))
        backend.commit([[0, 2]])
    return found


def test_passes_of_fixed_sizes_are_those_of_any_size(fixed: list[bool]) -> None:
    model = tiny()
    engine, plain = load(model, engine="openvino"), load(model)
    for backend in (engine, plain):
        backend.prefill([torch.tensor(words(9))])
    found, right = passes(engine, 8), passes(plain, 8)
    assert fixed == [True]
    for one, other in zip(found, right, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)


def test_levels_of_fixed_sizes_are_those_of_any_size(fixed: list[bool]) -> None:
    model = tiny()
    backends = [load(model, engine="openvino") for _ in range(2)]
    tokens, parents = torch.tensor([[7, 8]]), torch.tensor([[-1, 0]])
    found: list[list[Any]] = []
    for backend, often in zip(backends, (3, 100), strict=True):
        bound_request.OFTEN = often
        backend.prefill([torch.tensor(words(9))])
        backend.extend(torch.tensor([[3]]), torch.tensor([[-1]]))
        backend.commit([[0]])
        found.append([])
        for _ in range(6):
            levels = backend.extend_levels(tokens, parents, PLAN)
            assert levels is not None
            found[-1].append(levels)
            backend.commit([[0, 1]])
    assert fixed == [True]
    for one, other in zip(*found, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.values == pytest.approx(other.values, rel=1e-4, abs=1e-7)


def test_prompts_of_other_lengths_follow_one_that_was_read_often(fixed: list[bool]) -> None:
    """A long prompt is read in pieces, of which the later ones have a text before them."""
    model = tiny(max_position_embeddings=2 * CHUNK)
    engine, plain = load(model, engine="openvino"), load(model)
    long = CHUNK + 34
    for length in (long, long, long, long, long, long, 20, long + 10, CHUNK + 18, long):
        found = []
        for backend in (engine, plain):
            found.append(backend.first_logits([torch.tensor(words(length))]))
            backend.release()
        assert torch.allclose(found[0], found[1], rtol=1e-4, atol=1e-5)
    assert fixed == []


def test_where_there_is_no_room_the_form_for_any_size_goes_on(
    fixed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bound_request, "FIXED_BYTES", 0)
    monkeypatch.setattr(bound_request, "free_memory", lambda: 0)
    backend = load(tiny(), engine="openvino")
    backend.prefill([torch.tensor(words(9))])
    passes(backend, 5)
    assert fixed == [False]


def test_a_form_is_made_where_a_quarter_of_the_free_memory_holds_it(
    fixed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bound_request, "FIXED_BYTES", 0)
    engine: Any = load(tiny(), engine="openvino")
    engine.prefill([torch.tensor(words(9))])
    passes(engine, 1)
    held = engine._runner._converted.compiled._held
    for free in (4 * held - 1, 4 * held):
        monkeypatch.setattr(bound_request, "free_memory", lambda free=free: free)
        passes(engine, 4)
        engine._runner._requests.clear()
    assert fixed == [False, True]


def test_a_form_is_made_once_passes_have_taken_as_long_as_it_pays(
    fixed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bound_request, "PAYS", 4)
    engine: Any = load(tiny(), engine="openvino")
    engine.prefill([torch.tensor(words(9))])
    passes(engine, 5)
    assert fixed == []
    compiled = engine._runner._converted.compiled
    request = max((one._request for one in engine._runner._requests.values()), key=lambda one: one._runs)
    compiled.seconds = request._spent / 4
    passes(engine, 2)
    assert fixed == [True]


def test_forms_make_room_when_their_requests_go(fixed: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Any = load(tiny(), engine="openvino")
    engine.prefill([torch.tensor(words(9))])
    passes(engine, 1)
    compiled = engine._runner._converted.compiled
    # Room for one.
    monkeypatch.setattr(bound_request, "FIXED_BYTES", compiled._held)
    monkeypatch.setattr(bound_request, "free_memory", lambda: 0)
    passes(engine, 4)
    engine.extend(torch.tensor([[5]]), torch.tensor([[-1]]))
    for token in range(8):
        engine.commit([[0]])
        engine.extend(torch.tensor([[token]]), torch.tensor([[-1]]))
    engine.commit([[0]])
    assert fixed == [True, False]
    engine._runner._requests.clear()
    passes(engine, 4)
    assert fixed == [True, False, True]


def test_prompts_of_other_lengths_take_over_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    model, made = tiny(), list[BoundRequest]()
    engine, plain = load(model, engine="openvino"), load(model)
    make = BoundRequest.__init__

    def counted(request: BoundRequest, *args: Any) -> None:
        made.append(request)
        make(request, *args)

    for length in (9, 20, 4, 33):
        prompt = [torch.tensor(words(length))]
        if length == 20:
            monkeypatch.setattr(BoundRequest, "__init__", counted)
        found, right = engine.first_logits(prompt), plain.first_logits(prompt)
        assert torch.allclose(found, right, rtol=1e-4, atol=1e-5)
        engine.release()
        plain.release()
    assert len(made) <= 1
