"""The verifiers of the literature: law V by enumeration, what each is known to accept, and bad input."""

import itertools
import math

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood import (
    CounterRandomness,
    Deterministic,
    IncompatibleStrategy,
    InvalidDistribution,
    PerChild,
    TopThenSample,
    TreeBuilder,
    WithoutReplacement,
    WithReplacement,
    draw_children,
)
from draftwood.protocols import registry
from draftwood.protocols.compatibility import check_strategy_fits
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dynatree import DynaTree
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.independent_paths import IndependentPaths
from draftwood.strategies.policies.static_tree import StaticTree
from draftwood.strategies.verifiers.greedy_multi_path import GreedyMultiPath
from draftwood.strategies.verifiers.k_sequential import KSequential, division_factor
from draftwood.strategies.verifiers.optimal_iid import OptimalIID, Selection
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.sample_and_match import SampleAndMatch
from draftwood.strategies.verifiers.top_plus_one import TopPlusOne
from draftwood.strategies.verifiers.top_plus_one_traversal import TopPlusOneTraversal
from draftwood.strategies.verifiers.transport_block import TransportBlock
from draftwood.strategies.verifiers.typical import Typical
from draftwood.strategies.verifiers.walk import TreeWalk
from draftwood.testing import ToyModel, assert_lossless, joint_law, target_law
from draftwood.testing.models.proof_models import ProofModels
from draftwood.testing.models.small_strategies import toy_drafter
from draftwood.testing.proofs.block_efficiency import drawn_trees, one_round_law, optimal_tokens
from tests.strategies.one_level import on_edges, one_level, pairs_of_distributions, real, toy

LAWS = (Deterministic, WithReplacement, WithoutReplacement, TopThenSample, PerChild)
LOSSLESS = (
    RecursiveRejection(),
    SampleAndMatch(),
    KSequential(),
    OptimalIID(),
    TransportBlock(),
    GreedyMultiPath(),
    TopPlusOne(),
    TopPlusOneTraversal(),
)
PAIRS = [(law, verifier) for verifier in LOSSLESS for law in LAWS if law in verifier.laws]


def named(value):
    return value.__name__ if isinstance(value, type) else type(value).__name__


@pytest.mark.parametrize(("law", "verifier"), PAIRS, ids=named)
@on_edges
@settings(max_examples=15, deadline=None)
@given(pair=pairs_of_distributions)
def test_the_first_token_has_the_targets_law(law, verifier, pair):
    target, draft = pair
    for count in (1, 2, 3) if len(target) < 4 else (2,):
        emitted, _ = one_level(verifier, law, target, draft, count)
        assert (emitted - target).abs().max() <= 1e-12
        assert not emitted[target == 0].any()


@pytest.mark.parametrize(
    ("law", "verifier"),
    [(law, v) for law, v in PAIRS if law is not PerChild and not isinstance(v, TreeWalk)]
    + [(TopThenSample, RecursiveRejection())],
    ids=named,
)
def test_three_tokens_over_rounds_have_the_targets_law(law, verifier):
    # Independent siblings have the most trees.
    vocab, budget = (2, 4) if law is WithReplacement else (3, 3)
    paths = IndependentPaths(2, 2) if verifier.independent_paths else None
    assert_lossless(
        paths or FixedTree(2, (2, 1), budget, law=law),
        verifier,
        target=ToyModel(vocab, seed=1, sharpness=3.0),
        drafter=toy(vocab, seed=11),
        prompt=(1, 0),
    )


def best_of_sets(target, draft, k):
    """The optimum of k independent draws: the least of T(H) + 1 - D(H)^k over all sets H of tokens."""
    sets = itertools.product([False, True], repeat=len(target))
    masks = [torch.tensor(members) for members in sets]
    return min(float(target[mask].sum() + 1 - draft[mask].sum() ** k) for mask in masks)


@on_edges
@settings(max_examples=60, deadline=None)
@given(pair=pairs_of_distributions)
def test_the_optimal_rule_accepts_what_the_worst_set_allows(pair):
    target, draft = pair
    for count in (1, 2, 3) if len(target) < 4 else (2,):
        _, accepted = one_level(OptimalIID(), WithReplacement, target, draft, count)
        assert abs(accepted - best_of_sets(target, draft, count)) <= 1e-12


