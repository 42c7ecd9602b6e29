"""The law of `Region`, on both of its implementations: what walking up the parents says."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from draftwood.backends.host_region import HostRegion
from draftwood.backends.region import Region
from draftwood.backends.tensor_region import TensorRegion, in_heavy_paths
from draftwood.errors import InvalidTree


def on_device(rows: int) -> Region:
    return TensorRegion(rows, torch.device("cpu"))


REGIONS: list[Callable[[int], Region]] = [on_device, HostRegion]
both = pytest.mark.parametrize("make", REGIONS, ids=["TensorRegion", "HostRegion"])


def path_to(node: int, parents: list[int]) -> list[int]:
    """The node and its ancestors, root first, read off the parents one by one."""
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


@pytest.mark.parametrize(("make", "reorder"), [(on_device, False), (on_device, True), (HostRegion, False)])
@pytest.mark.parametrize("seed", range(8))
def test_a_region_grown_call_by_call_sees_ancestors(
    make: Callable[[int], Region], reorder: bool, seed: int
) -> None:
    rng, region, rows = random.Random(seed), make(3), 3
    assert region.reorders or not reorder
    parents: list[list[int]] = [[] for _ in range(rows)]
    columns: list[list[int]] = [[] for _ in range(rows)]
    for _ in range(rng.randint(1, 5)):
        n = rng.choice([1, 2, 3, 7, 40])
        counts = [n] * rows if rng.random() < 0.5 else [rng.randint(0, n) for _ in range(rows)]
        call = torch.full((rows, n), -1)
        for row, count in enumerate(counts):
            before = len(parents[row])
            parents[row] += [rng.randint(-1, before + node - 1) for node in range(count)]
            call[row, :count] = torch.tensor(parents[row][before:])
        staged = region.stage(call, counts)
        assert staged.start == region.columns
        if reorder and rng.random() < 0.7:
            staged = in_heavy_paths(staged)
        new = staged.in_call(torch.arange(region.columns, region.columns + n).repeat(rows, 1))
        visible, depths = staged.in_call(staged.visible), staged.in_call(staged.depths)
        for row, count in enumerate(counts):
            columns[row] += new[row, :count].tolist()
            for node in range(count):
                path = path_to(len(parents[row]) - count + node, parents[row])
                expected = {columns[row][ancestor] for ancestor in path}
                assert set(visible[row, node].nonzero().flatten().tolist()) == expected
                assert depths[row, node] == len(path) - 1
        region.accept(staged)
    assert region.counts == [len(row) for row in parents]
    paths = [path_to(len(row) - 1, row) if row else [] for row in parents]
    expected_columns = [[row[node] for node in path] for row, path in zip(columns, paths, strict=True)]
    assert region.columns_of(paths) == expected_columns
    for row in range(rows):
        expected_depths = [len(path_to(node, parents[row])) - 1 for node in range(len(parents[row]))]
        assert region.depths[row, columns[row]].tolist() == expected_depths
    region.keep([2, 0])
    assert region.columns_of([paths[2], paths[0]]) == [expected_columns[2], expected_columns[0]]
    region.clear()
    assert (region.columns, region.counts) == (0, [0, 0])
    assert region.stage(torch.tensor([[-1], [-1]]), [1, 0]).visible.tolist() == [[[True]], [[True]]]


@both
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 8, 9, 10, 33, 34, 70])
def test_a_chain_in_one_call_sees_all_of_itself(make: Callable[[int], Region], n: int) -> None:
    staged = make(1).stage(torch.arange(-1, n - 1).unsqueeze(0), [n])
    assert torch.equal(staged.visible[0], torch.ones(n, n).tril().bool())


@both
def test_staging_alone_changes_nothing(make: Callable[[int], Region]) -> None:
    region = make(1)
    region.accept(region.stage(torch.tensor([[-1, 0]]), [2]))
    region.stage(torch.tensor([[1, 2, 1]]), [3])
    staged = region.stage(torch.tensor([[0]]), [1])
    assert staged.visible.tolist() == [[[True, False, True]]]
    assert region.depths.tolist() == [[0, 1]]
    with pytest.raises(InvalidTree, match="names node 2"):
        region.columns_of([[0, 2]])


@both
@pytest.mark.parametrize("path", [[1], [0, 3], [0, 1, 2]])
def test_what_is_no_path_from_the_root_is_refused(make: Callable[[int], Region], path: list[int]) -> None:
    region = make(2)
    # Row 1 takes one node of three columns, so that its region indices and columns part.
    region.accept(region.stage(torch.tensor([[-1, 0, 0], [-1, -1, -1]]), [3, 1]))
    region.accept(region.stage(torch.tensor([[1], [0]]), [1, 1]))
    assert region.columns_of([[0, 1, 3], [0, 1]]) == [[0, 1, 3], [0, 3]]
    with pytest.raises(InvalidTree, match="follows parent to child"):
        region.columns_of([path, []])
