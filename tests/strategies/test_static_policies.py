"""Policies of a shape fixed beforehand, independent paths, and stochastic beam search."""

import itertools
from collections import Counter, defaultdict
from functools import partial

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from draftwood import (
    InvalidInput,
    Outcome,
    Randomness,
    RowRecord,
    TorchRandomness,
)
from draftwood.records import TracedTree
from draftwood.strategies.acceptance import acceptance_of_rounds, acceptance_vector
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.policies.independent_paths import IndependentPaths
from draftwood.strategies.policies.sequoia import Sequoia, best_shape
from draftwood.strategies.policies.shapes import SHAPES, as_shape
from draftwood.strategies.policies.static_tree import StaticTree
from draftwood.strategies.policies.stochastic_beam import StochasticBeam
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.testing import (
    ToyBackend,
    ToyModel,
    assert_lossless,
    assert_proposal_law,
    enumerate_outcomes,
)
from draftwood.testing.proposal_law import grow_tree

seeds = st.integers(0, 10**6)


def grow(policy, model, rng=None, seed=0):
    return grow_tree(policy, ModelDrafter(ToyBackend(model)), rng=rng or TorchRandomness.seeded(seed))


def drawn(policy, model):
    """Every tree with its chance."""
    return enumerate_outcomes(lambda rng: grow(policy, model, rng))


def places_of(tree):
    """Every node's place: its ranks among its siblings from the root down."""
    places = {0: ()}
    for node in range(len(tree)):
        for rank, child in enumerate(tree.children(node)):
            places[child] = (*places[node], rank)
    return [places[node] for node in range(1, len(tree))]


def texts_of(tree):
    return [tuple(tree.tokens[tree.path(node)].tolist()) for node in range(len(tree))]


@st.composite
def shapes(draw, most=8, wide=4):
    """Places of a random shape; ranks may be skipped."""
    places = [()]
    for _ in range(draw(st.integers(1, most))):
        place = (*draw(st.sampled_from(places)), draw(st.integers(0, wide - 1)))
        if place not in places:
            places.append(place)
    return draw(st.permutations(places[1:]))


# Static shapes


@given(shapes(), seeds)
def test_a_static_tree_of_top_k_holds_the_tokens_of_its_ranks(shape, seed):
    model = ToyModel(4, seed=seed, sparsity=0.3)
    tree = grow(StaticTree(shape, "top-k"), model)
    wanted = {}
    for place in as_shape(shape):
        above = wanted.get(place[:-1], (0,) if len(place) == 1 else None)
        if above is not None:
            p = model.probs(above)
            token = int(p.argsort(descending=True)[place[-1]])
            if p[token] > 0:
                wanted[place] = (*above, token)
    assert sorted(texts_of(tree)[1:]) == sorted(wanted.values())


@given(shapes(wide=3), seeds, st.sampled_from(["without-replacement", "with-replacement"]))
def test_a_drawn_static_tree_has_the_numbers_of_children_of_its_shape(shape, seed, law):
    shape = as_shape(shape)
    tree = grow(StaticTree(shape, law), ToyModel(4, seed=seed), seed=seed)
    assert len(tree) == len(shape) + 1
    counts = Counter(place[:-1] for place in shape)
    below = {(): ()}  # from a place in the tree to that in the shape
    for place in places_of(tree):
        ranks = sorted(known[-1] for known in shape if known[:-1] == below[place[:-1]])
        below[place] = (*below[place[:-1]], ranks[place[-1]])
    found = Counter(place[:-1] for place in places_of(tree))
    assert {below[place]: count for place, count in found.items()} == counts


@given(shapes(wide=2))
def test_parents_and_places_name_one_shape(shape):
    places = as_shape(shape)
    assume(all(place[-1] == 0 or (*place[:-1], 0) in places for place in places))
    numbers = {place: node for node, place in enumerate(((), *places))}
    parents = [-1, *(numbers[place[:-1]] for place in places)]
    assert StaticTree(parents) == StaticTree(shape)


