"""The gated delta rule along a tree in Triton: the deltas of nodes; README.md has the derivation."""

import triton
import triton.language as tl

from draftwood.kernels.mamba2_tree.kernel import products, seen_below


@triton.jit
def substitute(below, right_side, index, count):
    """Solve `(1 + L) x = right_side` from the first line down; `below` is L, strictly lower, transposed."""
    for i in range(1, count):
        line = tl.sum(tl.where(index[None, :] == i, below, 0.0), 1)
        solved = tl.sum(line[:, None] * right_side, 0)
        right_side -= tl.where(index[:, None] == i, solved[None, :], 0.0)
    return right_side


@triton.jit(
    do_not_specialize=[
        "rate_row", "rate_node", "decay_row", "decay_column", "mask_row", "mask_node", "nodes", "columns",
        "heads", "groups",
    ]
)  # fmt: skip
def solve(
    keys, values, out, rates, decay, state, visible,
    key_row, key_column, key_group, value_row, value_column, value_head, state_row, state_head, state_dim,
    dim, size, rate_row, rate_node, decay_row, decay_column, mask_row, mask_node,
    nodes, columns, heads, groups,
    NODES: tl.constexpr, COLUMNS: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the deltas of all new nodes in one tile of a head's dimensions, after the older ones in `out`."""
    row = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    p = tl.program_id(1) * DIM + tl.arange(0, DIM)
    within = p < dim
    keys += row * key_row + head // (heads // groups) * key_group
    values += row * value_row + head * value_head
    rates += row * rate_row + head
    state += row * state_row + head * state_head
    decay += row * decay_row + head
    visible += row * mask_row
    out += (row * columns * heads + head) * dim
    index = tl.arange(0, NODES)
    for start in range(0, nodes, NODES):
        node = start + index
        real = node < nodes
        first = columns - nodes + start
        last = columns - nodes + tl.minimum(nodes, start + NODES)
        columns_here = first + index
        # The tile's own columns come first, as sums of decays run down from the nodes.
        related, fade, total = seen_below(
            visible,
            decay,
            decay_column,
            columns_here,
            last,
            node,
            mask_node,
            real,
            tl.zeros([NODES], tl.float32),
        )
        key_offset = columns_here * key_column
        inner = products(keys, keys, key_offset, key_offset, real, real, size, SIZE, PRECISION)
        inner = tl.where(related & (index[:, None] != index[None, :]), inner * tl.exp(fade), 0.0)
        acc = tl.zeros([NODES, DIM], tl.float32)
        for before in range(0, first, COLUMNS):
            column = first - before - COLUMNS + tl.arange(0, COLUMNS)
            there = column >= 0
            seen, below, total = seen_below(
                visible, decay, decay_column, column, first + 1, node, mask_node, real, total
            )
            if tl.max(seen.to(tl.int32)) > 0:
                weights = products(
                    keys, keys, key_offset, column * key_column, real, there, size, SIZE, PRECISION
                )
                weights = tl.where(seen, weights * tl.exp(below), 0.0)
                delta = tl.load(
                    out + column[:, None] * heads * dim + p[None, :],
                    mask=there[:, None] & within[None, :],
                    other=0.0,
                )
                acc = tl.dot(weights, delta.to(tl.float32), acc, input_precision=PRECISION)
        if first % COLUMNS == 0:
            # No block began before column 0, whose own step is yet to come.
            seen_first = tl.load(visible + node * mask_node, mask=real, other=0) != 0
            total += tl.where(seen_first, tl.load(decay), 0.0)
        read = products(keys, state, key_offset, p * state_dim, real, within, size, SIZE, PRECISION)
        value = tl.load(
            values + node[:, None] * value_column + p[None, :],
            mask=real[:, None] & within[None, :],
            other=0.0,
        )
        rate = tl.load(rates + node * rate_node, mask=real, other=0.0)
        right_side = rate[:, None] * (value.to(tl.float32) - read * tl.exp(total)[:, None] - acc)
        delta_tile = substitute(tl.trans(rate[:, None] * inner), right_side, index, last - first)
        tl.store(
            out + columns_here[:, None] * heads * dim + p[None, :],
            delta_tile.to(out.dtype.element_ty),
            mask=real[:, None] & within[None, :],
        )
        # The next tile reads what other threads of this program wrote.
        tl.debug_barrier()