@pytest.mark.parametrize(("vocab", "k"), [(3, 2), (5, 2), (3, 3)])
def test_the_optimal_rule_is_the_linear_programmes_optimum(vocab, k):
    for seed in range(4):
        target, drafter = ToyModel(vocab, seed=seed, sharpness=0.5 + seed), toy(vocab, seed + 20)
        trees = drawn_trees(FixedTree(1, k, law="with-replacement"), drafter)
        _, accepted = one_level(
            OptimalIID(), WithReplacement, target.probs([0]), drafter.backend.model.probs([0]), k
        )
        assert abs(1 + accepted - optimal_tokens(trees, target=target)) <= 1e-9


def expected_tokens_of(verifiers, shape, *, vocab, seed):
    """The optimum and every verifier's expected tokens on trees drawn with replacement."""
    target, drafter = ToyModel(vocab, seed=seed), toy(vocab, seed + 40)
    trees = drawn_trees(FixedTree(len(shape), shape, law="with-replacement"), drafter)
    laws = [one_round_law(trees, verifier, target=target) for verifier in verifiers]
    result = [sum(weight * len(tokens) for tokens, weight in law.items()) for law in laws]
    return optimal_tokens(trees, target=target), *result


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1), (2,), (3,)])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_transported_block_is_optimal_on_chains_and_over_one_level(shape, seed):
    best, result = expected_tokens_of([TransportBlock()], shape, vocab=3, seed=seed)
    assert abs(result - best) <= 1e-9


PATHS = {
    "paths": IndependentPaths(2, 2),
    "paths below a trunk": StaticTree(((0,), (0, 0), (0, 1), (0, 0, 0), (0, 1, 0)), "with-replacement"),
}


