"""`ThroughputDySpec`: its rate by modelled time against fixed trees and ordinary decoding; its states."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood import (
    CounterRandomness,
    InvalidInput,
    Outcome,
    PassCosts,
    PassTable,
    Request,
    RowView,
    SamplingParams,
    SpeculativeDecoder,
    TokenTree,
    TreePolicy,
)
from draftwood.drafters import ModelDrafter
from draftwood.policies import Chain, LayeredDySpec, ThroughputDySpec
from draftwood.protocols import policy_states
from draftwood.strategies.acceptance_history import (
    BINS,
    BOUNDS,
    DEPTHS,
    LIKELIEST,
    RANKS,
    AcceptanceHistory,
    Judged,
)
from draftwood.strategies.paying_nodes import PayingNodes
from draftwood.strategies.policies import throughput_dyspec
from draftwood.testing.models.proof_models import PROOF_MODELS, proof_models
from draftwood.testing.models.toy import ToyBackend
from draftwood.testing.proofs.joint_rows import joint_rows_law
from draftwood.verifiers import RecursiveRejection

TOYS = proof_models(31, vocab_size=12, target=3.0, draft=2.0, mix=0.8)
NODES = (1, 2, 3, 5, 9, 17, 33)


def costs(node: float, call: float = 0.05) -> PassCosts:
    """A pass that takes 1 and `node` for each node of each row."""
    return PassCosts(
        PassTable.of(lambda nodes, rows, _: 1 + node * nodes * rows, nodes=NODES, rows=(1, 64)),
        PassTable.of(lambda nodes, rows, _: call * (1 + 0.04 * nodes * rows), nodes=NODES, rows=(1, 64)),
    )


CHEAP, DEAR = costs(0.005), costs(0.6)


class Counted(ModelDrafter):
    """Notes the nodes of every call, of the row that asks for the most."""

    def __init__(self, backend: ToyBackend) -> None:
        super().__init__(backend)
        self.sizes: list[int] = []

    def distributions(self, requests: Sequence[Request | None]):  # type: ignore[no-untyped-def]
        self.sizes.append(max(len(request) for request in requests if request is not None))
        return super().distributions(requests)

    def taken(self) -> list[int]:
        """Returns the sizes since the last such call."""
        sizes, self.sizes = self.sizes, []
        return sizes


def rate(
    policy: TreePolicy, passes: PassCosts, *, rows: int, tokens: int, temperature: float
) -> tuple[float, float]:
    """Tokens for a unit of modelled time, and drafted nodes of a row's round; six texts in all."""
    drafter = Counted(ToyBackend(TOYS.draft))
    decoder = SpeculativeDecoder(
        ToyBackend(TOYS.target), drafter, policy, RecursiveRejection(), pass_costs=passes
    )
    written = time = nodes = turns = 0.0
    rounds = [
        (one, drafter.taken())
        for first in range(0, 6, rows)
        for one in decoder.stream(
            [[row % 12, 1] for row in range(first, first + rows)],
            max_new_tokens=tokens,
            sampling=SamplingParams(temperature=temperature),
            seed=range(first, first + rows),
            eos_token_id=[],
        )
    ]
    for one, calls in rounds:
        drafted = [row.outcome.drafted for row in one.rows]
        written += sum(len(row.tokens) for row in one.rows)
        time += passes.target(1 + max(drafted), rows=len(drafted))
        time += sum(passes.draft_seconds(size, rows=len(drafted)) for size in calls)
        nodes, turns = nodes + sum(drafted), turns + len(drafted)
    return written / time, nodes / turns


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("passes", [CHEAP, DEAR], ids=["cheap", "dear"])
def test_it_keeps_up_with_the_best_fixed_tree_and_with_ordinary_decoding(
    rows: int, passes: PassCosts, temperature: float
) -> None:
    law = "without-replacement" if temperature else "top-k"
    size = {"rows": rows, "tokens": 96, "temperature": temperature}
    found, nodes = rate(ThroughputDySpec(16, law=law), passes, **size)  # type: ignore[arg-type]
    fixed = [
        rate(other, passes, **size)[0]  # type: ignore[arg-type]
        for other in (
            Chain(2, law),
            Chain(4, law),
            Chain(8, law),
            *(LayeredDySpec(budget, law=law) for budget in (4, 16)),
        )
    ]
    ordinary = rows / passes.target(1, rows=rows)
    # The toy draft is right more often than is assumed before anything was judged. At temperature 0 it nearly
    # always is, and a chain of 8 is the best.
    assert found > (0.95 if temperature else 0.93) * max(ordinary, *fixed)
    if passes is DEAR and rows > 1 and temperature:
        assert ordinary > max(fixed)  # so this case does show decoding without trees
        assert nodes < 0.5
    else:
        assert found > ordinary


