"""Mamba-1 along a tree, and its replay, in Triton; README.md has the derivation."""

import triton
import triton.language as tl

from draftwood.kernels.mamba2_tree.kernel import pointer


@triton.jit
def taken_in(
    keys, values, steps, column, key_column, value_column, step_column, channel, within, n, size, rate, below
):
    """Returns what a column adds to a state reached `below` steps later, and the steps of its input."""
    value = tl.load(values + column * value_column + channel, mask=within, other=0.0).to(tl.float32)
    key = tl.load(keys + column * key_column + n, mask=n < size, other=0.0).to(tl.float32)
    step = tl.load(steps + column * step_column + channel, mask=within, other=0.0)
    return tl.exp(below[:, None] * rate) * value[:, None] * key[None, :], below + step


@triton.jit(
    do_not_specialize=[
        "query_row", "query_node", "query_group", "key_row", "key_column", "key_group", "value_row",
        "value_column", "step_row", "step_column", "rate_channel", "state_row", "state_channel",
        "nodes", "columns", "channels", "size",
    ]
)  # fmt: skip
def attend(
    queries, keys, values, steps, rates, state, order, lengths, out,
    query_row, query_node, query_group, key_row, key_column, key_group, value_row, value_column,
    step_row, step_column, rate_channel, state_row, state_channel, nodes, columns, channels, size,
    CHANNELS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The output of one node for one tile of a group's channels; see `reference.attend`."""
    row, node = (tl.program_id(0) // nodes).to(tl.int64), tl.program_id(0) % nodes
    group = tl.program_id(1)
    several = channels // tl.num_programs(1)
    in_group = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    within, channel, n = in_group < several, group * several + in_group, tl.arange(0, SIZE)
    inside = within[:, None] & (n < size)[None, :]
    keys += row * key_row + group * key_group
    values += row * value_row
    steps += row * step_row
    rate = tl.load(rates + channel[:, None] * rate_channel + n[None, :], mask=inside, other=0.0)
    acc = tl.zeros([CHANNELS, SIZE], tl.float32)
    below = tl.zeros([CHANNELS], tl.float32)
    path = order + (row * nodes + node) * columns
    for i in range(0, tl.load(lengths + row * nodes + node)):
        more, below = taken_in(
            keys, values, steps, tl.load(path + i), key_column, value_column, step_column, channel, within, n,
            size, rate, below,
        )  # fmt: skip
        acc += more
    state_tile = tl.load(
        state + row * state_row + channel[:, None] * state_channel + n[None, :], mask=inside, other=0.0
    )
    acc += tl.exp(below[:, None] * rate) * state_tile
    query = tl.load(
        queries + row * query_row + node * query_node + group * query_group + n, mask=n < size, other=0.0
    )
    out_tile = tl.sum(acc * query.to(tl.float32)[None, :], 1)
    tl.store(out + (row * nodes + node) * channels + channel, out_tile.to(out.dtype.element_ty), mask=within)


@triton.jit(
    do_not_specialize=[
        "key_row", "key_column", "key_group", "value_row", "value_column", "step_row", "step_column",
        "rate_channel", "state_row", "state_channel", "kept_row", "columns", "rows", "channels", "size",
    ]
)  # fmt: skip
def replay(
    plan, kept,
    key_row, key_column, key_group, value_row, value_column, step_row, step_column, rate_channel, state_row,
    state_channel, kept_row, columns, rows, channels, size,
    TYPE: tl.constexpr, CHANNELS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The new state of one tile of a group's channels of one row of one layer; see `dispatch.replay_all`."""
    about = plan + tl.program_id(0) // rows * 6
    row = (tl.program_id(0) % rows).to(tl.int64)
    group = tl.program_id(1)
    several = channels // tl.num_programs(1)
    in_group = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    within, channel, n = in_group < several, group * several + in_group, tl.arange(0, SIZE)
    inside = within[:, None] & (n < size)[None, :]
    keys = pointer(tl.load(about), TYPE) + row * key_row + group * key_group
    values = pointer(tl.load(about + 1), TYPE) + row * value_row
    steps = pointer(tl.load(about + 2), "fp32") + row * step_row
    rates = pointer(tl.load(about + 3), "fp32")
    state = pointer(tl.load(about + 4), "fp32") + row * state_row
    out = pointer(tl.load(about + 5), "fp32") + row * channels * size
    rate = tl.load(rates + channel[:, None] * rate_channel + n[None, :], mask=inside, other=0.0)
    acc = tl.zeros([CHANNELS, SIZE], tl.float32)
    below = tl.zeros([CHANNELS], tl.float32)
    for before in range(0, columns):
        column = columns - 1 - before
        if tl.load(kept + row * kept_row + column) != 0:
            more, below = taken_in(
                keys, values, steps, column, key_column, value_column, step_column, channel, within, n, size,
                rate, below,
            )  # fmt: skip
            acc += more
    state_tile = tl.load(state + channel[:, None] * state_channel + n[None, :], mask=inside, other=0.0)
    acc += tl.exp(below[:, None] * rate) * state_tile
    tl.store(out + channel[:, None] * size + n[None, :], acc, mask=inside)
