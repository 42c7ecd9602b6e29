"""PyTorch's own chance under an enumerator: every outcome of code that draws with torch alone."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import attrs
import torch
from torch import Tensor

from draftwood.laws.randomness import Randomness
from draftwood.testing.diagnosis.intervals import CannotEnumerate
from draftwood.testing.proofs.enumerator import enumerate_outcomes
from draftwood.testing.proofs.lossless import JointLaw

RAISED = (-1,)
"""What stands for the tokens of a call that raised."""

_COMPARED: dict[Any, tuple[Callable[[float, float], bool], bool]] = {}
"""For every way to compare: the comparison, and whether it is answered by "below" or by "not below"."""

for _names, _compare in (
    (("lt", "less", "__lt__"), operator.lt),
    (("le", "less_equal", "__le__"), operator.le),
    (("gt", "greater", "__gt__"), operator.gt),
    (("ge", "greater_equal", "__ge__"), operator.ge),
):
    for _name in _names:
        for _owner in (torch, Tensor):
            if hasattr(_owner, _name):
                _COMPARED[getattr(_owner, _name)] = (_compare, True)

_RESHAPED = {torch.squeeze, torch.unsqueeze, torch.reshape, torch.flatten, torch.transpose} | {
    Tensor.__getitem__,
    Tensor.__len__,
    Tensor.clone,
    Tensor.contiguous,
    Tensor.cpu,
    Tensor.detach,
    Tensor.dim,
    Tensor.expand,
    Tensor.expand_as,
    Tensor.flatten,
    Tensor.numel,
    Tensor.permute,
    Tensor.reshape,
    Tensor.size,
    Tensor.squeeze,
    Tensor.to,
    Tensor.transpose,
    Tensor.unsqueeze,
    Tensor.view,
}
"""What leaves uniforms as they are, in another shape."""

_PROPERTIES = {
    getattr(Tensor, name).__get__
    for name in ("shape", "device", "dtype", "ndim", "is_cuda", "layout", "requires_grad")
}


@attrs.define(eq=False)
class _UniformBounds:
    """One run's uniforms: for each the bounds in which it is known to lie, as multiples of 2^-bits."""

    rng: Randomness
    bounds: list[tuple[int, int, int]] = attrs.field(factory=list)

    def uniforms(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str
    ) -> LazyUniforms:
        bits = {torch.float64: 53, torch.float32: 24, torch.bfloat16: 8, torch.float16: 11}[dtype]
        first, many = len(self.bounds), math.prod(shape)
        self.bounds += [(0, 2**bits, bits)] * many
        numbers = torch.arange(first, first + many, device=device).reshape(shape)
        coins = numbers.as_subclass(LazyUniforms)
        coins.drawn = self
        coins.kind = dtype
        return coins

    def below(self, number: int, threshold: float, *, closed: bool) -> bool:
        """Whether uniform `number` is below the threshold, or at it if `closed`; branches if it may be."""
        low, high, bits = self.bounds[number]
        if threshold != threshold:
            return False
        scaled = min(max(threshold, -1.0), 2.0) * 2**bits
        cut = min(max(math.floor(scaled) + 1 if closed else math.ceil(scaled), low), high)
        under = self.rng.accept((cut - low) / (high - low))
        self.bounds[number] = (low, cut, bits) if under else (cut, high, bits)
        return under


class LazyUniforms(Tensor):
    """Uniforms that are not drawn before they are compared; then the run branches, each side with its weight.

    They may be indexed and reshaped, and compared with numbers. Any other use raises `CannotEnumerate`.
    """

    drawn: _UniformBounds
    kind: torch.dtype

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        uniforms = next(argument for argument in args if isinstance(argument, LazyUniforms))
        if func in _COMPARED:
            return _compared(uniforms, _COMPARED[func][0], *args)
        if func in _RESHAPED or func in _PROPERTIES:
            with torch._C.DisableTorchFunctionSubclass():
                if func is Tensor.to:
                    return args[0]  # their resolution is that of the dtype in which they were drawn
                result = func(*args, **kwargs)
            if isinstance(result, Tensor):
                result = result.as_subclass(LazyUniforms)
                result.drawn, result.kind = uniforms.drawn, uniforms.kind
            return uniforms.kind if isinstance(result, torch.dtype) else result
        raise CannotEnumerate(
            f"The uniforms of torch.rand were given to {getattr(func, '__name__', func)}; only comparisons "
            "with numbers can be enumerated: take uniforms as an argument, or give samples=."
        )