def learnt(rate: float, *, rounds: float = 40.0, time: float = 1.0, tokens: float = 1.0) -> AcceptanceHistory:
    """A history in which children of every kind were accepted at `rate`."""
    kinds, accepted = RANKS * BINS, rate * rounds
    of_kinds, of_depths = ((rounds,) * count + (accepted,) * count for count in (kinds, DEPTHS))
    counts = np.array(of_kinds + of_depths)
    return AcceptanceHistory(counts.tobytes(), tokens=tokens * rounds, time=time * rounds)


def nodes_of(
    history: AcceptanceHistory, passes: PassCosts, *, budget: int = 16, rows: int = 1
) -> PayingNodes:
    return PayingNodes([history] * rows, passes, LIKELIEST, budget=budget, depths=np.full(rows, 8))


def growing(
    policy: ThroughputDySpec,
    histories: Sequence[object],
    views: Sequence[RowView],
    seed: int = 0,
) -> Any:
    """The growth of rows that all begin with token 2."""
    rngs = [CounterRandomness(seed + row) for row in range(len(histories))]
    return policy_states.growth(policy, [2] * len(histories), rngs, histories, views=views)


def grown(
    policy: ThroughputDySpec, history: AcceptanceHistory, passes: PassCosts, *, left: int = 64
) -> TokenTree:
    """The tree of a row by itself, whose draft always takes token 0 for twice as likely as token 1."""
    growth = growing(policy, [history], [RowView(left=left, costs=passes)])
    while (requests := growth.requests) is not None:
        growth.answer(torch.tensor([[[0.6, 0.3, 0.1]] * requests.counts[0]]))
    (tree,) = growth.trees()
    return tree


def test_the_price_of_a_second_is_the_rate_that_was_reached() -> None:
    reached = nodes_of(learnt(0.5, rounds=1e6, time=0.5, tokens=1.5), CHEAP)
    assert reached.price == pytest.approx(3 / CHEAP.target(1), rel=1e-4)
    slow = nodes_of(learnt(0.0, rounds=1e6, time=2.0), CHEAP)
    assert slow.price == pytest.approx(1 / CHEAP.target(1), rel=1e-4)  # ordinary decoding can always be had
    together = nodes_of(learnt(0.5, rounds=1e6, time=0.5, tokens=1.5), CHEAP, rows=4)
    assert together.price == pytest.approx(12 / CHEAP.target(1, rows=4), rel=1e-4)


def test_a_tree_ends_where_the_next_node_does_not_pay() -> None:
    policy, passes = ThroughputDySpec(32, law="top-k"), costs(0.1, call=0.01)
    history = learnt(0.5, rounds=1e6)
    tree = grown(policy, history, passes)
    # Of rate 1 / 1.1, a node takes 0.1 seconds; the values are 1/2, then 1/4 twice, 1/8 four times, ...
    price = 0.1 / 1.1
    assert all(0.5 ** (int(tree.depths[node]) + rank(tree, node)) > price for node in range(1, len(tree)))
    assert len(tree) - 1 == sum(2**at for at in range(3))
    assert len(grown(policy, learnt(0.9, rounds=1e6), passes)) > len(tree)
    assert len(grown(policy, history, costs(0.4, call=0.01))) < len(tree)


def rank(tree: TokenTree, node: int) -> int:
    return tree.children(int(tree.parents[node])).index(node)


