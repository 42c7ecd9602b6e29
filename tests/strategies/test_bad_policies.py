"""Every registered policy with options, drafts and contexts that it cannot use in full."""

import itertools
from typing import Any

import pytest
import torch

from draftwood import InvalidInput, PerChild, SpeculativeDecoder, UnknownStrategy, WithReplacement
from draftwood.base.errors import DraftwoodError
from draftwood.laws.set_laws import FixedTimeSet
from draftwood.protocols import registry
from draftwood.protocols.compatibility import registered_laws
from draftwood.strategies.policies.dynamic_depth import DynamicDepth
from draftwood.strategies.policies.dynatree import DynaTree
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.sequoia import Sequoia, best_shape
from draftwood.strategies.policies.static_tree import StaticTree
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.race_traversal import RaceTraversal
from draftwood.testing import ToyBackend, ToyModel
from draftwood.testing.models.row_views import TOY_COSTS
from draftwood.testing.models.small_strategies import toy_drafter
from tests.strategies.tables import grow, paths, several, table

NAMES = registry.names("policies")

# More than a toy vocabulary or context has room for.
WIDE = {
    "branching": 9,
    "width": 9,
    "paths": 5,
    "budget": 60,
    "budgets": (60,),
    "length": 12,
    "steps": 3,
    "shape": ((0,), (1,), (7,), (0, 0), (0, 8)),
}

POSITIVE = (
    "branching",
    "budget",
    "depth",
    "length",
    "max_depth",
    "paths",
    "steps",
    "warmup",
    "width",
    "window",
)
CHANCES = ("confident", "deep", "stop_below", "target", "threshold", "unsure")


def taken(name, values):
    known = registry.options("policies", name)
    return {option: value for option, value in values.items() if option in known}


def built():
    """Every registered policy with every law that it takes."""
    for name in NAMES:
        choice = registered_laws() if taken(name, {"law": None}) else [None]
        for law in choice:
            options = taken(name, WIDE) | ({} if law is None else {"law": law})
            try:
                policy = registry.create("policies", name, options)
            except DraftwoodError:
                continue
            yield pytest.param(policy, id=f"{name}-{law.__name__}" if law else name)


POLICIES = list(built())


def drafts(policy, *tables):
    return several(*tables) if PerChild in policy.laws else tables[0]


def test_every_policy_is_here():
    assert {one.id.rpartition("-")[0] if one.id not in NAMES else one.id for one in POLICIES} == set(NAMES)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_child_has_a_chance_and_a_node_no_more_children_than_tokens_with_one(policy):
    for seed, (live, vocab) in enumerate([(1, 2), (1, 6), (2, 6), (3, 3)]):
        tables = table(vocab, seed, live), table(vocab, seed + 9, live)
        tree, _ = grow(policy, drafts(policy, *tables), seed)
        assert (len(tree) > 1) is bool(policy.laws)  # ordinary decoding has no law, and no tree
        for node, path in enumerate(paths(tree)):
            tokens = tree.tokens[tree.children(node)].tolist()
            for k, token in enumerate(tokens):
                assert tree.proposals[node].conditional(k, tokens[:k])[token] > 0
                assert any(probs(path)[token] > 0 for probs in tables)
            if not policy.laws & {WithReplacement, PerChild}:
                assert len(set(tokens)) == len(tokens) <= live


@pytest.mark.parametrize("policy", POLICIES)
def test_a_drafter_with_nothing_to_propose_leaves_a_bare_root(policy):
    def silent(path):
        return torch.zeros(4)

    assert len(grow(policy, drafts(policy, silent, silent), 0)[0]) == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_a_tree_beyond_the_context_is_cut_and_the_text_ends_there(policy):
    target, draft = ToyModel(5, seed=1), ToyModel(5, seed=1, order=2, sharpness=1.0)
    drafter = toy_drafter(policy, draft, ToyModel(5, seed=1, order=3))
    # Greedy verification goes by a law for one sibling at a time.
    verifier = RaceTraversal() if getattr(policy, "law", None) is FixedTimeSet else Greedy()
    decoder = SpeculativeDecoder(
        ToyBackend(target, max_length=8), drafter, policy, verifier, pass_costs=TOY_COSTS
    )
    out: Any = decoder.generate([[1, 2, 3]], max_new_tokens=50, return_dict_in_generate=True)
    text = [1, 2, 3]
    for token in out.tokens[0]:
        assert token == int(target.logits(text).argmax())
        text.append(token)
    # What follows the eighth token needs no place.
    assert len(text) == 9
    assert out.finish_reasons == ["context"]
    lengths = itertools.accumulate((len(r.rows[0].tokens) for r in out.statistics.rounds), initial=3)
    for length, round_ in zip(lengths, out.statistics.rounds, strict=False):
        assert round_.rows[0].depth <= 8 - length