@pytest.mark.parametrize("policy", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("silent", [False, True])
def test_the_best_of_several_paths_keeps_the_targets_law(policy, silent):
    # Paths that end after a token differ in length, and are as independent as before.
    models = ProofModels(ToyModel(2, seed=1, sharpness=3.0), (ToyModel(2, seed=11),))
    models = models.silent_after(0, start=2) if silent else models
    drafter = toy_drafter(policy, *models.drafts)
    assert_lossless(policy, GreedyMultiPath(), target=models.target, drafter=drafter, prompt=(1, 1))


@pytest.mark.parametrize(
    "policy",
    [
        DynaTree(2, branching=2, law="with-replacement"),
        FixedTree(2, (2, 1), threshold=0.3, law="with-replacement"),
        FixedTree(2, (2, 2), law="with-replacement"),
        StaticTree(((0,), (1,), (0, 0)), "with-replacement"),
    ],
    ids=str,
)
def test_the_best_of_several_paths_refuses_other_trees(policy):
    # Where one of two equal nodes ends, or branches again, its children are not the better of two.
    with pytest.raises(IncompatibleStrategy, match="only judges chains and independent paths"):
        check_strategy_fits(policy, GreedyMultiPath())
    p = real([0.0, 1.0, 0.0])
    tree = TreeBuilder(0)
    first, _ = tree.add_children(0, [1, 1], WithReplacement(p))
    tree.add_children(first, [1], WithReplacement(p))
    with pytest.raises(IncompatibleStrategy, match="equal nodes of this tree have .0, 1. children"):
        GreedyMultiPath().verify(tree.finish(), p.expand(4, 3), CounterRandomness.seeded(1))


def test_the_best_of_several_paths_is_between_one_path_and_the_optimum():
    gained = 0.0
    for seed in range(4):
        target, drafter = ToyModel(2, seed=seed), toy(2, seed + 40)
        trees = drawn_trees(IndependentPaths(2, 2), drafter)
        expected = []
        for verifier in (GreedyMultiPath(), KSequential()):
            law = one_round_law(trees, verifier, target=target)
            expected.append(sum(weight * len(tokens) for tokens, weight in law.items()))
        assert expected[0] <= optimal_tokens(trees, target=target) + 1e-9
        gained += expected[0] - expected[1]
    assert gained > 0


def test_a_transported_block_is_never_below_the_optimal_rule_level_by_level():
    verifiers = [OptimalIID(), TransportBlock(), RecursiveRejection()]
    gained = gap = 0.0
    for seed in range(5):
        best, level_wise, block, rejection = expected_tokens_of(verifiers, (2, 1), vocab=2, seed=seed)
        assert level_wise - 1e-12 <= block <= best + 1e-9
        gained, gap = gained + block - rejection, gap + best - rejection
    assert gained >= 0.5 * gap


@settings(max_examples=60, deadline=None)
@given(pair=pairs_of_distributions, k=st.integers(1, 6))
def test_a_selection_is_a_law_that_every_set_of_tokens_allows(pair, k):
    target, draft = pair
    selection = Selection.optimal(target, draft, k)
    assert abs(float(selection.chances.sum()) - 1) <= 1e-12
    for members in itertools.product([False, True], repeat=len(selection.tokens)):
        mask = torch.tensor(members)
        assert float(selection.chances[mask].sum()) >= float(selection.draft[mask].sum()) ** k - 1e-12


@on_edges
@settings(max_examples=40, deadline=None)
@given(pair=pairs_of_distributions)
def test_k_sequential_accepts_what_its_factor_promises(pair):
    target, draft = pair
    for k in (1, 2, 3):
        rho, beta = division_factor(target, draft, k)
        assert 1 <= rho <= k
        assert 1 - (1 - beta) ** k <= rho * beta + 1e-12
        if rho > 1 + 1e-9:  # a smaller factor would emit some token too often
            smaller = float(torch.minimum(draft, target / (rho * (1 - 1e-6))).sum())
            assert 1 - (1 - smaller) ** k >= rho * (1 - 1e-6) * smaller - 1e-12
        best = best_of_sets(target, draft, k)
        accepted = 1 - (1 - beta) ** k
        assert (1 - 1 / math.e) * best - 1e-12 <= accepted <= best + 1e-12
        if len(target) < 4:
            assert abs(one_level(KSequential(), WithReplacement, target, draft, k)[1] - accepted) <= 1e-12


def test_k_sequential_on_a_case_solved_by_hand():
    """beta = 1/2 whatever rho <= 2, so 1 - 1/4 = rho / 2."""
    target, draft = real([1.0, 0.0]), real([0.5, 0.5])
    rho, beta = division_factor(target, draft, 2)
    assert (rho, beta) == (pytest.approx(1.5), pytest.approx(0.5))


@on_edges
@settings(max_examples=40, deadline=None)
@given(pair=pairs_of_distributions)
def test_sample_and_match_accepts_the_targets_share_of_the_children(pair):
    target, draft = pair
    drawn = one_level(SampleAndMatch(), WithReplacement, target, draft, 1)[1]
    assert abs(drawn - float((draft * target).sum())) <= 1e-12
    assert drawn <= one_level(RecursiveRejection(), WithReplacement, target, draft, 1)[1] + 1e-12
    fixed = one_level(SampleAndMatch(), Deterministic, target, draft, 2)[1]
    assert abs(fixed - one_level(RecursiveRejection(), Deterministic, target, draft, 2)[1]) <= 1e-12


def test_typical_acceptance_is_biased_and_says_so():
    assert not Typical.lossless
    worst = []
    for seed in range(5):
        target, drafter = ToyModel(3, seed=seed), toy(seed=seed + 30)
        result = joint_law(Chain(2), Typical(), target=target, drafter=drafter).probabilities
        expected = target_law(target)
        worst.append(max(abs(result.get(text, 0.0) - expected[text]) for text in expected))
    assert min(worst) > 0.1


def verify(tree, rows, verifier=None):
    return (verifier or Typical()).verify(tree.finish(), rows, CounterRandomness.seeded(0))


def test_typical_acceptance_takes_the_longest_and_then_the_likeliest_path():
    tree = TreeBuilder(0)
    first, second = tree.add_children(0, [1, 2], Deterministic([1, 2], 3))
    deep = tree.add_children(second, [0, 1], Deterministic([0, 1], 3))
    rows = torch.tensor([[0.0, 0.7, 0.3], [0, 0, 1], [0.4, 0.6, 0], [0, 0, 1], [0.1, 0.9, 0]]).double()
    assert verify(tree, rows).path == (0, second, deep[1])
    assert verify(tree, rows).extra == 1
    # exp(-entropy) of (0.4, 0.6) is 0.51: with delta 1 the bar there is epsilon or 0.51.
    assert verify(tree, rows, Typical(epsilon=0.5, delta=1.0)).path == (0, first)
    assert verify(tree, rows, Typical(epsilon=0.29, delta=1.0)).path == (0, second, deep[1])
    assert verify(tree, rows, Typical(epsilon=1.0, delta=1.0)).path == (0, first)
    one_hot = torch.eye(3, dtype=torch.float64)[[2, 0, 1, 0, 0]]
    assert verify(tree, one_hot).path == (0, second, deep[1])
    assert verify(tree, one_hot[:, [1, 2, 0]]).tokens == (0, 1)


@attrs.frozen
class Grows(StaticTree):
    """A policy that says that its later siblings depend on earlier tokens."""

    adaptive = True


@pytest.mark.parametrize("verifier", [v for v in LOSSLESS if not v.adaptive], ids=named)
def test_who_looks_at_several_siblings_refuses_adaptive_trees(verifier):
    (law,) = verifier.laws
    check_strategy_fits(StaticTree("2/", law), verifier)
    with pytest.raises(IncompatibleStrategy, match=r"adaptive trees of Grows; .*recursive-rejection"):
        check_strategy_fits(Grows("2/", law), verifier)


def test_every_verifier_is_registered():
    classes = {registry.get("verifiers", name) for name in registry.names("verifiers")}
    assert {type(verifier) for verifier in (*LOSSLESS, Typical())} <= classes


def proposal_of(law, draft, tokens):
    if law is Deterministic:
        return Deterministic(tokens, len(draft))
    if law is PerChild:
        return PerChild([draft] * len(tokens))
    return TopThenSample(draft, tokens[:-1]) if law is TopThenSample else law(draft)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("law", "verifier"), PAIRS, ids=named)
