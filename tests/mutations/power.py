"""`python -m tests.mutations.power` chooses seeds for `testing.proof_models` that find the most mistakes.

Every second mistake of a verifier or policy takes part in the choice. For each kind of models that seed is
taken on which the most of them show, and among equals the one with the largest least error. The other half
then tells what the choice is worth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any
from unittest import mock

import attrs
from rich.console import Console
from rich.table import Table

from draftwood import Verifier
from draftwood.laws.proposals import Deterministic, Proposal, WithoutReplacement, WithReplacement
from draftwood.testing import LawBroken, assert_proposal_law
from draftwood.testing.models.proof_models import PROOF_MODELS, ProofModels, narrow_models, proof_models
from draftwood.testing.models.small_strategies import toy_drafter
from draftwood.testing.models.tree_shapes import BRANCHING, CHAINS, DEEP, Shape, ShapeTrees, TooNarrow
from draftwood.testing.proofs.round_proof import round_deviation
from tests.mutations import policy_mistakes, verifier_mistakes
from tests.mutations.mistake import Mistake

SEEDS = range(1, 13)
SHOWS = 1e-9
SMALL = [CHAINS["chain of 2"], *list(BRANCHING.values())[1:]]
FIVE: list[Shape] = [((),) * 5]

Kind = tuple[str, Callable[[int], ProofModels], Sequence[Shape]]
KINDS: list[Kind] = [
    ("moderate", proof_models, SMALL),
    ("sharp over flat", lambda seed: proof_models(seed, target=3.0, draft=0.5), SMALL),
    ("flat over sharp", lambda seed: proof_models(seed, target=0.7, draft=3.0), SMALL),
    ("near", lambda seed: proof_models(seed, mix=0.6), SMALL),
    (
        "zeros and one-hot",
        lambda seed: proof_models(seed, target=6.0, target_sparsity=0.4, draft_sparsity=0.4),
        SMALL,
    ),
    (
        "eight tokens",
        lambda seed: proof_models(seed, vocab_size=8, target=2.0, draft=1.5),
        [BRANCHING["two"]],
    ),
    ("deep", lambda seed: narrow_models(seed, (3, 2, 2, 2), drafters=2), list(DEEP.values())),
    ("five siblings", lambda seed: narrow_models(seed, (5,), vocab_size=6, target_support=3), FIVE),
]


@attrs.frozen
class Found:
    """The error of each mistake on one set of models."""

    seed: int
    errors: dict[str, float]

    def worth(self, names: Sequence[str]) -> tuple[int, float]:
        errors = [self.errors[name] for name in names if self.errors[name] > SHOWS]
        return len(errors), sum(math.log(error) for error in errors) / max(len(errors), 1)


def error(mistake: Mistake, on: ProofModels, shapes: Sequence[Shape]) -> float:
    """The largest error of the mistake on the models, over the shapes and the laws that it accepts."""
    with ExitStack() as stack:
        for patch in mistake.patches:
            stack.enter_context(mock.patch.object(*patch))
        wrong: Any = (mistake.wrong or mistake.right)()
        if mistake.part == "verifier":
            return max(_of_verifier(wrong, on, shapes), default=0.0)  # type: ignore[arg-type]
        try:
            assert_proposal_law(wrong, toy_drafter(wrong, *on.drafts))
        except LawBroken as broken:
            return broken.error or 1.0
        return 0.0


def _of_verifier(verifier: Verifier, on: ProofModels, shapes: Sequence[Shape]) -> Iterator[float]:
    laws: tuple[type[Proposal], ...] = (WithoutReplacement, WithReplacement, Deterministic)
    for law in laws:
        for shape in shapes:
            if law is WithReplacement and len(shape) > 3:
                continue  # thousands of trees; two tokens will do in the check
            try:
                yield round_deviation(ShapeTrees(shape, law, on.drafts), verifier, on.target).error
            except TooNarrow:
                continue
            except LawBroken:  # it does what none may
                yield 1.0


def main() -> None:
    mistakes = [*verifier_mistakes.MISTAKES, *policy_mistakes.MISTAKES]
    half, other = [one.name for one in mistakes[::2]], [one.name for one in mistakes[1::2]]
    table = Table("kind", "seed", f"of {len(half)} that chose", f"of {len(other)} others", "mean error")
    seen: set[str] = set()
    for kind, make, shapes in KINDS:
        tried = [
            Found(seed, {one.name: error(one, make(seed), shapes) for one in mistakes}) for seed in SEEDS
        ]
        best = max(tried, key=lambda choice: choice.worth(half))
        count, logs = best.worth(half)
        table.add_row(kind, str(best.seed), str(count), str(best.worth(other)[0]), f"{math.exp(logs):.1e}")
        seen |= {name for name, off in best.errors.items() if off > SHOWS}
    console = Console(width=120)
    console.print(table)
    for words, names in (("that chose", half), ("others", other)):
        missed = [name for name in names if name not in seen]
        console.print(
            f"Of the {len(names)} {words}, {len(names) - len(missed)} show on some models; not: {missed}"
        )
    console.print(f"{len(PROOF_MODELS)} sets of models over three tokens are in use.")


if __name__ == "__main__":
    main()
