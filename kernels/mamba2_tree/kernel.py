"""Mamba-2 along a tree, and its replay, in Triton; README.md has the derivation."""

import triton
import triton.language as tl


@triton.jit
def seen_below(visible, decay, step, column, last, node, mask_node, real, later):
    """Returns which columns nodes see, and the decay that each has on its way to the node that reads it.

    `later` is the decay of the columns after this block, and after the column that follows it. Every sum only
    has columns that are seen, and leaves out the column's own step without subtracting it.
    """
    seen = (
        tl.load(
            visible + node[:, None] * mask_node + column[None, :],
            mask=real[:, None] & (column >= 0)[None, :] & (column < last)[None, :],
            other=0,
        )
        != 0
    )
    follows = (column >= -1) & (column + 1 < last)
    next_seen = (
        tl.load(
            visible + node[:, None] * mask_node + column[None, :] + 1,
            mask=real[:, None] & follows[None, :],
            other=0,
        )
        != 0
    )
    steps = tl.load(decay + (column + 1) * step, mask=follows, other=0.0)
    steps = tl.where(next_seen, steps[None, :], 0.0)
    below = later[:, None] + tl.cumsum(steps, 1, reverse=True)
    return seen, below, later + tl.sum(steps, 1)


@triton.jit
def products(
    left, right, left_offset, right_offset, real, there, size, SIZE: tl.constexpr, PRECISION: tl.constexpr
):
    """`[left, right]`: products of vectors of `size`, one by one of which `real` and `there` are."""
    acc = tl.zeros([left_offset.shape[0], right_offset.shape[0]], tl.float32)
    for start in range(0, size, SIZE):
        k = start + tl.arange(0, SIZE)
        a = tl.load(
            left + left_offset[:, None] + k[None, :], mask=real[:, None] & (k < size)[None, :], other=0.0
        )
        b = tl.load(
            right + right_offset[None, :] + k[:, None], mask=there[None, :] & (k < size)[:, None], other=0.0
        )
        acc = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision=PRECISION)
    return acc