@settings(max_examples=10, deadline=None)
@given(pair=pairs_of_distributions, seed=st.integers(0, 2**31))
def test_no_token_that_the_target_excludes_is_emitted(law, verifier, dtype, pair, seed):
    """Children of draft probability 0 and coarse numbers included."""
    target, draft = (row.to(dtype) for row in pair)
    tokens = list(range(len(draft)))[::-1]
    tree = TreeBuilder(0)
    tree.add_children(0, tokens, proposal_of(law, draft, tokens))
    rows = target.expand(len(tokens) + 1, -1)
    try:
        outcome = verifier.verify(tree.finish(), rows, CounterRandomness.seeded(seed))
    except InvalidDistribution:
        assert dtype is not torch.float64 or law is TopThenSample  # no token is left to be drawn
        return
    assert all(target[token] > 0 for token in outcome.emitted)


@pytest.mark.parametrize(("law", "verifier"), PAIRS, ids=named)
def test_a_real_vocabulary(law, verifier):
    generator = torch.Generator().manual_seed(0)
    target, other = (3 * torch.randn(2, 32_000, generator=generator)).softmax(-1)
    for draft in (target, 0.5 * target + 0.5 * other):
        rng = CounterRandomness.seeded(1)
        probs = draft.expand(1, 3, -1) if law is PerChild else draft[None]
        accepted = 0
        for _ in range(10):
            (drawn,) = draw_children(law, probs, count=3, rng=rng)
            tree = TreeBuilder(0)
            tree.add_children(0, drawn.tokens, drawn.proposal)
            accepted += verifier.verify(tree.finish(), target.expand(4, -1), rng).accepted
        # Where draft and target agree, rejection takes the first drawn child.
        if draft is target and law in (WithReplacement, WithoutReplacement, PerChild):
            # The best-ranked of several equal ones is not a draw by the draft's law.
            assert accepted == 10 or isinstance(verifier, SampleAndMatch | GreedyMultiPath)
