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
from draftwood.strategies.verifiers.window import heavy


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
    """A sibling to be tried: its place (None for a phantom), token and law, and its levels' chances."""

    place: int | None
    token: int
    law: list[float]
    levels: list[float] | None = None


class Left:
    """What the tried children left of a target T, and of the node's allowance a."""

    def __init__(self, target, allowance=1.0):
        self.target, self.allowance = target, allowance

    def chance(self, tried):
        wanted = self.allowance * self.target[tried.token]
        return min(1.0, wanted / tried.law[tried.token]) if wanted > 0 else 0.0

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
            if left.target[tried.token] > 0 and coins.accept(left.chance(tried)):
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
    choose: Any = None
    phantoms: bool = False
    luck: float = 0.0

    def verify(self):
        path, extra = self.visit(0, None, 1.0)
        bonus = not self.tree.children(path[-1])
        return Outcome.of(self.tree, path, extra=extra, bonus=bonus)

    def visit(self, node, tried, allowance):
        """What is accepted from `node` down, and the extra token; None if nothing is."""
        children, left = self.tree.children(node), Left(self.targets[node].tolist(), allowance)
        for one in self.siblings(node, tried, left) if children else ():
            chance = left.chance(one)
            if one.place is None:
                if self.coins.accept(chance):
                    return [node], one.token
            elif chance > 0 and (below := self.visit(children[one.place], one, chance)):
                return [node, *below[0]], below[1]
            left.reject(one)
        return ([node], self.coins.choose(left.target)) if self.coins.accept(left.allowance) else None

    def siblings(self, node, tried, left):
        children, proposal = self.tree.children(node), self.tree.proposals[node]
        tokens = self.tree.tokens[children].tolist()
        if self.choose is None or not isinstance(proposal, WithoutReplacement):
            return drawn_order(tokens, proposal)
        first = draft = proposal.p.tolist()
        if tried and tried.levels:
            b, lucky = self.luck, self.lucky(node)
            low, high = tried.levels
            first = [d * (high * x / b + low * (1 - x) / (1 - b)) for d, x in zip(draft, lucky, strict=True)]
        order = ClassOrder(tokens, draft, first, left, self.coins, self.choose, self.phantoms)
        if self.luck:
            order = attrs.evolve(order, chances=[1 - self.luck, self.luck], level=self.level_of(children))
        return order.tries()

    def lucky(self, node):
        """For every token the chance that `node` is lucky when its first child holds it."""
        target, draft = self.targets[node].tolist(), self.tree.proposals[node].p
        ranked = heavy(draft).tolist()
        draft, found, room = draft.tolist(), [None] * len(draft), self.luck
        for token in sorted(ranked, key=lambda token: -target[token] / draft[token]):
            taken = min(draft[token], room)
            found[token], room = taken / draft[token], room - taken
        rest = sum(draft[token] for token in range(len(draft)) if found[token] is None)
        return [min(room / rest, 1.0) if one is None else one for one in found]

    def level_of(self, children):
        def level(place):
            node = children[place]
            below = self.tree.children(node)
            seen = below and isinstance(self.tree.proposals[node], WithoutReplacement)
            chance = self.lucky(node)[int(self.tree.tokens[below[0]])] if seen else self.luck
            return int(self.coins.accept(chance))

        return level


def class_ordered_rejection(tree, targets, coins, choose, *, phantoms=False):
    path = [0]
    while tree.children(path[-1]):
        children, proposal = tree.children(path[-1]), tree.proposals[path[-1]]
        left, tokens = Left(targets[path[-1]].tolist()), tree.tokens[children].tolist()
        tries = drawn_order(tokens, proposal)
        if isinstance(proposal, WithoutReplacement):
            p = proposal.p.tolist()
            tries = ClassOrder(tokens, p, p, left, coins, choose, phantoms).tries()
        for tried in tries:
            if left.target[tried.token] > 0 and coins.accept(left.chance(tried)):
                if tried.place is None:
                    left.target = [float(token == tried.token) for token in range(len(left.target))]
                    return Outcome.of(tree, path, extra=coins.choose(left.target), bonus=False)
                path.append(children[tried.place])
                break
            left.reject(tried)
        else:
            return Outcome.of(tree, path, extra=coins.choose(left.target), bonus=False)
    return Outcome.of(tree, path, extra=coins.choose(targets[path[-1]].tolist()), bonus=True)


