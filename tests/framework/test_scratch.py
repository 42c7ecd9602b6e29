"""Standing memory: what was handed out is nobody else's until all is taken back."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from draftwood.base import scratch as standing
from draftwood.base.scratch import Scratch

CPU = torch.device("cpu")


def test_pieces_of_one_round_never_overlap() -> None:
    chosen, scratch = random.Random(0), Scratch()
    shapes = [(), (0, 3), (4,), (2, 3), (3, 2), (1, 2, 3), (5, 1, 7)]
    for _ in range(50):
        scratch.reset()
        taken = list[Tensor]()
        for number in range(chosen.randint(1, 8)):
            dtype = chosen.choice([torch.float32, torch.float64])
            taken.append(scratch.take(chosen.choice(shapes), dtype=dtype, device=CPU))
            taken[-1].fill_(number)
        for number, piece in enumerate(taken):
            assert piece.is_contiguous()
            assert (piece == number).all()


def test_a_round_like_the_last_one_is_handed_the_same_memory() -> None:
    scratch, places = Scratch(), list[list[int]]()
    for _ in range(4):
        scratch.reset()
        taken = [scratch.take(shape, dtype=torch.float32, device=CPU) for shape in ((1, 4), (2, 4), (1, 4))]
        places.append([piece.data_ptr() for piece in taken])
    assert places[2] == places[3]
    assert len(set(places[3])) == 3


def test_few_tensors_are_kept_where_no_round_is_like_the_last_one() -> None:
    scratch = Scratch()
    for size in range(1, 3 * standing.REMEMBERED):
        scratch.reset()
        scratch.take((size,), dtype=torch.float32, device=CPU)
        (piece,) = scratch._pieces.values()
        assert len(piece.views) <= standing.REMEMBERED + 1
