"""From logits to distributions, through transformers' own logits processors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood.errors import InvalidDistribution, InvalidInput

# Processors of transformers that look at the scores alone. Any other is assumed to read the prefix,
# and is then shown each node's own path.
_PREFIX_FREE = frozenset(
    {
        "TemperatureLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "TopHLogitsWarper",
        "MinPLogitsWarper",
        "TypicalLogitsWarper",
        "EpsilonLogitsWarper",
        "EtaLogitsWarper",
        "InfNanRemoveLogitsProcessor",
        "LogitNormalization",
        "SuppressTokensLogitsProcessor",
    }
)


def _within(low: float, high: float, remedy: str) -> Callable[..., None]:
    def check(_: object, field: attrs.Attribute[Any], value: float | None) -> None:
        if value is not None and not low < value <= high:
            raise InvalidInput(f"{field.name} is {value}; {remedy}.")

    return check


def _temperature(_: object, __: object, value: float) -> None:
    if not 0 <= value < float("inf"):
        raise InvalidInput(f"temperature is {value}; it must be 0 (greedy) or above.")


@attrs.frozen
class SamplingParams:
    """How logits become the distribution that is sampled; for target and draft separately.

    The order is that of `generate`: processors, temperature, top-k, top-p, min-p.

    Attributes:
        temperature: 0 takes the most likely token (the first of equal ones), as `generate` does.
        top_k: keep this many tokens; None keeps all.
        top_p: keep the smallest set that holds this probability, in (0, 1].
        min_p: drop tokens below this share of the most likely one's probability, in (0, 1].
        processors: any `transformers.LogitsProcessor`s. One that reads the prefix sees, for every node
            of a tree, the text and the node's own path.
    """

    temperature: float = attrs.field(default=0.0, validator=_temperature)
    top_k: int | None = attrs.field(default=None, validator=_within(0, float("inf"), "keep at least 1 token"))
    top_p: float | None = attrs.field(default=None, validator=_within(0, 1, "it must lie in (0, 1]"))
    min_p: float | None = attrs.field(default=None, validator=_within(0, 1, "it must lie in (0, 1]"))
    processors: tuple[Any, ...] = attrs.field(factory=tuple, converter=tuple)
    _warpers: tuple[Any, ...] = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_warpers", self._build_warpers())

    def _build_warpers(self) -> tuple[Any, ...]:
        if self.temperature == 0:
            return ()
        wanted = (
            ("TemperatureLogitsWarper", self.temperature if self.temperature != 1 else None),
            ("TopKLogitsWarper", self.top_k),
            ("TopPLogitsWarper", self.top_p if self.top_p != 1 else None),
            ("MinPLogitsWarper", self.min_p),
        )
        if not any(value is not None for _, value in wanted):
            return ()
        import transformers

        return tuple(getattr(transformers, name)(v) for name, v in wanted if v is not None)

    @property
    def reads_prefix(self) -> bool:
        """Whether `distribution` needs contexts."""
        return any(type(p).__name__ not in _PREFIX_FREE for p in self.processors)

    def distribution(
        self,
        logits: Tensor,
        contexts: Sequence[Tensor] | None = None,
        *,
        may_be_empty: bool = False,
    ) -> Tensor:
        """Probabilities `[n, vocab]` (float32, or float64 for float64 logits) from logits `[n, vocab]`.

        Args:
            logits: raw scores.
            contexts: for every row the tokens before the prediction, `[length]`; required when
                `reads_prefix`.
            may_be_empty: whether a row of -inf throughout means "no proposal" and gives zeros.

        Raises:
            InvalidDistribution: a row holds NaN or +inf, or is -inf throughout without leave.
        """
        scores = logits if logits.dtype == torch.float64 else logits.float()
        # NaN and +inf both surface in the maximum, so one value a row tells whether the row is sound.
        peak = scores.amax(-1)
        empty = peak == -torch.inf
        unsound = ~peak.isfinite() & ~(empty & may_be_empty)
        if bool(unsound.any()):
            row = int(unsound.nonzero()[0])
            raise InvalidDistribution(
                f"The logits of node {row} hold {float(peak[row])}; check the model's weights and dtype "
                "(half precision may overflow)."
            )
        scores = self._processed(scores, contexts)
        if self.temperature == 0:
            probs = torch.zeros_like(scores).scatter_(-1, scores.argmax(-1, keepdim=True), 1)
        else:
            for warper in self._warpers:
                scores = warper(None, scores)
            probs = scores.softmax(-1)
        return probs.masked_fill_(empty.unsqueeze(-1), 0) if may_be_empty else probs

    def _processed(self, scores: Tensor, contexts: Sequence[Tensor] | None) -> Tensor:
        if not self.processors:
            return scores
        if not self.reads_prefix:
            for processor in self.processors:
                scores = processor(None, scores)
            return scores
        if contexts is None or len(contexts) != len(scores):
            raise InvalidInput(
                f"{len(scores)} nodes came with {0 if contexts is None else len(contexts)} contexts; "
                "a processor that reads the prefix needs one a node."
            )
        # A processor takes a batch of equal lengths, and nodes of one depth share a length.
        by_length: dict[int, list[int]] = {}
        for row, context in enumerate(contexts):
            by_length.setdefault(len(context), []).append(row)
        scores = scores.clone()
        for rows in by_length.values():
            ids = torch.stack([contexts[row] for row in rows]).to(scores.device)
            part = scores[rows]
            for processor in self.processors:
                part = processor(ids, part)
            scores[rows] = part
        return scores