def _compared(coins: LazyUniforms, compare: Callable[[float, float], bool], left: Any, right: Any) -> Tensor:
    other = right if left is coins else left
    if isinstance(other, LazyUniforms):
        raise CannotEnumerate("Two uniforms of torch.rand are compared with each other; give samples=.")
    with torch._C.DisableTorchFunctionSubclass():
        numbers, thresholds = torch.broadcast_tensors(
            coins.as_subclass(Tensor), torch.as_tensor(other, dtype=torch.float64, device=coins.device)
        )
        # u < t and u <= t ask whether u is below t; u > t and u >= t are their opposites, t < u is u > t.
        less = compare in (operator.lt, operator.le)
        asked_below = less == (left is coins)
        closed = (compare in (operator.le, operator.ge)) == asked_below
        answers = [
            coins.drawn.below(number, threshold, closed=closed) == asked_below
            for number, threshold in zip(
                numbers.flatten().tolist(), thresholds.flatten().tolist(), strict=True
            )
        ]
        return torch.tensor(answers, dtype=torch.bool, device=coins.device).reshape(numbers.shape)


@contextlib.contextmanager
def torch_randomness(rng: Randomness) -> Iterator[None]:
    """Within it torch's chance is that of `rng`: `rand` and `rand_like` are branched on where compared.

    `multinomial` with one sample is a choice of `rng` for each row, by its weights; that torch draws
    by them is taken for granted. Uniforms are multiples of 2^-24 in float32 and of 2^-53 in float64.

    Raises:
        CannotEnumerate: other chance is asked for (`randn`, `exponential_`, several samples), or a uniform
            is used otherwise than in comparisons with numbers.
    """
    drawn = _UniformBounds(rng)

    def rand(*size: Any, **options: Any) -> Tensor:
        shape = size[0] if size and isinstance(size[0], (tuple, list, torch.Size)) else size
        dtype = options.get("dtype") or torch.get_default_dtype()
        return drawn.uniforms(tuple(options.get("size", shape)), dtype, options.get("device") or "cpu")

    def rand_like(like: Tensor, **options: Any) -> Tensor:
        dtype, device = options.get("dtype") or like.dtype, options.get("device") or like.device
        return drawn.uniforms(tuple(like.shape), dtype, device)

    def multinomial(weights: Tensor, num_samples: int, replacement: bool = False, **_: Any) -> Tensor:
        if num_samples != 1:
            raise CannotEnumerate(f"torch.multinomial is asked for {num_samples} samples; give samples=.")
        rows = weights.reshape(-1, weights.shape[-1])
        picked = [rng.choose(row.double()) for row in rows]
        return torch.tensor(picked, device=weights.device).reshape(*weights.shape[:-1], 1)

    def refused(name: str) -> Callable[..., Any]:
        def refuse(*_: Any, **__: Any) -> Any:
            raise CannotEnumerate(
                f"torch's {name} is continuous noise and cannot be enumerated; give samples=."
            )

        return refuse

    with contextlib.ExitStack() as stack:
        for owner, name, new in [
            (torch, "rand", rand),
            (torch, "rand_like", rand_like),
            (torch, "multinomial", multinomial),
            (Tensor, "multinomial", multinomial),
            *((torch, name, refused(name)) for name in ("randn", "randn_like", "normal", "bernoulli")),
            *(
                (Tensor, name, refused(name))
                for name in ("exponential_", "uniform_", "normal_", "bernoulli", "bernoulli_")
            ),
        ]:
            stack.enter_context(mock.patch.object(owner, name, new))
        yield


def torch_law(run: Callable[[], Sequence[int] | Tensor], *, budget: int = 100_000) -> JointLaw:
    """The exact law of the tokens that `run` returns, where torch is its only chance.

    So all of a `generate` can be enumerated, with models over a few tokens; `error` of the result says
    how far it is from another's.

    Args:
        run: returns tokens; it is called once for every outcome and must begin anew each time.
        budget: outcomes to visit at most.

    Returns:
        The law. Where `run` raises, its outcome is `RAISED` and `fault` has the first error.

    Raises:
        CannotEnumerate: as `torch_randomness` does.
        BudgetExceeded: more than `budget` outcomes.
    """
    fault = ""

    def once(rng: Randomness) -> tuple[int, ...]:
        nonlocal fault
        with torch_randomness(rng):
            try:
                returned = run()
            except CannotEnumerate:
                raise
            except Exception as error:
                fault = fault or f"raises ({type(error).__name__}: {error})"
                return RAISED
        return tuple(
            returned.flatten().tolist()
            if isinstance(returned, Tensor)
            else (int(token) for token in returned)
        )

    law: dict[tuple[int, ...], float] = {}
    runs = 0
    for weight, text in enumerate_outcomes(once, budget=budget):
        law[text] = law.get(text, 0.0) + weight
        runs += 1
    expected = sum(weight * len(text) for text, weight in law.items() if text != RAISED)
    return JointLaw(law, expected, runs, fault)