def test_a_layer_must_pay_for_its_draft_call() -> None:
    policy, history = ThroughputDySpec(32, law="top-k"), learnt(0.5, rounds=1e6)
    deep, flat = (grown(policy, history, costs(0.01, call=call)) for call in (0.01, 0.45))
    assert int(deep.depths.max()) > int(flat.depths.max()) == 1
    assert len(grown(policy, history, costs(0.01, call=2.0))) == 1


def test_a_step_of_the_costs_is_shared_by_the_nodes_that_it_allows() -> None:
    """Passes of 2 to 9 nodes take as long: no node could pay for that step, and eight of them can."""
    step = PassCosts(PassTable([(1, 1, 0, 1.0), (2, 1, 0, 1.8), (9, 1, 0, 1.8), (10, 1, 0, 3.0)]))
    tree = grown(ThroughputDySpec(32, law="top-k"), learnt(0.5, rounds=1e6), step)
    assert len(tree) == 9


def test_rows_pay_together_for_a_pass_that_is_padded_to_the_largest() -> None:
    """A row whose children never are accepted has as many nodes as the others, which cost nothing more."""
    poor, good = learnt(0.05, rounds=1e6), learnt(0.8, rounds=1e6)
    policy = ThroughputDySpec(8, law="top-k")
    growth = growing(policy, [good, good, poor], [RowView(costs=costs(0.05))] * 3)
    while (requests := growth.requests) is not None:
        growth.answer(torch.tensor([0.6, 0.3, 0.1]).expand(3, max(requests.counts), 3))
    sizes = [len(tree) - 1 for tree in growth.trees()]
    assert sizes[0] == sizes[1] > 1
    assert sizes[2] > 0
    assert len(grown(policy, poor, costs(0.05))) == 1


def test_a_tree_that_was_bad_luck_is_tried_again() -> None:
    """After one failure a first node is still drafted; after twenty it is not; when they fade it is again."""
    passes = costs(0.2, call=0.3)
    failed = AcceptanceHistory().after([Judged(1, 0, 0.6, False)], tokens=1, time=1.2, memory=1.0)
    assert nodes_of(failed, passes).width
    for _ in range(20):
        failed = failed.after([Judged(1, 0, 0.6, False)], tokens=1, time=1.2, memory=0.98)
    assert not nodes_of(failed, passes).width
    waited = 0
    while not nodes_of(failed, passes).width:
        failed = failed.after([], tokens=1, time=1.0, memory=0.98)
        waited += 1
        assert waited < 300
    assert waited > 5


def test_a_first_node_that_is_tried_again_is_drawn_and_not_only_asked_for() -> None:
    """It pays by the doubt about its rate only; else the draft would be asked in vain, round after round."""
    judged, policy = learnt(0.5, rounds=6.0), ThroughputDySpec(law="top-k")

    def sizes(node: float, history: AcceptanceHistory) -> int:
        passes = PassCosts(PassTable([(1, 1, 0, 1.0), (2, 1, 0, 1 + node), (3, 1, 0, 9.0)]))
        return len(grown(policy, history, passes))

    assert sizes(0.56, judged) == 2
    assert sizes(0.56, learnt(0.5, rounds=1e6)) == 1
    assert sizes(0.9, judged) == 1


def dearest(judged: float, *, rows: int) -> float:
    """The most that a node may cost for one to be drafted, where `judged` children of a kind were seen.

    A pass takes as long for any number of rows, so that no other cause than the doubt tells them apart.
    """

    def drafts(node: float) -> bool:
        passes = PassTable.of(lambda nodes, *_: 1 + node * (nodes - 1), nodes=NODES, rows=(1, 64))
        return bool(nodes_of(learnt(0.5, rounds=judged / rows), PassCosts(passes), rows=rows).width)

    return max(node for node in np.linspace(0.3, 1.0, 281).tolist() if drafts(node))


def test_more_rows_try_a_first_node_again_less_often() -> None:
    """A trial costs a round of all rows, so the standard errors are divided by the root of their number."""
    certain, one, four = dearest(1e6, rows=1), dearest(24.0, rows=1), dearest(24.0, rows=4)
    assert one > four > certain
    assert four - certain == pytest.approx((one - certain) / 2, rel=0.1)


