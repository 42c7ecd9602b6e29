"""From logits to distributions, through transformers' own logits processors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isnan
from numbers import Integral, Real
from typing import Any

import attrs
import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.base.errors import InvalidDistribution, InvalidInput
from draftwood.base.scratch import Scratch
from draftwood.distributions.filters import filtered
from draftwood.distributions.processing import process, reads_prefix
from draftwood.trees.prefixes import Prefixes

COLDEST = 1e-30
"""The lowest temperature above 0: logits of up to 3e8 stay finite in float32 when they are divided by it."""


def _within(low: float, high: float, remedy: str, *, kind: type = Real) -> Callable[..., None]:
    def check(_: object, field: attrs.Attribute[Any], value: Any) -> None:
        if value is not None and (not _is_a(kind, value) or not low < value <= high):
            raise InvalidInput(f"{field.name} is {value!r}; {remedy}.")

    return check


def check_temperature(value: Any) -> None:
    """Raise `InvalidInput` for a value that logits cannot be divided by, and that is not 0 (greedy)."""
    if not _is_a(Real, value) or not 0 <= value < float("inf"):
        raise InvalidInput(f"temperature is {value!r}; give 0 (greedy) or a finite number above it.")
    if 0 < value < COLDEST:
        raise InvalidInput(
            f"temperature={value!r} is too small: the logits overflow when divided by it. Use 0 for greedy "
            "decoding."
        )


def _temperature(_: object, __: object, value: Any) -> None:
    check_temperature(value)


def _off_at_zero(value: Any) -> Any:
    return None if _is_a(Real, value) and value == 0 else value


def _is_a(kind: type, value: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _processors(processors: Any) -> tuple[Any, ...]:
    if not isinstance(processors, Iterable) or not all(map(callable, values := tuple(processors))):
        raise InvalidInput(f"processors is {processors!r:.80}; give a list of logits processors.")
    for processor in values:
        if type(processor).__name__ == "TemperatureLogitsWarper":
            check_temperature(processor.temperature)
    return values


def nothing_proposed(probs: Float[Tensor, "*n vocab"], logits: Float[Tensor, "*n vocab"]) -> bool:
    """Write 0 to `probs`, a softmax, where a draft's logits are -inf throughout: there is no proposal.

    Returns:
        False where `probs` still holds NaN. Without a wait on a GPU, where it is not looked for.
    """
    if logits.device.type != "cpu":
        probs.masked_fill_(logits.amax(-1, keepdim=True) == -torch.inf, 0)
        return True
    # After a pass numpy's first sum takes twenty times as long as in a loop; Python's does not.
    if not isnan(sum(probs.numpy()[..., 0].ravel().tolist())):
        return True
    nodes = probs[..., 0].isnan().nonzero(as_tuple=True)
    empty = logits[nodes].amax(-1) == -torch.inf
    probs[tuple(axis[empty] for axis in nodes)] = 0
    return bool(empty.all())


@attrs.frozen
class SamplingParams:
    """Settings that turn logits into the sampled distribution; target and draft each have their own.

    The order is that of `generate`: processors, temperature, top-k, top-p, min-p.

    Attributes:
        temperature: 0 takes the most likely token (the first of equal ones), as `generate` does.
        top_k: keep this many tokens; 0, which becomes None, keeps all, as in `generate`.
        top_p: keep the smallest set that has this probability, in (0, 1].
        min_p: drop tokens below this share of the most likely one's probability, in [0, 1]; 0 becomes None.
        processors: any `transformers.LogitsProcessor`s. One that reads the prefix sees, for every node
            of a tree, the text and the path of that node.
        is_softmax: whether a distribution is the softmax of the logits over the temperature and no more.
        is_filtered_softmax: whether it is that, with or without filters by top-k, top-p and min-p.
        is_argmax: whether the token with the largest logit is certain.
    """

    temperature: float = attrs.field(default=0.0, validator=_temperature)
    top_k: int | None = attrs.field(
        default=None,
        converter=_off_at_zero,
        validator=_within(0, float("inf"), "keep at least 1 token, or 0 for all", kind=Integral),
    )
    top_p: float | None = attrs.field(default=None, validator=_within(0, 1, "it must lie in (0, 1]"))
    min_p: float | None = attrs.field(
        default=None, converter=_off_at_zero, validator=_within(0, 1, "it must lie in [0, 1]")
    )
    processors: tuple[Any, ...] = attrs.field(factory=tuple, converter=_processors)
    is_softmax: bool = attrs.field(init=False, repr=False, eq=False)
    is_filtered_softmax: bool = attrs.field(init=False, repr=False, eq=False)
    is_argmax: bool = attrs.field(init=False, repr=False, eq=False)
    _warpers: tuple[Any, ...] = attrs.field(init=False, repr=False, eq=False)
    # Whether more than the temperature changes the scores.
    _warps_more: bool = attrs.field(init=False, repr=False, eq=False)
    # The temperature as a tensor of each dtype, which torch would make of a number in every call.
    _divisors: dict[torch.dtype, Tensor] = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        more = not (self.top_k is None and self.top_p in (None, 1) and self.min_p is None)
        object.__setattr__(self, "_warps_more", more)
        divisors = {
            dtype: torch.tensor(float(self.temperature), dtype=dtype)
            for dtype in (torch.float32, torch.float64)
        }
        object.__setattr__(self, "_divisors", divisors)
        softmax = self.temperature > 0 and not self.processors
        object.__setattr__(self, "is_filtered_softmax", softmax)
        object.__setattr__(self, "is_softmax", softmax and not more)
        object.__setattr__(self, "is_argmax", self.temperature == 0 and not self.processors)
        object.__setattr__(self, "_warpers", self._build_warpers())

    def _build_warpers(self) -> tuple[Any, ...]:
        if self.temperature == 0:
            return ()
        settings = (
            ("TemperatureLogitsWarper", float(self.temperature) if self.temperature != 1 else None),
            ("TopKLogitsWarper", self.top_k),
            ("TopPLogitsWarper", self.top_p if self.top_p != 1 else None),
            ("MinPLogitsWarper", self.min_p),
        )
        if not any(value is not None for _, value in settings):
            return ()
        import transformers

        return tuple(getattr(transformers, name)(v) for name, v in settings if v is not None)

    def after(self, processors: Sequence[Any]) -> SamplingParams:
        """Returns the same with these processors before its own."""
        return attrs.evolve(self, processors=(*processors, *self.processors)) if processors else self

    @property
    def reads_prefix(self) -> bool:
        """Returns whether `distribution` needs prefixes."""
        return any(map(reads_prefix, self.processors))

    def scores(self, logits: Tensor, prefixes: Prefixes | None = None) -> Tensor:
        """Logits `[n, vocab]` after processors and warpers; float32, or float64 for float64 logits.

        At temperature 0 there are no warpers, as in `generate`.
        """
        scores = logits if logits.dtype == torch.float64 else logits.float()
        scores = process(self.processors, scores, prefixes)
        for warper in self._warpers:
            scores = warper(None, scores)
        return scores

    def distribution(
        self,
        logits: Tensor,
        prefixes: Prefixes | None = None,
        *,
        may_be_empty: bool = False,
    ) -> Tensor:
        """Probabilities `[n, vocab]` (float32, or float64 for float64 logits) from logits `[n, vocab]`.

        Args:
            logits: raw scores.
            prefixes: the tokens before each prediction; required when `reads_prefix`.
            may_be_empty: for a draft, where a row of -inf throughout means "no proposal" and gives zeros,
                and +inf is a token that is sure to be proposed.

        Raises:
            InvalidDistribution: a row holds NaN, or, unless `may_be_empty`, is -inf throughout or holds +inf
                above temperature 0.
        """
        if not may_be_empty:
            return self.probabilities(self.scores(logits, prefixes))
        empty = (logits.amax(-1) == -torch.inf).unsqueeze(-1)
        # A processor may make anything of a row of -inf, NaN too.
        scores = self.scores(logits.masked_fill(empty, 0) if self.processors else logits, prefixes)
        try:
            probs = self.probabilities(scores, may_be_empty=True)
        except InvalidDistribution:
            probs = self.probabilities(scores.clamp(max=torch.finfo(scores.dtype).max), may_be_empty=True)
        return probs.masked_fill_(empty, 0)

    def proposals(self, logits: Tensor, scratch: Scratch, out: Tensor | None = None) -> Tensor:
        """`distribution` of a draft's logits `[..., vocab]`, in standing memory and without a wait.

        On a GPU NaN comes out of logits that hold NaN or +inf; `ChildDraws` refuses it. `out`: where the
        result is written, in the shape of `logits`; None: in `scratch`.
        """
        if not self.is_filtered_softmax:
            return self._proposed(logits, out)
        probs = self.targets(logits, scratch, out)
        return probs if nothing_proposed(probs, logits) else self._proposed(logits, out)

    def _proposed(self, logits: Tensor, out: Tensor | None) -> Tensor:
        """`proposals` where rows may be empty, or more than the temperature changes the scores."""
        flat = logits.reshape(-1, logits.shape[-1])
        probs = self.distribution(flat, may_be_empty=True).view(logits.shape)
        return probs if out is None else out.copy_(probs)

    def targets(self, logits: Tensor, scratch: Scratch, out: Tensor | None = None) -> Tensor:
        """`distribution` of the target's logits `[..., vocab]`, in standing memory and without a wait.

        NaN comes out of logits that hold NaN or +inf, or are -inf throughout; verifiers refuse it. `out`: as
        in `proposals`.
        """
        if not self.temperature:
            return self._certain(logits, scratch, out)
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        shape, device = tuple(logits.shape), logits.device
        probs = scratch.take(shape, dtype=dtype, device=device) if out is None else out
        scores = logits if logits.dtype == dtype else logits.to(dtype)
        if device.type == "cpu" and self._warps_more and not self.processors:
            return self._by_largest(scores, probs)
        if self.processors or self._warps_more:
            scores = self.scores(scores.reshape(-1, shape[-1])).view(shape).to(dtype)
        elif self.temperature != 1:
            # On a CPU softmax may read what it writes; a GPU has memory enough.
            cooled = probs if device.type == "cpu" else scratch.take(shape, dtype=dtype, device=device)
            scores = torch.div(scores, self._divisors[dtype], out=cooled)
        return torch.softmax(scores, -1, out=probs)

    def _certain(self, logits: Tensor, scratch: Scratch, out: Tensor | None) -> Tensor:
        """`targets` at temperature 0."""
        scores = self.scores(logits.reshape(-1, logits.shape[-1]))
        if out is None:
            out = scratch.take(tuple(logits.shape), dtype=scores.dtype, device=scores.device)
        return out.zero_().scatter_(-1, scores.argmax(-1, keepdim=True).view(*logits.shape[:-1], 1), 1)

    def _by_largest(self, scores: Tensor, probs: Tensor) -> Tensor:
        """`targets` for filters on a CPU, with a sort only where nothing else can tell."""
        nodes, flat = scores.reshape(-1, scores.shape[-1]), probs.view(-1, scores.shape[-1])
        left = filtered(
            nodes,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            out=flat,
        )
        if len(left):
            flat[left] = torch.softmax(self.scores(nodes[left]).to(probs.dtype), -1)
        return probs

    def probabilities(self, scores: Tensor, *, may_be_empty: bool = False) -> Tensor:
        """Returns probabilities `[n, vocab]` of the result of `scores`; arguments and errors as in
        `distribution`.

        At temperature 0 a row takes its first +inf, and token 0 if it is -inf throughout, as in `generate`.
        """
        # NaN and +inf both surface in the maximum, so one value a row tells whether the row is sound.
        peak, best = scores.max(-1)
        empty = peak == -torch.inf
        certain = (peak == torch.inf) & (self.temperature == 0)
        unsound = ~peak.isfinite() & ~certain & ~(empty & may_be_empty)
        if bool(unsound.any()):
            row, held = int(unsound.nonzero()[0, 0]), float(peak[unsound][0])
            raise InvalidDistribution(
                f"The logits of node {row} hold {held}; check the model's weights and dtype "
                "(half precision may overflow), and what processors and constraints leave."
            )
        if self.temperature == 0:
            return torch.zeros_like(scores).scatter_(-1, best.unsqueeze(-1), 1)
        probs = scores.softmax(-1)
        return probs.masked_fill_(empty.unsqueeze(-1), 0) if may_be_empty else probs
