"""The law of `Region`: what walking up the parents says."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwood.backends.nodes.heavy_paths import in_heavy_paths
from draftwood.backends.nodes.region import Accepted, Region, packed, unpacked
from draftwood.base.errors import InvalidTree


def by_row(accepted: Accepted) -> list[list[int]]:
    """The columns of every row's path."""
    ends = accepted.counts.cumsum()[:-1]
    return [part.tolist() for part in np.split(accepted.columns, ends)]


def path_to(node: int, parents: list[int]) -> list[int]:
    """The node and its ancestors, root first, read off the parents one by one."""
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


@pytest.mark.parametrize("reorder", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_a_region_grown_call_by_call_sees_ancestors(reorder: bool, seed: int) -> None:
    rng, region, rows = random.Random(seed), Region.empty(3), 3
    parents: list[list[int]] = [[] for _ in range(rows)]
    columns: list[list[int]] = [[] for _ in range(rows)]
    for _ in range(rng.randint(1, 5)):
        n = rng.choice([1, 2, 3, 7, 40])
        counts = [n] * rows if rng.random() < 0.5 else [rng.randint(0, n) for _ in range(rows)]
        call = np.full((rows, n), -1)
        for row, count in enumerate(counts):
            before = len(parents[row])
            parents[row] += [rng.randint(-1, before + node - 1) for node in range(count)]
            call[row, :count] = parents[row][before:]
        staged = region.stage(call, counts)
        assert staged.start == region.columns
        if reorder and rng.random() < 0.7:
            staged = in_heavy_paths(staged)
        to_call = staged.orders().get("to call", np.arange(rows * n))
        new = np.arange(n).repeat(rows).reshape(n, rows).T.reshape(-1)[to_call].reshape(rows, n)
        new = new + region.columns
        visible = staged.visible.reshape(rows * n, -1)[to_call].reshape(rows, n, -1)
        depths = staged.depths.reshape(-1)[to_call].reshape(rows, n)
        for row, count in enumerate(counts):
            columns[row] += new[row, :count].tolist()
            for node in range(count):
                path = path_to(len(parents[row]) - count + node, parents[row])
                expected = {columns[row][ancestor] for ancestor in path}
                assert set(np.flatnonzero(visible[row, node])) == expected
                assert depths[row, node] == len(path) - 1
        region = region.accept(staged)
    assert region.counts.tolist() == [len(row) for row in parents]
    paths = [path_to(len(row) - 1, row) if row else [] for row in parents]
    expected_columns = [[row[node] for node in path] for row, path in zip(columns, paths, strict=True)]
    accepted = region.accepted(paths)
    assert by_row(accepted) == expected_columns
    assert accepted.counts.tolist() == [len(path) for path in paths]
    assert accepted.steps.tolist() == [step for path in paths for step in range(len(path))]
    assert accepted.rows.tolist() == [row for row, path in enumerate(paths) for _ in path]
    for row in range(rows):
        expected_depths = [len(path_to(node, parents[row])) - 1 for node in range(len(parents[row]))]
        assert region.depths[row, columns[row]].tolist() == expected_depths
    region = region.keep([2, 0])
    assert by_row(region.accepted([paths[2], paths[0]])) == [expected_columns[2], expected_columns[0]]
    region = region.cleared()
    assert (region.columns, region.counts.tolist()) == (0, [0, 0])
    assert region.stage(np.array([[-1], [-1]]), [1, 0]).visible.tolist() == [[[True]], [[True]]]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 8, 9, 10, 33, 34, 70])
def test_a_chain_in_one_call_sees_all_of_itself(n: int) -> None:
    staged = Region.empty(1).stage(np.arange(-1, n - 1)[None], [n])
    assert (staged.visible[0] == np.tri(n, dtype=bool)).all()
    assert staged.depths.tolist() == [list(range(n))]


def test_what_an_earlier_round_saw_is_forgotten() -> None:
    region = Region.empty(1)
    region = region.accept(region.stage(np.arange(-1, 199)[None], [200]))
    region = region.cleared()
    region = region.accept(region.stage(np.array([[-1]]), [1]))
    region = region.accept(region.stage(np.full((1, 150), -1), [150]))
    staged = region.stage(np.array([[0]]), [1])
    assert np.flatnonzero(staged.visible[0, 0]).tolist() == [0, 151]


def test_staging_alone_changes_nothing() -> None:
    region = Region.empty(1)
    region = region.accept(region.stage(np.array([[-1, 0]]), [2]))
    region.stage(np.array([[1, 2, 1]]), [3])
    staged = region.stage(np.array([[0]]), [1])
    assert staged.visible.tolist() == [[[True, False, True]]]
    assert region.depths.tolist() == [[0, 1]]
    with pytest.raises(InvalidTree, match="names node 2"):
        region.accepted([[0, 2]])


