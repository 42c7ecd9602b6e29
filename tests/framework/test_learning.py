"""States of learning policies: one per row, passed from round to round and from call to call."""

import attrs
import pytest

from draftwood import Deterministic, InvalidInput, SamplingParams
from draftwood.distributions.forced_tokens import without_forced_tokens
from draftwood.protocols import policy_states
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dynamic_depth import DynamicDepth
from draftwood.strategies.policies.dynatree import DynaTree
from draftwood.strategies.policies.throughput_dyspec import ThroughputDySpec
from draftwood.testing import ToyModel, checks_for
from draftwood.testing.models.small_strategies import small_policies
from draftwood.testing.proofs.row_isolation import assert_rows_isolated
from tests.framework.decoding import PROMPTS, decoder
from tests.framework.learners import Changes, Frozen, Grows, Leaves, Remembers
from tests.framework.test_constrained_law import Table

SMALL = small_policies()
LEARNERS = [
    Grows(),
    DynaTree(1, 3, 2, 4, warmup=1),
    DynaTree(1, 3, 2, 4, warmup=1, law="without-replacement"),
    DynamicDepth(Chain(3, "top-k"), 0.6),
    DynamicDepth(DynaTree(1, 3, 2, 4, warmup=1), 0.6),
    DynamicDepth(DynaTree(1, 3, 2, 4, warmup=1), 0.3, history=False),
    ThroughputDySpec(4),
]
learners = pytest.mark.parametrize("policy", LEARNERS, ids=lambda one: type(one).__name__)


def generate(policy, prompts=PROMPTS, count=24, **options):
    sampling = SamplingParams(temperature=1.0)
    return decoder(policy).generate(
        prompts, max_new_tokens=count, sampling=sampling, seed=5, return_dict_in_generate=True, **options
    )


def trees(generation, row=0):
    """Tokens and parents of the row's trees, round by round."""
    records = [record for one in generation.statistics.rounds for record in one.rows if record.row == row]
    return [(record.tree.tokens, record.tree.parents) for record in records]


def test_every_registered_learner_is_among_those_tried_here():
    tried = {type(policy) for policy in LEARNERS}
    assert {type(one.strategy) for one in SMALL if one.strategy.learns} <= tried


@pytest.mark.parametrize("named", SMALL, ids=str)
def test_every_registered_policy_is_frozen(named):
    for name in ("policy", "budget", "anything"):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(named.strategy, name, 1)


@pytest.mark.parametrize(
    "policy", [*LEARNERS, *(one.strategy for one in SMALL)], ids=lambda one: type(one).__name__
)
def test_rows_that_grow_in_turns_grow_as_alone(policy):
    for seed in range(3):
        models = [ToyModel(4, seed=seed, sharpness=2.0), ToyModel(4, seed=seed + 10)]
        assert_rows_isolated(policy, models, [(2, 0, 2), (0, 1), (3,)])


@learners
def test_calls_that_hand_nothing_on_are_equal(policy):
    first, again = (generate(policy, trace=True) for _ in range(2))
    assert first.tokens == again.tokens
    assert [trees(first, row) for row in range(3)] == [trees(again, row) for row in range(3)]
    assert first.policy_states == again.policy_states
    assert policy_states.first_state(policy) not in first.policy_states


@pytest.mark.parametrize(
    "policy", [one for one in LEARNERS if one.scope == "row"], ids=lambda one: type(one).__name__
)
def test_a_row_learns_beside_others_what_it_learns_alone(policy):
    batch = generate(policy)
    for row, (prompt, seed) in enumerate(zip(PROMPTS, batch.seeds, strict=True)):
        alone = decoder(policy).generate(
            [prompt],
            max_new_tokens=24,
            sampling=SamplingParams(temperature=1.0),
            seed=[seed],
            return_dict_in_generate=True,
        )
        assert alone.policy_states == [batch.policy_states[row]]


def greedy(policy, text, count, **options):
    """A call at temperature 0, whose text does not depend on where it is cut."""
    return decoder(policy).generate(
        [text], max_new_tokens=count, trace=True, return_dict_in_generate=True, **options
    )


@pytest.mark.parametrize(
    "policy",
    [one for one in LEARNERS if one.laws == {Deterministic}],
    ids=lambda one: type(one).__name__,
)
def test_a_call_goes_on_where_another_has_stopped(policy):
    full = greedy(policy, PROMPTS[0], 60)
    rounds, text, differs = full.statistics.rounds, list(PROMPTS[0]), False
    for number, one in enumerate(rounds):
        text += one.rows[0].tokens
        if number % 5 or number == len(rounds) - 1:
            continue
        left = len(PROMPTS[0]) + 60 - len(text)
        later = greedy(policy, text, left, policy_state=one.rows[0].policy_state)
        assert trees(later) == trees(full)[number + 1 :]
        assert later.policy_states == full.policy_states
        differs |= trees(later) != trees(greedy(policy, text, left))
    assert differs, "what was learnt makes no difference here"


