"""TokenTree: shape, masks and the errors of malformed trees."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood import InvalidTree, TokenTree, TreeBuilder, WithReplacement
from draftwood.trees.tree import ancestor_mask


@st.composite
def parent_lists(draw, max_size=70):
    size = draw(st.integers(1, max_size))
    return [-1] + [draw(st.integers(0, node - 1)) for node in range(1, size)]


def tree_of(parents):
    return TokenTree(tokens=torch.arange(len(parents)) % 7, parents=torch.tensor(parents))


def ancestors(parents, node):
    """The oracle: walk up, node by node."""
    collected = set()
    while node >= 0:
        collected.add(node)
        node = parents[node]
    return collected


@given(parent_lists())
def test_masks_depths_and_paths_agree_with_walking_up(parents):
    tree = tree_of(parents)
    for node in range(len(parents)):
        above = ancestors(parents, node)
        assert set(tree.ancestor_mask[node].nonzero().flatten().tolist()) == above
        assert tree.path(node) == sorted(above)
        assert int(tree.depths[node]) == len(above) - 1
    assert tree.depth == int(tree.depths.max())
    assert tree.leaves == [v for v in range(len(parents)) if v not in parents]


@given(st.lists(parent_lists(20), min_size=2, max_size=3))
def test_ancestor_mask_of_a_batch_is_that_of_its_rows(rows):
    width = max(map(len, rows))
    padded = torch.tensor([row + [-1] * (width - len(row)) for row in rows])
    batch = ancestor_mask(padded)
    for row, mask in zip(rows, batch, strict=True):
        assert torch.equal(mask[: len(row), : len(row)], tree_of(row).ancestor_mask)


@given(parent_lists(30), st.integers(0, 5))
def test_truncation_drops_the_deep_nodes_and_their_laws(parents, depth):
    tree = tree_of(parents)
    laws = {v: WithReplacement(torch.ones(7) / 7) for v in range(len(tree)) if tree.children(v)}
    cut = TokenTree(tree.tokens, tree.parents, laws).truncated(depth)
    kept = [v for v in range(len(parents)) if int(tree.depths[v]) <= depth]
    assert len(cut) == len(kept)
    paths = [cut.tokens[cut.path(v)].tolist() for v in range(len(cut))]
    assert paths == [tree.tokens[tree.path(v)].tolist() for v in kept]
    assert set(cut.proposals) == {v for v in range(len(cut)) if cut.children(v)}


@given(parent_lists(20), st.integers(0, 5))
def test_padding_behind_the_valid_nodes_is_not_part_of_the_tree(parents, extra):
    padded = TokenTree(
        torch.zeros(len(parents) + extra, dtype=torch.int64),
        torch.tensor(parents + [0] * extra),
        size=len(parents),
    )
    assert len(padded) == len(parents)
    assert torch.equal(padded.ancestor_mask, tree_of(parents).ancestor_mask)
    assert padded.leaves == tree_of(parents).leaves


@pytest.mark.parametrize(
    ("tokens", "parents", "message"),
    [
        ([1, 2], [-1, 1], "Node 1 has parent 1"),
        ([1, 2, 3], [-1, 2, 0], "Node 1 has parent 2"),
        ([1, 2], [-1, -1], "Node 1 has parent -1"),
        ([1, 2], [0, 0], "root's parent is 0"),
        ([1, 9], [-1, 0], "Node 1 holds token 9, outside the vocabulary of 5"),
        ([-1, 2], [-1, 0], "Node 0 holds token -1"),
        ([1], [-1, 0], "one length"),
    ],
)
def test_malformed_trees_are_refused_by_name(tokens, parents, message):
    tree = TokenTree(
        torch.tensor(tokens), torch.tensor(parents), depths=torch.zeros(len(parents), dtype=torch.int64)
    )
    with pytest.raises(InvalidTree, match=message):
        tree.validated(5)


def test_the_builder_numbers_requests_in_the_order_of_asking():
    tree = TreeBuilder(4)
    a, b = tree.add(0, 1), tree.add(0, 2)
    assert tree.request([0]).parents.tolist() == [-1]
    c = tree.add(b, 3)
    request = tree.request([b])
    assert (request.tokens.tolist(), request.parents.tolist()) == ([2], [0])
    request = tree.request([c, a])
    assert (request.tokens.tolist(), request.parents.tolist()) == ([3, 1], [1, 0])
