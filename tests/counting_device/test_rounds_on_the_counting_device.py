"""Decoding on the stand-in: every strategy on every kind of backend writes what it writes on the CPU."""

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch

from draftwood import load, zoo
from draftwood.backends.structure.forward import plain_logits
from draftwood.kernels.support import kernels_enabled
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from tests.counting_device import phases
from tests.counting_device.counts import Counts, Kind
from tests.counting_device.device import CountingDevice
from tests.counting_device.models import to_device
from tests.counting_device.rounds import HEADS, Call, count_rounds, counted_rounds, prompts, tokens_on_the_cpu
from tests.counting_device.strategies import every_strategy

pytestmark = pytest.mark.triton

STRATEGIES = {one.name: one for one in every_strategy()}
BACKENDS: dict[str, dict[str, Any]] = {
    "masked": {},
    "recurrent": {"target": "mamba2-5m", "draft": "mamba2-draft"},
    "hybrid": {"target": "bamba-6m", "draft": "mamba2-draft"},
    "paths": {"paths": True},
}
CHAIN = Call(policy=Chain(3), verifier=RecursiveRejection())


def cases() -> list[Any]:
    """Every strategy on every backend, at every temperature, with one row and with three.

    Of each strategy `make test` runs one, by mask or on another backend in turn.
    """
    found = []
    for place, (name, strategy) in enumerate(STRATEGIES.items()):
        kind = "masked" if place % 2 else ("recurrent", "hybrid", "paths")[place // 2 % 3]
        often = {
            (kind, strategy.temperatures[place // 3 % len(strategy.temperatures)], (1, 3)[place // 2 % 2])
        }
        for backend in BACKENDS:
            for temperature in strategy.temperatures:
                for rows in (1, 3):
                    marks = [] if (backend, temperature, rows) in often else [pytest.mark.thorough]
                    found.append(pytest.param(name, backend, temperature, rows, marks=marks))
    return found


@pytest.mark.parametrize(("name", "backend", "temperature", "rows"), cases())
def test_the_text_is_that_of_the_cpu(name: str, backend: str, temperature: float, rows: int) -> None:
    policy, verifier = STRATEGIES[name].policy, STRATEGIES[name].verifier
    call = Call(policy=policy, verifier=verifier, temperature=temperature, rows=rows, **BACKENDS[backend])
    assert count_rounds(call, rounds=1).tokens == tokens_on_the_cpu(call, rounds=2)


@pytest.mark.parametrize("head", HEADS)
def test_the_text_with_a_head_is_that_of_the_cpu(head: str) -> None:
    call = attrs.evolve(CHAIN, policy=LayeredDySpec(6), draft=head, rows=3)
    assert count_rounds(call, rounds=2).tokens == tokens_on_the_cpu(call, rounds=3)


@pytest.mark.parametrize("options", BACKENDS.values(), ids=BACKENDS)
def test_half_precision(options: dict[str, Any], device: CountingDevice) -> None:
    call = attrs.evolve(CHAIN, dtype=torch.bfloat16, rows=2, **options)
    plain = plain_logits(zoo.load(call.target, torch.bfloat16), [5, 6, 7])
    logits = plain_logits(to_device(zoo.load(call.target, torch.bfloat16)), [5, 6, 7])
    assert logits.dtype == plain.dtype
    torch.testing.assert_close(logits.cpu(), plain, atol=0.1, rtol=0.05)
    with kernels_enabled(True):
        counted = counted_rounds(call.decoder(on_device=True), device, call, rounds=2, before=0)
    assert all(len(tokens) >= 2 for tokens in counted.tokens)
    # All that it computes with is of one dtype: a mix would raise, and so it would on a GPU.
    assert counted.a_round(Kind.LAUNCH, in_pass=True) > 100


@pytest.mark.thorough
def test_the_interpreter_writes_the_same_with_the_same_counts() -> None:
    call = Call(policy=FixedTree(1, 2), verifier=RecursiveRejection())
    by_reference, interpreted = (
        count_rounds(call, rounds=1, before=0, interpret=mode) for mode in (False, True)
    )
    assert interpreted.tokens == by_reference.tokens
    assert interpreted.total.events == by_reference.total.events
    names = {event.operation.split(":")[0] for event in interpreted.total.events if ":" in event.operation}
    assert names >= {"tree_attention", "ordered_draws", "tree_rejection"}


def test_a_round_has_all_phases_and_passes_of_models() -> None:
    counted = count_rounds(CHAIN, rounds=2)
    assert counted.begun.keys() == {*phases.PHASES, phases.PREFILL}
    assert counted.begun[phases.TARGET_PASS] == 3
    assert counted.begun[phases.VERIFICATION] == 4  # one is of the first token
    assert counted.begun[phases.DRAFT_PASS] == 3 * counted.draft_calls == 9
    names = {name for phase in counted.total.by_phase() for name in phase}
    assert names <= set(phases.PHASES)
    inside = [
        counted.a_round(Kind.LAUNCH, phase=name, in_pass=True)
        for name in (phases.DRAFT_PASS, phases.TARGET_PASS)
    ]
    assert counted.a_round(Kind.LAUNCH, in_pass=True) == sum(inside) > min(inside) > 0
    assert counted.a_round(Kind.LAUNCH, in_pass=False) > 0
    assert counted.a_round(Kind.WAIT, in_pass=True) == counted.a_round(Kind.BLOCKING_COPY, in_pass=True) == 0
    shown = counted.table()
    assert all(f"\n{name}" in shown or f"/ {name}" in shown for name in names)


def test_a_round_is_counted_by_itself_and_without_prefill() -> None:
    later, first = count_rounds(CHAIN, rounds=2), count_rounds(CHAIN, rounds=1, before=0)
    assert first.tokens[0] == later.tokens[0][: len(first.tokens[0])]
    # Rounds of a chain differ in what they accept alone.
    for counts in later.rounds:
        assert counts.of(Kind.LAUNCH) == pytest.approx(first.total.of(Kind.LAUNCH), rel=0.05)
    assert first.total.by_phase().keys() == later.total.by_phase().keys()


def test_references_are_counted_where_kernels_are_off() -> None:
    on, off = (count_rounds(Call(policy=Chain(3), verifier=RecursiveRejection(), kernels=kernels), rounds=1)
               for kernels in (True, False))  # fmt: skip
    assert on.tokens == off.tokens
    assert any(":" in event.operation for event in on.total.events)
    assert not any(":" in event.operation for event in off.total.events)
    assert off.a_round(Kind.WAIT, phase=phases.VERIFICATION) > on.a_round(
        Kind.WAIT, phase=phases.VERIFICATION
    )


@pytest.mark.parametrize(
    ("kind", "does"),
    [
        (Kind.WAIT, lambda: torch.ones(3, device="cuda")[0].item()),
        (Kind.BLOCKING_COPY, lambda: torch.ones(3).to("cuda")),
        (Kind.LAUNCH, lambda: torch.ones(3, device="cuda")),
    ],
)
def test_what_a_change_to_a_round_adds_is_seen(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, does: Callable[[], object]
) -> None:
    usual = count_rounds(CHAIN, rounds=1)
    verify_rows = RecursiveRejection.verify_rows
    monkeypatch.setattr(RecursiveRejection, "verify_rows", lambda *given: (does(), verify_rows(*given))[1])
    slow = count_rounds(CHAIN, rounds=1)
    assert slow.tokens == usual.tokens
    assert slow.a_round(kind, in_pass=False) == usual.a_round(kind, in_pass=False) + 1
    assert slow.a_round(kind, phase=phases.VERIFICATION) == usual.a_round(kind, phase=phases.VERIFICATION) + 1


def test_counts_do_not_depend_on_what_ran_before() -> None:
    first = count_rounds(CHAIN, rounds=2)
    count_rounds(Call(policy=FixedTree(2, 2), verifier=Greedy(), temperature=0.0, rows=2), rounds=1)
    again = count_rounds(CHAIN, rounds=2)
    assert [one.events for one in again.rounds] == [one.events for one in first.rounds]


def test_a_model_is_loaded_on_the_device(device: CountingDevice) -> None:
    plain = load(zoo.load("llama-draft"))
    texts = [torch.tensor(text[:-1]) for text in prompts(2)]
    tokens, parents = torch.tensor([[5, 6, 7]] * 2), torch.tensor([[-1, 0, 0]] * 2)
    plain.prefill(texts)
    wanted = plain.extend(tokens, parents)
    with kernels_enabled(True):
        backend = load(to_device(zoo.load("llama-draft")))
        assert type(backend) is type(plain)
        assert backend.device.type == "cuda"
        device.counts = Counts()
        backend.prefill(texts)
        logits = backend.extend(tokens, parents)
        assert device.counts.of(Kind.LAUNCH) > 0
        assert device.counts.of(Kind.WAIT) == 0
        torch.testing.assert_close(logits.cpu(), wanted, atol=1e-4, rtol=1e-4)
        backend.commit([[0, 2], [0]])
    assert backend.lengths == [len(texts[0]) + 2, len(texts[1]) + 1]
