"""`python -m benchmarks blocks`: what it counts, and that its table says it."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.research.orders import breadth_first, depth_first, heavy_path
from draftwood import TokenTree


@pytest.fixture
def bench() -> Any:
    from benchmarks.research import blocks

    return blocks


def filled(tree: TokenTree, order: list[int], size: int) -> int:
    """Blocks of the mask in which anything is seen, one by one."""
    seen = tree.ancestor_mask[order][:, order]
    edges = range(0, len(tree), size)
    return sum(bool(seen[i : i + size, j : j + size].any()) for i in edges for j in edges)


@pytest.mark.parametrize(("nodes", "size"), [(1, 32), (33, 32), (100, 8), (64, 1)])
def test_blocks_are_those_in_which_a_node_sees_another(bench: Any, nodes: int, size: int) -> None:
    tree = bench.random_tree(nodes, random.Random(nodes))
    orders = [list(range(nodes)), breadth_first(tree), depth_first(tree), heavy_path(tree)]
    assert bench.counted(tree, size=size) == [filled(tree, order, size) for order in orders]


def test_random_trees_hang_anywhere(bench: Any) -> None:
    chance = random.Random(0)
    trees = torch.stack([bench.random_tree(4, chance).parents for _ in range(600)])
    for node in range(1, 4):
        shares = [(trees[:, node] == parent).float().mean().item() for parent in range(node)]
        # Five standard errors of 600 trees.
        assert shares == pytest.approx([1 / node] * node, abs=0.11)


def test_the_table(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.__main__ import app

    monkeypatch.setattr(bench, "PAPER", {"random": {20: (9.0, 4.0)}, "DySpec": {}})
    few = ["blocks", "--nodes", "20", "--nodes", "21", "--trees", "3", "--prompts", "1"]
    plain = CliRunner().invoke(app, few)
    assert plain.exit_code == 0, plain.output
    lines = [line.split() for line in plain.stdout.splitlines()[2:]]
    assert [line[:2] for line in lines] == [
        [kind, nodes] for nodes in ("20", "21") for kind in ("random", "DySpec")
    ]
    # A tree of fewer nodes than a block is one block in any order.
    assert all(line[3:9] == ["1.0"] * 4 + ["1.00"] * 2 for line in lines)
    assert lines[0][9:] == ["9.0", "/", "4.0", "=", "2.25"]
    assert all(len(line) == 9 for line in lines[1:])

    small = CliRunner().invoke(app, [*few, "--size", "4"])
    chance = random.Random(0)
    for line in (line.split() for line in small.stdout.splitlines()[2:]):
        grown, _, depth, heavy = map(float, line[3:7])
        # Means are printed with one digit.
        assert [float(one) for one in line[7:]] == pytest.approx([grown / depth, grown / heavy], abs=0.02)
        if line[0] == "random":
            counts = [
                bench.counted(bench.random_tree(int(line[1]), chance), size=4) for _ in range(int(line[2]))
            ]
            means = [sum(column) / len(counts) for column in zip(*counts, strict=True)]
            assert [float(one) for one in line[3:7]] == pytest.approx(means, abs=0.051)
