"""The walk down a tree that tries siblings one by one: a verifier of two choices."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import attrs
from torch import Tensor

from draftwood import InvalidInput, Outcome, Proposal, Randomness, TokenTree, Verifier
from draftwood.base.lazy_tensor import LazyRows
from draftwood.strategies.verifiers.batched.device_forms import KERNELS
from draftwood.strategies.verifiers.batched.host_rows import on_the_host
from draftwood.strategies.verifiers.batched.on_device import judged_on_device, judges_as
from draftwood.strategies.verifiers.greedy import followed
from draftwood.strategies.verifiers.orders.sibling_order import SiblingOrder, Tries
from draftwood.strategies.verifiers.residual import Candidate, Residual


def _an_order(_: object, field: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, SiblingOrder):
        raise InvalidInput(f"order is {value!r:.80}; give a SiblingOrder, such as DrawnOrder().")


def _a_bool(_: object, field: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, bool):
        raise InvalidInput(f"leaf_first is {value!r:.80}; give True or False.")


# Methods that a subclass may take for steps of the walk, as some once were.
_NOT_CALLED = {
    "judge": "derive it from NodeWise, or override verify()",
    "sibling_order": "put the order into a SiblingOrder with tries(), and make that the walk's `order`",
    "node_streams": "put it into the SiblingOrder that is the walk's `order`",
}


@attrs.frozen
class TreeWalk(Verifier):
    """Tries the siblings of a node one by one, each against what those before it left of the target.

    From the root down, child x tried by law p is accepted with probability min(1, T(x) / p(x)); an accepted
    child is final, and the walk goes on there (recursive rejection).

    Leaf first, a node is judged after everything below it has failed. At a node of allowance a, child x
    gets the allowance min(1, a T(x) / p(x)), and its subtree is settled first. If nothing there is accepted,
    the node goes on with its residual (see `Residual`). A node whose children have all failed is
    accepted with the allowance that is left (traversal verification; on a chain, block verification).

    A target that is certain of a token (temperature 0) accepts the child that holds it, whatever its law, and
    no other child: the walk follows the target, and no coin is needed. An order of somebody's own is walked.

    The named verifiers fix both choices. A subclass that overrides `verify` is judged only by that method,
    never by a kernel, and so is a walk in an order of somebody's own.

    Attributes:
        order: in which siblings are tried. Rejection may take any order whose laws are known.
        leaf_first: whether a child's subtree is settled before the child.

    Cost: O(vocab) a child that is tried. On a GPU one kernel walks the trees of all rows by the same
    uniforms, where `device_forms.KERNELS` has one for the two choices.
    Source: RSD (arXiv 2402.14160), theorem 3.1 and algorithm 6; traversal verification, arXiv 2505.12398.
    """

    order: SiblingOrder = attrs.field(validator=_an_order)
    leaf_first: bool = attrs.field(validator=_a_bool, kw_only=True)

    def __init_subclass__(cls) -> None:
        for name, remedy in _NOT_CALLED.items():
            if name in vars(cls):
                raise InvalidInput(f"{cls.__name__} defines {name}(), which no TreeWalk calls; {remedy}.")

    def __attrs_post_init__(self) -> None:
        for name in ("order", "leaf_first"):
            fixed = inspect.getattr_static(type(self), name)
            if isinstance(fixed, SiblingOrder | bool):
                raise InvalidInput(
                    f"{type(self).__name__} has the class attribute {name} = {fixed!r:.80}, which no walk "
                    "reads; declare it as a field of an attrs class, as Traversal does."
                )

    @property
    def laws(self) -> frozenset[type[Proposal]]:  # type: ignore[override]
        return self.order.laws

    @property
    def adaptive(self) -> bool:  # type: ignore[override]
        return self.order.adaptive

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        certain = isinstance(target_probs, LazyRows) and target_probs.certain
        if certain and (type(self.order), self.leaf_first) in KERNELS:
            return followed(tree, target_probs)
        tokens, streams = tree.tokens.tolist(), self.order.node_streams(tree, rng)

        def visit(node: int, allowance: float, *, accepted: bool) -> _Visit:
            tries, children = None, tree.children(node)
            if children:
                tries = self.order.tries(
                    [tokens[child] for child in children], tree.proposals[node], streams.get(node, rng)
                )
            return _Visit(node, children, tries, Residual.of(target_probs[node], allowance), accepted)

        visits = [visit(0, 1.0, accepted=not self.leaf_first)]
        while True:
            here = visits[-1]
            here.candidate = candidate = here.tries.next(here.residual) if here.tries else None
            if candidate is not None:
                chance = here.residual.chance(candidate)
                child = here.children[candidate.index]
                if chance > 0 and self.leaf_first and tree.children(child):
                    visits.append(visit(child, chance, accepted=False))
                elif chance > 0 and rng.accept(chance):
                    visits.append(visit(child, 1.0, accepted=True))
                else:
                    here.residual.reject(candidate)
            elif here.accepted or rng.accept(here.residual.allowance):
                extra = rng.choose(here.residual.weights)
                path = [visited.node for visited in visits]
                return Outcome.of(tree, path, extra=extra, bonus=here.tries is None)
            else:
                visits.pop()
                above = visits[-1]
                assert above.candidate is not None
                above.residual.reject(above.candidate)

    def verify_rows(
        self, trees: Sequence[TokenTree], target_probs: Sequence[Tensor], rngs: Sequence[Randomness]
    ) -> list[Outcome]:
        outcomes: list[Any] = [None] * len(rngs)
        form = KERNELS.get((type(self.order), self.leaf_first)) if judges_as(self, TreeWalk) else None
        if form is not None:
            outcomes = judged_on_device(trees, target_probs, rngs, form=form)
        rest = [row for row, outcome in enumerate(outcomes) if outcome is None]
        if len(rest) < len(rngs):
            trees, target_probs = [trees[row] for row in rest], [target_probs[row] for row in rest]
        if self.order.on_host:
            trees, target_probs = on_the_host(trees, target_probs)
        for place, row in enumerate(rest):
            outcomes[row] = self.verify(trees[place], target_probs[place], rngs[row])
        return outcomes


@attrs.define(eq=False)
class _Visit:
    """A node on the path from the root, and the child that is being tried there."""

    node: int
    children: Sequence[int]
    tries: Tries | None
    residual: Residual
    accepted: bool  # by a coin, or because the walk starts there
    candidate: Candidate | None = None
