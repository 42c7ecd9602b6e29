"""Dynamic depth for any policy: a tree grows no deeper where the draft is unsure."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood import LearningPolicy, Outcome, Randomness, Request, RequestLog, TokenTree, TreePolicy
from draftwood.base.validators import at_least, probability
from draftwood.protocols import policy_states
from draftwood.strategies.policies.wrapper import PolicyWrapper, as_policy
from draftwood.trees.growth import by_distributions

_MEMORY = 0.5  # share of the past in the acceptance so far
_STEP = 0.001  # of the threshold, a round; Draft & Verify takes a tenth of 0.01


@attrs.frozen
class DynamicDepthState:
    """The state of `DynamicDepth`, learnt from outcomes.

    Attributes:
        threshold: where they have moved it.
        accepted: share of the levels that was accepted, recent rounds counting most.
        inner: the state of the wrapped policy.
    """

    threshold: float
    accepted: float
    inner: Any


@attrs.frozen
class _Note:
    """Whether the draft was left unasked somewhere, and the note of the wrapped policy."""

    stopped: bool
    inner: object


@attrs.frozen
class DynamicDepth(PolicyWrapper, LearningPolicy[DynamicDepthState]):
    """Grows the tree of `policy` and ends it where the draft's text is unlikely to be accepted.

    Before every request, the draft's probabilities of the paths to its nodes are added up: the chance
    that the draft's own text passes through one of them. For a policy that asks level by level that is
    how sure the draft is of the whole level. Below `stop_below` the draft is not asked, and `policy` is
    told that there is nothing to propose. What was drawn stays; whether more is drawn is decided by
    tokens drawn before.

    With `history`, the threshold follows the outcomes: it rises while less than `target` of the drafted
    levels are accepted, and falls while more are, unless nothing was stopped that a lower threshold
    would have let through.

    Attributes:
        policy: any policy, or the name of a registered one.
        stop_below: the threshold at first.
        depth: levels at most; None leaves them to `policy`.
        history: whether outcomes move the threshold.
        target: share of the drafted levels that should be accepted.

    Source: Dynamic Depth Decoding (arXiv 2409.00142), where `policy` is EAGLE-2's tree, checked before
    every level rather than some; the moving threshold is Draft & Verify's (arXiv 2309.08168).
    """

    policy: TreePolicy = attrs.field(default="expand-rerank", converter=as_policy)  # type: ignore[assignment]
    stop_below: float = attrs.field(default=0.3, validator=probability)
    depth: int | None = attrs.field(default=None, validator=attrs.validators.optional(at_least(1)))
    history: bool = True
    target: float = attrs.field(default=0.9, validator=probability)
    source = "Dynamic Depth Decoding; Draft & Verify"

    @property
    def learns(self) -> bool:  # type: ignore[override]
        return self.history or self.policy.learns

    def first_state(self) -> DynamicDepthState:
        return DynamicDepthState(self.stop_below, self.target, policy_states.first_state(self.policy))

    def grow(
        self, root: int, rng: Randomness, state: DynamicDepthState | None = None
    ) -> Generator[Request, Tensor, TokenTree]:
        state = state or self.first_state()
        growing = by_distributions(policy_states.grow(self.policy, root, rng, state.inner), rng)
        log, requested = RequestLog(), list[_RequestedNode]()
        drafted = 0  # nodes that the draft was asked for
        stopped = False
        try:
            request = next(growing)
            while True:
                numbers = log.take(request)
                nodes = [
                    _RequestedNode.below(
                        requested[log.parents[n]] if log.parents[n] >= 0 else None, log.tokens[n]
                    )
                    for n in numbers
                ]
                # A node below one that was not asked for has no state to be asked in.
                open_ = [
                    index
                    for index, (n, node) in enumerate(zip(numbers, nodes, strict=True))
                    if node.open and log.depths[n] != self.depth
                ]
                unsure = sum(node.path_prob for node in nodes) < state.threshold
                stopped |= unsure
                if unsure or not open_:
                    blank = requested[0].probs
                    assert blank is not None
                    answer = torch.zeros(len(nodes), *blank.shape, dtype=blank.dtype, device=blank.device)
                else:
                    above = [
                        requested[parent].request_number
                        for parent in request.parents[open_].tolist()
                        if parent >= 0
                    ]
                    parents = torch.tensor(above or [-1], dtype=torch.int64)
                    probs = yield Request(tokens=request.tokens[open_], parents=parents)
                    answer = probs.new_zeros(len(nodes), *probs.shape[1:])
                    answer[open_] = probs
                    for index in open_:
                        nodes[index].probs, nodes[index].request_number = answer[index], drafted
                        drafted += 1
                requested += nodes
                request = growing.send(answer)
        except StopIteration as finished:
            tree: TokenTree = finished.value
            return attrs.evolve(tree, note=_Note(stopped, tree.note))

    def observe(self, state: DynamicDepthState, outcome: Outcome, tree: TokenTree) -> DynamicDepthState:
        note = tree.note
        assert isinstance(note, _Note)
        grown = attrs.evolve(tree, note=note.inner)
        inner = policy_states.observe(self.policy, state.inner, outcome, grown)
        levels = tree.depth
        if not self.history or not levels:
            return attrs.evolve(state, inner=inner)
        accepted = _MEMORY * state.accepted + (1 - _MEMORY) * outcome.accepted / levels
        threshold = state.threshold
        if accepted < self.target:
            threshold = min(threshold + _STEP, 1.0)
        elif note.stopped:
            threshold = max(threshold - _STEP, 0.0)
        return DynamicDepthState(threshold, accepted, inner)


@attrs.define(eq=False)
class _RequestedNode:
    """A node that the policy asked for.

    Attributes:
        path_prob: the draft's probability of the path to it.
        open: whether the draft was asked for its parent.
        probs: its draft distribution; None where the draft was not asked.
        request_number: among the nodes that the draft was asked for.
    """

    path_prob: float
    open: bool
    probs: Tensor | None = None
    request_number: int = -1

    @classmethod
    def below(cls, parent: _RequestedNode | None, token: int) -> _RequestedNode:
        if parent is None:
            return cls(1.0, open=True)
        if parent.probs is None:
            return cls(0.0, open=False)
        # Of several drafters, each is as likely to have written the text.
        return cls(parent.path_prob * float(parent.probs[..., token].mean()), open=True)