def test_the_named_shapes_have_the_published_sizes():
    # STree, table 3: widest level, depth, tokens with the root. Medusa: 64 nodes for four heads.
    published = {"a": (3, 4, 13), "b": (16, 3, 29), "c": (6, 3, 16), "d": (4, 4, 13), "e": (3, 5, 16)}
    for name, wanted in {**{f"stree-{k}": v for k, v in published.items()}, "medusa": (28, 4, 64)}.items():
        levels = Counter(len(place) for place in SHAPES[name])
        assert (max(levels.values()), max(levels), len(SHAPES[name]) + 1) == wanted
        assert StaticTree(name) == StaticTree(SHAPES[name])
    assert {(0, 0, 0, 1), (0, 7, 0), (1, 6), (9, 0)} <= set(SHAPES["medusa"])


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("medsua", "no tree shape 'medsua'; did you mean 'medusa'"),
        ((), "no node below the root"),
        ((-1,), "no node below the root"),
        (((0,), (1, 0)), r"a node at \(1, 0\) and none at \(1,\)"),
        (((0,), (0,)), r"two nodes at \(0,\)"),
        (((0,), (0, -1)), r"a node at \(0, -1\); a place is one or more ranks >= 0"),
        (((0,), ()), r"a node at \(\)"),
        ((-1, 0, 2), "gives node 2 the parent 2"),
        ((0, 0), "gives node 0 the parent 0"),
        ((-1, (0,)), "mixes parents and places"),
    ],
)
def test_a_malformed_shape_is_refused(shape, message):
    with pytest.raises(InvalidInput, match=message):
        StaticTree(shape)


# Independent paths


@given(st.integers(1, 4), st.integers(1, 4), seeds)
def test_independent_paths_share_the_root_alone(paths, length, seed):
    tree = grow(IndependentPaths(paths, length), ToyModel(3, seed=seed), seed=seed)
    assert len(tree) == paths * length + 1
    assert len(tree.children(0)) == paths
    assert all(len(tree.children(node)) <= 1 for node in range(1, len(tree)))
    assert [len(tree.path(leaf)) for leaf in tree.leaves] == [length + 1] * paths


def test_paths_are_independent_texts_of_the_draft():
    model = ToyModel(2, seed=3)
    law = defaultdict(float)
    for weight, tree in drawn(IndependentPaths(2, 2), model):
        law[tuple(texts_of(tree)[leaf] for leaf in tree.leaves)] += weight

    def chance(text):
        return float(model.probs(text[:1])[text[1]] * model.probs(text[:2])[text[2]])

    texts = [(0, *rest) for rest in itertools.product(range(2), repeat=2)]
    assert law == pytest.approx({(a, b): chance(a) * chance(b) for a in texts for b in texts}, abs=1e-14)


# Stochastic beam search


def levels_of(tree):
    """The texts of every level in the tree's order."""
    levels = defaultdict(list)
    for text in texts_of(tree)[1:]:
        levels[len(text) - 2].append(text)
    return tuple(tuple(level) for _, level in sorted(levels.items()))


def law_of_first_prefixes(model, width, depth):
    """For every outcome, its chance: draw whole sequences without replacement, and keep of every level
    the first `width` distinct prefixes."""
    vocab = range(model.vocab_size)
    chances = {}
    for tokens in itertools.product(vocab, repeat=depth):
        text = (0, *tokens)
        chances[text] = 1.0
        for place in range(1, len(text)):
            chances[text] *= float(model.probs(text[:place])[text[place]])
    law = defaultdict(float)

    def draw(weight, left, levels):
        if not left or all(len(level) == width for level in levels):
            law[levels] += weight
            return
        total = sum(chances[text] for text in left)
        for text in left:
            after = tuple(
                (*level, text[: place + 2])
                if len(level) < width and text[: place + 2] not in level
                else level
                for place, level in enumerate(levels)
            )
            draw(weight * chances[text] / total, left - {text}, after)

    draw(1.0, frozenset(text for text, chance in chances.items() if chance > 0), ((),) * depth)
    return law


@pytest.mark.parametrize(
    ("vocab", "width", "depth", "sparsity"),
    [(2, 2, 2, 0.0), (2, 3, 2, 0.0), (2, 2, 3, 0.0), (3, 2, 2, 0.0), (3, 2, 2, 0.4), (3, 1, 2, 0.0)],
)
def test_the_beams_are_the_first_distinct_prefixes_of_drawn_sequences(vocab, width, depth, sparsity):
    for seed in range(2):
        model = ToyModel(vocab, seed=seed, sparsity=sparsity)
        found = defaultdict(float)
        for weight, tree in drawn(StochasticBeam(width, depth), model):
            found[levels_of(tree)] += weight
        assert found == pytest.approx(law_of_first_prefixes(model, width, depth), abs=1e-13)


