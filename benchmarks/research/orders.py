"""Orders of a tree's nodes in the memory of a pass, and the blocks of the ancestor mask that each leaves."""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn.functional import pad

from draftwood import TokenTree


def blocks_of(tree: TokenTree, order: Sequence[int], *, size: int = 32) -> int:
    """Blocks of `size` by `size` of the ancestor mask that hold anything; node `order[i]` comes i-th.

    That is what a block-sparse attention pass over only the tree computes. `order` is any permutation of
    the nodes. Source: DySpec, appendix C, definition 1 and table 5.
    """
    blocks = -(-len(tree) // size)
    spare = blocks * size - len(tree)
    mask = pad(tree.ancestor_mask[order][:, order], (0, spare, 0, spare))
    return int(mask.view(blocks, size, blocks, size).any(3).any(1).sum())


def breadth_first(tree: TokenTree) -> list[int]:
    """Nodes level by level, siblings in drawn order."""
    order = [0]
    for node in order:
        order.extend(tree.children(node))
    return order


def depth_first(tree: TokenTree) -> list[int]:
    """Nodes in preorder, siblings in drawn order."""
    order, stack = [], [0]
    while stack:
        node = stack.pop()
        order.append(node)
        stack.extend(reversed(tree.children(node)))
    return order


def heavy_path(tree: TokenTree) -> list[int]:
    """Nodes in preorder with the child of the largest subtree first (DySpec, appendix C).

    Long paths then lie together, which keeps the blocks of the ancestor mask full. It may exchange siblings.
    """
    weights = [1] * len(tree)
    parents = tree.parents.tolist()
    for node in range(len(tree) - 1, 0, -1):
        weights[parents[node]] += weights[node]
    order, stack = [], [0]
    while stack:
        node = stack.pop()
        order.append(node)
        stack.extend(sorted(tree.children(node), key=lambda child: weights[child]))
    return order
