"""Estimates, contests and candidates that are given up, from the measurements of `draftwood tune`."""

from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwood.apps.bench.specs import ORDINARY, Spec
from draftwood.apps.bench.writers import Text
from draftwood.apps.models.by_name import EngineName
from draftwood.apps.tune import trial as trial_module
from draftwood.apps.tune.measure import TuneTrial, contest_result, estimate
from draftwood.apps.tune.trial import Candidates, most_gain
from draftwood.decoding.pass_time import PassTime
from tests.apps.costs import costs_of

times = st.floats(1e-4, 10)


@given(
    rounds=st.integers(1, 50),
    calls=st.integers(0, 5),
    nodes=st.integers(1, 6),
    accepted=st.integers(0, 4),
    draft=times,
    target=times,
    other=times,
)
def test_the_cost_model_gives_back_what_rounds_took(rounds, calls, nodes, accepted, draft, target, other):
    """Passes that cost what the fit says, and other work: all three are told apart; the gain is theirs."""
    costs = costs_of(PassTime(target, target / 100), PassTime(draft, draft / 10))
    assert costs.draft is not None
    one_call, one_pass = costs.draft(nodes), costs.target(1 + nodes * calls)
    text = Text(
        tokens=[0],
        seconds=3.0 + rounds * (calls * one_call + one_pass + other),
        first_token_seconds=0.0,
        first_tokens=1,
        rounds=rounds,
        peak_memory=0,
        draft_calls=rounds * calls,
        drafted=rounds * calls * nodes,
        accepted=rounds * accepted,
        draft_seconds=rounds * calls * one_call,
        target_seconds=rounds * one_pass,
        prefill_seconds=3.0,
    )
    found = estimate("x", [text, text], costs)
    assert found.tokens_per_round == pytest.approx(1 + accepted)
    assert found.other_seconds == pytest.approx(other, rel=1e-3, abs=1e-6)
    round_seconds = calls * one_call + one_pass + other
    assert found.gain == pytest.approx((1 + accepted) * costs.target(1) / round_seconds, rel=1e-3)
    # Passes that go on after their calls have returned are charged at the fit, not once more as other work.
    hidden = attrs.evolve(text, draft_seconds=0.0, target_seconds=0.0)
    assert estimate("x", [hidden], costs).gain == pytest.approx(found.gain, rel=1e-3)


def test_the_contest_counts_all_prompts_together():
    def texts(own: float, plain: float, tokens: list[int]) -> dict[str, Text]:
        return {"x": Text([1, 2], own, 0, 1, 1, 0), ORDINARY: Text(tokens, plain, 0, 1, 1, 0)}

    contest = [texts(1.0, 3.0, [1, 2]), texts(4.0, 2.0, [1, 3])]
    result = contest_result("x", contest, greedy=True)
    assert (result.gain, result.won, result.prompts, result.equal) == (1.0, 1, 2, False)
    assert contest_result("x", contest, greedy=False).equal is None


def trial_of(engine: str = "eager") -> Any:
    loaded = SimpleNamespace(loader=SimpleNamespace(engine=EngineName(engine)))
    return TuneTrial(loaded, [[1]] * 3, 0.0, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("engine", "draft", "most"),
    [("eager", 1.0, 1.0), ("eager", 0.5, 5 / 3), ("eager", 0.0, 5.0), ("openvino", 1.0, 2.5)],
)
def test_the_most_that_a_tree_can_gain(engine, draft, most):
    """Constant passes: d + 1 tokens for d draft passes and one target pass; an engine may draft in one."""
    costs = costs_of(PassTime(1.0), PassTime(draft))
    spec = Spec("leviathan", ("length=4",), budget=4)
    assert most_gain(spec, trial_of(engine), costs) == pytest.approx(most)
    assert most_gain(Spec("rsd-s"), trial_of(engine), costs) == float("inf")


class Writes:
    """A writer whose round gives `tokens` and takes `seconds` besides the target pass."""

    def __init__(self, tokens: int, other: float, clock: list[float]) -> None:
        self.tokens, self.other, self.clock = tokens, other, clock

    def write(self, prompt, tokens, seed) -> Text:
        rounds = tokens // self.tokens
        self.clock[0] += 10.0
        accepted, seconds = rounds * (self.tokens - 1), rounds * (1 + self.other)
        return Text(
            [0] * tokens, seconds, 0, 1, rounds, 0, rounds, 0.0, rounds * 4, accepted, target_seconds=rounds
        )


@pytest.mark.parametrize(
    ("others", "left", "gained"),
    [((0.0, 0.3, 9.0), ["a", "b"], True), ((9.0, 9.0, 9.0), ["a", "b", "c"], False)],
)
def test_weak_candidates_are_given_up(monkeypatch, others, left, gained):
    costs, clock = costs_of(PassTime(1.0)), [0.0]
    monkeypatch.setattr(trial_module, "monotonic", lambda: clock[0])
    writers = {name: Writes(2, other, clock) for name, other in zip("abc", others, strict=True)}
    monkeypatch.setattr(TuneTrial, "warmed", lambda self, spec: writers[spec.name])
    candidates = Candidates(trial_of(), costs, [Spec(name) for name in "abc"])
    candidates.look(16)
    assert [spec.name for spec in candidates.running] == left
    assert candidates.may_gain is gained
    assert [one.label for one in candidates.estimates()] == ["a", "b", "c"]
    assert {one.label: one.prompts for one in candidates.estimates()}["a"] == 2


def test_a_look_ends_in_time(monkeypatch):
    """Texts of 10 s: the seventh is the first that ends after a minute."""
    clock = [0.0]
    monkeypatch.setattr(trial_module, "monotonic", lambda: clock[0])
    monkeypatch.setattr(TuneTrial, "warmed", lambda self, spec: Writes(2, 9.0, clock))
    candidates = Candidates(trial_of(), costs_of(PassTime(1.0)), [Spec(str(n)) for n in range(9)])
    candidates.look(16)
    assert clock[0] == 70.0
    assert len(candidates.estimates()) == 7