def test_states_are_handed_on_to_all_rows_or_each_to_its_own():
    policy = Grows()
    for start, lengths in ((4, [4, 4, 4]), ([1, 3, 2], [1, 3, 2])):
        stream = decoder(policy).stream(PROMPTS, policy_state=start)
        assert [record.outcome.drafted for record in next(stream).rows] == lengths
    again = generate(policy, policy_state=generate(policy).policy_states)
    assert len(again.policy_states) == 3
    plain = generate(Chain(2))
    assert plain.policy_states is None
    assert generate(Chain(2), policy_state=plain.policy_states).tokens == plain.tokens


def test_a_row_without_a_round_keeps_the_state_it_was_given():
    class Interrupts:
        def put(self, value):
            raise KeyboardInterrupt

        def end(self):
            pass

    assert generate(Grows(), PROMPTS[:1], policy_state=7, streamer=Interrupts()).policy_states == [7]


def test_a_policy_within_learns_by_its_own_note():
    policy = DynamicDepth(DynaTree(1, 3, 2, 4, warmup=1), 0.9)
    out = generate(policy, PROMPTS)
    assert all(state.inner != DynaTree(1, 3, 2, 4, warmup=1).first_state() for state in out.policy_states)
    assert any(state.threshold != 0.9 for state in out.policy_states)
    policy = DynamicDepth(Grows(), 0.0)
    start = attrs.evolve(policy.first_state(), inner=3)
    stream = decoder(policy).stream(PROMPTS[:1], policy_state=start)
    assert next(stream).rows[0].outcome.drafted == 3


@pytest.mark.parametrize(
    ("policy", "state", "message"),
    [
        (Chain(2), 1, r"policy_state was given and Chain\(.* does not learn; leave it out"),
        (Grows(), [1, 2], "2 policy states were given for 3 rows; give one per row"),
        (Grows(), "far", "policy_state holds 'far', which is no int of"),
        (Grows(), (1, 2, 3), r"policy_state holds \(1, 2, 3\), which is no int of"),
        (DynaTree(), LEARNERS[-1].first_state(), "which is no DynaTreeState of DynaTree"),
    ],
)
def test_states_that_are_not_the_policys_are_refused(policy, state, message):
    with pytest.raises(InvalidInput, match=message):
        generate(policy, policy_state=state)


class Stateless(Chain):
    learns = True


class Unbegun(Grows):
    def first_state(self):
        pass


class Listed(Grows):
    def first_state(self):
        return [1]


class Forgets(Grows):
    def observe(self, state, outcome, tree):
        pass


def test_learners_whose_state_cannot_be_handed_on_are_refused():
    for policy in (Stateless(1), Unbegun()):
        with pytest.raises(InvalidInput, match=r"but its first_state\(\) returns None; subclass"):
            decoder(policy)
    with pytest.raises(InvalidInput, match=r"The state \[1\] of .* can change .*unhashable.*attrs.frozen"):
        decoder(Listed())
    with pytest.raises(InvalidInput, match=r"gave None; it returns the next state, a int"):
        generate(Forgets())


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Leaves(), "does not keep rows apart: in round 0 row "),
        (Remembers(), "does not keep rows apart: in round 0 row "),
        (Changes(), "a state never changes"),
        (Frozen(), "FrozenInstanceError"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_what_is_kept_on_the_policy_is_caught(policy, message):
    with pytest.raises(AssertionError, match=message):
        dict(checks_for(policy, models=5))["interleaved"]()


@attrs.frozen
class Watches(Grows):
    """Keeps what it is shown; the chain's length stays."""

    seen: list = attrs.field(factory=list)
    length: int = 5

    def first_state(self):
        return self.length

    def observe(self, state, outcome, tree):
        self.seen.append((tree.size, outcome))
        return state


def test_the_tree_that_is_observed_ends_at_the_texts_limit():
    policy = Watches()
    generate(policy, PROMPTS[:1], count=3)
    assert policy.seen
    for size, outcome in policy.seen:
        assert size <= 3
        assert outcome.drafted == size - 1
        assert max(outcome.path) < size


def test_forced_spans_are_no_part_of_what_is_observed():
    policy = Watches(length=1)
    forced = Table({n: {n % 3: n + 1} for n in range(40)})
    out = generate(policy, [[0]], count=30, constraint=forced)
    assert out.tokens == [[n % 3 for n in range(30)]]
    rounds = [one.rows[0].outcome for one in out.statistics.rounds]
    assert max(outcome.accepted for outcome in rounds) > 1
    for (size, own), outcome in zip(policy.seen, rounds, strict=True):
        assert size <= 2
        assert own == without_forced_tokens(outcome, size)
