"""Accepted rows moved down in place, bit by bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood.kernels.kv_commit import dispatch, reference
from tests.kernels import frames

pytestmark = pytest.mark.triton

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def drawn(device: torch.device, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(shape, device=device).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=10)
@given(data=st.data())
def test_any_moves(data: st.DataObject, device: torch.device, dtype: torch.dtype) -> None:
    rows, slots = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 40))
    shapes = data.draw(
        st.lists(
            st.tuples(st.integers(1, 3), st.integers(1, 2), st.sampled_from([16, 80])),
            min_size=1,
            max_size=2,
        )
    )
    # One line of memory, so that a write behind an arena is one into the next.
    numbers = [buffers * rows * heads * slots * dim for buffers, heads, dim in shapes]
    held = drawn(device, dtype, sum(numbers) + 4096).split([*numbers, 4096])
    behind = held[-1].clone()
    arenas = [
        one.view(buffers, rows, heads, slots, dim)
        for one, (buffers, heads, dim) in zip(held, shapes, strict=False)
    ]
    moves = []
    for row in range(rows):
        count = data.draw(st.integers(0, slots))
        places = st.lists(st.integers(0, slots - 1), min_size=count, max_size=count, unique=True)
        moves += [
            (row, source, target) for source, target in zip(data.draw(places), data.draw(places), strict=True)
        ]
    lists = dict(zip(("rows", "sources", "targets"), map(list, zip(*moves, strict=True)), strict=False))
    lists = lists or {"rows": [], "sources": [], "targets": []}
    wanted = [arena.clone() for arena in arenas]
    if moves:
        reference.move(arenas=wanted, **lists)
    with frames.kernel_alone(dispatch, "move"):
        dispatch.move(arenas=arenas, **lists)
    for found, right in zip(arenas, wanted, strict=True):
        assert torch.equal(found, right)
    assert torch.equal(held[-1], behind)


@pytest.mark.parametrize("count", [16, 17, 64, 65, 256])
def test_a_long_path_moves_onto_itself(count: int, device: torch.device) -> None:
    arena = drawn(device, torch.float32, 1, 1, 1, count + 2, 16)
    wanted = arena.clone()
    wanted[:, :, :, :count] = arena[:, :, :, 1 : count + 1]
    with frames.kernel_alone(dispatch, "move"):
        dispatch.move(arenas=[arena], rows=[0] * count, sources=range(1, count + 1), targets=range(count))
    assert torch.equal(arena, wanted)


def test_rows_behind_a_narrowed_arena_are_left(device: torch.device) -> None:
    whole = drawn(device, torch.float16, 3, 4, 2, 9, 32)
    before = whole.clone()
    with frames.kernel_alone(dispatch, "move"):
        dispatch.move(arenas=[whole[1:2, :2]], rows=[1], sources=[7], targets=[2])
    before[1, 1, :, 2] = before[1, 1, :, 7]
    assert torch.equal(whole, before)


@pytest.mark.parametrize(
    ("arena", "count", "reason"),
    [
        (torch.zeros(1, 1, 1, 300, 16), 257, "a row moves 257 slots, and the kernel holds 256"),
        (torch.zeros(1, 1, 1, 4, 24), 1, "arena 0 has strides (0, 0, 0, 24), which are not multiples of 16"),
        (torch.zeros(1, 1, 1, 4, 16, dtype=torch.int8), 1, "its rows are torch.int8"),
        (
            torch.zeros(1, 1, 1, 4, 17, dtype=torch.float16),
            1,
            "17 elements of torch.float16, no multiple of 32 bytes",
        ),
        (torch.zeros(1, 1, 1, 16, 16).transpose(3, 4), 1, "is not contiguous along its last axis"),
    ],
)
def test_the_reference_takes_the_rest(
    arena: torch.Tensor, count: int, reason: str, caplog: pytest.LogCaptureFixture, device: torch.device
) -> None:
    moved = arena.to(device)
    moved[..., 1, :] = 1
    with frames.reference_serves(reason, caplog):
        dispatch.move(arenas=[moved], rows=[0] * count, sources=range(1, count + 1), targets=range(count))
    assert bool((moved[..., 0, :] == 1).all())


@pytest.mark.parametrize(
    ("rows", "sources", "targets", "message"),
    [
        ([0], [1, 2], [0, 1], "1 rows, 2 sources and 2 targets"),
        ([2], [1], [0], "A move from slot 1 to 0 of row 2 lies outside 2 rows of 5 slots."),
        ([0], [5], [0], "lies outside"),
        ([0], [1], [-1], "lies outside"),
        ([0, 0], [1, 2], [0, 0], "write a slot twice"),
        ([1, 0], [1, 2], [0, 0], "ascending order"),
    ],
)
def test_impossible_moves(rows: list[int], sources: list[int], targets: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dispatch.move(arenas=[torch.zeros(1, 2, 1, 5, 16)], rows=rows, sources=sources, targets=targets)
