"""The proof, by enumeration, that rows whose trees depend on each other write the product of their laws."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import attrs
import torch

from draftwood.protocols import TreePolicy, Verifier, policy_states
from draftwood.protocols.compatibility import needs_several_drafters
from draftwood.testing.diagnosis.law_broken import LawBroken
from draftwood.testing.diagnosis.tolerances import rounding
from draftwood.testing.models.proof_models import ProofModels
from draftwood.testing.proofs.block_efficiency import WeightedTree, one_round_law
from draftwood.testing.proofs.enumerator import enumerate_outcomes
from draftwood.testing.proofs.grown_rows import Draft, grown
from draftwood.testing.proofs.lossless import target_law
from draftwood.trees.tree import TokenTree

Text = tuple[int, ...]


@attrs.frozen
class JointRowsLaw:
    """Exact joint law of the texts of several rows that grow together.

    Attributes:
        probabilities: of every text of each row.
        error: the largest difference from the product of the targets' laws.
        runs: random outcomes of the growths.
    """

    probabilities: dict[tuple[Text, ...], float]
    error: float
    runs: int


def joint_rows_law(
    policy: TreePolicy,
    verifier: Verifier,
    rows: Sequence[ProofModels],
    *,
    tokens: int = 2,
    budget: int = 100_000,
) -> JointRowsLaw:
    """The exact joint law of the first `tokens` tokens of rows that grow their trees together.

    One round is enumerated for all rows, and each target writes what is missing.

    Args:
        policy: grows the trees; in its first state, if it learns.
        verifier: judges them.
        rows: target and draft of each row, which begins with its number as its only token.
        tokens: length of the texts.
        budget: random outcomes to visit at most.
    """
    roots = [row % models.target.vocab_size for row, models in enumerate(rows)]
    drafts = [_draft(policy, models) for models in rows]
    states = [policy_states.first_state(policy)] * len(rows)
    judged: dict[tuple[int, Text, Text], dict[Text, float]] = {}

    def emitted(row: int, tree: TokenTree) -> dict[Text, float]:
        key = (row, tuple(tree.tokens.tolist()), tuple(tree.parents.tolist()))
        if key not in judged:
            judged[key] = _texts(tree, verifier, rows[row], roots[row], tokens)
        return judged[key]

    law: dict[tuple[Text, ...], float] = {}
    runs = 0
    for weight, trees in enumerate_outcomes(
        lambda rng: grown(policy, roots, [rng] * len(rows), drafts, states), budget=budget
    ):
        runs += 1
        for texts in product(*(emitted(row, tree).items() for row, tree in enumerate(trees))):
            chance = weight
            for _, of_row in texts:
                chance *= of_row
            together = tuple(text for text, _ in texts)
            law[together] = law.get(together, 0.0) + chance
    targets = [
        target_law(models.target, prompt=(root,), tokens=tokens)
        for models, root in zip(rows, roots, strict=True)
    ]
    error = 0.0
    for texts in product(*(target.items() for target in targets)):
        expected = 1.0
        for _, of_row in texts:
            expected *= of_row
        error = max(error, abs(law.get(tuple(text for text, _ in texts), 0.0) - expected))
    return JointRowsLaw(law, error, runs)


def assert_rows_lossless(
    policy: TreePolicy,
    verifier: Verifier,
    rows: Sequence[ProofModels],
    *,
    tokens: int = 2,
    budget: int = 100_000,
) -> JointRowsLaw:
    """Prove that rows whose trees grow together write the product of the targets' laws.

    Takes what `joint_rows_law` takes.

    Raises:
        LawBroken: they do not.
    """
    found = joint_rows_law(policy, verifier, rows, tokens=tokens, budget=budget)
    if not found.error <= rounding(rows[0].target.dtype):
        raise LawBroken(
            f"{policy} with {verifier} is biased where {len(rows)} rows grow together: a joint probability "
            f"of their texts is off by {found.error:.2g}.",
            error=found.error,
            likely="a node stays or goes by its own token, or by draws below it, in this row or through "
            "what another row drew.",
        )
    return found


def _texts(
    tree: TokenTree, verifier: Verifier, models: ProofModels, root: int, tokens: int
) -> dict[Text, float]:
    """Returns the law of the row's first tokens, given its tree."""
    law: dict[Text, float] = {}
    emitted = one_round_law([WeightedTree(1.0, tree)], verifier, target=models.target, prompt=(root,))
    for new, chance in emitted.items():
        rest = target_law(models.target, prompt=(root, *new), tokens=max(tokens - len(new), 0))
        for later, weight in rest.items():
            text = (*new, *later)[:tokens]
            law[text] = law.get(text, 0.0) + chance * weight
    return law


def _draft(policy: TreePolicy, models: ProofModels) -> Draft:
    if needs_several_drafters(policy):
        return lambda path: torch.stack([model.probs(path) for model in models.drafts])
    return models.draft.probs
