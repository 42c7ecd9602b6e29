"""Policies that read their row: its length, limit, history and costs, and the checks that vary these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from draftwood import (
    BatchPolicy,
    Growing,
    InvalidInput,
    PassCosts,
    PassTable,
    Randomness,
    RowView,
    SamplingParams,
    SpeculativeDecoder,
    TreeBuilder,
    TreePolicy,
    WithoutReplacement,
    create,
    measure_costs,
)
from draftwood.decoding import loop, measured_costs, session
from draftwood.drafters import ModelDrafter
from draftwood.policies import Chain, DynamicDepth, Mixture, ThroughputDySpec
from draftwood.protocols import policy_states
from draftwood.testing import LawBroken, ToyBackend, ToyModel, assert_lossless
from draftwood.testing.checks.strategy_checks import checks_for
from draftwood.testing.models.row_views import TOY_COSTS, TOY_VIEW
from draftwood.verifiers import RecursiveRejection
from tests.framework.decoding import DRAFT, TARGET, decoder, drafter


@attrs.frozen
class ByAcceptance(TreePolicy):
    """A chain as long as half of the drafted nodes were accepted, within the tokens that are left."""

    seen: list[RowView] = attrs.field(factory=list, eq=False)
    laws = frozenset({WithoutReplacement})
    branches = False
    reads_row = True

    def grow(self, root: int, rng: Randomness, *, view: RowView) -> Growing:  # type: ignore[override]
        self.seen.append(view)
        return Chain(3 if 2 * view.accepted >= view.drafted else 1).grow(root, rng)


def test_a_view_tells_length_limit_history_and_costs() -> None:
    policy = ByAcceptance()
    rounds = list(
        decoder(policy).stream(
            [[1, 2, 3], [4]], max_new_tokens=12, sampling=SamplingParams(1.0), seed=3, eos_token_id=[]
        )
    )
    written = {0: 0, 1: 0}
    history: dict[int, tuple[tuple[int, int], ...]] = {0: (), 1: ()}
    views = iter(policy.seen)
    for one in rounds:
        for row in one.rows:
            view = next(views)
            assert view.length == [3, 1][row.row] + written[row.row]
            assert view.left == 12 - written[row.row]
            assert view.history == history[row.row]
            assert (view.rows, view.costs) == (1, TOY_COSTS)
            written[row.row] += len(row.tokens)
            history[row.row] = (*history[row.row], (row.outcome.drafted, row.outcome.accepted))
    assert next(views, None) is None
    assert any(view.drafted for view in policy.seen)


def test_texts_over_several_rounds_have_the_targets_law() -> None:
    """The proof goes on with each row's history, as decoding does."""
    policy = ByAcceptance()
    target = ToyModel(3, seed=1, sharpness=2.0)
    drafts = ModelDrafter(ToyBackend(ToyModel(3, seed=2)))
    assert_lossless(policy, RecursiveRejection(), target=target, drafter=drafts, tokens=3)
    assert any(view.history for view in policy.seen)


@attrs.frozen
class Shared(BatchPolicy[int]):
    """A chain of two where fewer than three rows are there."""

    laws = frozenset({WithoutReplacement})
    branches = False
    reads_row = True

    def share(self, states: Sequence[Any], views: Sequence[RowView]) -> Sequence[int]:  # type: ignore[override]
        return [2 if view.rows < 3 else 1 for view in views]

    def grow(self, root: int, rng: Randomness, share: int | None = None) -> Growing:
        return Chain(share or 2).grow(root, rng)


def test_a_batch_policy_reads_how_many_rows_there_are() -> None:
    drafted = []
    for rows in (2, 3):
        rounds = decoder(Shared()).stream([[1]] * rows, max_new_tokens=9, seed=1, eos_token_id=[])
        drafted.append(next(rounds).rows[0].outcome.drafted)
        rounds.close()
    assert drafted == [2, 1]


@attrs.frozen
class LateAtTheEnd(TreePolicy):
    """Broken on purpose: with few tokens left it drops a child by the child's own token."""

    laws = frozenset({WithoutReplacement})
    adaptive = True
    reads_row = True

    def grow(self, root: int, rng: Randomness, *, view: RowView) -> Growing:  # type: ignore[override]
        tree = TreeBuilder(root)
        (siblings,) = yield tree.open([0], WithoutReplacement, ahead=1)
        if siblings.draw() and (view.left > 2 or siblings.tokens[0]):
            tree.add_last(0, siblings)
        return tree.finish()


def test_check_varies_what_a_policy_reads() -> None:
    checks = dict(checks_for(LateAtTheEnd(), models=0))
    checks["proposal-law"]()  # at one view nothing is seen
    with pytest.raises(LawBroken, match=r"(?s)For a row of which it reads RowView\(.*left=2"):
        checks["views"]()
    for policy in (ByAcceptance(), Shared()):
        dict(checks_for(policy, models=0))["views"]()


