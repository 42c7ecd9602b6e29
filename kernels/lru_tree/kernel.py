"""A real-gated linear recurrence along a tree in Triton; README.md has the derivation."""

import triton
import triton.language as tl


@triton.jit(
    do_not_specialize=[
        "value_row", "value_node", "output_row", "output_column", "decay_row", "decay_node", "state_row",
        "nodes", "columns", "channels",
    ]
)  # fmt: skip
def attend(
    values, outputs, decay, state, order, lengths, out,
    value_row, value_node, output_row, output_column, decay_row, decay_node, state_row,
    nodes, columns, channels,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """The output of one node for one tile of channels; see `reference.attend`."""
    row, node = (tl.program_id(0) // nodes).to(tl.int64), tl.program_id(0) % nodes
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    within = channel < channels
    old = columns - nodes
    path = order + (row * nodes + node) * columns
    length = tl.load(lengths + row * nodes + node)
    acc = tl.zeros([CHANNELS], tl.float32)
    below = tl.zeros([CHANNELS], tl.float32)
    # The newest older column on the path, or -1 for the committed one.
    newest_old = -1
    for i in range(0, length):
        column = tl.load(path + i)
        if column >= old:
            value = tl.load(
                values + row * value_row + (column - old) * value_node + channel, mask=within, other=0.0
            )
            step = tl.load(
                decay + row * decay_row + (column - old) * decay_node + channel, mask=within, other=0.0
            )
            acc += tl.exp(below) * value.to(tl.float32)
            below += step.to(tl.float32)
        else:
            # Paths run upwards: the first of the older columns is the highest.
            newest_old = tl.maximum(newest_old, column)
    if newest_old >= 0:
        older_state = tl.load(
            outputs + row * output_row + newest_old * output_column + channel, mask=within, other=0.0
        )
    else:
        older_state = tl.load(state + row * state_row + channel, mask=within, other=0.0)
    acc += tl.exp(below) * older_state.to(tl.float32)
    tl.store(out + (row * nodes + node) * channels + channel, acc.to(out.dtype.element_ty), mask=within)
