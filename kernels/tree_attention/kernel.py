"""Tree attention in Triton; README.md has the derivation.

A line is one query: one head of a key's group at one node. Logarithms are to base 2.
"""

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def absorb(
    query, keys, values, slots, seen, there, in_key, in_value, key_slot, value_slot,
    peak, total, acc, scale, softcap, DIM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One step of the online softmax, over `slots`; `there` are those that may be read."""
    d = tl.arange(0, DIM)
    key = tl.load(
        keys + slots[None, :] * key_slot + d[:, None], mask=there[None, :] & in_key[:, None], other=0.0
    )
    value = tl.load(
        values + slots[:, None] * value_slot + d[None, :], mask=there[:, None] & in_value[None, :], other=0.0
    )
    scores = tl.dot(query, key, input_precision=PRECISION) * scale
    if softcap > 0:
        # tanh by one exponential.
        scores = softcap - 2 * softcap / (tl.exp2(scores * (2 * LOG2E / softcap)) + 1)
    scores = tl.where(seen, scores * LOG2E, float("-inf"))
    higher = tl.maximum(peak, tl.max(scores, 1))
    # A line that has seen nothing yet has no finite peak.
    level = tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.exp2(scores - level[:, None])
    left = tl.exp2(peak - level)
    total = total * left + tl.sum(weights, 1)
    acc = tl.dot(weights.to(value.dtype), value, acc * left[:, None], input_precision=PRECISION)
    return higher, total, acc


@triton.jit
def finish(peak, total, acc, sink):
    """The outputs, with one more logit that has no value; 0 for a line that sees nothing."""
    top = tl.maximum(peak, sink)
    top = tl.where(top == float("-inf"), 0.0, top)
    left = tl.exp2(peak - top)
    total = total * left + tl.exp2(sink - top)
    return acc * (left / tl.where(total > 0, total, 1.0))[:, None]


@triton.jit(
    do_not_specialize=[
        "nodes", "group", "kv_heads", "columns", "words", "parts", "part_slots", "sink_heads",
    ]
)  # fmt: skip
def attend(
    queries, keys, values, bits, first, lengths, counts, at, blocks, block_counts, sinks, sums, weights,
    peaks, out, query_row, query_head, query_node, key_row, key_head, key_slot, value_row, value_head,
    value_slot, dim, value_dim, nodes, group, kv_heads, columns, words, parts, part_slots, sink_heads, scale,
    softcap,
    LINES: tl.constexpr, SLOTS: tl.constexpr, WORD: tl.constexpr, DIM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of lines over one part of the slots; see `dispatch.attend`."""
    tile, pair, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = (pair // kv_heads).to(tl.int64)
    kv_head = pair % kv_heads
    count = tl.load(counts + row)
    if tile * LINES < count * group:
        lines = tile * LINES + tl.arange(0, LINES)
        node = lines // group
        head = kv_head * group + lines % group
        real = node < count
        d = tl.arange(0, DIM)
        in_key, in_value = d < dim, d < value_dim
        query_lines = queries + row * query_row + head[:, None] * query_head + node[:, None] * query_node
        query = tl.load(query_lines + d[None, :], mask=real[:, None] & in_key[None, :], other=0.0)
        # Beyond every slot where there is no node.
        lowest = tl.load(first + row * nodes + node, mask=real, other=2147483647)
        keys += row * key_row + kv_head * key_head
        values += row * value_row + kv_head * value_head
        peak = tl.full([LINES], float("-inf"), tl.float32)
        total = tl.zeros([LINES], tl.float32)
        acc = tl.zeros([LINES, DIM], tl.float32)

        begin = tl.maximum(part * part_slots, tl.min(lowest, 0) // SLOTS * SLOTS)
        end = tl.minimum((part + 1) * part_slots, tl.load(lengths + row))
        for slot in range(begin, end, SLOTS):
            slots = slot + tl.arange(0, SLOTS)
            there = slots < end
            seen = there[None, :] & (slots[None, :] >= lowest[:, None])
            peak, total, acc = absorb(
                query, keys, values, slots, seen, there, in_key, in_value, key_slot, value_slot,
                peak, total, acc, scale, softcap, DIM, PRECISION,
            )  # fmt: skip

        if part == parts - 1:
            start = tl.load(at)
            listed = row * tl.num_programs(0) + tile
            bit = tl.arange(0, WORD)
            words_of = bits + (row * nodes + node) * words
            for i in range(0, tl.load(block_counts + listed)):
                block = tl.load(blocks + listed * words + i)
                word = tl.load(words_of + block, mask=real, other=0)
                seen = ((word[:, None] >> bit[None, :]) & 1) != 0
                column = block * WORD + bit
                peak, total, acc = absorb(
                    query, keys, values, start + column, seen, column < columns, in_key, in_value, key_slot,
                    value_slot, peak, total, acc, scale, softcap, DIM, PRECISION,
                )  # fmt: skip

        written = real[:, None] & in_value[None, :]
        if parts == 1:
            sink = tl.load(sinks + head, mask=real & (head < sink_heads), other=float("-inf")).to(tl.float32)
            out_tile = finish(peak, total, acc, sink * LOG2E)
            heads = kv_heads * group
            out_rows = out + ((row * nodes + node) * heads + head)[:, None] * value_dim + d[None, :]
            tl.store(out_rows, out_tile.to(out.dtype.element_ty), mask=written)
        else:
            line = (part.to(tl.int64) * tl.num_programs(1) + pair) * nodes * group + lines
            tl.store(sums + line[:, None] * value_dim + d[None, :], acc, mask=written)
            tl.store(weights + line, total, mask=real)
            tl.store(peaks + line, peak, mask=real)


@triton.jit(do_not_specialize=["nodes", "group", "kv_heads", "parts", "sink_heads"])
def merge(
    counts, sinks, sums, weights, peaks, out, value_dim, nodes, group, kv_heads, parts, sink_heads,
    LINES: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Put the parts of some lines together and write the outputs."""
    pair = tl.program_id(1)
    row = (pair // kv_heads).to(tl.int64)
    lines = tl.program_id(0) * LINES + tl.arange(0, LINES)
    node = lines // group
    head = pair % kv_heads * group + lines % group
    real = node < tl.load(counts + row)
    d = tl.arange(0, DIM)
    written = real[:, None] & (d < value_dim)[None, :]
    peak = tl.full([LINES], float("-inf"), tl.float32)
    total = tl.zeros([LINES], tl.float32)
    acc = tl.zeros([LINES, DIM], tl.float32)
    for part in range(0, parts):
        line = (tl.num_programs(1).to(tl.int64) * part + pair) * nodes * group + lines
        other = tl.load(peaks + line, mask=real, other=float("-inf"))
        higher = tl.maximum(peak, other)
        level = tl.where(higher == float("-inf"), 0.0, higher)
        left, more = tl.exp2(peak - level), tl.exp2(other - level)
        total = total * left + tl.load(weights + line, mask=real, other=0.0) * more
        part_sums = tl.load(sums + line[:, None] * value_dim + d[None, :], mask=written, other=0.0)
        acc = acc * left[:, None] + part_sums * more[:, None]
        peak = higher
    sink = tl.load(sinks + head, mask=real & (head < sink_heads), other=float("-inf")).to(tl.float32)
    out_tile = finish(peak, total, acc, sink * LOG2E)
    out_rows = out + ((row * nodes + node) * (kv_heads * group) + head)[:, None] * value_dim + d[None, :]
    tl.store(out_rows, out_tile.to(out.dtype.element_ty), mask=written)
