"""Convolution along a tree, and its replay, in Triton; README.md has the derivation."""

import triton
import triton.language as tl


@triton.jit(
    do_not_specialize=[
        "input_row", "input_column", "state_row", "state_column", "weight_channel", "weight_tap",
        "window_row", "window_node", "nodes", "channels", "width", "has_bias",
    ]
)  # fmt: skip
def attend(
    inputs, state, weight, bias, window, out,
    input_row, input_column, state_row, state_column, weight_channel, weight_tap, window_row, window_node,
    nodes, channels, width, has_bias,
    NODES: tl.constexpr, CHANNELS: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """Outputs of one tile of nodes and one of channels; see `reference.attend`."""
    row = tl.program_id(0).to(tl.int64)
    node = tl.program_id(1) * NODES + tl.arange(0, NODES)
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    real, within = node < nodes, channel < channels
    inputs += row * input_row
    state += row * state_row
    acc = tl.zeros([NODES, CHANNELS], tl.float32)
    if has_bias != 0:
        acc += tl.load(bias + channel, mask=within, other=0.0).to(tl.float32)[None, :]
    for tap in tl.static_range(TAPS):
        used = real & (tl.full([NODES], tap, tl.int32) < width)
        # Places before the columns are the tail's.
        column = tl.load(window + row * window_row + node * window_node + tap, mask=used, other=0) - width + 1
        late = tl.load(
            inputs + column[:, None] * input_column + channel[None, :],
            mask=(used & (column >= 0))[:, None] & within[None, :],
            other=0.0,
        )
        early = tl.load(
            state + (column + width - 1)[:, None] * state_column + channel[None, :],
            mask=(used & (column < 0))[:, None] & within[None, :],
            other=0.0,
        )
        has = within & (tl.full([CHANNELS], tap, tl.int32) < width)
        by = tl.load(weight + channel * weight_channel + tap * weight_tap, mask=has, other=0.0)
        acc += (late.to(tl.float32) + early.to(tl.float32)) * by.to(tl.float32)[None, :]
    tl.store(
        out + (row * nodes + node[:, None]) * channels + channel[None, :],
        acc.to(out.dtype.element_ty),
        mask=real[:, None] & within[None, :],
    )


@triton.jit
def words(address, BYTES: tl.constexpr):
    """An address from a table, a multiple of 16 bytes, of numbers of 2 or 4 bytes that are moved."""
    if BYTES == 2:
        typed = address.to(tl.pointer_type(tl.int16))
    else:
        typed = address.to(tl.pointer_type(tl.int32))
    return tl.multiple_of(typed, 16)


@triton.jit(
    do_not_specialize=[
        "input_row", "input_column", "state_row", "state_column", "kept_row", "columns", "rows", "channels",
        "tail",
    ]
)  # fmt: skip
def replay(
    plan, kept, input_row, input_column, state_row, state_column, kept_row, columns, rows, channels, tail,
    BYTES: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """One tile of channels of the new tail of one row of one layer; see `dispatch.replay_all`."""
    about = plan + tl.program_id(0) // rows * 3
    row = (tl.program_id(0) % rows).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    within = channel < channels
    inputs = words(tl.load(about), BYTES) + row * input_row
    state = words(tl.load(about + 1), BYTES) + row * state_row
    out = words(tl.load(about + 2), BYTES) + row * tail * channels
    kept += row * kept_row
    total = 0
    for before in range(0, columns, COLUMNS):
        column = columns - before - COLUMNS + tl.arange(0, COLUMNS)
        seen = tl.load(kept + column, mask=column >= 0, other=0).to(tl.int32)
        behind = total + tl.cumsum(seen, 0, reverse=True) - seen
        total += tl.sum(seen, 0)
        stays = (seen != 0) & (behind < tail)
        moved = stays[:, None] & within[None, :]
        data = tl.load(inputs + column[:, None] * input_column + channel[None, :], mask=moved)
        tl.store(out + (tail - 1 - behind)[:, None] * channels + channel[None, :], data, mask=moved)
    slot = tl.arange(0, TAPS)
    moved = (slot + total < tail)[:, None] & within[None, :]
    data = tl.load(state + (slot + total)[:, None] * state_column + channel[None, :], mask=moved)
    tl.store(out + slot[:, None] * channels + channel[None, :], data, mask=moved)
