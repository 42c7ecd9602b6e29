"""The proof of law V on one round: every tree of a shape, drawn as far as the verifier looks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import attrs
import torch
from torch import Tensor

from draftwood.distributions.sampling import SamplingParams
from draftwood.laws.randomness import Randomness
from draftwood.protocols import Verifier
from draftwood.testing.diagnosis.law_broken import LawBroken
from draftwood.testing.diagnosis.tolerances import rounding
from draftwood.testing.diagnosis.tree_text import tree_as_text
from draftwood.testing.diagnosis.verifier_mistakes import usual_mistake
from draftwood.testing.models.lazy_trees import LazyTargets, LazyTree
from draftwood.testing.models.toy import NextTokenModel
from draftwood.testing.models.tree_shapes import Shape, ShapeTrees
from draftwood.testing.proofs.checked_verifier import CheckedVerifier
from draftwood.testing.proofs.enumerator import BudgetExceeded, enumerate_outcomes
from draftwood.testing.proofs.kept_law import kept_model
from draftwood.testing.proofs.round_deviation import RoundDeviation, Text, largest_deviation
from draftwood.trees.tree import TokenTree


@attrs.frozen(eq=False)
class RoundOutcomes:
    """The outcomes of a round over all trees.

    Attributes:
        law: the probability of every sequence of tokens.
        examples: for each sequence its likeliest run: the probability, and the nodes that were looked at.
        fault: a forbidden act of the verifier, with the tree; empty if there was none.
    """

    law: dict[Text, float]
    examples: dict[Text, tuple[float, TokenTree]]
    fault: str = ""


def round_outcomes(
    trees: ShapeTrees, verifier: Verifier, target: NextTokenModel, *, budget: int = 100_000
) -> RoundOutcomes:
    """Every outcome of `verifier` on `trees`, whose tokens are drawn where it looks.

    A verifier that cannot work with such trees gets complete ones.
    """
    try:
        outcomes = _emitted(trees, verifier, target, budget=budget, complete=False)
        if not outcomes.fault:
            return outcomes
    except BudgetExceeded:
        raise
    except Exception:  # whatever it is, a complete tree will tell
        pass
    return _emitted(trees, verifier, target, budget=budget, complete=True)


def _emitted(
    trees: ShapeTrees, verifier: Verifier, target: NextTokenModel, *, budget: int, complete: bool
) -> RoundOutcomes:
    checked = CheckedVerifier(verifier)
    before = list(trees.prompt[:-1])
    sampling = SamplingParams(trees.temperature)

    @cache
    def after(text: Text) -> Tensor:
        return sampling.distribution(target.logits([*before, *text]).unsqueeze(0))[0]

    def run(rng: Randomness) -> tuple[Text, LazyTree]:
        tree = LazyTree(trees, rng)
        rows = LazyTargets(tree, lambda text: after(tuple(text)))
        if complete:
            outcome = checked.verify(tree.drawn(), rows.complete(), rng)
        else:
            outcome = checked.verify(tree, rows, rng)  # type: ignore[arg-type]
        return outcome.emitted, tree

    law: dict[Text, float] = {}
    likeliest: dict[Text, tuple[float, LazyTree]] = {}
    for weight, (text, tree) in enumerate_outcomes(run, budget=budget):
        law[text] = law.get(text, 0.0) + weight
        if weight > likeliest.get(text, (0.0,))[0]:
            likeliest[text] = weight, tree
    examples = {text: (weight, tree.looked_at()) for text, (weight, tree) in likeliest.items()}
    return RoundOutcomes(law, examples, checked.fault)


def round_deviation(
    trees: ShapeTrees, verifier: Verifier, target: NextTokenModel, *, budget: int = 100_000
) -> RoundDeviation:
    """The largest deviation of one round from the law to keep; the error is its attribute."""
    return _deviation(round_outcomes(trees, verifier, target, budget=budget), trees, verifier, target)


def _deviation(
    outcomes: RoundOutcomes, trees: ShapeTrees, verifier: Verifier, target: NextTokenModel
) -> RoundDeviation:
    kept = kept_model(verifier, target, trees.drafts)
    return largest_deviation(outcomes.law, kept, prompt=trees.prompt, temperature=trees.temperature)


def assert_round_lossless(
    trees: ShapeTrees,
    verifier: Verifier,
    target: NextTokenModel,
    *,
    budget: int = 100_000,
    tolerance: float | None = None,
) -> None:
    """Prove that `verifier` emits the target's law, or the one that it declares, on all trees of a shape.

    Args:
        trees: of the shape, with the models that propose.
        verifier: judges them.
        target: whose law should come out; its dtype is that of the arithmetic.
        budget: random outcomes to visit at most.
        tolerance: largest difference of a probability; None is what the dtype allows.

    Raises:
        LawBroken: the message has the worst text, and the tree from which it most likely comes.
        BudgetExceeded: there are more outcomes.
    """
    outcomes = round_outcomes(trees, verifier, target, budget=budget)
    if outcomes.fault:
        raise LawBroken(outcomes.fault)
    worst = _deviation(outcomes, trees, verifier, target)
    if worst.error <= (rounding(target.dtype) if tolerance is None else tolerance):
        return
    raise LawBroken(
        f"{verifier} is biased on trees drawn by {trees.children_law.__name__}: tokens {worst.text} after "
        f"{tuple(trees.prompt)} have probability {worst.actual:.12g} and should have {worst.expected:.12g} "
        f"(off by {worst.error:.2g}{_in_words(target.dtype)}).\n{_example(outcomes, worst, trees, target)}",
        error=worst.error,
        likely=_likely(outcomes, trees, verifier, target),
    )


def _likely(outcomes: RoundOutcomes, trees: ShapeTrees, verifier: Verifier, target: NextTokenModel) -> str:
    """The mistake that it looks like: what goes when the case is made simpler, or a usual one."""

    def exact(simpler: ShapeTrees, same_target: NextTokenModel = target) -> bool:
        try:
            return round_deviation(simpler, verifier, same_target).error <= rounding(same_target.dtype)
        except Exception:  # a simpler case that fails otherwise explains nothing
            return False

    if target.dtype != torch.float64:
        exactly = [attrs.evolve(draft, dtype=torch.float64) for draft in trees.drafts]
        if exact(attrs.evolve(trees, drafts=exactly), attrs.evolve(target, dtype=torch.float64)):
            return "a step in lower precision, or one that only this dtype takes: in float64 it is exact."
    if trees.padding and exact(attrs.evolve(trees, padding=0)):
        return "entries after the tree's size are read; they are padding."
    if trees.depth_first and exact(attrs.evolve(trees, depth_first=False, padding=0)):
        return "siblings are taken to be numbered one after another; ask tree.children(node)."
    if usual := usual_mistake(outcomes.law, lambda other: round_outcomes(trees, other, target).law):
        return usual
    siblings = len(trees.form)
    while siblings > 1:
        siblings -= 1
        if exact(attrs.evolve(trees, form=trees.form[:siblings])):
            return f"how sibling {siblings + 1} and later ones are judged: with {siblings} it is exact."
    shallow = _without_leaves(trees.form)
    if shallow and exact(attrs.evolve(trees, form=shallow)):
        return f"what is done at depth {_depth(trees.form)}: on a tree less deep it is exact."
    return ""


def _without_leaves(form: Shape) -> Shape:
    """The shape without its deepest level."""
    return _cut(form, _depth(form) - 1)


def _cut(form: Shape, depth: int) -> Shape:
    return tuple(_cut(child, depth - 1) for child in form) if depth > 0 else ()


def _depth(form: Shape) -> int:
    return 1 + max(map(_depth, form)) if form else 0


def _in_words(dtype: torch.dtype) -> str:
    return "" if dtype == torch.float64 else f", from logits in {str(dtype).removeprefix('torch.')}"


def _example(
    outcomes: RoundOutcomes, worst: RoundDeviation, trees: ShapeTrees, target: NextTokenModel
) -> str:
    """The likeliest round that writes the worst text, or begins it."""

    def fits(text: Text) -> bool:
        shorter = min(len(text), len(worst.text))
        return text[:shorter] == worst.text[:shorter]

    fitting = {text: example for text, example in outcomes.examples.items() if fits(text)}
    if not fitting:
        return "No round writes it."
    text = max(fitting, key=lambda text: fitting[text][0])
    weight, tree = fitting[text]
    return (
        f"The likeliest round that does (probability {weight:.3g}) emits {text} on this tree, of which the "
        f"nodes that were looked at are shown, and the path of the text marked:\n"
        f"{tree_as_text(tree, _rows(tree, trees, target), text)}"
    )


def _rows(tree: TokenTree, trees: ShapeTrees, target: NextTokenModel) -> Tensor:
    texts: Sequence[list[int]] = [tree.tokens[tree.path(node)].tolist() for node in range(len(tree))]
    return torch.stack([target.probs([*trees.prompt[:-1], *text], trees.temperature) for text in texts])
