"""The programs' knowledge of a row's tree: lines of the plan, and numbers of every node, in Triton."""

import triton
import triton.language as tl

FIXED = tl.constexpr(0)
FULL = tl.constexpr(1)
REMAINING = tl.constexpr(2)

# Columns of the plan, and integers of a row's state after its lines.
LINE = tl.constexpr(8)
TOKEN = tl.constexpr(0)
FIRST_CHILD = tl.constexpr(1)
NEXT_SIBLING = tl.constexpr(2)
KIND = tl.constexpr(3)
LAW = tl.constexpr(4)
TARGET = tl.constexpr(5)
UNIFORM = tl.constexpr(6)
PARENT = tl.constexpr(7)

NODE = tl.constexpr(0)
CHILD = tl.constexpr(1)
USED = tl.constexpr(2)
PHASE = tl.constexpr(3)
ARRIVED = tl.constexpr(4)

# Numbers of a node.
NUMBERS = tl.constexpr(28)
SOUND = tl.constexpr(0)  # whether the law of its first child is a distribution
ALLOWANCE = tl.constexpr(1)
SCALE = tl.constexpr(2)
TOTAL = tl.constexpr(3)  # what the law has left of which its next child is drawn
TOP = tl.constexpr(4)  # class order: the likeliest token of that
REST = tl.constexpr(5)  # and the sum of the others
WAITING = tl.constexpr(6)  # the child that waits, 0 for none
LAST = tl.constexpr(7)  # the last child that was looked at
FIRST_TRIED = tl.constexpr(8)
LAST_TRIED = tl.constexpr(9)
# Numbers of a child that was tried.
ALPHA = tl.constexpr(10)  # how many times its law was taken off; 0 where nothing would have been left
NEXT_TRIED = tl.constexpr(11)
WINDOW = tl.constexpr(12)  # the next sibling in its window, which numbers the window; 0 for none
W_SCALE = tl.constexpr(13)  # when its window was opened
W_TOTAL = tl.constexpr(14)
W_TOP = tl.constexpr(15)
W_REST = tl.constexpr(16)
BETTER = tl.constexpr(17)
WORSE = tl.constexpr(18)
BETTER_TOP = tl.constexpr(19)
WORSE_TOP = tl.constexpr(20)
STAYED = tl.constexpr(21)
CAME = tl.constexpr(22)
BELONGS = tl.constexpr(23)
SIZE = tl.constexpr(24)  # of the second law before it is normalised


@triton.jit
def entry(plan, node, column):
    return tl.load(plan + node * LINE + column)


@triton.jit
def number(numbers, node, field):
    return tl.load(numbers + node * NUMBERS + field)


@triton.jit
def keep(numbers, node, field, value):
    tl.store(numbers + node * NUMBERS + field, value)


@triton.jit
def child_number(numbers, node, field):
    """A number that is a node or a token."""
    return tl.load(numbers + node * NUMBERS + field).to(tl.int64)


@triton.jit
def weights(address, token, inside):
    """fp32 weights of tokens as float64; rows of odd vocabularies are aligned to nothing."""
    mass = tl.load(address.to(tl.pointer_type(tl.float32)) + token, mask=inside & (address != 0), other=0.0)
    return mass.to(tl.float64)


@triton.jit
def uniform(plan, used):
    return entry(plan, used, UNIFORM).to(tl.float64, bitcast=True)
