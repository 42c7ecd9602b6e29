"""Mistakes in policies, each with the policy that is right."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from draftwood import (
    Deterministic,
    Growing,
    Opening,
    Proposal,
    Randomness,
    TokenTree,
    TreeBuilder,
    TreePolicy,
    WithoutReplacement,
    WithReplacement,
    draw_children,
)
from draftwood.strategies.policies.beam import Beam
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.stochastic_beam import StochasticBeam
from draftwood.trees.growth import by_distributions
from tests.mutations import learning_mistakes
from tests.mutations.mistake import Mistake

WITHOUT, WITH = frozenset({WithoutReplacement}), frozenset({WithReplacement})


class LeftOnSelf(TreePolicy):
    """Keeps the distributions of the tree that grows on the policy, where another row's growth writes too."""

    laws = WITHOUT

    def grow(self, root: int, rng: Randomness) -> Growing:
        tree = TreeBuilder(root)
        self.probs = yield tree.request([0])
        (drawn,) = draw_children(WithoutReplacement, self.probs, count=1, rng=rng)
        (child,) = tree.add_children(0, drawn.tokens, drawn.proposal) or [0]
        if not child:
            return tree.finish()
        below = yield tree.request([child])
        (second,) = draw_children(WithoutReplacement, (self.probs + below) / 2, count=1, rng=rng)
        tree.add_children(child, second.tokens, second.proposal)
        return tree.finish()


@attrs.frozen
class DrawnInHalf(TreePolicy):
    """Draws from bfloat16 where its distributions are float32, as a fused kernel might."""

    laws = WITHOUT

    def grow(self, root: int, rng: Randomness) -> Growing:
        tree = TreeBuilder(root)
        (p,) = yield tree.request([0])
        if not bool(p.any()):
            return tree.finish()
        token = rng.choose(p.bfloat16().double() if p.dtype == torch.float32 else p)
        tree.add_children(0, [token], WithoutReplacement(p))
        return tree.finish()


@attrs.frozen
class Draws(TreePolicy):
    """One level of children that `draw` draws and declares; the root of the mistakes below."""

    laws = WITHOUT

    def draw(self, p: Tensor, rng: Randomness) -> tuple[list[int], Proposal]:
        (drawn,) = draw_children(WithoutReplacement, p.unsqueeze(0), count=2, rng=rng)
        return drawn.tokens, drawn.proposal

    def grow(self, root: int, rng: Randomness) -> Growing:
        tree = TreeBuilder(root)
        (p,) = yield tree.request([0])
        if bool(p.any()):
            tree.add_children(0, *self.draw(p, rng))
        return tree.finish()


class StopsAtUnlikely(Draws):
    """Draws no second child after an unlikely first one, and does not declare that it is adaptive."""

    def draw(self, p: Tensor, rng: Randomness) -> tuple[list[int], Proposal]:
        tokens, law = super().draw(p, rng)
        return (tokens if float(p[tokens[0]]) > 0.4 else tokens[:1]), law


@attrs.frozen
class SecondBehindAWinner(TreePolicy):
    """Draws a second child once the first one's own child has come out likely, and says so."""

    laws = WITHOUT
    adaptive = True

    def grow(self, root: int, rng: Randomness) -> Growing:
        tree = TreeBuilder(root)
        (p,) = yield tree.request([0])
        if not bool(p.any()):
            return tree.finish()
        token = rng.choose(p)
        (first,) = tree.add_children(0, [token], WithoutReplacement(p))
        below = yield tree.request([first])
        (drawn,) = draw_children(WithoutReplacement, below, count=1, rng=rng)
        tree.add_children(first, drawn.tokens, drawn.proposal)
        rest = p.index_fill(0, torch.tensor(token), 0)
        if drawn.tokens and drawn.chances[0] > 0.4 and bool(rest.any()):
            tree.add(0, rng.choose(rest))
        return tree.finish()


class WinnerUndeclared(SecondBehindAWinner):
    """Does not say so: each sibling has its law whatever the one before it holds, and yet."""

    adaptive = False


@attrs.frozen
class CousinsCount(TreePolicy):
    """Gives each of two children a second child where the other one's first is even, and says so."""

    laws = WITHOUT
    adaptive = True

    def grow(self, root: int, rng: Randomness) -> Growing:
        tree = TreeBuilder(root)
        probs = yield tree.request([0])
        (drawn,) = draw_children(WithoutReplacement, probs, count=2, rng=rng)
        nodes = tree.add_children(0, drawn.tokens, drawn.proposal)
        if len(nodes) < 2:
            return tree.finish()
        below = draw_children(WithoutReplacement, (yield tree.request(nodes)), count=2, rng=rng)
        for node, own, other in zip(nodes, below, below[::-1], strict=True):
            count = 2 if other.tokens and other.tokens[0] % 2 == 0 else 1
            tree.add_children(node, own.tokens[:count], own.proposal)
        return tree.finish()


