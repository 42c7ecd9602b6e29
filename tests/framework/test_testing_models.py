"""Toy models, and the Hypothesis strategies over them: everything they make is what it claims to be."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood import InvalidInput
from draftwood.laws.proposals import Deterministic, check_distribution
from draftwood.protocols.compatibility import registered_laws
from draftwood.testing import ToyModel, assert_lossless
from draftwood.testing.models.generators import distributions, pairs, sampling_params, token_trees, toy_models
from draftwood.testing.models.small_strategies import (
    fits,
    fitting_pairs,
    small_policies,
    small_verifiers,
    toy_drafter,
)

TEXTS = st.lists(st.integers(0, 1), max_size=4)


@given(toy_models(), TEXTS)
def test_a_model_gives_a_distribution_that_its_context_fixes(model, text):
    p = model.probs(text)
    check_distribution(p, "The model")
    again = ToyModel(model.vocab_size, model.seed, model.sharpness, model.order, model.sparsity)
    assert torch.equal(p, again.probs(text))


@pytest.mark.parametrize("sparsity", [0.0, 0.3, 1.0])
def test_sparsity_is_the_share_of_forbidden_tokens_and_leaves_one(sparsity):
    model = ToyModel(4, sparsity=sparsity)
    live = torch.tensor([int((model.probs([i, i // 7]) > 0).sum()) for i in range(400)]).double()
    assert live.min() >= 1
    # Beside the one that is always left, the others are forbidden with about this chance.
    expected = 4 * (1 - sparsity) + sparsity**4
    assert abs(float(live.mean()) - expected) < 0.15


def test_a_draft_comes_nearer_to_its_target_with_the_mix():
    target = ToyModel(4, seed=1, sparsity=0.4)
    far = [
        sum(
            float((ToyModel(4, seed=2, near=target, mix=mix).probs([i]) - target.probs([i])).abs().sum())
            for i in range(20)
        )
        for mix in (0.0, 0.5, 1.0)
    ]
    assert far[0] / 2 == pytest.approx(far[1])
    assert far[2] < 1e-14


def test_temperature_0_takes_the_most_likely_token():
    model = ToyModel(4, seed=3)
    assert model.probs([1], 0).tolist() == torch.eye(4)[model.logits([1]).argmax()].tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sparsity": 1.5}, "sparsity is 1.5"),
        ({"near": ToyModel(3)}, "near has 3 tokens and the model 4"),
        ({"order": 0}, "order is 0"),
    ],
)
def test_a_model_that_cannot_be_is_refused(options, message):
    with pytest.raises(InvalidInput, match=message):
        ToyModel(4, **options)


@given(st.sampled_from([torch.float64, torch.float32]), st.data())
def test_distributions_are_distributions(dtype, data):
    p = data.draw(distributions(4, dtype=dtype))
    assert p.dtype == dtype
    check_distribution(p, "The example")
    assert float(p.sum()) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    "kind",
    [
        lambda p: (p > 0).sum() == 1,
        lambda p: (p == 0).sum() == 1,
        lambda p: p.max() == p.sort().values[-2],
        lambda p: 1 - 1e-6 < p.max() < 1,
        lambda p: bool(((p > 0) & (p < 1e-300)).any()),
    ],
    ids=["one-hot", "sparse", "tied", "nearly one-hot", "denormal"],
)
def test_every_kind_of_distribution_comes_up(kind):
    from hypothesis import find

    find(distributions(3), lambda p: bool(kind(p)), settings=settings(max_examples=2000, database=None))


@given(st.data())
def test_trees_hold_what_their_proposals_may_draw(data):
    tree = data.draw(token_trees(3, max_nodes=5)).validated(3)
    assert len(tree) <= 6
    for node in range(len(tree)):
        earlier = list[int]()
        for k, child in enumerate(tree.children(node)):
            law = tree.proposals[node]
            assert type(law) in registered_laws()
            assert law.conditional(k, earlier)[tree.tokens[child]] > 0
            earlier.append(int(tree.tokens[child]))
    assert all(tree.children(node) for node in tree.proposals)


@given(token_trees(3, laws=[Deterministic], max_children=1))
def test_trees_keep_to_the_laws_and_widths_asked_for(tree):
    assert {type(law) for law in tree.proposals.values()} <= {Deterministic}
    assert all(len(tree.children(node)) <= 1 for node in range(len(tree)))


@given(sampling_params(), toy_models(4))
def test_sampling_parameters_can_be_applied(params, model):
    check_distribution(params.distribution(model.logits([1]).unsqueeze(0))[0], "The sampled law")


def test_pairs_hold_every_registered_kind_that_fits():
    policies = {one.name for one in small_policies()}
    assert {"chain", "fixed-tree", "dyspec", "layered-dyspec"} <= policies
    names = {one.name for one in small_verifiers()}
    assert "recursive-rejection" in names
    assert not {"greedy", "typical"} & names
    fitting = fitting_pairs()
    assert all(fits(policy, verifier) for policy, verifier in fitting)
    names = {type(policy).__name__ for policy, _ in fitting}
    assert names >= {"Chain", "FixedTree", "DySpec", "LayeredDySpec"}


@settings(max_examples=30)
@given(pairs(), toy_models(3), st.data())
def test_registered_pairs_are_lossless(pair, target, data):
    policy, verifier = pair
    drafts = data.draw(toy_models(near=target)), data.draw(toy_models(3))
    assert_lossless(policy, verifier, target=target, drafter=toy_drafter(policy, *drafts), rounds=1)
