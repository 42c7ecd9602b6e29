"""The trees of several drafters, merged into one."""

from __future__ import annotations

from collections.abc import Generator, Iterable

import attrs
import torch
from torch import Tensor

from draftwood import PerChild, Proposal, Randomness, Request, RequestLog, TokenTree, TreeBuilder, TreePolicy
from draftwood.base.errors import InvalidInput
from draftwood.base.validators import at_least
from draftwood.protocols import registry
from draftwood.protocols.compatibility import needs_several_drafters
from draftwood.strategies.laws import as_law
from draftwood.strategies.policies.wrapper import as_policy
from draftwood.trees.growth import by_distributions

Text = tuple[int, ...]
"""The tokens from the root to a node."""


def as_policies(policy: TreePolicy | str | Iterable[TreePolicy | str]) -> tuple[TreePolicy | str, ...]:
    """A policy, its name, several of them, or names with commas between them."""
    if isinstance(policy, str):
        return tuple(name.strip() for name in policy.split(","))
    return tuple(policy) if isinstance(policy, Iterable) else (policy,)


@attrs.frozen
class Mixture(TreePolicy):
    """Every drafter grows a separate tree, and the trees are merged.

    A path that several trees hold is one node of the merged tree. Its children are the children of the first
    tree, then the second's, and so on, each with the law it was drawn from in its own tree. Two
    trees that draw the same token below a node leave two siblings, because a verifier that refuses the
    first must still take account of the second draw. What either tree grew below that token hangs below
    the first of them: a verifier reaches the second only where the target has no use for the token. So
    a path is searched in all trees at once. This keeps the target's law, since what one tree draws is
    independent of the others, and whether they hold a path says nothing of the tokens below it.

    Every drafter is asked for the nodes of all the trees, once a node.

    Attributes:
        policy: grows the trees: one for all drafters, or one for each. Policies that learn are refused:
            the outcome of a merged tree is none of theirs.
        budget: nodes in the merged tree at most, counted level by level. A policy given by name gets an
            equal share, rounded down, as its own budget.
        law: the law of the policies given by name, where they have a choice; None is their default.

    Source: SpecInfer, merge-based tree construction (section 3, arXiv 2305.09781).
    """

    policy: tuple[TreePolicy | str, ...] = attrs.field(default="layered-dyspec", converter=as_policies)
    budget: int = attrs.field(default=32, validator=at_least(1))
    law: type[Proposal] | None = attrs.field(default=None, converter=attrs.converters.optional(as_law))
    laws = frozenset({PerChild})
    # How many children a node has tells which trees hold it, and so which laws its first child may have.
    adaptive = True
    source = "SpecInfer, section 3 (merge-based)"

    def __attrs_post_init__(self) -> None:
        for member in map(as_policy, self.members(max(2, len(self.policy)))):
            if member.learns:
                raise InvalidInput(
                    f"{member} learns from the outcomes of its trees, and a merged tree has one "
                    "outcome; turn its learning off."
                )
            if needs_several_drafters(member):
                raise InvalidInput(f"{member} needs several drafters for one tree; each tree here has one.")

    def members(self, drafters: int) -> list[TreePolicy]:
        """The policy of every drafter."""
        policies = self.policy * drafters if len(self.policy) == 1 else self.policy
        if len(policies) != drafters:
            raise InvalidInput(
                f"{len(policies)} policies were given for {drafters} drafters; give one for all or one each."
            )
        share = max(1, self.budget // drafters)
        return [self._named(policy, share) if isinstance(policy, str) else policy for policy in policies]

    def _named(self, name: str, share: int) -> TreePolicy:
        options = {"budget": share} if self.law is None else {"budget": share, "law": self.law}
        accepted = registry.options("policies", name)
        policy: TreePolicy = registry.create(
            "policies", name, {option: value for option, value in options.items() if option in accepted}
        )
        return policy

    def grow(self, root: int, rng: Randomness) -> Generator[Request, Tensor, TokenTree]:
        answers = _DrafterAnswers(root)
        yield from answers.ask([(root,)])
        drafters = len(answers.probs[(root,)])
        growing = [
            _PartialTree(drafter, by_distributions(policy.grow(root, rng), rng), root)
            for drafter, policy in enumerate(self.members(drafters))
        ]
        for partial in growing:
            partial.advance(None)
        while waiting := [partial for partial in growing if partial.tree is None]:
            yield from answers.ask([text for partial in waiting for text in partial.requested])
            for partial in waiting:
                partial.advance(
                    torch.stack([answers.probs[text][partial.drafter] for text in partial.requested])
                )
        return merge_trees([partial.tree for partial in growing if partial.tree is not None], self.budget)


class _DrafterAnswers:
    """The answers of the drafters: texts, their numbers, and their distributions `[drafters, vocab]`."""

    def __init__(self, root: int) -> None:
        self.numbers: dict[Text, int] = {(): -1}
        self.probs: dict[Text, Tensor] = {}

    def ask(self, texts: Iterable[Text]) -> Generator[Request, Tensor, None]:
        """Ask for the texts that were not asked for yet."""
        new = [text for text in dict.fromkeys(texts) if text not in self.probs]
        if not new:
            return
        for text in new:
            self.numbers[text] = len(self.numbers) - 1
        probs = yield Request(
            tokens=torch.tensor([text[-1] for text in new], dtype=torch.int64),
            parents=torch.tensor([self.numbers[text[:-1]] for text in new], dtype=torch.int64),
        )
        self.probs.update(zip(new, probs, strict=True))


class _PartialTree:
    """The tree of one drafter in progress."""

    def __init__(self, drafter: int, generator: Generator[Request, Tensor, TokenTree], root: int) -> None:
        self.drafter, self.generator = drafter, generator
        self.tree: TokenTree | None = None
        self.requested: list[Text] = []  # the texts of its request
        self._root, self._log = root, RequestLog()

    def advance(self, probs: Tensor | None) -> None:
        """Answer its request with `probs` `[k, vocab]` (None starts it) and take the next one."""
        try:
            request = next(self.generator) if probs is None else self.generator.send(probs)
        except StopIteration as finished:
            self.tree = finished.value
            return
        self.requested = [(self._root, *self._log.path(node)) for node in self._log.take(request)]


def merge_trees(trees: list[TokenTree], budget: int) -> TokenTree:
    """The merged tree of `trees` with one root, cut at `budget` nodes in the order of levels."""
    tree = TreeBuilder(int(trees[0].tokens[0]))
    tokens = [grown.tokens.tolist() for grown in trees]
    # For every merged node, the (tree, node) pairs with its text; none for a sibling that repeats one.
    sources = [[(index, 0) for index in range(len(trees))]]
    for node, pairs in enumerate(sources):  # grows in the loop
        drawn: list[int] = []
        ps: list[Tensor] = []
        below: dict[int, list[tuple[int, int]]] = {}
        room = budget + 1 - len(tree)
        for index, parent in pairs:
            siblings: list[int] = []
            for child in trees[index].children(parent)[: room - len(drawn)]:
                token = tokens[index][child]
                ps.append(trees[index].proposals[parent].conditional(len(siblings), siblings))
                siblings.append(token)
                drawn.append(token)
                below.setdefault(token, []).append((index, child))
        if drawn:
            tree.add_children(node, drawn, PerChild(ps))
            sources += [below.pop(token, []) for token in drawn]
    return tree.finish()
