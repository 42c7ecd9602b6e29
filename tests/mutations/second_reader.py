"""Ten mistakes by a second reader, who wrote them before looking at any check."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import pairwise

import attrs
import torch
from torch import Tensor

from draftwood import (
    Deterministic,
    DrawnChildren,
    LearningPolicy,
    Outcome,
    Proposal,
    Randomness,
    Request,
    StateBackend,
    TokenTree,
    TreeBuilder,
    TreePolicy,
    WithoutReplacement,
    draw_children,
)
from draftwood.backends.nodes.validation import as_nodes, as_rows, check_path, check_paths, remaining_rows
from draftwood.decoding import round_distributions
from draftwood.distributions.sampling import SamplingParams
from draftwood.laws.randomness import CounterRandomness, Streams
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.testing import ToyBackend, ToyModel
from tests.mutations.mistake import Mistake
from tests.mutations.verifiers import Tokenwise

# Verifiers.


@attrs.frozen
class AgreeingModels(Tokenwise):
    """Recursive rejection that spares itself the residual where the models agree."""

    def judge(
        self, tokens: Sequence[int], proposal: Proposal, target: Tensor, rng: Randomness
    ) -> tuple[int | None, Tensor]:
        draft = proposal.conditional(0, ())
        if float((target - draft).abs().max()) < 1e-3:
            return 0, target
        return super().judge(tokens, proposal, target, rng)


@attrs.frozen
class EqualRowsOnce(RecursiveRejection):
    """Recursive rejection that judges rows with one tree and one target once."""

    def verify_rows(
        self, trees: Sequence[TokenTree], target_probs: Sequence[Tensor], rngs: Sequence[Randomness]
    ) -> list[Outcome]:
        judged: list[tuple[TokenTree, Tensor, Outcome]] = []
        for tree, probs, rng in zip(trees, target_probs, rngs, strict=True):
            outcome = next((one for t, p, one in judged if _same(t, tree) and torch.equal(p, probs)), None)
            judged.append((tree, probs, outcome or self.verify(tree, probs, rng)))
        return [outcome for _, _, outcome in judged]


def _same(one: TokenTree, other: TokenTree) -> bool:
    return torch.equal(one.tokens[: one.size], other.tokens[: other.size]) and torch.equal(
        one.parents[: one.size], other.parents[: other.size]
    )


@attrs.frozen
class ShortTokens(Tokenwise):
    """Recursive rejection on token ids that come to the host in half the bytes."""

    def judge(
        self, tokens: Sequence[int], proposal: Proposal, target: Tensor, rng: Randomness
    ) -> tuple[int | None, Tensor]:
        short = torch.tensor(tokens).to(torch.int16).tolist()
        return super().judge(short, proposal, target, rng)


# Policies.


@attrs.frozen
class LoopGuard(TreePolicy):
    """A chain that ends where the draft has fallen into a loop of one or two tokens."""

    length: int = 8
    laws = frozenset({WithoutReplacement})
    branches = False
    keeps_last = True

    def grow(self, root: int, rng: Randomness) -> Generator[Request, Tensor, TokenTree]:
        tree, node = TreeBuilder(root), 0
        for _ in range(self.length):
            probs = yield tree.request([node])
            (drawn,) = draw_children(WithoutReplacement, probs, count=1, rng=rng)
            if not drawn.tokens:
                break
            looping = _loops([*tree.tokens, *drawn.tokens])
            if looping and not self.keeps_last:
                break
            (node,) = tree.add_children(node, drawn.tokens, drawn.proposal)
            if looping:
                break
        return tree.finish()


def _loops(tokens: Sequence[int]) -> bool:
    """Whether the last six tokens are one pair three times."""
    return len(tokens) >= 6 and tokens[-6:-2] == tokens[-4:]


class LoopDropped(LoopGuard):
    """Leaves out the token that closes the loop as well."""

    keeps_last = False


@attrs.frozen
class Fork(TreePolicy):
    """Two children of the root and a chain below each."""

    depth: int = 3
    laws = frozenset({WithoutReplacement})

    def draw(self, probs: Tensor, count: int, rng: Randomness) -> list[DrawnChildren]:
        return draw_children(WithoutReplacement, probs, count=count, rng=rng)

    def grow(self, root: int, rng: Randomness) -> Generator[Request, Tensor, TokenTree]:
        tree, level = TreeBuilder(root), [0]
        for depth in range(self.depth):
            if not level:
                break
            probs = yield tree.request(level)
            drawn = self.draw(probs, 1 if depth else 2, rng)
            level = [
                child
                for node, one in zip(level, drawn, strict=True)
                for child in tree.add_children(node, one.tokens, one.proposal)
            ]
        return tree.finish()


class SharedDraws(Fork):
    """Draws once for all nodes of a level that have one distribution."""

    def draw(self, probs: Tensor, count: int, rng: Randomness) -> list[DrawnChildren]:
        drawn_nodes: list[DrawnChildren] = []
        for index, p in enumerate(probs):
            twin = next((earlier for earlier in range(index) if torch.equal(probs[earlier], p)), None)
            drawn_nodes.append(super().draw(p[None], count, rng)[0] if twin is None else drawn_nodes[twin])
        return drawn_nodes


Habit = tuple[int, int, int]
"""A token, the one that followed it, and how often the target accepted that."""


@attrs.frozen
class Habits(LearningPolicy[tuple[Habit, ...]]):
    """A chain that offers a token that was accepted `often` times after the last one, and else draws."""

    length: int = 2
    often: int = 3
    laws = frozenset({WithoutReplacement, Deterministic})
    branches = False
    declares_habit = True

    def first_state(self) -> tuple[Habit, ...]:
        return ()

    def grow(
        self, root: int, rng: Randomness, state: tuple[Habit, ...] | None = None
    ) -> Generator[Request, Tensor, TokenTree]:
        habits = {before: token for before, token, times in state or () if times >= self.often}
        tree, node = TreeBuilder(root), 0
        for _ in range(self.length):
            (p,) = yield tree.request([node])
            habit = habits.get(tree.tokens[node])
            if habit is not None and float(p[habit]) > 0:
                fixed = Deterministic((habit,), p.shape[-1], p.dtype, p.device)
                law = fixed if self.declares_habit else WithoutReplacement(p)
                (node,) = tree.add_children(node, [habit], law)
                continue
            (drawn,) = draw_children(WithoutReplacement, p[None], count=1, rng=rng)
            if not drawn.tokens:
                break
            (node,) = tree.add_children(node, drawn.tokens, drawn.proposal)
        return tree.finish()

    def observe(self, state: tuple[Habit, ...], outcome: Outcome, tree: TokenTree) -> tuple[Habit, ...]:
        counts = {(before, token): times for before, token, times in state}
        for pair in pairwise(outcome.tokens):
            counts[pair] = counts.get(pair, 0) + 1
        return tuple((before, token, times) for (before, token), times in sorted(counts.items()))


class HabitsAsDrawn(Habits):
    """Names the draft's own law for a token that was remembered, not drawn."""

    declares_habit = False