@given(rates=st.lists(st.floats(0.1, 0.9), min_size=1, max_size=6), node=st.sampled_from([-0.02, 0.01]))
def test_a_budget_of_one_node_is_spent(rates: list[float], node: float) -> None:
    """Also where a pass over two nodes was measured as faster than one over one."""
    policy, passes = (
        ThroughputDySpec(1, law="top-k"),
        PassCosts(PassTable([(1, 1, 0, 1), (2, 1, 0, 1 + node)])),
    )
    trees = grown_from(policy, [learnt(rate) for rate in rates], passes)
    assert [len(tree) for tree in trees] == [2] * len(rates)


def test_while_nothing_is_drafted_few_rounds_ask_whether_a_tree_pays(monkeypatch) -> None:
    policy, history = ThroughputDySpec(law="top-k"), AcceptanceHistory()
    dear = PassCosts(PassTable([(1, 1, 0, 1.0), (2, 1, 0, 3.0)]))
    turn, weighed = 0, list[int]()

    def noted(*args: Any, **options: Any) -> PayingNodes:
        weighed.append(turn)
        return PayingNodes(*args, **options)

    monkeypatch.setattr(throughput_dyspec, "PayingNodes", noted)
    while turn < 42:
        (tree,) = grown_from(policy, [history], dear)
        assert len(tree) == 1
        history = policy.observe(history, Outcome.of(tree, [0], extra=2, bonus=True), tree)
        turn += 1
    assert weighed == [0, 4, 8, 16, 32, 36, 40]
    assert len(grown_from(policy, [attrs.evolve(history, undrafted=0)], CHEAP)[0]) > 1


@settings(max_examples=60)
@given(
    rates=st.lists(st.floats(0.02, 0.95), min_size=1, max_size=4),
    node=st.floats(0.0, 0.8),
    seed=st.integers(0, 99),
    law=st.sampled_from(["top-k", "without-replacement"]),
)
def test_no_tree_would_have_more_children_than_are_drawn_ahead(
    rates: list[float], node: float, seed: int, law: str
) -> None:
    """Trees are the same if every node may have as many children as the budget has nodes."""
    policy, states = ThroughputDySpec(12, law=law), [learnt(rate) for rate in rates]
    shapes = []
    for free in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if free:
                patch.setattr(
                    PayingNodes, "most_children", property(lambda _: 12, lambda *_: None), raising=False
                )
            trees = grown_from(policy, states, costs(node), seed)
        shapes.append([(tree.tokens.tolist(), tree.parents.tolist()) for tree in trees])
    assert shapes[0] == shapes[1]


def grown_from(
    policy: ThroughputDySpec,
    histories: Sequence[AcceptanceHistory],
    passes: PassCosts,
    seed: int = 0,
    *,
    left: Sequence[int] = (),
) -> Sequence[TokenTree]:
    """The trees of rows whose draft takes every token for half as likely as the one before."""
    views = [RowView(costs=passes, left=one) for one in left or [64] * len(histories)]
    growth = growing(policy, histories, views, seed)
    probs = torch.tensor([0.5**token for token in range(1, 20)] + [0.5**19])
    while (requests := growth.requests) is not None:
        growth.answer(probs.expand(len(histories), max(requests.counts), 20))
    return growth.trees()


def test_trees_stay_within_budget_depth_and_text() -> None:
    free, sure = costs(0.0, call=0.0), learnt(0.9)
    tree = grown(ThroughputDySpec(6, depth=2, law="top-k"), sure, free)
    assert len(tree) == 7
    assert int(tree.depths.max()) == 2
    assert int(grown(ThroughputDySpec(6), sure, free, left=2).depths.max()) == 1
    assert len(grown(ThroughputDySpec(6), sure, free, left=1)) == 1