def gumbel_beams(model, width, depth, generator):
    """RSD's algorithms 8 and 9 with line 7 corrected (the top of the truncated values), in the stable form
    of the truncation: for every level its (place of the parent in the beam, token), in order."""
    beam, levels = [((0,), 0.0, 0.0)], []
    for _ in range(depth):
        rivals = []
        for place, (text, logp, value) in enumerate(beam):
            log_probs = logp + model.probs(text).log()
            uniform = torch.rand(model.vocab_size, dtype=torch.float64, generator=generator)
            perturbed = log_probs - (-uniform.log()).log()
            v = value - perturbed + torch.log1p(-(perturbed - perturbed.max()).exp())
            truncated = value - v.clamp(min=0) - torch.log1p((-v.abs()).exp())
            rivals += [
                (float(truncated[token]), place, token, (*text, token), float(log_probs[token]))
                for token in range(model.vocab_size)
                if log_probs[token] > -torch.inf
            ]
        best = sorted(rivals, reverse=True)[:width]
        levels.append([(place, token) for _, place, token, _, _ in best])
        beam = [(text, logp, value) for value, _, _, text, logp in best]
    return levels


class FromNoise(Randomness):
    """Answers as the noise has it: which place of the beam comes next, then which token."""

    def __init__(self, levels):
        self.answers = iter([answer for level in levels for pair in level for answer in pair])

    def choose(self, p):
        answer = next(self.answers)
        assert p[answer] > 0, "the noise takes a step that the ordered draws cannot take"
        return answer


@given(seeds, st.integers(2, 6), st.integers(1, 6), st.integers(1, 4), st.sampled_from([0.0, 0.4]))
def test_the_same_noise_gives_the_tree_of_truncated_gumbels(seed, vocab, width, depth, sparsity):
    model = ToyModel(vocab, seed=seed, sparsity=sparsity)
    levels = gumbel_beams(model, width, depth, torch.Generator().manual_seed(seed))
    rng = FromNoise(levels)
    tree = grow(StochasticBeam(width, depth), model, rng)
    beam, wanted = [(0,)], []
    for level in levels:
        beam = [(*beam[place], token) for place, token in level]
        wanted.append(tuple(beam))
    assert levels_of(tree) == tuple(wanted)
    assert next(rng.answers, None) is None


def test_truncated_gumbels_have_the_law_of_the_ordered_draws():
    model, runs = ToyModel(2, seed=5), 4000
    law = law_of_first_prefixes(model, 2, 2)
    generator, seen = torch.Generator().manual_seed(1), Counter()
    for _ in range(runs):
        beam, levels = [(0,)], []
        for level in gumbel_beams(model, 2, 2, generator):
            beam = [(*beam[place], token) for place, token in level]
            levels.append(tuple(beam))
        seen[tuple(levels)] += 1
    assert set(seen) <= set(law)
    chi_square = sum((seen[one] - runs * p) ** 2 / (runs * p) for one, p in law.items())
    assert chi_square < len(law) + 6 * (2 * len(law)) ** 0.5


@given(seeds, st.integers(1, 5), st.integers(1, 4))
def test_a_beam_is_as_wide_as_there_are_prefixes(seed, width, depth):
    tree = grow(StochasticBeam(width, depth), ToyModel(2, seed=seed), seed=seed)
    assert [len(level) for level in levels_of(tree)] == [min(width, 2**d) for d in range(1, depth + 1)]
    assert len(set(texts_of(tree))) == len(tree)


def test_a_prefix_without_proposals_stays_a_leaf():
    class Stops(ToyModel):
        def logits(self, text):
            known = super().logits(text)
            return torch.full_like(known, -torch.inf) if text[-1] == 1 else known

    model = Stops(3, seed=2)
    drafter = ModelDrafter(ToyBackend(model))
    assert_proposal_law(StochasticBeam(2, 3), drafter)
    assert_lossless(
        StochasticBeam(2, 2), RecursiveRejection(), target=ToyModel(3, seed=4), drafter=drafter, rounds=1
    )


# Sequoia


def all_shapes(budget, depth, width):
    """All sets of at most `budget` places whose elder siblings and parents are there too."""

    def children(place, rank, nodes, levels):
        yield nodes, ()
        if nodes and levels and rank < width:
            child = (*place, rank)
            for left, below in children(child, 0, nodes - 1, levels - 1):
                for rest, younger in children(place, rank + 1, left, levels):
                    yield rest, (child, *below, *younger)

    return {tuple(sorted(shape)) for _, shape in children((), 0, budget, depth)}


