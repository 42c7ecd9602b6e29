"""Requests of a verifier to the device per round: one wait, and nothing that grows with rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftwood import TapeRandomness, Verifier, WithoutReplacement, create
from draftwood.kernels.support import kernels_enabled
from draftwood.kernels.tree_traversal import dispatch
from tests.counting_device.counts import Kind
from tests.counting_device.device import counting_device
from tests.counting_device.tensor import DeviceTensor
from tests.kernels.judged_trees import grown, placed, tape_of

pytestmark = pytest.mark.triton

TOGETHER = {
    "greedy": 1,
    "typical": 25,
    "sample-and-match": 70,
    "recursive-rejection": 1,
    "traversal": 65,
    "class-ordered-rejection": 128,
    "class-ordered-traversal": 128,
    "race-traversal": 40,
}
"""Launches that are enough for 64 nodes, by verifier; of a kernel with several programs a row."""

A_LEVEL = {"race-traversal": 1}
"""Launches that one more level of a tree asks for."""


def asked(verifier: Verifier, sizes: list[int]) -> dict[Kind, int]:
    """Returns the requests of `verifier` to the device for trees of `sizes`."""
    rows = [
        grown(nodes, 20, laws=[WithoutReplacement], draft="smooth", target="near", seed=row)
        for row, nodes in enumerate(sizes)
    ]
    targets = torch.nn.utils.rnn.pad_sequence([targets for _, targets in rows], batch_first=True)
    tapes = [TapeRandomness(tape_of(200, row)) for row in range(len(rows))]
    with pytest.MonkeyPatch.context() as patch, counting_device() as device, kernels_enabled(True):
        patch.setattr(dispatch, "SPAN", 16)
        trees = [placed(tree, torch.device("cuda")) for tree, _ in rows]
        on_device: Any = DeviceTensor(targets)
        before = {kind: device.counts.of(kind) for kind in Kind}
        outcomes = verifier.verify_rows(trees, on_device, tapes)
        counts = {kind: device.counts.of(kind) - before[kind] for kind in Kind}
    alone = [
        verifier.verify(tree, row, TapeRandomness(tape_of(200, number)))
        for number, (tree, row) in enumerate(rows)
    ]
    assert outcomes == alone
    return counts


@pytest.mark.parametrize("name", TOGETHER)
def test_a_round_waits_once(name: str) -> None:
    counts = asked(create("verifiers", name), [64, 5, 1])
    assert counts[Kind.WAIT] == 1
    assert counts[Kind.LAUNCH] <= TOGETHER[name]
    assert counts[Kind.BLOCKING_COPY] == 0
    assert counts[Kind.COPY] <= 1
    more = asked(create("verifiers", name), [64, 5, 1, 30, 2, 64])
    more[Kind.LAUNCH] -= A_LEVEL.get(name, 0)  # the last of these trees is a level deeper than the others
    assert more == counts
