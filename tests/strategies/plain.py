"""Verifiers as their definitions read, in plain Python over lists of floats: slow, and with nothing to hide.

They toss the coins of the production verifiers in the same order, so that both can be held against each
other on one tape of uniforms.
"""

import itertools
from bisect import bisect_right
from collections import defaultdict
from typing import Any

import attrs

from draftwood import Deterministic, Outcome, PerChild, TopThenSample, WithoutReplacement


def is_dust(p):
    """Whether a chance is what rounding leaves of nothing: below that of a sum to 1."""
    return 0 < p < 1e-15


class Coins:
    """Draws from a list of uniforms; `near` is how near one of them came to changing what was drawn.

    `dust` says whether a chance was what rounding leaves of nothing.
    """

    def __init__(self, uniforms):
        self.uniforms, self.used, self.near, self.dust = uniforms, 0, 1.0, False

    def _next(self, *borders):
        u = self.uniforms[self.used]
        self.used += 1
        self.near = min(self.near, *(abs(u - border) for border in borders))
        return u

    def accept(self, p):
        self.dust |= is_dust(p)
        return self._next(p) < p

    def choose(self, weights):
        heights = list(itertools.accumulate(weights))
        inner = [height / heights[-1] for height in heights if 0 < height < heights[-1]]
        return bisect_right(heights, self._next(1.0, *inner) * heights[-1])


def without(p, gone):
    """`p` with the tokens `gone` at 0."""
    return [0.0 if token in gone else mass for token, mass in enumerate(p)]


def normalised(p):
    total = sum(p)
    return [mass / total for mass in p] if total > 0 else p


def conditional(proposal, k, earlier):
    """The law of the k-th child given the tokens of the earlier ones."""
    if isinstance(proposal, Deterministic):
        return [float(token == proposal.tokens[k]) for token in range(proposal.vocab_size)]
    if isinstance(proposal, PerChild):
        return proposal.ps[k].tolist()
    if isinstance(proposal, TopThenSample):
        if k < len(proposal.top):
            return [float(token == proposal.top[k]) for token in range(proposal.vocab_size)]
        return normalised(without(proposal.p.tolist(), [*proposal.top, *earlier]))
    if isinstance(proposal, WithoutReplacement):
        return normalised(without(proposal.p.tolist(), earlier)) if earlier else proposal.p.tolist()
    return proposal.p.tolist()


@attrs.frozen
class Try:
    """A sibling to be tried: its place, token and law."""

    place: int
    token: int
    law: list[float]


class Left:
    """The rest of a target T, and of the node's allowance a, after the tried children."""

    def __init__(self, target, allowance=1.0):
        self.target, self.allowance = target, allowance

    def chance(self, tried):
        """The allowance of the sibling that is tried; below what a uniform of 53 bits can hit it is none."""
        expected = self.allowance * self.target[tried.token]
        chance = min(1.0, expected / tried.law[tried.token]) if expected > 0 else 0.0
        return chance if chance >= 2**-54 else 0.0

    def reject(self, tried):
        a = self.allowance
        r = [max(a * t - p, 0.0) for t, p in zip(self.target, tried.law, strict=True)]
        if sum(r) + 1 - a > 0:
            self.target, self.allowance = normalised(r), sum(r) / (sum(r) + 1 - a)


def drawn_order(tokens, proposal):
    for k, token in enumerate(tokens):
        yield Try(k, token, conditional(proposal, k, tokens[:k]))


def recursive_rejection(tree, targets, coins):
    path = [0]
    while tree.children(path[-1]):
        children = tree.children(path[-1])
        left = Left(targets[path[-1]].tolist())
        for tried in drawn_order(tree.tokens[children].tolist(), tree.proposals[path[-1]]):
            # No coin is tossed for a token that the target does not want.
            if (chance := left.chance(tried)) > 0 and coins.accept(chance):
                path.append(children[tried.place])
                break
            left.reject(tried)
        else:
            return Outcome.of(tree, path, extra=coins.choose(left.target), bonus=False)
    return Outcome.of(tree, path, extra=coins.choose(targets[path[-1]].tolist()), bonus=True)


