"""Mistakes in decoding itself and in sources of chance, as patches of the production code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from draftwood import CounterRandomness, Randomness, SamplingParams, Streams, TokenTree
from draftwood.decoding import decoder, round_distributions
from draftwood.decoding.batch_row import BatchRow
from draftwood.decoding.stopping import RowStops
from draftwood.laws import randomness
from draftwood.trees.prefixes import Path, Prefixes
from tests.mutations import suite
from tests.mutations.mistake import Mistake

_scores = round_distributions.target_scores
_constrained = BatchRow.constrained


def scores_at_the_root_alone(row: BatchRow, tree: TokenTree, logits: Tensor) -> Tensor:
    """Filters and processors change the root's logits and nobody else's."""
    right = _scores(row, tree, logits)
    return torch.cat([right[:1], logits[1 : tree.size].to(right.dtype)])


def draft_sampling_for_both(row: BatchRow, tree: TokenTree, logits: Tensor) -> Tensor:
    return row.settings.draft_sampling.scores(logits[: tree.size], row.prefixes([()] * tree.size))


def one_verification_stream() -> Any:
    shared: list[Randomness] = []

    def seeded(seed: int) -> Streams:
        own = _seeded(seed)
        shared.append(own.verify)
        return Streams(own.draft, shared[0])

    return seeded


_seeded = Streams.seeded


def equal_verification_streams(seed: int) -> Streams:
    return Streams(_seeded(seed).draft, CounterRandomness.seeded(7))


def one_seed_for_both(seed: int) -> Streams:
    # The draft's first draw is the first number of its first node's stream.
    return Streams(CounterRandomness.seeded(seed), CounterRandomness.seeded(seed).nodes(1)[0])


def consecutive_seeds(seed: int | Sequence[int] | None, rows: int) -> list[int]:
    return list(seed) if isinstance(seed, Sequence) else [(seed or 0) + row for row in range(rows)]


def every_row_with_the_same_seed(seed: int | Sequence[int] | None, rows: int) -> list[int]:
    return list(seed) if isinstance(seed, Sequence) else [seed or 0] * rows


_others: dict[str, Any] = {}


def text_of_another_row(self: BatchRow, paths: Sequence[Path]) -> Prefixes | None:
    """Processors see the text of whichever row came last."""
    if self.prefix is None:
        return None
    before = _others.get("text", self.prefix)
    _others["text"] = self.prefix
    return Prefixes(before, paths)


def filters_first(self: SamplingParams, scores: Tensor, probs: Tensor) -> Tensor:
    warped = scores.reshape(-1, scores.shape[-1])
    for warper in reversed(self._warpers):
        warped = warper(None, warped)
    return probs.copy_(warped.softmax(-1).view(probs.shape))


def masks_of_the_parents(self: BatchRow, logits: Tensor, paths: Sequence[Path]) -> Tensor:
    return _constrained(self, logits, [path[:-1] for path in paths])


def root_from_the_path(self: BatchRow, tokens: Sequence[int]) -> None:
    _commit(self, tokens)
    self.root = tokens[-2] if len(tokens) > 1 else tokens[-1]


_commit = BatchRow.commit


def ends_one_early(self: RowStops, new: Sequence[int], scores: Any = None) -> Any:
    """At the limit, a path that was accepted as a whole is cut and its last token drawn again as token 0."""
    kept, reason = _take(self, new, scores)
    return ((*kept[:-1], 0), reason) if reason == "length" and len(kept) > 1 else (kept, reason)


_take = RowStops.take


class EightBits(CounterRandomness):
    """Uniforms of 8 bits."""

    def uniforms(self, n: int) -> Tensor:
        return (super().uniforms(n) * 256).floor() / 256


class SinglePrecision(CounterRandomness):
    """Uniforms of 24 bits."""

    def uniforms(self, n: int) -> Tensor:
        return super().uniforms(n).float().double()


class ClosedCoin(CounterRandomness):
    def accept(self, p: float) -> bool:
        return float(self.uniforms(1)) <= p


class DrawnAtOnce(CounterRandomness):
    """Draws all from the whole and drops duplicates, so that fewer come and in another order."""

    def without_replacement(self, p: Tensor, k: int) -> list[int]:
        drawn = [self.choose(p) for _ in range(4 * k)]
        return sorted(dict.fromkeys(drawn))[:k]


class TakesAhead(CounterRandomness):
    def ahead(self, n: int) -> Tensor:
        return self.uniforms(n)


def _stream() -> CounterRandomness:
    return CounterRandomness.seeded(3)


def _wrong(kind: type[CounterRandomness]) -> Any:
    return lambda: kind.seeded(3)


def _decoding(name: str, story: str, *patches: Any) -> Mistake:
    return Mistake(name, story, "decoding", lambda: None, patches=patches)


def _chance(name: str, story: str, wrong: Any = None, *patches: Any) -> Mistake:
    return Mistake(name, story, "randomness", _stream, wrong, patches)


MISTAKES = [
    _decoding(
        "filters and processors applied at the root alone",
        "a tree scored as one position",
        (round_distributions, "scored", suite.by_scores(scores_at_the_root_alone)),
    ),
    _decoding(
        "two rows share a verification stream",
        "a generator kept for the batch",
        (Streams, "seeded", staticmethod(one_verification_stream())),
    ),
    _decoding(
        "all rows verify by equal streams",
        "the seed forgotten",
        (Streams, "seeded", staticmethod(equal_verification_streams)),
    ),
    _decoding(
        "draft and verification draw from one seed",
        "the same noise twice",
        (Streams, "seeded", staticmethod(one_seed_for_both)),
    ),
    _decoding("row i has the seed plus i", "consecutive calls", (decoder, "row_seeds", consecutive_seeds)),
    _decoding("all rows have one seed", "a batch", (decoder, "row_seeds", every_row_with_the_same_seed)),
    _decoding(
        "the draft's sampling used for the target",
        "one set of parameters too many",
        (round_distributions, "scored", suite.by_scores(draft_sampling_for_both)),
    ),
    _decoding(
        "processors see another row's text",
        "a buffer shared by rows",
        (BatchRow, "prefixes", text_of_another_row),
    ),
    _decoding(
        "filters before the temperature",
        "another order than transformers'",
        (SamplingParams, "_by_largest", filters_first),
    ),
    _decoding(
        "a node is masked by its parent's constraint state",
        "one step late",
        (BatchRow, "constrained", masks_of_the_parents),
    ),
    _decoding(
        "the next root is the last accepted token", "off by one", (BatchRow, "commit", root_from_the_path)
    ),
    _decoding("the last token at the limit is padding", "a cut path", (RowStops, "take", ends_one_early)),
    _decoding(
        "the target's temperature is not applied",
        "vllm#10198",
        (round_distributions, "scored", suite.by_scores(suite.unscaled)),
    ),
    _decoding(
        "processors that read the prefix see the root's at every node",
        "grammars and penalties on trees",
        (round_distributions, "scored", suite.by_scores(suite.seen_from_the_root)),
    ),
    _decoding(
        "an end-of-text inside the accepted path is ignored",
        "only a round's last token looked at",
        (RowStops, "take", suite.last_token_alone),
    ),
    _chance("uniforms of 8 bits", "vllm#51367: low resolution starves the tail", _wrong(EightBits)),
    _chance("uniforms of 24 bits", "the same over 128,000 tokens", _wrong(SinglePrecision)),
    _chance("the coin's test is coin <= p, and the coin may be 0", "sglang#35771", _wrong(ClosedCoin)),
    _chance("without replacement by dropping duplicates", "out of order", _wrong(DrawnAtOnce)),
    _chance("looking ahead takes the numbers", "a kernel's tape", _wrong(TakesAhead)),
    _chance(
        "an inverse CDF whose test is not strict",
        "a token of probability 0 drawn at u = 0",
        None,
        (randomness, "_at", suite.at_or_above),
    ),
]
