"""Exact block efficiency on toy models: of a verifier on the trees of a policy, and the best there is."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from draftwood.distributions.sampling import SamplingParams
from draftwood.laws.randomness import Randomness
from draftwood.protocols import Drafter, TreePolicy, Verifier
from draftwood.testing.models.toy import NextTokenModel
from draftwood.testing.proofs.enumerator import enumerate_outcomes
from draftwood.testing.proofs.proposal_law import grow_tree
from draftwood.trees.outcome import Outcome
from draftwood.trees.tree import TokenTree


@attrs.frozen(eq=False)
class WeightedTree:
    """A tree that a policy may draw and the probability that it does."""

    weight: float
    tree: TokenTree


def drawn_trees(
    policy: TreePolicy,
    drafter: Drafter,
    *,
    prompt: Sequence[int] = (0,),
    temperature: float = 1.0,
    budget: int = 100_000,
) -> list[WeightedTree]:
    """Every tree that `policy` draws after `prompt`, equal trees merged.

    Equal are trees with the same tokens at the same nodes; their laws are then the same too.
    """
    merged: dict[tuple[tuple[int, ...], tuple[int, ...]], WeightedTree] = {}

    def grow(rng: Randomness) -> TokenTree:
        return grow_tree(policy, drafter, prompt=prompt, temperature=temperature, rng=rng)

    for weight, tree in enumerate_outcomes(grow, budget=budget):
        key = (tuple(tree.tokens.tolist()), tuple(tree.parents.tolist()))
        earlier = merged.get(key)
        merged[key] = WeightedTree(
            weight + (earlier.weight if earlier else 0.0), earlier.tree if earlier else tree
        )
    return list(merged.values())


def target_distributions(
    tree: TokenTree, target: NextTokenModel, prompt: Sequence[int], temperature: float
) -> Tensor:
    """The target's distribution after every node `[nodes, vocab]`, computed as production computes it."""
    tokens = tree.tokens.tolist()
    texts = [[*prompt[:-1], *(tokens[v] for v in tree.path(node))] for node in range(len(tree))]
    return SamplingParams(temperature).distribution(torch.stack([target.logits(text) for text in texts]))


def one_round_law(
    trees: Sequence[WeightedTree],
    verifier: Verifier,
    *,
    target: NextTokenModel,
    prompt: Sequence[int] = (0,),
    temperature: float = 1.0,
    budget: int = 100_000,
) -> dict[tuple[int, ...], float]:
    """The law of the tokens that one round emits over `trees`: their probability, by sequence."""
    law: dict[tuple[int, ...], float] = {}
    for weighted in trees:
        rows = target_distributions(weighted.tree, target, prompt, temperature)

        def verify(rng: Randomness, tree: TokenTree = weighted.tree, rows: Tensor = rows) -> Outcome:
            return verifier.verify(tree, rows, rng)

        for weight, outcome in enumerate_outcomes(verify, budget=budget):
            law[outcome.emitted] = law.get(outcome.emitted, 0.0) + weighted.weight * weight
    return law


def expected_tokens(
    policy: TreePolicy,
    verifier: Verifier,
    *,
    target: NextTokenModel,
    drafter: Drafter,
    prompt: Sequence[int] = (0,),
    temperature: float = 1.0,
    budget: int = 100_000,
) -> float:
    """Exact mean number of tokens that a round emits (block efficiency), the extra token included."""
    trees = drawn_trees(policy, drafter, prompt=prompt, temperature=temperature, budget=budget)
    law = one_round_law(trees, verifier, target=target, prompt=prompt, temperature=temperature, budget=budget)
    return sum(weight * len(emitted) for emitted, weight in law.items())


def optimal_tokens(
    trees: Sequence[WeightedTree],
    *,
    target: NextTokenModel,
    prompt: Sequence[int] = (0,),
    temperature: float = 1.0,
) -> float:
    """The most tokens a round that any lossless verifier can emit on these trees, as a linear programme.

    In every tree one unit of flow runs from the root down its prefixes, the children's flow summing to at
    most their parent's. M(s), the expected flow through prefix s over all trees, obeys
    M(sy) <= T(y|s) M(s): what is left is emitted as the extra token y at s. The optimum is 1 plus the
    largest sum of M. A verifier routes that flow knowing only the drawn tree; the optimum knows every tree
    that might have been drawn, so it is a bound that may not be reached.

    Needs scipy.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    merged: dict[frozenset[tuple[int, ...]], float] = {}
    for weighted in trees:
        tokens = weighted.tree.tokens.tolist()
        prefixes = frozenset(
            tuple(tokens[v] for v in weighted.tree.path(node)[1:]) for node in range(1, len(weighted.tree))
        )
        merged[prefixes] = merged.get(prefixes, 0.0) + weighted.weight

    # One column for the flow through every prefix of every tree, already times the tree's weight.
    columns: dict[tuple[int, tuple[int, ...]], int] = {}
    through: dict[tuple[int, ...], list[int]] = {}
    entries: list[tuple[int, int, float]] = []  # row, column, coefficient
    bounds: list[float] = []
    for number, (prefixes, weight) in enumerate(merged.items()):
        row_of: dict[tuple[int, ...], int] = {}
        for prefix in sorted(prefixes, key=len):
            column = columns[number, prefix] = len(columns)
            through.setdefault(prefix, []).append(column)
            parent = prefix[:-1]
            if parent not in row_of:
                row_of[parent] = len(bounds)
                bounds.append(0.0 if parent else weight)
                if parent:
                    entries.append((row_of[parent], columns[number, parent], -1.0))
            entries.append((row_of[parent], column, 1.0))
    for prefix, through_prefix in through.items():
        row = len(bounds)
        chance = float(target.probs([*prompt, *prefix[:-1]], temperature)[prefix[-1]])
        entries.extend((row, column, 1.0) for column in through_prefix)
        if len(prefix) > 1:
            entries.extend((row, column, -chance) for column in through[prefix[:-1]])
        bounds.append(chance if len(prefix) == 1 else 0.0)
    if not columns:
        return 1.0
    rows, at, values = zip(*entries, strict=True)
    matrix = coo_array((values, (rows, at)), shape=(len(bounds), len(columns))).tocsr()
    # HiGHS' own tolerance of 1e-7 shows in the optimum where the target is nearly one-hot.
    exact = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    optimum = linprog([-1.0] * len(columns), A_ub=matrix, b_ub=bounds, method="highs", options=exact)
    if optimum.status != 0:
        raise RuntimeError(
            f"The linear programme of {len(columns)} columns was not solved: {optimum.message}"
        )
    return 1.0 - float(optimum.fun)