def test_wrappers_and_calls_without_a_view_are_refused() -> None:
    for wrap in (DynamicDepth, Mixture):
        with pytest.raises(InvalidInput, match="no policy can wrap it"):
            wrap(policy=ByAcceptance())
    with pytest.raises(InvalidInput, match="there is no RowView here"):
        policy_states.grow(ByAcceptance(), 1, None, None)  # type: ignore[arg-type]


def test_times_between_and_beyond_what_was_measured() -> None:
    table = PassTable.of(
        lambda nodes, rows, context: 1 + 0.5 * nodes + 2 * rows + context / 100,
        nodes=(1, 4, 8),
        rows=(1, 5),
        contexts=(100, 300),
    )
    for nodes, rows, context in ((1, 1, 100), (3, 2, 150), (8, 5, 300), (20, 4, 700)):
        assert table(nodes, rows=rows, context=context) == pytest.approx(
            1 + 0.5 * nodes + 2 * rows + context / 100
        )
    assert table(3, rows=10, context=100) == table(6, rows=5, context=100)
    assert table(1, context=7) == table(1, context=100)
    assert table([[1, 3]], rows=5, context=100).tolist() == [[12.5, 13.5]]
    assert PassCosts(table).draft_seconds([1, 2]).tolist() == [0, 0]
    assert PassCosts.of_file(attrs.asdict(TOY_COSTS)) == TOY_COSTS