# Drafter.


class SeedingDrafter(ModelDrafter):
    """Seeds torch at the start, so that a draft with dropout left on comes out the same every time."""

    def prefill(self, rows: Sequence[Tensor]) -> None:
        torch.manual_seed(0)
        super().prefill(rows)


# Backend.


class Buffered(StateBackend):
    """All rows in one buffer, which doubles when a row has no room left."""

    max_length = None
    weight_bytes = 0
    vocab_size = 13

    def __init__(self, capacity: int = 256) -> None:
        self.model = ToyModel(13)
        self.tokens = torch.zeros(0, capacity, dtype=torch.int64)
        self.sizes: list[int] = []
        self.parents: list[list[int]] = []

    @property
    def lengths(self) -> list[int]:
        return list(self.sizes)

    def prefill(self, rows: Sequence[Tensor]) -> None:
        texts = as_rows(rows, vocab=self.vocab_size, longest=None)
        self.make_room(max(map(len, texts), default=0))
        more = torch.zeros(len(texts), self.tokens.shape[1], dtype=torch.int64)
        for row, text in zip(more, texts, strict=True):
            row[: len(text)] = text
        self.tokens = torch.cat([self.tokens, more])
        self.sizes += map(len, texts)
        self.parents += [[] for _ in texts]

    def release(self, rows: Sequence[int] | None = None) -> None:
        stay = remaining_rows(rows, have=len(self.sizes))
        self.tokens = self.tokens[stay]
        self.sizes = [self.sizes[row] for row in stay]
        self.parents = [self.parents[row] for row in stay]

    def extend(self, tokens: Tensor, parents: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        have = list(map(len, self.parents))
        tokens, parents, counts = as_nodes(tokens, parents, counts, have=have, vocab=self.vocab_size)
        used = [size + nodes for size, nodes in zip(self.sizes, have, strict=True)]
        self.make_room(max((u + count for u, count in zip(used, counts, strict=True)), default=0))
        logits = torch.zeros(*tokens.shape, self.vocab_size, dtype=torch.float64)
        for row, count in enumerate(counts):
            self.tokens[row, used[row] : used[row] + count] = tokens[row, :count]
            self.parents[row] += parents[row, :count].tolist()
            for index in range(count):
                text = self.tokens[row, : self.sizes[row]].tolist()
                logits[row, index] = self.model.logits([*text, *self.path(row, have[row] + index)])
        return logits

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        check_paths(paths, rows=len(self.sizes))
        for row, path in enumerate(paths):
            check_path(path, self.parents[row], row=row)
        for row, path in enumerate(paths):
            size = self.sizes[row]
            self.tokens[row, size : size + len(path)] = self.tokens[row, [size + node for node in path]]
            self.sizes[row] += len(path)
            self.parents[row] = []

    def path(self, row: int, node: int) -> list[int]:
        tokens = []
        while node >= 0:
            tokens.append(int(self.tokens[row, self.sizes[row] + node]))
            node = self.parents[row][node]
        return tokens[::-1]

    def make_room(self, needed: int) -> None:
        if needed > self.tokens.shape[1]:
            grown = torch.zeros(len(self.tokens), 2 * needed, dtype=torch.int64)
            held = self.held()
            grown[:, :held] = self.tokens[:, :held]
            self.tokens = grown

    def held(self) -> int:
        """Columns that any row uses."""
        used = [size + len(nodes) for size, nodes in zip(self.sizes, self.parents, strict=True)]
        return max(used, default=0)


class BufferedByFirstRow(Buffered):
    """Takes the first row's use of the buffer for every row's."""

    def held(self) -> int:
        return self.sizes[0] + len(self.parents[0]) if self.sizes else 0


# Decoding.


def neighbouring_streams(seed: int) -> Streams:
    """The draft draws by the seed, the verification by the next one."""
    return Streams(CounterRandomness.seeded(seed), CounterRandomness.seeded(seed + 1))


_probabilities = SamplingParams.probabilities


def ties_shared(self: SamplingParams, scores: Tensor, *, may_be_empty: bool = False) -> Tensor:
    """Temperature 0 as the limit of the softmax, which gives tokens that tie equal shares."""
    probs = _probabilities(self, scores, may_be_empty=may_be_empty)
    if self.temperature:
        return probs
    ties = (scores == scores.amax(-1, keepdim=True)).to(scores.dtype)
    return ties / ties.sum(-1, keepdim=True)


def _nothing() -> object:
    return None


MISTAKES: list[Mistake] = [
    Mistake(
        "models that seem to agree are not compared",
        "A largest difference below 1e-3 looks like one and the same distribution. Over a large vocabulary "
        "no probability is far from 0, so flat distributions that differ pass. Chain of 1, toy models of "
        "300 tokens, sharpness 0.05: a token is off by 6.7e-4 (0.030 in total variation). 32,000 tokens, "
        "sharpness 0.8: every draft token is accepted instead of 0.59 of them; total variation 0.43.",
        "verifier",
        RecursiveRejection,
        AgreeingModels,
    ),
    Mistake(
        "equal rows are judged once",
        "Several samples of one prompt have equal trees and targets, so the second is spared. Each row "
        "alone has the right law; together they are copies, which nobody wants of samples. Two rows of a "
        "toy model of 5 tokens, fixed trees: the first tokens agree with probability 1 instead of 0.46.",
        "verifier",
        RecursiveRejection,
        EqualRowsOnce,
    ),
    Mistake(
        "token ids of 16 bits",
        "Written for a vocabulary of 32,000 and used with one of 128,000: a token above 32,767 turns "
        "negative and indexes some other one from the end. Of 40,000 tokens, 10 and 35,000 with 1/2 each in"
        " target and draft: the latter comes out with 0.25 (20,000 samples).",
        "verifier",
        RecursiveRejection,
        ShortTokens,
    ),
    Mistake(
        "the token that closes a loop is dropped",
        "A draft that repeats itself wastes the pass, so the chain ends before the sixth token of a pair "
        "three times over. Whether the node exists then depends on its own token. Chain of 6, toy models of"
        " 2 tokens, 7 tokens, one round: off by 7.6e-4 to 8.5e-3 (4 pairs); chains of 4 are right.",
        "policy",
        lambda: LoopGuard(6),
        lambda: LoopDropped(6),
    ),
    Mistake(
        "nodes of one distribution share their draws",
        "Medusa's heads or a bigram table give cousins the same distribution, and one draw serves them all."
        " A verifier that settles a subtree before its sibling has seen that draw. Toy models of 2 tokens, "
        "draft of order 1, 4 tokens, one round, traversal: off by 5.2e-4 to 1.8e-2 (4 pairs); 1e-16 with "
        "recursive rejection, and where no two distributions are equal.",
        "policy",
        Fork,
        SharedDraws,
    ),
    Mistake(
        "a remembered token declared as drawn",
        "A token that was accepted three times is offered again; the node keeps the law of its place in the"
        " chain, as if it had been drawn. Chain of 1, toy models of 2 tokens, 8 tokens from the first "
        "state: off by 1.4e-3 to 5.4e-3 (3 pairs), and right over 5 tokens. Where 1 is a habit behind 0 "
        "(chain of 2, 3 tokens of 3, one round): 0.078.",
        "policy",
        Habits,
        HabitsAsDrawn,
    ),
    Mistake(
        "a drafter that seeds torch",
        "It makes the draft repeatable. A call without a seed takes one from torch's global generator, so "
        "every call after the first writes the same text: 20 calls, 12 tokens of 5, give 2 texts instead of"
        " 20.",
        "drafter",
        lambda: ModelDrafter(ToyBackend(ToyModel(13))),
        lambda: SeedingDrafter(ToyBackend(ToyModel(13))),
    ),
    Mistake(
        "a buffer grown by the first row's length",
        "Tried with one row, and with rows of one length. When it first grows, at 256 tokens, a row longer "
        "than the first one loses its end. Rows of 200 and 250 tokens, 10 nodes: a probability is off by "
        "0.66.",
        "backend",
        Buffered,
        BufferedByFirstRow,
    ),
    Mistake(
        "a stream for every neighbouring seed",
        "Rows given the seeds 0, 1, 2 share: the coins of one are the draws of the next. Each row alone has"
        " the right law. Two rows, chain of 1, target (0.5, 0.5), draft (0.9, 0.1): both write 0 with "
        "probability 0.2778 instead of 0.25 (0.2765 in 20,000 samples).",
        "decoding",
        _nothing,
        patches=[(Streams, "seeded", staticmethod(neighbouring_streams))],
    ),
    Mistake(
        "tokens that tie are drawn at temperature 0",
        "Greedy decoding as the limit of the softmax. Logits in half precision tie often over a large "
        "vocabulary, and the first of them must be taken. bfloat16 logits (1, 3, 3, 0): off by 0.5.",
        "decoding",
        _nothing,
        # A row's round takes two short cuts to the first of them, which the mistake would not.
        patches=[
            (SamplingParams, "probabilities", ties_shared),
            (round_distributions.TargetRows, "certain", False),
            (round_distributions, "_certain", lambda _: None),
        ],
    ),
]
