"""Policies that learn, right and wrong."""

import attrs

from draftwood import Deterministic, LearningPolicy, TreeBuilder, TreePolicy, draw_children
from draftwood.strategies.policies.chain import Chain


class Grows(LearningPolicy):
    """Drafts one token more after every round that accepted all it drafted."""

    laws = frozenset({Deterministic})

    def first_state(self):
        return 1

    def grow(self, root, rng, state=None):
        return Chain(state or 1, "top-k").grow(root, rng)

    def observe(self, state, outcome, tree):
        return state + 1 if outcome.accepted == outcome.drafted else 1


class Remembers(Grows):
    """Broken on purpose: `observe` reads what the last growth of any row left on the policy."""

    def grow(self, root, rng, state=None):
        tree = yield from super().grow(root, rng, state)
        self.root = root
        return tree

    def observe(self, state, outcome, tree):
        return 1 + self.root


class Leaves(TreePolicy):
    """Broken on purpose: how many children are drawn is read from where any row may have written."""

    laws = frozenset({Deterministic})

    def grow(self, root, rng):
        tree, self.root = TreeBuilder(root), root
        probs = yield tree.request([0])
        (drawn,) = draw_children(Deterministic, probs, count=1 + self.root % 2, rng=rng)
        tree.add_children(0, drawn.tokens, drawn.proposal)
        return tree.finish()


@attrs.define
class Changes(Grows):
    """Broken on purpose: the state is changed in place."""

    @attrs.define(unsafe_hash=True)
    class State:
        length: int = 1

    def first_state(self):
        return self.State()

    def grow(self, root, rng, state=None):
        return super().grow(root, rng, state.length if state else None)

    def observe(self, state, outcome, tree):
        state.length = super().observe(state.length, outcome, tree)
        return state


@attrs.frozen
class Frozen(Leaves):
    """Makes the mistake in a frozen class."""
