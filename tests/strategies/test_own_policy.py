"""A toy policy as a user would add one: its own few lines, no existing file touched."""

import attrs

from draftwood import Deterministic, SpeculativeDecoder, TreeBuilder, TreePolicy
from draftwood.drawing import draw_children
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.testing import ToyBackend, ToyModel, assert_lossless


@attrs.frozen
class Comb(TreePolicy):
    """A chain of best guesses, each with its runner-up beside it."""

    length: int = 3
    laws = frozenset({Deterministic})

    def grow(self, root, rng):
        tree, node = TreeBuilder(root), 0
        for _ in range(self.length):
            probs = yield tree.request([node])
            (drawn,) = draw_children(Deterministic, probs, count=2, rng=rng)
            node, *_ = tree.add_children(node, drawn.tokens, drawn.proposal)
        return tree.finish()


def test_it_is_proved_and_decodes():
    target, draft = ToyModel(3, seed=1), ModelDrafter(ToyBackend(ToyModel(3, seed=2)))
    assert_lossless(Comb(), RecursiveRejection(), target=target, drafter=draft)
    decoder = SpeculativeDecoder(ToyBackend(target), draft, Comb(), RecursiveRejection())
    assert decoder.generate([[0]], max_new_tokens=5).shape == (1, 6)
