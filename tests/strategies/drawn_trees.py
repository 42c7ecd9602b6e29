"""Trees of policies over toy models, drawn or enumerated, and the places of their nodes."""

from draftwood import (
    CounterRandomness,
)
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.testing import (
    ToyBackend,
    enumerate_outcomes,
)
from draftwood.testing.proofs.proposal_law import grow_tree


def grow(policy, model, rng=None, seed=0):
    return grow_tree(policy, ModelDrafter(ToyBackend(model)), rng=rng or CounterRandomness.seeded(seed))


def drawn(policy, model):
    """Every tree with its chance."""
    return enumerate_outcomes(lambda rng: grow(policy, model, rng))


def places_of(tree):
    """Every node's place: its ranks among its siblings from the root down."""
    indices: dict[int, tuple[int, ...]] = {0: ()}
    for node in range(len(tree)):
        for rank, child in enumerate(tree.children(node)):
            indices[child] = (*indices[node], rank)
    return [indices[node] for node in range(1, len(tree))]


def texts_of(tree):
    return [tuple(tree.tokens[tree.path(node)].tolist()) for node in range(len(tree))]