def value(shape, acceptance):
    total = 0.0
    for place in shape:
        chance = 1.0
        for rank in place:
            chance *= acceptance[rank]
        total += chance
    return total


@given(
    st.lists(st.one_of(st.just(0.0), st.floats(0, 1)), min_size=1, max_size=3),
    st.integers(1, 6),
    st.integers(1, 4),
)
def test_the_best_shape_beats_every_other(weights, budget, depth):
    acceptance = [weight / max(1.0, sum(weights)) for weight in weights]
    shape = best_shape(acceptance, budget=budget, depth=depth)
    rivals = all_shapes(budget, depth, len(acceptance))
    assert tuple(sorted(shape)) in rivals
    best = max(value(rival, acceptance) for rival in rivals)
    assert value(shape, acceptance) == pytest.approx(best, abs=1e-12)


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=8), st.integers(1, 80))
def test_a_falling_vector_gives_the_most_likely_places(weights, budget):
    falling = sorted(weights, reverse=True)
    acceptance = [0.95 * weight / sum(falling) for weight in falling]
    shape = best_shape(acceptance, budget=budget, depth=budget)
    inside = set(shape)
    # A place is worth at most its parent and its elder sibling, so taking the best one by one is optimal.
    greedy, border = 0.0, [(0,)]
    for _ in range(budget):
        best = max(border, key=lambda place: value_of(place, acceptance))
        greedy += value_of(best, acceptance)
        border.remove(best)
        border.append((*best, 0))
        if best[-1] + 1 < len(acceptance):
            border.append((*best[:-1], best[-1] + 1))
    assert len(inside) == len(shape) <= budget
    assert value(shape, acceptance) == pytest.approx(greedy, rel=1e-12)


def value_of(place, acceptance):
    chance = 1.0
    for rank in place:
        chance *= acceptance[rank]
    return chance


@given(seeds, st.integers(1, 12), st.integers(1, 4))
def test_sequoia_draws_its_best_shape(seed, budget, depth):
    policy = Sequoia(budget, depth, (0.4, 0.3, 0.1))
    tree = grow(policy, ToyModel(4, seed=seed), seed=seed)
    assert sorted(places_of(tree)) == sorted(policy.shape)
    assert len(tree) - 1 <= budget
    assert tree.depth <= depth


