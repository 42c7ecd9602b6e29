"""Plain words in what a proof says of errors, exits, thresholds and random numbers."""

from __future__ import annotations

import array
import ctypes
import functools
import random
import re
import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from draftwood.base.errors import InvalidInput
from draftwood.testing import (
    CannotEnumerate,
    LawBroken,
    SamplerCase,
    measure_sampler,
    prove_sampler,
    torch_law,
)
from draftwood.testing.samplers.sampler_errors import name_of, plain
from draftwood.testing.samplers.threshold_tests import thresholds
from tests.framework.test_odd_samplers import ALL, FEW, PLAIN, leviathan
from tests.framework.test_testing_chance import law_of

F64 = torch.float64
INTERNAL = re.compile(r"Lazy[A-Z]|<locals>|<function|<class|<lambda>|0x[0-9a-f]{4}|__\w+__")


def by_coin(coin: Callable[[], Any]) -> Callable[[SamplerCase], list[int]]:
    """Returns a right sampler if the coins are uniform."""

    def mine(case: SamplerCase) -> list[int]:
        return leviathan(case, rejects=lambda _, token, t, d: bool(coin() >= t[token] / d[token]))

    return mine


def exits(_: SamplerCase) -> list[int]:
    sys.exit(3)


def exits_in_a_generator(case: SamplerCase) -> Any:
    yield int(case.draft_tokens[0])
    sys.exit("gone")


IN_BATCHES: dict[str, Any] = {"samples": 10, "batched": True}
WAYS: list[dict[str, Any]] = [{}, {"uniforms": 2}, {"samples": 10}]


@pytest.mark.parametrize(
    ("sampler", "options"),
    [*((one, way) for one in (exits, exits_in_a_generator) for way in WAYS), (exits, IN_BATCHES)],
)
def test_a_sampler_that_exits_is_told_and_does_not_end_the_proof(
    sampler: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput, match=r"ends the process \(sys.exit with (3|'gone')\), so there is no"):
        prove_sampler(sampler, models=PLAIN, **options)


def test_a_call_that_exits_is_told() -> None:
    with pytest.raises(InvalidInput, match="ends the process"):
        torch_law(lambda: exits(None))  # type: ignore[arg-type]


def test_an_interrupt_still_ends_a_proof() -> None:
    def interrupted(_: SamplerCase) -> list[int]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prove_sampler(interrupted, models=PLAIN)


def threshold_said(accepts: Callable[[torch.Tensor, torch.Tensor, int], bool]) -> str:
    sampler = functools.partial(
        leviathan, rejects=lambda _, token, target, draft: not accepts(target, draft, token)
    )
    report = measure_sampler(sampler, models=ALL)
    assert report.verdict != "lossless"
    return report.likely


def test_the_range_of_a_threshold_is_said_as_one_number_where_its_ends_are_alike() -> None:
    class Step:
        def __init__(self, target: float, draft: float) -> None:
            self.token = 0
            self.target = torch.tensor([target, 1 - target], dtype=F64)
            self.draft = torch.tensor([draft, 1 - draft], dtype=F64)

    accepted: Any = [Step(p, p * (1 - 1e-9)) for p in (0.1, 0.3, 0.5, 0.7)]
    rejected: Any = [Step(p, p * (1 + 1e-9)) for p in (0.1, 0.3, 0.5, 0.7)]
    said = [mistake.says for mistake in thresholds(accepted, rejected)]
    assert any("T / D is at least about 1, without a coin" in one for one in said)
    assert any("T - D is at least about 0, without a coin" in one for one in said)


def test_a_threshold_of_either_sign_is_said_with_its_signs() -> None:
    assert "T - D is at least a number from -0" in threshold_said(lambda t, d, x: bool(t[x] - d[x] > -0.05))


OF_PYTHON: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor > number": lambda a: a > random.random(),
    "not tensor <= number": lambda a: ~(a <= random.random()),
    "torch.gt": lambda a: torch.gt(a, random.random()),
    "Tensor.le": lambda a: ~a.le(random.random()),
    "several <= number": lambda a: ~(torch.stack([a, a]) <= random.random())[1],
    "number < several": lambda a: (random.random() < torch.stack([a, a]))[0],
    "number of numpy": lambda a: ~(torch.stack([a, a]) <= np.random.rand())[0],
    "number - several": lambda a: (random.random() - torch.stack([a, a]) < 0)[0],
    "several * number": lambda a: (torch.stack([a, a]) - 1 * random.random() > 0)[1],
    "torch.sub": lambda a: torch.sub(a, random.random()) > 0,
    "torch.where": lambda a: torch.where(a > random.random(), torch.tensor(1), torch.tensor(0)),
    "out=": lambda a: ~torch.le(a, random.random(), out=torch.empty((), dtype=torch.bool)),
    "several < array": lambda a: (np.random.rand() < torch.stack([a, a]).numpy())[0],
}


@pytest.mark.parametrize("accepts", OF_PYTHON.values(), ids=OF_PYTHON)
def test_numbers_of_python_are_followed_into_comparisons_of_torch(accepts: Any) -> None:
    def rejects(_: int, token: int, target: torch.Tensor, draft: torch.Tensor) -> bool:
        return not bool(accepts(target[token] / draft[token]))

    assert prove_sampler(functools.partial(leviathan, rejects=rejects), models=FEW).error < 1e-9
    law = law_of(lambda: bool(accepts(torch.tensor(0.3, dtype=F64))))
    assert law == pytest.approx({True: 0.3, False: 0.7}, abs=1e-12)