@triton.jit(
    do_not_specialize=[
        "decay_row", "decay_column", "mask_row", "mask_node", "nodes", "columns", "heads", "groups",
    ]
)  # fmt: skip
def attend(
    queries, keys, values, decay, state, visible, out,
    query_row, query_node, query_group, key_row, key_column, key_group, value_row, value_column, value_head,
    state_row, state_head, state_dim, dim, size,
    decay_row, decay_column, mask_row, mask_node, nodes, columns, heads, groups,
    NODES: tl.constexpr, COLUMNS: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Outputs of one tile of nodes and one of the head's dimensions; see `reference.attend`."""
    row = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    group = head // (heads // groups)
    node = tl.program_id(1) * NODES + tl.arange(0, NODES)
    p = tl.program_id(2) * DIM + tl.arange(0, DIM)
    real, within = node < nodes, p < dim
    queries += row * query_row + group * query_group
    keys += row * key_row + group * key_group
    values += row * value_row + head * value_head
    state += row * state_row + head * state_head
    decay += row * decay_row + head
    visible += row * mask_row
    # No node sees a column after its own.
    last = columns - nodes + tl.minimum(nodes, (tl.program_id(1) + 1) * NODES)
    total = tl.zeros([NODES], tl.float32)
    acc = tl.zeros([NODES, DIM], tl.float32)
    for before in range(0, last, COLUMNS):
        # The last block ends with the last column, the first may begin before column 0.
        column = last - before - COLUMNS + tl.arange(0, COLUMNS)
        there = column >= 0
        seen, below, total = seen_below(
            visible, decay, decay_column, column, last, node, mask_node, real, total
        )
        if tl.max(seen.to(tl.int32)) > 0:
            weights = products(
                queries, keys, node * query_node, column * key_column, real, there, size, SIZE, PRECISION
            )
            weights = tl.where(seen, weights * tl.exp(below), 0.0)
            value = tl.load(
                values + column[:, None] * value_column + p[None, :],
                mask=there[:, None] & within[None, :],
                other=0.0,
            )
            acc = tl.dot(weights, value.to(tl.float32), acc, input_precision=PRECISION)
    if last % COLUMNS == 0:
        # No block began before column 0, whose own step is yet to come.
        next_seen = tl.load(visible + node * mask_node, mask=real, other=0) != 0
        total += tl.where(next_seen, tl.load(decay), 0.0)
    read = (
        products(queries, state, node * query_node, p * state_dim, real, within, size, SIZE, PRECISION)
        * tl.exp(total)[:, None]
    )
    offset = ((row * nodes + node[:, None]) * heads + head) * dim + p[None, :]
    tl.store(out + offset, (acc + read).to(out.dtype.element_ty), mask=real[:, None] & within[None, :])


@triton.jit
def pointer(address, TYPE: tl.constexpr):
    """An address from a table, a multiple of 16 bytes."""
    if TYPE == "fp32":
        typed = address.to(tl.pointer_type(tl.float32))
    elif TYPE == "fp16":
        typed = address.to(tl.pointer_type(tl.float16))
    else:
        typed = address.to(tl.pointer_type(tl.bfloat16))
    return tl.multiple_of(typed, 16)


@triton.jit(do_not_specialize=["decay_row", "decay_column", "kept_row", "columns", "rows", "heads", "groups"])
def replay(
    plan, kept,
    key_row, key_column, key_group, value_row, value_column, value_head, state_row, state_head, state_dim,
    dim, size, decay_row, decay_column, kept_row, columns, rows, heads, groups,
    TYPE: tl.constexpr, COLUMNS: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of the new state of one head of one row of one layer; see `dispatch.replay_all`."""
    about = plan + tl.program_id(0) // (rows * heads) * 5
    row = (tl.program_id(0) // heads % rows).to(tl.int64)
    head = tl.program_id(0) % heads
    p = tl.program_id(1) * DIM + tl.arange(0, DIM)
    n = tl.program_id(2) * SIZE + tl.arange(0, SIZE)
    keys = pointer(tl.load(about), TYPE) + row * key_row + head // (heads // groups) * key_group
    values = pointer(tl.load(about + 1), TYPE) + row * value_row + head * value_head
    decay = pointer(tl.load(about + 2), "fp32") + row * decay_row + head
    state = pointer(tl.load(about + 3), "fp32") + row * state_row + head * state_head
    out = pointer(tl.load(about + 4), "fp32") + (row * heads + head) * dim * size
    kept += row * kept_row
    total = 0.0
    acc = tl.zeros([DIM, SIZE], tl.float32)
    for before in range(0, columns, COLUMNS):
        # As in `seen_below`, for one path.
        column = columns - before - COLUMNS + tl.arange(0, COLUMNS)
        seen = tl.load(kept + column, mask=column >= 0, other=0) != 0
        follows = (column >= -1) & (column + 1 < columns)
        next_seen = tl.load(kept + column + 1, mask=follows, other=0) != 0
        steps = tl.load(decay + (column + 1) * decay_column, mask=next_seen, other=0.0)
        below = total + tl.cumsum(steps, 0, reverse=True)
        total += tl.sum(steps, 0)
        if tl.max(seen.to(tl.int32), 0) > 0:
            weights = tl.where(seen, tl.exp(below), 0.0)
            value = tl.load(
                values + column[None, :] * value_column + p[:, None],
                mask=seen[None, :] & (p < dim)[:, None],
                other=0.0,
            )
            key = tl.load(
                keys + column[:, None] * key_column + n[None, :],
                mask=seen[:, None] & (n < size)[None, :],
                other=0.0,
            )
            weighted = value.to(tl.float32) * weights[None, :]
            acc = tl.dot(weighted, key.to(tl.float32), acc, input_precision=PRECISION)
    if (columns % COLUMNS == 0) & (tl.load(kept) != 0):
        total += tl.load(decay)
    inside = (p < dim)[:, None] & (n < size)[None, :]
    state_tile = tl.load(state + p[:, None] * state_dim + n[None, :], mask=inside)
    tl.store(out + p[:, None] * size + n[None, :], state_tile * tl.exp(total) + acc, mask=inside)