@given(
    left=st.lists(st.integers(1, 6), min_size=2, max_size=5),
    law=st.sampled_from(["top-k", "without-replacement"]),
    seed=st.integers(0, 99),
)
def test_no_node_lies_beyond_what_its_row_may_still_write(left: list[int], law: str, seed: int) -> None:
    policy, free = ThroughputDySpec(12, law=law), costs(0.0, call=0.0)
    trees = grown_from(policy, [learnt(0.9)] * len(left), free, seed, left=left)
    assert all(tree.depth <= room - 1 for tree, room in zip(trees, left, strict=True))
    assert max(len(tree) for tree in trees) > 1 or max(left) == 1


def test_rows_near_their_end_do_not_pay_for_the_others() -> None:
    sure, passes = learnt(0.6, rounds=1e6), costs(0.12, call=0.05)
    policy = ThroughputDySpec(8, depth=1, law="top-k")
    assert len(grown_from(policy, [sure] * 4, passes)[0]) > 1
    assert [len(tree) for tree in grown_from(policy, [sure] * 4, passes, left=[64, 1, 1, 1])] == [1] * 4


def test_what_is_learnt_is_which_children_were_accepted_and_what_the_round_took() -> None:
    policy = ThroughputDySpec(4, depth=2, law="top-k", memory=0.5)
    tree = grown(policy, learnt(0.9, rounds=1e6), costs(0.0, call=0.25))
    second = tree.children(0)[1]
    state = policy.observe(AcceptanceHistory(), Outcome.of(tree, [0, second], extra=2, bonus=False), tree)
    assert state.tokens == 2
    assert state.time == pytest.approx(1 + 0.25 * 1.04 + 0.25 * 1.08)  # calls for one node and for two
    counts = state.faded * np.frombuffer(state.counts)
    judged, accepted = counts[: 2 * RANKS * BINS].reshape(2, RANKS, BINS)
    below = len(tree.children(second))
    assert judged.sum(1).tolist() == [1 + (below > 0), 1 + (below > 1), max(below - 2, 0)]
    assert accepted.sum(1).tolist() == [0, 1, 0]
    assert accepted[1, bisect(BOUNDS, 0.3 / 0.4)] == 1  # of what the first child left
    assert policy.observe(state, Outcome.of(tree, [0], extra=2, bonus=False), tree).tokens == 2


@settings(max_examples=50, deadline=None)
@given(memory=st.floats(0.0, 1.0), seed=st.integers(0, 99))
def test_older_rounds_count_less(memory: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    state, expected = AcceptanceHistory(), np.zeros(2 * RANKS * BINS + 2 * DEPTHS)
    for _ in range(60):
        children = [
            Judged(depth, int(rank), float(chance), bool(rank))
            for depth, (rank, chance) in enumerate(rng.random((rng.integers(3), 2)) * 2, start=1)
        ]
        state = state.after(children, tokens=1, time=1.0, memory=memory)
        one = AcceptanceHistory().after(children, tokens=1, time=1.0, memory=1.0)
        expected = memory * expected + np.frombuffer(one.counts)
    np.testing.assert_allclose(state.faded * np.frombuffer(state.counts), expected, rtol=1e-9, atol=1e-9)


class Experienced(ThroughputDySpec):
    """Begins with rates at which some nodes of the toy models pay, and others do not."""

    def first_state(self) -> AcceptanceHistory:
        return learnt(0.45, tokens=1.5)


@pytest.mark.parametrize("policy", [ThroughputDySpec(2), Experienced(2)], ids=repr)
def test_rows_that_grow_together_write_the_product_of_their_laws(policy: ThroughputDySpec) -> None:
    found = joint_rows_law(policy, RecursiveRejection(), PROOF_MODELS[:2])
    assert found.error < 1e-12
    assert found.runs > 1


def test_without_costs_it_is_refused_in_one_sentence() -> None:
    decoder = SpeculativeDecoder(
        ToyBackend(TOYS.target),
        ModelDrafter(ToyBackend(TOYS.draft)),
        ThroughputDySpec(),
        RecursiveRejection(),
    )
    with pytest.raises(InvalidInput, match="given no pass_costs; give it draftwood.measure_costs"):
        decoder.generate([[1, 2]], max_new_tokens=4)


def test_a_state_of_another_policy_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no AcceptanceHistory"):
        growing(ThroughputDySpec(), [(1, 2)], [RowView(costs=CHEAP)])