@pytest.mark.parametrize("searched", [True, False])
def test_a_token_is_drawn_by_heights_of_torch_and_a_number_of_python(searched: bool) -> None:
    def draw(weights: torch.Tensor) -> int:
        heights, coin = (weights / weights.sum()).cumsum(0), random.random()
        place = torch.searchsorted(heights, coin, right=True) if searched else (heights <= coin).sum()
        return min(int(place), int(weights.nonzero()[-1]))

    assert prove_sampler(functools.partial(leviathan, draw=draw), models=FEW).error < 1e-9


def test_bfloat16_meets_no_number_of_python() -> None:
    with pytest.raises(CannotEnumerate, match="meets numbers of bfloat16, to which it may be rounded"):
        prove_sampler(by_coin(lambda: torch.zeros(2, dtype=torch.bfloat16) + random.random()), models=PLAIN)


def _packed_into() -> float:
    held = bytearray(8)
    struct.pack_into("d", held, 0, random.random())
    return float(struct.unpack("d", held)[0])


def _at_address(numbers: Any) -> float:
    return ctypes.c_double.from_address(numbers.data_ptr()).value


BYTES: dict[str, Callable[[], Any]] = {
    "struct, half": lambda: struct.unpack("e", struct.pack("e", random.random()))[0],
    "struct, float": lambda: struct.unpack("f", struct.pack("f", np.random.rand()))[0],
    "struct, double of torch": lambda: struct.unpack("d", struct.pack("d", torch.rand((), dtype=F64)))[0],
    "struct, an integer": lambda: (
        struct.unpack("H", struct.pack("H", int(random.random() * 65536)))[0] / 65536
    ),
    "struct, a byte": lambda: struct.unpack("B", struct.pack("B", int(random.random() * 256)))[0] / 256,
    "struct.pack_into": _packed_into,
    "ctypes, float": lambda: ctypes.c_float(random.random()).value,
    "ctypes, array": lambda: (ctypes.c_float * 2)(random.random(), random.random())[1],
    "ctypes, integer": lambda: ctypes.c_uint8(int(random.random() * 256)).value / 256,
    "ctypes, address": lambda: _at_address(torch.rand(2, dtype=F64)),
    "array, float": lambda: array.array("f", [random.random()])[0],
    "array of torch": lambda: array.array("f", torch.rand(2, dtype=F64).tolist())[1],
    "array, bytes": lambda: array.array("B", [int(random.random() * 256)])[0] / 256,
    "bytes of numpy": lambda: np.frombuffer(np.random.rand(2).tobytes())[1],
    "a buffer of numpy": lambda: np.frombuffer(np.random.rand(2))[1],
    "bits of numpy": lambda: np.random.rand(2).view(np.uint64)[1] / 2**64,
    "bits of torch": lambda: torch.rand(2, dtype=F64).view(torch.int32)[0].double() / 2**32,
    "halves of torch": lambda: torch.rand(2).view(torch.half)[1],
    "bytes of an integer": lambda: random.getrandbits(16).to_bytes(2, "big")[0] / 256,
    "text": lambda: float(str(random.random())),
    "a format": lambda: float(f"{random.random():.3f}"),
}


@pytest.mark.parametrize("coin", BYTES.values(), ids=BYTES)
def test_numbers_that_go_through_bytes_or_text_are_told(coin: Callable[[], Any]) -> None:
    with pytest.raises(CannotEnumerate, match="samples=") as told:
        prove_sampler(by_coin(coin))
    assert not INTERNAL.search(str(told.value)), told.value


ODD: dict[str, Callable[[], Any]] = {
    "numpy's options": lambda: np.random.default_rng().choice(3, shuffle=False) / 3,
    "torch.full": lambda: torch.full((1,), random.random(), dtype=F64)[0],
    "a seed": lambda: torch.rand((), generator=torch.Generator().manual_seed(random.getrandbits(40))),
    "a copy": lambda: __import__("copy").deepcopy(torch.rand(2, dtype=F64))[1],
    "a pickle": lambda: __import__("pickle").dumps(random.random()),
    "JSON": lambda: __import__("json").dumps(random.random()),
    "several of numpy": lambda: float((torch.ones(2, dtype=F64) <= np.random.rand(2))[0]),
}


@pytest.mark.parametrize("coin", ODD.values(), ids=ODD)
def test_what_is_told_has_no_names_of_internal_objects(coin: Callable[[], Any]) -> None:
    with pytest.raises(CannotEnumerate) as told:
        prove_sampler(by_coin(coin), models=PLAIN)
    assert not INTERNAL.search(str(told.value)), told.value
    assert "\n" not in str(told.value)


def test_a_sampler_is_named_as_its_author_names_it() -> None:
    class Engine:
        def __call__(self, case: SamplerCase) -> list[int]:
            return [0]

    assert name_of(Engine()) == name_of(functools.partial(Engine())) == "Engine"
    assert name_of(lambda case: [0]) == "The sampler"
    assert name_of(leviathan) == "leviathan"
    told = plain(str([Engine(), Engine().__call__, test_an_interrupt_still_ends_a_proof, lambda: 0]))
    assert not INTERNAL.search(told.replace("__call__", "")), told
    with pytest.raises(LawBroken) as broken:
        prove_sampler(Engine(), models=PLAIN)
    assert not INTERNAL.search(str(broken.value)), broken.value