class CousinsUndeclared(CousinsCount):
    """Does not say so: by themselves the children of either node have their law, however many they are."""

    adaptive = False


class FromTheTopFour(Draws):
    """Draws among the four most likely tokens and declares the whole distribution."""

    def draw(self, p: Tensor, rng: Randomness) -> tuple[list[int], Proposal]:
        best = torch.zeros_like(p).index_put_((p.topk(min(4, len(p))).indices,), p.new_ones(()))
        return rng.without_replacement(p * best, 2), WithoutReplacement(p)


class DuplicatesDropped(Draws):
    """Draws twice with replacement, drops a duplicate, and calls it without replacement."""

    def draw(self, p: Tensor, rng: Randomness) -> tuple[list[int], Proposal]:
        tokens = [rng.choose(p), rng.choose(p)]
        return list(dict.fromkeys(tokens)), WithoutReplacement(p)


class Sorted(Draws):
    """Puts the siblings into order of likelihood once they are drawn."""

    def draw(self, p: Tensor, rng: Randomness) -> tuple[list[int], Proposal]:
        tokens, law = super().draw(p, rng)
        return sorted(tokens, key=lambda token: -float(p[token])), law


class BestFirst(Draws):
    """Takes the most likely token for the first child and draws the second, all declared as drawn."""

    def draw(self, p: Tensor, rng: Randomness) -> tuple[list[int], Proposal]:
        best = int(p.argmax())
        rest = p.index_fill(0, torch.tensor(best), 0)
        return [best, *rng.without_replacement(rest, 1)], WithoutReplacement(p)


class OwnChance(Draws):
    """Draws from torch's generator instead of the row's stream."""

    def draw(self, p: Tensor, rng: Randomness) -> tuple[list[int], Proposal]:
        return [int(torch.multinomial(p, 1))], WithoutReplacement(p)


class SecondFromWhole(Draws):
    """Draws the second child from the whole distribution again and declares that it is without the first."""

    laws = WITH  # type: ignore[assignment]

    def draw(self, p: Tensor, rng: Randomness) -> tuple[list[int], Proposal]:
        return rng.without_replacement(p, 2), WithReplacement(p)


@attrs.frozen
class ParentsLaw(TreePolicy):
    """Declares at the second level the distribution that belongs to the root."""

    laws = WITHOUT

    def grow(self, root: int, rng: Randomness) -> Growing:
        tree = yield from Chain(2).grow(root, rng)
        return attrs.evolve(tree, proposals=dict.fromkeys(tree.proposals, tree.proposals[0]))


@attrs.frozen
class WarmBelow(TreePolicy):
    """From the second level on it draws at another temperature than it declares."""

    laws = WITHOUT

    def grow(self, root: int, rng: Randomness) -> Growing:
        growing = by_distributions(Chain(3).grow(root, rng), rng)
        request, told, level = next(growing), {}, 0
        try:
            while True:
                probs = yield request
                told[level] = probs[0]
                request = growing.send(probs.sqrt() / probs.sqrt().sum() if level else probs)
                level += 1
        except StopIteration as finished:
            tree = finished.value
        return attrs.evolve(tree, proposals={node: WithoutReplacement(told[node]) for node in tree.proposals})


@attrs.frozen
class LevelsDropped(TreePolicy):
    """From the third level on, drops a drawn token that is unlikely."""

    length: int = 2
    laws = WITHOUT

    def grow(self, root: int, rng: Randomness) -> Growing:
        tree = yield from Chain(self.length).grow(root, rng)
        tokens = tree.tokens.tolist()
        for node in range(3, len(tree)):
            if float(tree.proposals[node - 1].marginal(0)[tokens[node]]) < 0.5:
                return tree.truncated(node - 1)
        return tree


@attrs.frozen
class GuessesSilently(TreePolicy):
    """Where the drafter has nothing to propose it takes token 0 and names the empty distribution."""

    laws = WITHOUT

    def grow(self, root: int, rng: Randomness) -> Growing:
        tree = TreeBuilder(root)
        (p,) = yield tree.request([0])
        token = rng.choose(p) if bool(p.any()) else 0
        tree.add_children(0, [token], WithoutReplacement(p))
        return tree.finish()