def test_a_vector_may_come_as_words():
    assert Sequoia(4, 2, "0.5, 0.25") == Sequoia(4, 2, [0.5, 0.25])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sequoia(0), "budget is 0; give an integer >= 1"),
        (lambda: Sequoia(4, 0), "depth is 0"),
        (lambda: Sequoia(4, 2, ()), "acceptance is empty"),
        (lambda: Sequoia(4, 2, (0.5, 1.5)), r"acceptance\[1\] is 1.5; give chances in \[0, 1\]"),
        (lambda: Sequoia(4, 2, (-0.1,)), r"acceptance\[0\] is -0.1"),
        (lambda: Sequoia(4, 2, (float("nan"),)), r"acceptance\[0\] is nan"),
        (lambda: Sequoia(4, 2, (0.7, 0.6)), "acceptance sums to 1.3"),
        (lambda: Sequoia(4, 2, "half"), "acceptance is 'half'; give numbers"),
        (lambda: best_shape([0.5], budget=0, depth=1), "budget is 0 and depth 1"),
        (lambda: IndependentPaths(0), "paths is 0"),
        (lambda: IndependentPaths(2, 0), "length is 0"),
        (lambda: StochasticBeam(0), "width is 0"),
        (lambda: StochasticBeam(2, 0), "depth is 0"),
        (lambda: acceptance_of_rounds([], width=0), "width is 0"),
    ],
)
def test_options_out_of_range_name_the_value(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()


# Calibration


def test_the_vector_is_that_of_the_verifier():
    target, draft = ToyModel(4, seed=1), ToyModel(4, seed=2)
    wanted = [0.0] * 3
    # The verifier's own verdicts on every tree of three siblings, with their chances.
    policy = StaticTree(((0,), (1,), (2,)))
    rows = target.probs((0,)).expand(4, 4).contiguous()
    for weight, tree in drawn(policy, draft):
        judge = partial(RecursiveRejection().verify, tree, rows)
        for chance, outcome in enumerate_outcomes(judge):
            if outcome.accepted:
                wanted[outcome.path[1] - 1] += weight * chance
    p, q = target.probs((0,)).unsqueeze(0), draft.probs((0,)).unsqueeze(0)
    found = [0.0] * 3
    for weight, vector in enumerate_outcomes(lambda rng: acceptance_vector(p, q, width=3, rng=rng)):
        found = [a + weight * b for a, b in zip(found, vector, strict=True)]
    assert found == pytest.approx(wanted, abs=1e-13)


@given(seeds, st.integers(1, 5))
def test_traced_rounds_count_the_siblings_that_were_judged(seed, width):
    draft, target = ToyModel(4, seed=seed), ToyModel(4, seed=seed + 1)
    records, judged, accepted = [], Counter(), Counter()
    for number in range(5):
        tree = grow(StochasticBeam(3, 3), draft, seed=seed + number)
        rows = torch.stack([target.probs(text) for text in texts_of(tree)])
        outcome = RecursiveRejection().verify(tree, rows, TorchRandomness.seeded(number))
        traced = TracedTree.of(tree, rows)
        records.append(RowRecord(0, outcome.emitted, outcome, tree.depth, tree=traced))
        for node in outcome.path:
            for rank, child in enumerate(tree.children(node)):
                judged[rank] += 1
                accepted[rank] += child in outcome.path
    wanted = [accepted[rank] / judged[rank] if judged[rank] else 0.0 for rank in range(width)]
    assert acceptance_of_rounds(records, width=width) == wanted


def test_calibration_refuses_what_it_cannot_measure():
    rng = TorchRandomness.seeded(0)
    with pytest.raises(InvalidInput, match=r"target and draft are \[2, 3\] and \[2, 4\]"):
        acceptance_vector(torch.ones(2, 3) / 3, torch.ones(2, 4) / 4, width=2, rng=rng)
    with pytest.raises(InvalidInput, match="at least one position"):
        acceptance_vector(torch.ones(0, 3), torch.ones(0, 3), width=2, rng=rng)
    untraced = RowRecord(0, (1,), Outcome((0,), (0,), extra=1, bonus=True, drafted=0), 0)
    with pytest.raises(InvalidInput, match="trace the rounds"):
        acceptance_of_rounds([untraced], width=2)


def test_more_siblings_than_tokens_count_nothing():
    p = torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64)
    vector = acceptance_vector(p, p, width=4, rng=TorchRandomness.seeded(0))
    assert vector == [1, 0, 0, 0]


# The laws

SKIPS = ((0,), (2,), (0, 1), (0, 2))
POLICIES = [
    *(
        StaticTree(SKIPS, law)
        for law in ("top-k", "without-replacement", "with-replacement", "top-and-sample")
    ),
    IndependentPaths(2, 2),
    StochasticBeam(2, 2),
    StochasticBeam(3, 2),
    Sequoia(4, 2, (0.4, 0.3)),
]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_the_children_follow_their_law_and_keep_the_targets(policy):
    for seed in range(2):
        drafter = ModelDrafter(ToyBackend(ToyModel(3, seed=seed, sparsity=0.2 * seed)))
        assert_proposal_law(policy, drafter)
        target = ToyModel(3, seed=seed + 7)
        assert_lossless(policy, RecursiveRejection(), target=target, drafter=drafter, rounds=1)
    assert policy.laws <= {type(law) for law in grow(policy, ToyModel(3, seed=1)).proposals.values()}


@pytest.mark.parametrize(
    ("policy", "branches"),
    [
        (StaticTree(((0,), (0, 0))), False),
        (StaticTree(((0,), (0, 0), (0, 1))), True),
        (IndependentPaths(1, 3), False),
        (StochasticBeam(1, 3), False),
        (Sequoia(3, 3, (0.9,)), False),
        (Sequoia(3, 3, (0.5, 0.4)), True),
    ],
    ids=str,
)
def test_a_chain_says_so(policy, branches):
    assert policy.branches == branches


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_drafter_with_nothing_to_propose_leaves_a_bare_root(policy):
    class Silent(ToyModel):
        def logits(self, text):
            return torch.full((self.vocab_size,), -torch.inf, dtype=torch.float64)

    assert len(grow(policy, Silent(3))) == 1
