"""States that a learning policy may reach: states after long pasts that make it grow different trees."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from draftwood.laws.randomness import CounterRandomness
from draftwood.protocols import Drafter, TreePolicy, policy_states
from draftwood.testing.proofs.proposal_law import grow_tree
from draftwood.trees.outcome import Outcome
from draftwood.trees.tree import TokenTree

ROUNDS = 64
"""A past is at least this long, and twice as long as the largest number among the policy's settings."""

MOST_ROUNDS = 300
_SEEDS = (0, 1, 2, 3)


@attrs.frozen
class LearntState:
    """A state, and how it came about: after how many rounds of which kind."""

    state: Any
    history: str


Fate = Callable[[TokenTree, random.Random], int]
"""The last accepted node of a round."""

FATES: dict[str, Fate] = {
    "in which nothing was accepted": lambda tree, _: 0,
    "in which the deepest path was accepted": lambda tree, _: int(tree.depths[: tree.size].argmax()),
    "of random outcomes": lambda tree, chance: chance.randrange(len(tree)),
}


def learnt_states(
    policy: TreePolicy, drafter: Drafter, *, prompt: tuple[int, ...], most: int = 12
) -> Iterator[LearntState]:
    """States after which `policy` grows other trees than after those before, and the last of every past.

    Args:
        policy: one that learns; for others there is nothing.
        drafter: supplies the draft distributions.
        prompt: the text at which the trees are compared.
        most: states of one kind of past at most; those that come first, and the last.
    """
    if not policy.learns:
        return
    trees_seen = {_grown(policy, drafter, prompt, policy_states.first_state(policy))}
    for words, fate in FATES.items():
        states = list[LearntState]()
        state, chance = policy_states.first_state(policy), random.Random(0)
        for number in range(1, _memory(policy) + 1):
            # Another root every round, since a policy may learn from the tokens themselves.
            root = number % drafter.vocab_size
            rng = CounterRandomness.seeded(number)
            tree = grow_tree(policy, drafter, prompt=(*prompt[:-1], root), rng=rng, state=state)
            path = tree.path(fate(tree, chance))
            outcome = Outcome.of(
                tree,
                path,
                extra=chance.randrange(drafter.vocab_size),
                bonus=not tree.children(path[-1]),
            )
            state = policy_states.observe(policy, state, outcome, tree)
            trees = _grown(policy, drafter, prompt, state)
            if trees not in trees_seen:
                trees_seen.add(trees)
                states.append(LearntState(state, f"{number} rounds {words}"))
        yield from states[: most - 1]
        yield LearntState(state, f"{_memory(policy)} rounds {words}")


def _memory(policy: TreePolicy) -> int:
    kind = type(policy)
    names = [field.name for field in attrs.fields(kind)] if attrs.has(kind) else list(vars(policy))
    values = [getattr(policy, name, None) for name in names]
    numbers = [value for value in values if isinstance(value, int)]
    return min(max(ROUNDS, *(2 * number for number in numbers), 0), MOST_ROUNDS)


def _grown(policy: TreePolicy, drafter: Drafter, prompt: tuple[int, ...], state: Any) -> tuple[Any, ...]:
    """The trees that some seeds give: equal ones are no proof, but other ones are another behaviour."""
    trees = (
        grow_tree(policy, drafter, prompt=prompt, rng=CounterRandomness.seeded(seed), state=state)
        for seed in _SEEDS
    )
    return tuple((tuple(tree.tokens.tolist()), tuple(tree.parents.tolist())) for tree in trees)