@pytest.mark.parametrize(
    ("name", "option"),
    [(name, option) for name in NAMES for option in POSITIVE if taken(name, {option: 0})],
)
@pytest.mark.parametrize("value", [0, -1])
def test_numbers_below_1_are_refused_by_name(name, option, value):
    with pytest.raises(InvalidInput, match=f"{option} is {value}"):
        registry.create("policies", name, {option: value})


@pytest.mark.parametrize(
    ("name", "option"),
    [(name, option) for name in NAMES for option in CHANCES if taken(name, {option: 0})],
)
@pytest.mark.parametrize("value", [1.5, -0.1, float("nan")])
def test_chances_outside_of_0_and_1_are_refused_by_name(name, option, value):
    with pytest.raises(InvalidInput, match=rf"{option} is {value}; give a number in \[0, 1\]"):
        registry.create("policies", name, {option: value})


@pytest.mark.parametrize("name", [name for name in NAMES if taken(name, {"law": None})])
def test_a_misspelt_law_is_refused(name):
    with pytest.raises(UnknownStrategy, match="did you mean 'top-k'"):
        registry.create("policies", name, {"law": "topk"})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sequoia(4, 2, ()), "acceptance is empty"),
        (lambda: Sequoia(4, 2, (0.5, 1.5)), r"acceptance\[1\] is 1.5; give chances in \[0, 1\]"),
        (lambda: Sequoia(4, 2, (-0.1,)), r"acceptance\[0\] is -0.1"),
        (lambda: Sequoia(4, 2, (float("nan"),)), r"acceptance\[0\] is nan"),
        (lambda: Sequoia(4, 2, (0.7, 0.6)), "acceptance sums to 1.3"),
        (lambda: Sequoia(4, 2, "half"), "acceptance is 'half'; give numbers"),
        (lambda: best_shape([0.5], budget=0, depth=1), "budget is 0 and depth 1"),
        (lambda: DynaTree(depth=8), "max_depth is 8 and depth is 8; give a max_depth above depth"),
        (lambda: DynaTree(unsure=0.95), "confident is 0.9 and unsure is 0.95; confident must not be less"),
        (lambda: DynaTree(stop_below=0.6), "deep is 0.5 and stop_below is 0.6"),
        (lambda: FixedTree(3, (2, 1)), r"branching \(2, 1\) names 2 levels and depth is 3"),
    ],
)
def test_options_that_do_not_go_together_are_refused(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()


def test_a_misspelt_policy_is_refused():
    with pytest.raises(DraftwoodError, match="did you mean 'chain'"):
        DynamicDepth("chian")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("medsua", "no tree shape 'medsua'; did you mean 'medusa'"),
        ((), "no node below the root"),
        ((-1,), "no node below the root"),
        (((0,), (1, 0)), r"a node at \(1, 0\) and none at \(1,\)"),
        (((0,), (0,)), r"two nodes at \(0,\)"),
        (((0,), (0, -1)), r"a node at \(0, -1\); a rank path is one or more ranks >= 0"),
        (((0,), ()), r"a node at \(\)"),
        ((-1, 0, 2), "gives node 2 the parent 2"),
        ((0, 0), "gives node 0 the parent 0"),
        ((-1, (0,)), "mixes parents and rank paths"),
    ],
)
def test_a_malformed_shape_is_refused(shape, message):
    with pytest.raises(InvalidInput, match=message):
        StaticTree(shape)