class Pairs:
    """All that two siblings may be, enumerated: the held one z, and the next one, drawn from D without z.

    `h` `[levels][vocab]` is the held one's law, `draft` D without the tried tokens, `chances` those of the
    next one's levels, `f` those of class 1. The next one goes first if its rank is the higher one.
    """

    def __init__(self, h, draft, chances, f):
        self.vocab, self.count = len(draft), len(chances)
        self.first = [0.0] * self.vocab
        self.levels = defaultdict[Any, list[float]](lambda: [0.0] * self.count)  # by token, came
        self.second = defaultdict[Any, list[list[float]]](
            lambda: [[0.0] * self.vocab for _ in chances]
        )  # by token
        # By token, rank, came.
        self.second_of = defaultdict[Any, list[list[float]]](lambda: [[0.0] * self.vocab for _ in chances])
        classes = [[(0, 1 - one), (1, one)] for one in f]
        for z in range(self.vocab):
            beside = sum(without(draft, [z]))
            if beside == 0:  # nobody is left to be its rival
                self.first[z] += sum(row[z] for row in h)
                for i, row in enumerate(h):
                    self.levels[z, False][i] += row[z]
                continue
            held = [(self.count * k + i, i, row[z] * w) for i, row in enumerate(h) for k, w in classes[z]]
            held = [one for one in held if one[-1] > 0]
            for c in range(self.vocab):
                if c == z or draft[c] == 0:
                    continue
                for (rank, i, mass), (j, chance), (k, w) in itertools.product(
                    held, enumerate(chances), classes[c]
                ):
                    mass *= draft[c] / beside * chance * w
                    if mass > 0:
                        self._pair((z, rank, i), (c, self.count * k + j, j), mass)

    def _pair(self, held, following, mass):
        came = following[1] > held[1]
        first, second = (following, held) if came else (held, following)
        self.first[first[0]] += mass
        self.levels[first[0], came][first[2]] += mass
        self.second[first[0]][second[2]][second[0]] += mass
        self.second_of[first[0], first[1], came][second[2]][second[0]] += mass


def given(joint):
    """A joint law `[levels][vocab]`, normalised."""
    total = sum(map(sum, joint))
    return [[mass / total for mass in row] for row in joint] if total > 0 else joint


@attrs.frozen
class ClassOrder:
    """Siblings without replacement, of a held one and the next one that of the higher rank first."""

    tokens: list[int]
    draft: list[float]
    first: list[float]
    left: Left
    coins: Coins
    choose: Any
    phantoms: bool = False
    chances: list[float] | None = None
    level: Any = lambda place: 0

    def tries(self):
        if len(self.tokens) == 1 and not self.phantoms:
            yield Try(0, self.tokens[0], self.first)
            return
        chances = self.chances or [1.0]
        h = [[chance * mass for mass in self.first] for chance in chances]
        held, tried, following = (0, self.tokens[0], self.level(0)), list[int](), 1
        other: Any
        while following < len(self.tokens) or (self.phantoms and following == 1):
            if self.phantoms and following > 1:
                break
            if following < len(self.tokens):
                other = (following, self.tokens[following], self.level(following))
            else:
                rest = without(self.draft, [held[1]])
                if sum(rest) == 0:
                    break
                other = (None, self.coins.choose(rest), 0)
            following += 1
            draft = without(self.draft, tried)
            further = 0 if self.phantoms else len(self.tokens) - following
            f = self.choose([sum(column) for column in zip(*h, strict=True)], draft, self.left, further)
            pairs = Pairs(h, draft, chances, f)
            ranks = [len(chances) * self.coins.accept(f[one[1]]) + one[2] for one in (held, other)]
            came = ranks[1] > ranks[0]
            first, second = (other, held) if came else (held, other)
            levels = normalised(pairs.levels[first[1], came]) if self.chances else None
            yield Try(first[0], first[1], pairs.first, levels)
            tried.append(first[1])
            held = second
            h = pairs.second_of[first[1], max(ranks), came] if self.chances else pairs.second[first[1]]
            h = given(h)
        levels = normalised([row[held[1]] for row in h]) if self.chances else None
        yield Try(held[0], held[1], [sum(column) for column in zip(*h, strict=True)], levels)
        tried.append(held[1])
        for place in range(following, len(self.tokens)):  # with phantoms alone
            yield Try(place, self.tokens[place], normalised(without(self.draft, tried)))
            tried.append(self.tokens[place])
