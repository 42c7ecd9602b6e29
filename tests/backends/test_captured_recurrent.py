"""Captured passes of models with recurrent layers: law S, their logits, their number, where states lie.

Law S runs graphs as they are traced, since Inductor takes some ten seconds for each; rounds run both.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import transformers as hf

from draftwood import LevelPlan, SpeculativeDecoder, create
from draftwood.backends.kinds.ssm import SSMBackend
from draftwood.backends.loading.captured_loading import with_capture
from draftwood.backends.nodes.buckets import text_bucket
from draftwood.backends.recurrent import Mamba2State
from draftwood.base.errors import UnsupportedModel
from draftwood.protocols import StateBackend
from draftwood.testing.backends import Mirror, StateBackendTests
from tests.backends.attention_models import words
from tests.backends.captured_models import Both, as_traced
from tests.backends.recurrent_models import (
    BAMBA,
    KINDS,
    LEVEL_BY_LEVEL,
    MIXED,
    PURE,
    RECURRENT,
    SMALL,
    VOCAB,
    Stepwise,
    build,
)
from tests.thorough import marks_unless

CAPTURED = [name for name in RECURRENT if name not in LEVEL_BY_LEVEL]
ROUNDS = [
    pytest.param(name, as_traced, id=name, marks=marks_unless(name == "nemotron_h")) for name in CAPTURED
]
ROUNDS += [
    pytest.param(name, "compile", id=f"{name}-inductor", marks=pytest.mark.thorough)
    for name in ("bamba", *KINDS)
    if name in CAPTURED
]


@cache
def model(name: str) -> Any:
    return build(name, experts=None)


@cache
def both(name: str, capture: Any) -> Both:
    """One for all tests of a model, so that a shape is compiled once."""
    return Both(model(name), capture)


@cache
def oracle(name: str) -> Stepwise:
    return Stepwise(model(name))


@pytest.mark.thorough  # a trace takes a second where layers are many
@pytest.mark.parametrize("name", [name for name in MIXED if name in CAPTURED])
class TestLawS(StateBackendTests):
    vocab_size, longest, examples = VOCAB, 80, 4

    @pytest.fixture(autouse=True)
    def _model(self, name: str) -> None:
        self.both, self.logits_after = both(name, as_traced), oracle(name)  # type: ignore[method-assign]

    def make_backend(self) -> StateBackend:
        self.both.release()
        return self.both


def chain(nodes: int) -> torch.Tensor:
    return torch.arange(-1, nodes - 1).unsqueeze(0)


@cache
def single(hybrid: bool) -> Any:
    """A model of one Mamba-2 layer, which clamps its step in a prompt, or of one and an attention layer."""
    torch.manual_seed(7)
    config: Any = hf.Mamba2Config(
        **PURE | {"num_hidden_layers": 1},
        num_heads=8,
        head_dim=8,
        n_groups=2,
        chunk_size=8,
        time_step_limit=(0.5, 0.6),
    )
    if hybrid:
        config = hf.BambaConfig(**SMALL | {"max_position_embeddings": 2048}, **BAMBA, attn_layer_indices=[1])
    made = hf.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "norm" not in name and "A_log" not in name:
                parameter.normal_(0.0, 0.25)
    return made.eval()


@pytest.mark.parametrize("name", LEVEL_BY_LEVEL)
def test_passes_that_go_from_level_to_level_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedModel, match=r"KeyDecay.* go from level to level .* with capture=\"off\""):
        both(name, as_traced)


@pytest.mark.parametrize(("name", "capture"), ROUNDS)
def test_rounds_while_rows_come_and_go(name: str, capture: Any) -> None:
    backend = both(name, capture)
    backend.release()
    mirror = Mirror(backend, oracle(name))
    mirror.prefill([words(3), []])
    # Of the first row the nodes of two calls; of the second a call of fewer.
    mirror.extend([[(5, -1), (6, 0), (7, 0)], [(8, -1)]])
    mirror.extend([[(9, 1), (3, 2), (4, 3)], [(2, 0), (4, 0), (6, 2)]])
    mirror.commit([[0, 2, 4], [0, 2, 3]])
    mirror.release([0])
    mirror.prefill([words(4)])
    mirror.extend([[(5, -1), (6, 0), (7, 0)], [(8, -1)]])
    mirror.commit([[0, 1], []])
    mirror.release(None)
    mirror.prefill([[], []])
    mirror.extend([[(1, -1), (2, 0), (5, 0)], [(3, -1), (4, -1)]])
    mirror.commit([[0, 1], [1]])
    mirror.check_state()
    graphs: Any = backend.backend.captured
    # No pass leaves tensors behind, so that Dynamo need not put them in their places.
    assert any(graph._direct for shape, graph in graphs._by_shape.items() if isinstance(shape, tuple))


@pytest.mark.parametrize("hybrid", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_growing_text_takes_a_graph_a_bucket(hybrid: bool) -> None:
    backend = Both(single(hybrid))
    backend.prefill([torch.tensor(words(250))])
    captured = backend.backend.captured
    while (have := backend.lengths[0]) < 330:
        backend.extend(torch.tensor([words(have + 20)[have:]]), chain(20))
        backend.commit([range(20 if have % 2 else 11)])
        # Without Dynamo, from the second pass of a shape on.
        _, commit, *later = captured._by_shape.values()
        assert commit._direct is not None
        assert not later or later[-1]._direct is not None
    texts = len({text_bucket(tokens) for tokens in range(250, 330)}) if hybrid else 1
    assert backend.graphs == 1 + texts  # and that of the commit


def test_a_first_pass_before_any_text_shows_the_shapes() -> None:
    backend = Both(single(False))
    backend.prefill([torch.tensor([], dtype=torch.long)] * 2)
    for parents in ([-1, 0], [0, 1], [3, -1]):
        backend.extend(torch.tensor([[1, 2], [3, 4]]), torch.tensor([parents] * 2))
    backend.commit([[0, 1, 3, 4], [0, 1]])
    backend.extend(torch.tensor([[1, 2], [3, 4]]), chain(2).expand(2, -1))


def test_states_stay_where_they_are() -> None:
    backend = Both(single(False))
    layers = backend.backend._states.layers
    backend.prefill([torch.tensor(words(5))] * 3)

    def places() -> list[int]:
        return [tensor.data_ptr() for layer in layers for tensor in (layer.committed, *layer.arena.vectors)]

    before = places()
    for _ in range(2):
        backend.extend(torch.tensor([[1, 2, 3]] * 3), chain(3).expand(3, -1))
        backend.extend(torch.tensor([[4]] * 3), torch.tensor([[1]] * 3))
        backend.commit([[0, 1, 3], [0], []])
        assert places() == before
    graphs = backend.graphs
    backend.release([1])
    backend.prefill([torch.tensor(words(300))] * 2)
    assert places() == before
    backend.extend(torch.tensor([[1, 2, 3]] * 4), chain(3).expand(4, -1))
    backend.commit([[0], [], [0, 1], [0, 1, 2]])
    assert places() == before
    assert backend.graphs == graphs


@pytest.mark.thorough
def test_a_region_that_outgrows_its_room_is_kept() -> None:
    backend = Both(single(False))
    backend.prefill([torch.tensor(words(5))])
    for start in range(0, 160, 40):
        backend.extend(torch.tensor([words(start + 40)[start:]]), chain(40) + (start if start else 0))
    backend.commit([range(155)])
    backend.extend(torch.tensor([[1, 2]]), chain(2))
    backend.commit([[0]])


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mamba2", "bamba"])
def test_greedy_text_is_that_of_generate(name: str) -> None:
    target = model(name)
    decoder = SpeculativeDecoder(
        target=Both(target),
        drafter=create("drafters", "model", {"backend": Both(single(False))}),
        policy=create("policies", "layered-dyspec", {"budget": 7}),
        verifier=create("verifiers", "recursive-rejection"),
    )
    for prompt in (words(3), words(17)):
        written: Any = decoder.generate([prompt], max_new_tokens=12, eos_token_id=[])
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        expected = target.generate(
            ids, attention_mask=mask, max_new_tokens=12, do_sample=False, eos_token_id=None
        )
        assert written.tolist() == expected.tolist()


def test_levels_are_left_to_single_passes() -> None:
    backend = Both(single(True))
    backend.prefill([torch.tensor(words(4))])
    plan = LevelPlan(depth=2, width=2, branching=2, budget=3)
    assert backend.extend_levels(torch.tensor([[3]]), torch.tensor([[-1]]), plan) is None


def test_a_layer_that_goes_level_by_level_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = SSMBackend(single(False))
    assert isinstance(with_capture(backend, as_traced), SSMBackend)
    monkeypatch.setattr(Mamba2State, "traceable", False)
    with pytest.raises(
        UnsupportedModel, match=r"recurrent layers \(.*Mamba2State\) whose passes go from level"
    ):
        with_capture(backend, as_traced)
