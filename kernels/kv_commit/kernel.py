"""A commit of KV rows in Triton; README.md has the derivation."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["buffers", "moved", "arenas"])
def move(plan, buffers, moved, arenas, MOVES: tl.constexpr, WIDTH: tl.constexpr):
    """Move `WIDTH` words of every slot of one head of one moved row of one buffer; see `dispatch.move`."""
    arena = tl.program_id(0) // (buffers * moved)
    buffer = tl.program_id(0) // moved % buffers
    about = plan + arena * 8
    head = tl.program_id(1)
    words = tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    width = tl.multiple_of(tl.load(about + 3), 8)
    if (buffer < tl.load(about + 1)) & (head < tl.load(about + 2)):
        lists = plan + arenas * 8
        this = lists + tl.program_id(0) % moved * 3
        row, begin, end = tl.load(this), tl.load(this + 1), tl.load(this + 2)
        moves = begin + tl.arange(0, MOVES)
        sources = tl.load(lists + moved * 3 + 2 * moves, mask=moves < end, other=0)
        targets = tl.load(lists + moved * 3 + 2 * moves + 1, mask=moves < end, other=0)
        data = tl.load(about).to(tl.pointer_type(tl.int32))
        data += buffer * tl.load(about + 4) + row * tl.load(about + 5) + head * tl.load(about + 6)
        # A multiple of 16 elements of 2 bytes or more.
        stride = tl.multiple_of(tl.load(about + 7), 8)
        data = tl.multiple_of(data, 16)
        in_range = (moves < end)[:, None] & (words < width)[None, :]
        slot_data = tl.load(data + (sources * stride)[:, None] + words[None, :], mask=in_range)
        # A slot that one thread writes may be one that another has yet to read.
        tl.debug_barrier()
        tl.store(data + (targets * stride)[:, None] + words[None, :], slot_data, mask=in_range)
