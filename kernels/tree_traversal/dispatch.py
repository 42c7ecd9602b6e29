"""Launches traversal and class order down trees, or says why the kernel does not."""

from __future__ import annotations

import torch
from torch import Tensor

from draftwood.kernels.configuration import Configuration
from draftwood.kernels.transfer import sent
from draftwood.kernels.tree_plan.arrays import TreeArrays, Walk, links, walks_of

PROGRAMS = 32
"""At most for a row."""

SPAN = 4096
"""Tokens that a program reads in a pass, or more where the programs would be too many."""

_POINTERS = {"plan": "*i64", "numbers": "*fp64", "shares": "*fp64", "tally": "*i64"}
_KERNEL = "draftwood.kernels.tree_traversal.kernel"

CONFIGURATIONS = tuple(
    configuration
    for classes, name in ((False, "drawn order"), (True, "class order"))
    for configuration in (
        Configuration(
            name=name,
            kernel=f"{_KERNEL}:start",
            types=_POINTERS | {"out": "*i32", "lines": "i32", "vocab": "i32", "leaf_first": "i32"},
            constants={"BLOCK": 1024, "CLASSES": classes},
            warps=8,
        ),
        Configuration(
            name=name,
            kernel=f"{_KERNEL}:step",
            types=_POINTERS
            | {"partials": "*fp64", "out": "*i32"}
            | dict.fromkeys(("lines", "vocab", "span", "leaf_first"), "i32"),
            constants={"BLOCK": 1024, "PROGRAMS": PROGRAMS, "CLASSES": classes},
            warps=8,
        ),
    )
)

NUMBERS, PARTS, BUCKETS = 28, 8, 64
"""As in the kernel: numbers of a node, partial results of a program, buckets of a class."""


def walk(trees: TreeArrays, *, leaf_first: bool, classes: bool) -> list[Walk | None]:
    """Judge all rows, with one copy to the device and one result read back.

    Args:
        trees: of all rows.
        leaf_first: whether a child's subtree is settled before the child (traversal) or after it (rejection).
        classes: whether siblings without replacement are tried in class order.

    Returns:
        For every row its walk; None where a distribution on the path is none or the uniforms are used up, as
        the plain verifier will say when it judges the row.
    """
    begin, step = CONFIGURATIONS[2 * classes : 2 * classes + 2]
    rows, lines, device = len(trees.counts), trees.lines, trees.device
    span = SPAN * -(-trees.vocab // (SPAN * PROGRAMS))
    programs = -(-trees.vocab // span)

    def empty(*size: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device)

    out = empty(rows, 5 + lines, dtype=torch.int32)
    common = {
        "plan": sent(trees.plan(spare=2), device),
        "numbers": empty(rows, lines, NUMBERS),
        "shares": empty(rows, lines if classes else 1, BUCKETS),
        "tally": empty(rows, 4, BUCKETS, dtype=torch.int64),
        "out": out,
        "lines": lines,
        "vocab": trees.vocab,
        "leaf_first": int(leaf_first),
    }
    begin.launch((rows, trees.tokens.shape[1]), **common)
    partials = empty(rows, PROGRAMS, PARTS)
    for _ in range(1 if programs == 1 else passes(trees, classes=classes)):
        step.launch((rows, programs), **common, partials=partials, span=span)
    return walks_of(out)


def passes(trees: TreeArrays, *, classes: bool) -> int:
    """The most passes over the vocabulary that any row can need.

    A child fails at most once, a window is opened for every sibling but the first, and a token is drawn.
    """
    children = int(trees.counts.max()) - 1
    if not classes:
        return children + 1
    has_earlier_sibling = int((links(trees.parents)[1] > 0).sum(1).max())
    return children + has_earlier_sibling + 1
