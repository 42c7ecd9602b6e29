"""One continuous text of many thousand tokens: memory and the time of a round, early and late.

Times are processor time, so that other programs on the machine do not count. What attention takes is
measured on the way, and not counted.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Self
from unittest.mock import patch

import attrs
import torch

import draftwood.backends.attention.tree_attention
from benchmarks.kernels.prefix_cost import long_llama
from draftwood import Round, SamplingParams, SpeculativeDecoder, StateBackend, load, zoo
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from tests.soak.result import SoakResult

PROMPT = 16
BUDGET = 8
RATIO = 1.5
"""What a part of a round may cost late, in the time it took early, attention aside."""
SPARE = 0.2e-3
"""Seconds that count for nothing in that ratio: parts of a round are that short."""
BYTES_A_ROUND = 6000
"""Of the process, for what `Statistics.rounds` keeps of every round, caches of keys and values aside."""
OBJECTS_A_ROUND = 12
"""Of Python, for the same."""

PAIRS: dict[str, Any] = {
    "mamba2-5m": lambda: (load(zoo.path("mamba2-5m")), load(zoo.path("mamba2-draft"))),
    "tiny Transformer": lambda: (long_llama(layers=2), long_llama(layers=1)),
}


@attrs.frozen
class Sample:
    """A sample of the process's resources at one moment.

    Attributes:
        length: tokens of the text.
        rounds: so far.
        tensors: that Python holds.
        tensor_bytes: of their storages, keys and values aside.
        cache_bytes: of keys and values.
        objects: of Python, that its collector knows.
        resident: bytes of the process.
    """

    length: int
    rounds: int
    tensors: int
    tensor_bytes: int
    cache_bytes: int
    objects: int
    resident: int


@attrs.frozen
class Timed:
    """The seconds of one round's parts.

    Attributes:
        length: tokens of the text before it.
        draft: of the draft's passes, attention aside.
        target: of the target's pass, attention aside.
        verify: of verification.
        rest: of everything else.
        attention: of both models.
    """

    length: int
    draft: float
    target: float
    verify: float
    rest: float
    attention: float

    @classmethod
    def of(cls, one: Round, length: int, attention: Attention) -> Timed:
        draft, target = attention.taken()
        return cls(
            length,
            one.draft_seconds - draft,
            one.target_seconds - target,
            one.verify_seconds,
            one.seconds - one.draft_seconds - one.target_seconds - one.verify_seconds,
            draft + target,
        )


class Attention:
    """Inside it, the attention of two backends is timed."""

    def __init__(self, target: Any, draft: Any) -> None:
        self._seconds, self._of = 0.0, {"target": 0.0, "draft": 0.0}
        self._stack = ExitStack()
        self._backends = {"target": target, "draft": draft}

    def taken(self) -> tuple[float, float]:
        """The draft's and the target's seconds since this was asked before."""
        result = self._of["draft"], self._of["target"]
        self._of = {"target": 0.0, "draft": 0.0}
        return result

    def __enter__(self) -> Self:
        for module in (torch.nn.functional, draftwood.backends.attention.tree_attention):
            name = "scaled_dot_product_attention"
            self._stack.enter_context(patch.object(module, name, self._timed(getattr(module, name))))
        for role, backend in self._backends.items():
            self._stack.enter_context(patch.object(backend, "extend", self._within(role, backend.extend)))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _timed(self, original: Any) -> Any:
        def attend(*args: Any, **options: Any) -> Any:
            began = time.thread_time()
            result = original(*args, **options)
            self._seconds += time.thread_time() - began
            return result

        return attend

    def _within(self, role: str, original: Any) -> Any:
        def extend(*args: Any, **options: Any) -> Any:
            before = self._seconds
            result = original(*args, **options)
            self._of[role] += self._seconds - before
            return result

        return extend


def _sample(length: int, rounds: int, backends: Sequence[Any]) -> Sample:
    gc.collect()
    arenas = [arena for backend in backends for arena in backend._cache._arenas]
    caches = {arena.untyped_storage().data_ptr(): arena.untyped_storage().nbytes() for arena in arenas}
    objects = gc.get_objects()
    # Fake and functional tensors of torch.compile, which other code may have left, have no memory.
    tensors = [one for one in objects if type(one) in (torch.Tensor, torch.nn.Parameter)]
    storages = {}
    for one in tensors:
        if one.device.type == "cpu":
            storages[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
    others = sum(size for storage, size in storages.items() if storage not in caches)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    count = len(objects)
    del objects
    return Sample(length, rounds, len(tensors), others, sum(caches.values()), count, pages * 4096)


def written(
    target: StateBackend, draft: StateBackend, tokens: int, *, samples: int = 20
) -> tuple[list[Timed], list[Sample]]:
    """The rounds of one text of `tokens` new tokens, and what the process held at some of them."""
    decoder = SpeculativeDecoder(target, ModelDrafter(draft), LayeredDySpec(BUDGET), RecursiveRejection())
    prompt = torch.randint(5, 4096, (PROMPT,), generator=torch.Generator().manual_seed(0)).tolist()
    times: list[Timed] = []
    taken: list[Sample] = []
    length, step = PROMPT, tokens // samples
    with (
        Attention(target, draft) as attention,
        patch("draftwood.decoding.loop.perf_counter", time.thread_time),
    ):
        for one in decoder.stream(
            [prompt], max_new_tokens=tokens, sampling=SamplingParams(1.0), seed=0, eos_token_id=[]
        ):
            times.append(Timed.of(one, length, attention))
            length += len(one.rows[0].tokens)
            # The last round has released its row.
            if PROMPT + (len(taken) + 1) * step <= length < PROMPT + tokens:
                taken.append(_sample(length, len(times), (target, draft)))
    assert length == PROMPT + tokens
    return times, taken


def _windows(times: Sequence[Timed]) -> tuple[Sequence[Timed], Sequence[Timed]]:
    """The second tenth of the rounds, and the last one."""
    tenth = len(times) // 10
    return times[tenth : 2 * tenth], times[-tenth:]


def long_text(name: str, tokens: int, *, timed: bool = True) -> SoakResult:
    """Write a text of `tokens` with the pair `name`; judge growth of memory, and where `timed` of time."""
    result = SoakResult(f"a text of {tokens} tokens, {name}")
    target, draft = PAIRS[name]()
    gc.freeze()  # what is here before the text takes no time in samples
    try:
        times, samples = written(target, draft, tokens, samples=20 if timed else 6)
    finally:
        gc.unfreeze()
    _judge_memory(result, samples)
    if timed:
        _judge_time(result, times)
    return result


def _judge_memory(result: SoakResult, samples: Sequence[Sample]) -> None:
    first, last = samples[len(samples) // 5], samples[-1]
    rounds = last.rounds - first.rounds
    more = last.tensors - first.tensors
    result.figures["tensors"] = f"{first.tensors} at {first.length} tokens, {last.tensors} at {last.length}"
    result.tried("tensors", f"{more} tensors more after {rounds} rounds" if more > 8 else None)

    # A mask of the text's length is made anew in every pass; nothing may be kept of it.
    more = last.tensor_bytes - first.tensor_bytes
    allowed = 64 * (last.length - first.length) + 2**16
    result.figures["bytes of tensors"] = f"{more:+} over {rounds} rounds"
    result.tried("bytes of tensors", f"{more} bytes more, above {allowed}" if more > allowed else None)

    objects = (last.objects - first.objects) / rounds
    result.figures["objects a round"] = f"{objects:.1f}"
    wrong = (
        f"{objects:.1f} more objects a round, above {OBJECTS_A_ROUND}" if objects > OBJECTS_A_ROUND else None
    )
    result.tried("objects of Python", wrong)

    # Where keys and values move to larger buffers, both stand side by side for a moment.
    caches = 3 * max(last.cache_bytes - first.cache_bytes, 0)
    grown = last.resident - first.resident
    allowed = BYTES_A_ROUND * rounds + caches + 2**24
    result.figures["process"] = (
        f"{first.resident / 2**20:.0f} to {last.resident / 2**20:.0f} MiB, "
        f"caches {last.cache_bytes / 2**20:.1f} MiB"
    )
    result.tried("resident memory", f"{grown} bytes more, above {allowed}" if grown > allowed else None)


def _judge_time(result: SoakResult, times: Sequence[Timed]) -> None:
    early, late = _windows(times)
    lengths = [int(median(one.length for one in window)) for window in (early, late)]
    for part in ("draft", "target", "verify", "rest", "attention"):
        first, last = (median(getattr(one, part) for one in window) for window in (early, late))
        result.figures[f"{part} of a round"] = (
            f"{1e3 * first:.2f} ms at {lengths[0]} tokens, {1e3 * last:.2f} ms at {lengths[1]}"
        )
        if part != "attention":
            limit = RATIO * first + SPARE
            wrong = f"{1e3 * last:.2f} ms late, above {1e3 * limit:.2f}" if last > limit else None
            result.tried(f"{part} of a round", wrong)