@attrs.frozen
class Traversal:
    """Traversal verification; `choose` given, over siblings in class order.

    `choose(h, draft, left, further)` says with which chance every token is of class 1.
    """

    tree: Any
    targets: Any
    coins: Coins
    choose: object = None

    def verify(self):
        path, extra = self.visit(0, 1.0)
        bonus = not self.tree.children(path[-1])
        return Outcome.of(self.tree, path, extra=extra, bonus=bonus)

    def visit(self, node, allowance):
        """Returns the accepted path from `node` down and the extra token; None if nothing is accepted."""
        children, left = self.tree.children(node), Left(self.targets[node].tolist(), allowance)
        for one in self.siblings(node, left) if children else ():
            chance = left.chance(one)
            if chance > 0 and (below := self.visit(children[one.place], chance)):
                return [node, *below[0]], below[1]
            left.reject(one)
        return ([node], self.coins.choose(left.target)) if self.coins.accept(left.allowance) else None

    def siblings(self, node, left):
        proposal = self.tree.proposals[node]
        tokens = self.tree.tokens[self.tree.children(node)].tolist()
        if self.choose is None or not isinstance(proposal, WithoutReplacement):
            return drawn_order(tokens, proposal)
        return ClassOrder(tokens, proposal.p.tolist(), left, self.coins, self.choose).tries()


def class_ordered_rejection(tree, targets, coins, choose):
    path = [0]
    while tree.children(path[-1]):
        children, proposal = tree.children(path[-1]), tree.proposals[path[-1]]
        left, tokens = Left(targets[path[-1]].tolist()), tree.tokens[children].tolist()
        tries = drawn_order(tokens, proposal)
        if isinstance(proposal, WithoutReplacement):
            tries = ClassOrder(tokens, proposal.p.tolist(), left, coins, choose).tries()
        for tried in tries:
            if (chance := left.chance(tried)) > 0 and coins.accept(chance):
                path.append(children[tried.place])
                break
            left.reject(tried)
        else:
            return Outcome.of(tree, path, extra=coins.choose(left.target), bonus=False)
    return Outcome.of(tree, path, extra=coins.choose(targets[path[-1]].tolist()), bonus=True)


class Pairs:
    """All that two siblings may be, enumerated: the held one z, and the next one, drawn from D without z.

    `h` `[vocab]` is the held one's law, `draft` D without the tried tokens, `f` the chances of the class. The
    next one goes first if it is of the class and the held one is not.
    """

    def __init__(self, h, draft, f):
        self.vocab = len(draft)
        self.first = [0.0] * self.vocab
        self.second = defaultdict[int, list[float]](lambda: [0.0] * self.vocab)  # by the first token
        for z in range(self.vocab):
            beside = sum(without(draft, [z]))
            if beside == 0:  # nobody is left to be its rival
                self.first[z] += h[z]
                continue
            for c in range(self.vocab):
                if c == z or draft[c] == 0 or h[z] == 0:
                    continue
                mass = h[z] * draft[c] / beside
                comes = (1 - f[z]) * f[c]
                for first, second, chance in ((z, c, 1 - comes), (c, z, comes)):
                    self.first[first] += mass * chance
                    self.second[first][second] += mass * chance


@attrs.frozen
class ClassOrder:
    """Siblings without replacement, of a held one and the next one that of the class first."""

    tokens: list[int]
    draft: list[float]
    left: Left
    coins: Coins
    choose: Any

    def tries(self):
        h, tried, held = self.draft, list[int](), 0
        for following in range(1, len(self.tokens)):
            draft = without(self.draft, tried)
            f = self.choose(h, draft, self.left, len(self.tokens) - following - 1)
            pairs = Pairs(h, draft, f)
            stays, comes = [self.coins.accept(f[self.tokens[index]]) for index in (held, following)]
            first, held = (following, held) if comes and not stays else (held, following)
            token = self.tokens[first]
            yield Try(first, token, pairs.first)
            tried.append(token)
            h = normalised(pairs.second[token])
        yield Try(held, self.tokens[held], h)
