"""Law S on models with recurrent layers: what transformers decodes token by token is right."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache

import pytest
import torch

from draftwood.backends.kinds.ssm import HybridBackend, SSMBackend
from draftwood.backends.loading.loader import load
from draftwood.protocols import StateBackend
from draftwood.testing.backends import Mirror, StateBackendTests
from tests.backends.recurrent_models import (
    KINDS,
    MIXED,
    PURES,
    RECURRENT,
    VOCAB,
    Doubled,
    Stepwise,
    build,
)
from tests.thorough import marks_unless, some_of

# Of every family, `make test` has the texts of test_recurrent_decoding, and of most wide trees, in fp32.
CASES = [
    pytest.param(name, dtype, tolerance, id=f"{name}-{bits}", marks=marks_unless(name in some))
    for bits, dtype, tolerance, some in (
        ("fp32", torch.float32, 1e-4, ()),
        ("fp64", torch.float64, 1e-9, KINDS),
    )
    for name in RECURRENT
]


@cache
def oracle(name: str, dtype: torch.dtype) -> Stepwise:
    """One for all tests of a model, so that what it has decoded is kept."""
    return Stepwise(build(name, dtype))


@cache
def made(name: str, dtype: torch.dtype, chunk: int) -> StateBackend:
    return (SSMBackend if name in PURES else HybridBackend)(build(name, dtype), chunk=chunk)


def backend_for(name: str, dtype: torch.dtype = torch.float32, chunk: int = 512) -> StateBackend:
    """One for all tests of a model, without rows."""
    backend = made(name, dtype, chunk)
    backend.release()
    return backend


@pytest.mark.parametrize(("name", "dtype", "tolerance"), CASES)
class TestFamilies(StateBackendTests):
    vocab_size = VOCAB
    examples = 4

    @pytest.fixture(autouse=True)
    def _model(self, name: str, dtype: torch.dtype, tolerance: float) -> Iterator[None]:
        self.tolerance = tolerance
        with Doubled() if dtype == torch.float64 else nullcontext():
            # The oracle takes a step for every token.
            self.longest = 80 if dtype == torch.float32 else 40
            self.backend, self.logits_after = backend_for(name, dtype, chunk=16), oracle(name, dtype)  # type: ignore[method-assign]
            yield

    def make_backend(self) -> StateBackend:
        self.backend.release()
        return self.backend


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        pytest.param(name, rows, marks=marks_unless(rows == 3 and name in MIXED))
        for name in RECURRENT
        for rows in (1, 3)
    ],
)
def test_wide_trees_over_several_rounds(name: str, rows: int) -> None:
    mirror, rng = Mirror(backend_for(name), oracle(name, torch.float32)), random.Random(rows)
    mirror.prefill([[rng.randrange(VOCAB) for _ in range(rng.randint(0, 9))] for _ in range(rows)])
    for size in (1, 64, 7, 3, 12):
        new = []
        for _ in range(rows):
            nodes = range(rng.randint(1, size) if rows > 1 else size)
            new.append([(rng.randrange(VOCAB), rng.randint(-1, node - 1)) for node in nodes])
        mirror.extend(new)
        deepest = [
            max(range(len(nodes)), key=lambda v, r=row: len(mirror.path(r, v)))  # type: ignore[misc]
            for row, nodes in enumerate(new)
        ]
        mirror.commit([mirror.path(row, node) for row, node in enumerate(deepest)])
    mirror.check_state()


@pytest.mark.parametrize("name", some_of(RECURRENT, KINDS[::2]))
def test_long_prompts_in_chunks_and_pieces(name: str) -> None:
    rng = random.Random(5)
    texts = [[rng.randrange(VOCAB) for _ in range(length)] for length in (97, 40, 65, 0, 64)]
    mirror = Mirror(backend_for(name, chunk=80), oracle(name, torch.float32))
    mirror.prefill(texts[:2])
    mirror.prefill(texts[2:])
    mirror.check_state()


@pytest.mark.parametrize("name", RECURRENT)
def test_load_finds_the_backend(name: str) -> None:
    model = build(name)
    assert type(load(model)) is (SSMBackend if name in PURES else HybridBackend)
    assert type(load(model, attention="mask")) is (SSMBackend if name in PURES else HybridBackend)