@attrs.frozen
class OneOver(TreePolicy):
    """Counts the root among its budget of nodes when it should not, and drafts one more at the end."""

    budget: int = 2
    laws = frozenset({Deterministic})

    def grow(self, root: int, rng: Randomness) -> Growing:
        return (yield from FixedTree(1, self.budget + 1, law="top-k").grow(root, rng))


@attrs.frozen
class DropsTheLosingBranch(TreePolicy):
    """Keeps only the likeliest child of the first level, once both are drawn."""

    laws = WITHOUT

    def grow(self, root: int, rng: Randomness) -> Growing:
        tree = yield from FixedTree(1, 2).grow(root, rng)
        best = max(tree.children(0), key=lambda node: _chance(tree, node), default=0)
        return tree.subtree(torch.tensor([0, best] if best else [0]))


def _chance(tree: TokenTree, node: int) -> float:
    return float(tree.proposals[0].marginal(0)[int(tree.tokens[node])])


class AnotherPlan(Beam):
    """Announces that a node has one continuation, and then asks for more."""

    def grow(self, root: int, rng: Randomness) -> Growing:
        growing = super().grow(root, rng)
        opening = next(growing)
        assert isinstance(opening, Opening)
        opening.plan = attrs.evolve(self.plan, branching=1)
        while True:
            try:
                opening = growing.send((yield opening))
            except StopIteration as finished:
                return finished.value


MISTAKES = [
    Mistake(
        "a plan is announced that is not what is asked for",
        "a faster form that nobody proves",
        "policy",
        lambda: Beam(2, 2),
        lambda: AnotherPlan(2, 2),
    ),
    *learning_mistakes.MISTAKES,
    Mistake(
        "state kept on self during grow, rows share it",
        "one object serves all rows of a batch",
        "policy",
        lambda: Chain(2),
        LeftOnSelf,
    ),
    Mistake(
        "a draw in bfloat16, in float32 runs only",
        "a kernel that draws from the logits as the model left them",
        "policy",
        lambda: Chain(1),
        DrawnInHalf,
    ),
    Mistake("siblings stop behind an unlikely one, undeclared", "adaptive", "policy", Draws, StopsAtUnlikely),
    Mistake(
        "a second sibling once the first one's child is likely, undeclared",
        "its number of siblings tells what came below a sibling",
        "policy",
        SecondBehindAWinner,
        WinnerUndeclared,
    ),
    Mistake(
        "cousins that count each other's tokens, undeclared",
        "only both nodes together tell something",
        "policy",
        CousinsCount,
        CousinsUndeclared,
    ),
    Mistake(
        "a draw among the top four, the whole distribution declared",
        "top-k sampling that is invisible over three tokens",
        "policy",
        Draws,
        FromTheTopFour,
    ),
    Mistake(
        "duplicates dropped from draws with replacement",
        "declared as without replacement",
        "policy",
        Draws,
        DuplicatesDropped,
    ),
    Mistake("siblings sorted once they are drawn", "most likely first", "policy", Draws, Sorted),
    Mistake("the best token first, then a draw", "TopThenSample undeclared", "policy", Draws, BestFirst),
    Mistake("chance from torch's own generator", "torch.multinomial in grow", "policy", Draws, OwnChance),
    Mistake(
        "drawn without replacement, declared with",
        "the wrong law by name",
        "policy",
        lambda: FixedTree(1, 2, law="with-replacement"),
        SecondFromWhole,
    ),
    Mistake("the root's distribution declared below it", "stale", "policy", lambda: Chain(2), ParentsLaw),
    Mistake(
        "another temperature from the second level on",
        "one request is scaled and the next is not",
        "policy",
        lambda: Chain(3),
        WarmBelow,
    ),
    Mistake(
        "unlikely tokens dropped from the third level on",
        "trees of two levels, as tests have them, are right",
        "policy",
        lambda: Chain(2),
        LevelsDropped,
    ),
    Mistake("a guess where nothing is proposed", "token 0", "policy", lambda: Chain(1), GuessesSilently),
    Mistake("one node over the budget", "the root counted", "policy", lambda: FixedTree(1, 2, 2), OneOver),
    Mistake(
        "of two drawn children the likelier one is kept",
        "best-of-two",
        "policy",
        lambda: StochasticBeam(2, 1),
        DropsTheLosingBranch,
    ),
]