def test_times_of_a_mixture_of_experts_grow_with_the_experts_that_are_touched() -> None:
    """Every expert of 8 takes 1 s to read, every token chooses 2; only 1 and 64 rows were measured."""

    def touched(tokens: int) -> float:
        return 8 * (1 - (1 - 2 / 8) ** tokens)

    def seconds(nodes: int, rows: int, _: int) -> float:
        return 1 + touched(nodes * rows)

    points = PassTable.of(seconds, nodes=(1, 16), rows=(1, 64)).points
    plain = PassTable(points)
    known = PassTable(points, [(tokens, touched(tokens)) for tokens in (1, 2, 4, 8, 16, 32, 64, 1024)])
    for nodes, rows in ((2, 1), (4, 1), (8, 1), (1, 2), (1, 4), (1, 16)):
        assert known(nodes, rows=rows) == pytest.approx(seconds(nodes, rows, 0), rel=0.01)
        assert abs(plain(nodes, rows=rows) - seconds(nodes, rows, 0)) > 0.1 * seconds(nodes, rows, 0)
    assert known([1, 4]).tolist() == [known(1), known(4)]
    # Where all experts are touched, the tokens count.
    dense = PassTable([(1, 64, 0, 8.0), (3, 64, 0, 10.0)], [(1, 2.0), (32, 8.0), (512, 8.0)])
    assert dense(2, rows=64) == pytest.approx(9.0)
    assert PassCosts.of_file(attrs.asdict(PassCosts(known))) == PassCosts(known)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"target": {"points": [[1, 1, 1, 0.1]], "experts": [[2, 3.0], [1, 4.0]]}}, "both rising"),
        ({"target": {"points": []}}, "has no points"),
        ({"target": {"points": [[0, 1, 1, 0.1]]}}, "give nodes and rows above 0"),
        ({"target": {"points": [[1, 1, 1]]}}, r"give \(nodes, rows, context, seconds\)"),
        ({"target": {"constant": 1.0}}, "not an object with points"),
        ({"draft": None}, "run draftwood tune again"),
        (["target"], "run draftwood tune again"),
    ],
)
def test_damaged_costs_are_refused(content: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        PassCosts.of_file(content)


def test_costs_work_out_their_hash_once() -> None:
    # Every round looks up what was worked out from the same costs, and they may hold hundreds of points.
    asked = []

    class Name(str):
        def __hash__(self) -> int:
            asked.append(self)
            return super().__hash__()

    costs = PassCosts(PassTable([(1, 1, 0, 1.0)]), machine=Name("a machine"))
    assert hash(costs) == hash(costs) == hash(attrs.evolve(costs))
    assert len(asked) == 2  # of the costs, and of their copy


def test_costs_are_measured_by_nodes_rows_and_context() -> None:
    target, drafts = ToyBackend(TARGET), drafter(DRAFT)
    costs = measure_costs(
        target, drafts, nodes=(1, 2, 5), rows=(1, 3), contexts=(4, 9), repetitions=1, machine="here"
    )
    expected = {(n, r, c) for n in (1, 2, 5) for r in (1, 3) for c in (4, 9)}
    for table in (costs.target, costs.draft):
        assert table is not None
        assert {point[:3] for point in table.points} == expected
    assert costs.rest is not None
    assert costs.rest(1) > 0
    assert (costs.machine, costs.target.experts) == ("here", ())
    assert target.lengths == []
    assert measure_costs(ToyBackend(TARGET), nodes=(1,)).draft is None


@pytest.mark.parametrize(("temperature", "name"), [(0.0, "greedy"), (0.6, "recursive-rejection")])
def test_the_rest_of_a_round_is_timed_as_rounds_of_that_temperature(
    temperature: float, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judging drawn children takes several times as long as following the most likely tokens."""
    judged: list[tuple[type, float]] = []
    stream = SpeculativeDecoder.stream

    def noted(decoder: SpeculativeDecoder, *args: Any, **options: Any) -> Any:
        judged.append((type(decoder.verifier), options["sampling"].temperature))
        return stream(decoder, *args, **options)

    monkeypatch.setattr(SpeculativeDecoder, "stream", noted)
    measure_costs(
        ToyBackend(TARGET), drafter(DRAFT), nodes=(1,), contexts=(4,), repetitions=1, temperature=temperature
    )
    assert judged == [(type(create("verifiers", name)), temperature)]


class Clock:
    """A clock that `sleep` moves on, and each look at it by a microsecond; other work does not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._seconds = 0.0
        for module in (measured_costs, loop, session):
            monkeypatch.setattr(module, "perf_counter", self)

    def __call__(self) -> float:
        self.sleep(1e-6)
        return self._seconds

    def sleep(self, seconds: float) -> None:
        self._seconds += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Slow(ToyBackend):
    """A target whose passes over more nodes take longer, and all of them twice as long at times."""

    pass_seconds = 0.01

    def __init__(self, model: ToyModel, clock: Clock, *, changes: bool = False) -> None:
        super().__init__(model)
        self._clock = clock
        self._changes = changes

    def extend(self, tokens: Any, parents: Any, counts: Any = None) -> Any:
        slow = self._changes and self._clock() % 0.7 > 0.35
        self._clock.sleep((1 + slow) * self.pass_seconds * (1 + tokens.shape[1]) / 2)
        return super().extend(tokens, parents, counts)


def test_the_growth_of_a_layer_counts_with_its_draft_call(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deep tree takes longer outside of its passes than a flat one of as many nodes."""
    grow, layer = ThroughputDySpec.grow_together, 0.05

    def slow(policy: ThroughputDySpec, *args: Any) -> Any:
        growing: Any = grow(policy, *args)
        try:
            asked = next(growing)
            while True:
                clock.sleep(layer)
                asked = growing.send((yield asked))
        except StopIteration as finished:
            return finished.value

    monkeypatch.setattr(ThroughputDySpec, "grow_together", slow)
    measured = measure_costs(
        Slow(TARGET, clock), drafter(DRAFT), nodes=(1, 2), contexts=(4,), repetitions=1, temperature=0.0
    )
    assert measured.rest is not None
    sizes = [point[0] for point in measured.rest.points]
    assert (sizes[:2], len(sizes)) == ([1, 2], 3)
    assert measured.draft_seconds(1) == pytest.approx(layer, rel=0.01)
    assert max(measured.rest_seconds(size) for size in sizes) < 0.01 * layer


def test_a_machine_may_change_its_speed_while_it_is_timed(clock: Clock) -> None:
    """The machine takes twice as long for half of the time, and the ratio of two sizes stays the same."""
    costs = measure_costs(
        Slow(TARGET, clock, changes=True), drafter(DRAFT), nodes=(1, 2, 3), contexts=(4,), temperature=0.0
    )
    assert Slow.pass_seconds < costs.target(1) < 2.01 * Slow.pass_seconds
    assert costs.target(3) / costs.target(1) == pytest.approx(2, rel=0.01)
    assert costs.rest_seconds(1) < 0.01 * Slow.pass_seconds


def test_sizes_that_take_too_long_are_left_out() -> None:
    costs = measure_costs(ToyBackend(TARGET), nodes=(1, 2, 5, 9), contexts=(4,), seconds=0.0)
    assert [point[0] for point in costs.target.points] == [1, 2]


def test_what_cannot_be_measured_is_refused() -> None:
    busy = ToyBackend(TARGET)
    busy.prefill([])
    with pytest.raises(InvalidInput, match="give numbers from 1"):
        measure_costs(busy, rows=())
    with pytest.raises(InvalidInput, match="need 208 tokens of context, and the target has 100"):
        measure_costs(ToyBackend(TARGET, max_length=100))


def test_a_view_without_costs_says_where_they_come_from() -> None:
    assert TOY_VIEW.known_costs() is TOY_COSTS
    with pytest.raises(InvalidInput, match="given no pass_costs; give it draftwood.measure_costs"):
        RowView().known_costs()