@pytest.mark.parametrize("path", [[1], [0, 3], [0, 1, 2]])
def test_what_is_no_path_from_the_root_is_refused(path: list[int]) -> None:
    region = Region.empty(2)
    # Row 1 takes one node of three columns, so that its region indices and columns part.
    region = region.accept(region.stage(np.array([[-1, 0, 0], [-1, -1, -1]]), [3, 1]))
    region = region.accept(region.stage(np.array([[1], [0]]), [1, 1]))
    assert by_row(region.accepted([[0, 1, 3], [0, 1]])) == [[0, 1, 3], [0, 3]]
    with pytest.raises(InvalidTree, match="follows parent to child"):
        region.accepted([path, []])
    with pytest.raises(InvalidTree, match="names node -1"):
        region.accepted([[], [-1]])


def test_the_same_calls_again_give_what_they_gave() -> None:
    """Also after the caller's arrays were written anew, and for other rows and other counts."""
    region = Region.empty(2)
    parents = np.array([[-1, 0], [-1, -1]])
    staged = region.stage(parents, [2, 2])
    after = region.accept(staged)
    parents[0, 1] = -1
    assert region.stage(np.array([[-1, 0], [-1, -1]]), [2, 2]) is staged
    assert region.accept(staged) is after
    assert region.stage(parents, [2, 2]).visible.tolist() == [[[True, False], [False, True]]] * 2
    assert region.stage(np.array([[-1, 0], [-1, -1]]), [2, 1]) is not staged
    assert after.accepted([[0, 1], [1]]) is after.accepted([range(2), (1,)])
    assert by_row(after.accepted([[0, 1], []])) == [[0, 1], []]
    with pytest.raises(InvalidTree, match="has parent 2"):
        after.stage(np.array([[2], [-1]]), [1, 1])


def random_call(chance: random.Random, have: list[int], nodes: int) -> tuple[np.ndarray, list[int]]:
    """Parents and counts of a call of up to `nodes` nodes after `have` ones of every row."""
    counts = [chance.randint(0, nodes) for _ in have]
    parents = np.full((len(have), nodes), -1)
    for row, count in enumerate(counts):
        parents[row, :count] = [chance.randint(-1, have[row] + node - 1) for node in range(count)]
    return parents, counts


@given(seed=st.integers(0, 999), reorder=st.booleans())
def test_regions_after_two_calls_do_not_share_what_they_hold(seed: int, reorder: bool) -> None:
    """Each of two calls that follow the same region leaves what it would leave alone."""
    chance = random.Random(seed)
    calls, have = [], [0, 0]
    for _ in range(3):
        calls.append(random_call(chance, have, chance.choice([1, 5, 40])))
        have = have if calls[1:] else calls[0][1]
    first, *later = calls

    def held(call: tuple[np.ndarray, list[int]], before: Region) -> tuple[Region, Region]:
        staged = before.stage(*call)
        return before, before.accept(in_heavy_paths(staged) if reorder else staged)

    before = Region.empty(2)
    before = before.accept(before.stage(*first))
    together = [held(call, before) for call in later]
    for call, (_, after) in zip(later, together, strict=True):
        alone = Region.empty(2)
        _, expected = held(call, alone.accept(alone.stage(*first)))
        assert after.counts.tolist() == expected.counts.tolist()
        assert (after.depths == expected.depths).all()
        for row, count in enumerate(after.counts):
            for node in range(count):
                below = np.full((2, 1), -1)
                below[row] = node
                sees = [one.stage(below, [1, 1]).visible for one in (after, expected)]
                assert (sees[0] == sees[1]).all()


@given(seed=st.integers(0, 999))
def test_a_wrong_parent_is_named_wherever_it_is(seed: int) -> None:
    chance, have, region = random.Random(seed), [0, 0, 0], Region.empty(3)
    if chance.random() < 0.7:
        call = random_call(chance, have, 4)
        region, have = region.accept(region.stage(*call)), call[1]
    parents, _ = random_call(chance, have, 6)
    row, node = chance.randrange(3), chance.randrange(6)
    own = have[row] + node
    parents[row, node] = chance.choice([-2, -(2**62), own, own + 1, 2**62])
    with pytest.raises(InvalidTree, match=f"Node {own} of row {row} has parent {parents[row, node]};"):
        region.stage(parents, [6, 6, 6])
    parents[row, node] = own - 1
    assert region.stage(parents, [6, 6, 6]).visible[row, node, region.columns + node]


@given(columns=st.integers(1, 70), seed=st.integers(0, 99))
def test_bits_are_the_columns_one_by_one(columns: int, seed: int) -> None:
    seen = np.random.default_rng(seed).random((2, 3, columns)) < 0.5
    bits = packed(seen)
    assert (unpacked(bits, columns) == seen).all()
    words = bits[0, 0].tolist()
    held = [32 * word + bit for word, value in enumerate(words) for bit in range(32) if value >> bit & 1]
    assert held == np.flatnonzero(seen[0, 0]).tolist()
