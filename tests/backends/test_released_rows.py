"""Rows that move up when others are released: what they hold, and the memory that this takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from draftwood.backends.loading.loader import load
from draftwood.backends.recurrent.arena import Arena
from tests.backends.attention_models import against, tiny

TEXTS = [[7, 9, 11, 4], [6, 8], [40, 3, 5], [2, 50, 12, 9, 1]]


class NewMemory(TorchDispatchMode):
    """Counts the bytes of results that lie in no memory of their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        given = {one.untyped_storage()._cdata for one in tree_leaves([args, kwargs]) if torch.is_tensor(one)}
        for one in tree_leaves(found):
            if torch.is_tensor(one) and one.untyped_storage()._cdata not in given:
                self.bytes += one.untyped_storage().nbytes()
        return found


@contextmanager
def no_new_memory() -> Iterator[None]:
    with NewMemory() as counted:
        yield
    assert counted.bytes == 0


@given(released=st.sets(st.integers(0, len(TEXTS) - 1), min_size=1, max_size=len(TEXTS) - 1))
def test_keys_and_values_move_up_in_place(released: set[int]) -> None:
    model = tiny()
    mirror = against(model, load(model))
    mirror.prefill(TEXTS)
    mirror.extend([[(row, -1), (row + 9, 0), (row + 17, 0)] for row in range(len(TEXTS))])
    release = mirror.backend.release

    def in_place(rows: list[int]) -> None:
        with no_new_memory():
            release(rows)

    with patch.object(mirror.backend, "release", in_place):
        mirror.release(sorted(released))
    mirror.check_state()


@given(
    rows=st.integers(1, 6).flatmap(lambda have: st.tuples(st.just(have), st.sets(st.integers(0, have - 1)))),
)
def test_recurrent_states_move_up_in_place(rows: tuple[int, set[int]]) -> None:
    have, kept = rows
    state, vector = torch.randn(have, 2, 3), torch.randn(have, 4, 5)
    arena = Arena(state, [vector])
    arena.prepare(rows=have, columns=4, state=state, vectors=[vector])
    arena.lay_out()
    order = sorted(kept)
    with no_new_memory():
        arena.keep(order)
    assert torch.equal(arena.state[: len(order)], state[order])
    assert torch.equal(arena.vectors[0][: len(order)], vector[order])
