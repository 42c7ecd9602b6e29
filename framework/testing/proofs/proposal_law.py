"""The proof of law P by enumeration: the children a policy draws against the laws it declares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood.base.errors import InvalidTree
from draftwood.distributions.sampling import SamplingParams
from draftwood.laws.proposals import Proposal
from draftwood.laws.randomness import Randomness
from draftwood.protocols import Drafter, TreePolicy, policy_states
from draftwood.testing.diagnosis.law_broken import LawBroken
from draftwood.testing.diagnosis.policy_mistakes import likely_mistake
from draftwood.testing.diagnosis.tolerances import rounding
from draftwood.testing.diagnosis.tree_text import distribution_as_text
from draftwood.testing.models.row_views import TOY_VIEW
from draftwood.testing.proofs.enumerator import enumerate_outcomes
from draftwood.testing.proofs.sibling_counts import assert_counts_settled
from draftwood.trees.request import Request, RequestLog
from draftwood.trees.tree import TokenTree

Context = tuple[tuple[int, ...], tuple[int, ...]]
"""Tokens from the root to a node, and the tokens of its earlier children."""

_NEGLIGIBLE = 1e-200
"""Weights below this have lost their digits; what happens there has no measurable law."""


@attrs.define
class _Existence:
    """Probability of a context, and of a next child in it."""

    weight: float = 0.0
    with_child: float = 0.0


@attrs.define
class _DrawnLaw:
    """Tokens drawn in one context under one declared law: the probability of every token."""

    declared: Tensor
    law: str
    weights: Tensor
    allowed: float


def assert_proposal_law(
    policy: TreePolicy,
    drafter: Drafter,
    *,
    prompt: Sequence[int] = (0,),
    temperature: float = 1.0,
    budget: int = 100_000,
    tolerance: float | None = None,
    state: Any = None,
) -> None:
    """Prove that `policy` draws what it declares, by visiting every tree it may grow after `prompt`.

    Given the tokens above a child, the tokens of its earlier siblings, and that the child exists, its token
    must have the declared `conditional`. That is what verifiers rely on; nothing is asked of how nodes that
    are not on one path or siblings go together, nor where a policy gets its distributions from.

    A policy may declare one of several laws in a context (by room, or by chance): each is compared with the
    trees in which it is declared.

    Also checked: the requests, the shape of the tree, that every node with children has a proposal among
    the policy's `laws`, and, where it declares `adaptive = False`, that verifiers which look at several
    siblings at once may rely on it (`assert_counts_settled`).

    Args:
        policy: grows the trees.
        drafter: supplies the draft distributions.
        prompt: the text before; its last token is the root.
        temperature: of the draft.
        budget: random outcomes to visit at most.
        tolerance: largest difference of a probability; None is what the dtype of its laws allows.
        state: what a policy that learns has learnt; None is its first state.

    Raises:
        LawBroken: the message names the context, the two laws, and the likely mistake.
    """
    existence: dict[Context, _Existence] = {}
    drawn: dict[tuple[Context, bytes], _DrawnLaw] = {}

    def grow(rng: Randomness) -> TokenTree:
        return grow_tree(policy, drafter, prompt=prompt, temperature=temperature, rng=rng, state=state)

    trees: list[tuple[float, TokenTree]] = []
    for weight, tree in enumerate_outcomes(grow, budget=budget):
        if not policy.adaptive:
            trees.append((weight, tree))
        for context, child, proposal in _children(policy, tree):
            seen = existence.setdefault(context, _Existence())
            seen.weight += weight
            if child is None or proposal is None:
                continue
            seen.with_child += weight
            declared = proposal.conditional(len(context[1]), context[1])
            allowed = rounding(declared.dtype) if tolerance is None else tolerance
            declared = declared.double()
            key = (context, _rounded(declared))
            if key not in drawn:
                law = type(proposal).__name__
                drawn[key] = _DrawnLaw(declared, law, torch.zeros_like(declared), allowed)
            drawn[key].weights[child] += weight
    for (context, _), law_drawn in drawn.items():
        _check_law(policy, context, law_drawn, existence[context])
    assert_counts_settled(
        policy, trees, max((law_drawn.allowed for law_drawn in drawn.values()), default=0.0)
    )


def _rounded(declared: Tensor) -> bytes:
    """Returns a key that is equal for laws that differ by 1e-13 at most."""
    # Adding 0 makes -0.0 and 0.0 one.
    return (declared.cpu() * 1e13).round().add(0.0).numpy().tobytes()


def _check_law(policy: TreePolicy, context: Context, drawn: _DrawnLaw, existence: _Existence) -> None:
    total = float(drawn.weights.sum())
    if total < _NEGLIGIBLE:
        return
    actual = drawn.weights / total
    off = float((actual - drawn.declared).abs().max())
    if off <= drawn.allowed:
        return
    path, earlier = context
    siblings = f" and the earlier siblings {earlier}" if earlier else ""
    raise LawBroken(
        f"{policy} breaks law P after {path}{siblings}: child {len(earlier)}, where it exists, has the law "
        f"{distribution_as_text(actual)}, and {drawn.law} declares {distribution_as_text(drawn.declared)} "
        f"(off by {off:.2g}).",
        error=off,
        likely=likely_mistake(actual, drawn.declared, exists=existence.with_child / existence.weight),
    )


def _children(policy: TreePolicy, tree: TokenTree) -> Iterator[tuple[Context, int | None, Proposal | None]]:
    """Yields context, token (None after the last child) and proposal of every node and child number."""
    tokens = tree.tokens.tolist()
    for node in range(len(tree)):
        path = tuple(tokens[above] for above in tree.path(node))
        siblings = tuple(tokens[child] for child in tree.children(node))
        proposal = tree.proposals.get(node)
        if siblings:
            assert proposal is not None, (
                f"{policy} names no proposal for node {node} after {path}, which has the children {siblings}."
            )
            assert isinstance(proposal, tuple(policy.laws)), (
                f"{policy} declares {type(proposal).__name__} after {path}, which is none of its laws "
                f"{sorted(law.__name__ for law in policy.laws)}."
            )
        for k, token in enumerate(siblings):
            yield (path, siblings[:k]), token, proposal
        yield (path, siblings), None, None


def grow_tree(
    policy: TreePolicy,
    drafter: Drafter,
    *,
    prompt: Sequence[int] = (0,),
    temperature: float = 1.0,
    rng: Randomness,
    state: Any = None,
) -> TokenTree:
    """One tree of `policy` after `prompt`, its requests and its shape checked.

    `state` is what a policy that learns has learnt; None is its first state.

    Raises:
        AssertionError: a request for a node whose parent was not asked for before, anything but a
            request, or a malformed tree.
    """
    sampling = SamplingParams(temperature=temperature)
    drafter.prefill([torch.tensor(prompt[:-1], dtype=torch.int64)])
    asked = RequestLog()
    try:
        # What decoding grows its trees by, here with one row.
        growth = policy_states.growth(policy, [prompt[-1]], [rng], [state], views=[TOY_VIEW])
        while growth.requests is not None:
            request = growth.requests[0]
            assert request is not None
            _check_request(policy, request, asked, prompt[-1])
            asked.take(request)
            logits = drafter.distributions([request])
            flat = sampling.distribution(logits.flatten(0, -2), may_be_empty=True)
            growth.answer(flat.reshape(logits.shape))
        tree = growth.trees()[0].validated(drafter.vocab_size)
    except InvalidTree as error:
        raise AssertionError(f"{policy} grows a malformed tree: {error}") from error
    finally:
        drafter.release()
    root = int(tree.tokens[0])
    assert root == prompt[-1], f"{policy} puts token {root} at the root, which holds {prompt[-1]}."
    return tree


def _check_request(policy: TreePolicy, request: Request, asked: RequestLog, root: int) -> None:
    pairs = zip(request.tokens.tolist(), request.parents.tolist(), strict=True)
    for number, (token, parent) in enumerate(pairs, start=len(asked)):
        if number == 0 or (policy.asks and parent < 0):
            assert (token, parent) == (root, -1), (
                f"{policy} first asks for token {token} with parent {parent}; number 0 is the root {root}, "
                "with parent -1."
            )
        else:
            # A node's distribution needs the state of its parent, from this pass or an earlier one.
            assert 0 <= parent < number, (
                f"{policy} asks for node {number} (token {token}) with parent {parent}; its parent must "
                "have been asked for before."
            )
