"""Orders of a tree's nodes, and the blocks of its mask."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.research.orders import blocks_of, breadth_first, depth_first, heavy_path
from tests.framework.test_tree import ancestors, parent_lists, tree_of


@given(parent_lists(30), st.sampled_from([breadth_first, depth_first, heavy_path]))
def test_an_order_holds_every_node_once_behind_its_parent(parents, order_of):
    order = order_of(tree_of(parents))
    assert sorted(order) == list(range(len(parents)))
    assert all(parents[node] in order[:place] for place, node in enumerate(order) if place)


@given(parent_lists(30), st.sampled_from([depth_first, heavy_path]))
def test_a_subtree_lies_in_one_piece(parents, order_of):
    order = order_of(tree_of(parents))
    for place, node in enumerate(order):
        below = {v for v in range(len(parents)) if node in ancestors(parents, v)}
        assert set(order[place : place + len(below)]) == below


@given(parent_lists(30))
def test_breadth_first_goes_level_by_level(parents):
    tree = tree_of(parents)
    depths = tree.depths[breadth_first(tree)].tolist()
    assert depths == sorted(depths)


@given(parent_lists(30))
def test_heavy_path_order_goes_into_the_largest_subtree_first(parents):
    tree = tree_of(parents)
    order = heavy_path(tree)
    size = [sum(v in ancestors(parents, w) for w in range(len(parents))) for v in range(len(parents))]
    for place, node in enumerate(order):
        if tree.children(node):
            assert size[order[place + 1]] == max(size[child] for child in tree.children(node))


@given(parent_lists(), st.randoms(), st.sampled_from([1, 4, 16, 32]))
def test_block_counts_are_those_of_the_mask_entry_by_entry(parents, random, size):
    tree, order = tree_of(parents), list(range(len(parents)))
    random.shuffle(order)
    place = {node: i for i, node in enumerate(order)}
    blocks = {
        (place[node] // size, place[above] // size)
        for node in range(len(parents))
        for above in ancestors(parents, node)
    }
    assert blocks_of(tree, order, size=size) == len(blocks)


def test_orders_are_found_in_a_chain_beyond_the_depth_of_recursion():
    tree = tree_of(list(range(-1, 4999)))
    assert depth_first(tree) == heavy_path(tree) == breadth_first(tree) == list(range(5000))
