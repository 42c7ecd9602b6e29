"""Launches race verification down trees, or says why the kernels do not."""

from __future__ import annotations

from draftwood.kernels.configuration import Configuration
from draftwood.kernels.tree_plan.arrays import Floats, TreeArrays, Walk, walks_of
from draftwood.kernels.tree_race.rounds import DeviceTrees

PROGRAMS = 32
"""At most for a vocabulary."""

MOST = 16
"""Children of a node."""

_POINTERS = {
    "plan": "*i64",
    "inner": "*i64",
    "laws": "*fp64",
    "numbers": "*fp64",
    "drafts": "*fp32",
    "targets": "*fp32",
    "others": "*fp32",
    "factors": "*fp64",
    "counts": "*i64",
    "rests": "*fp64",
    "beside_top": "*fp64",
    "tokens": "*i64",
    "columns": "*fp64",
    "keys": "*fp64",
    "norms": "*fp64",
    "orders": "*i64",
    "again": "*i64",
    "scratch": "*fp64",
    "flows": "*fp64",
    "places": "*i32",
    "sums": "*fp64",
    "set_sums": "*fp64",
    "spares": "*fp64",
    "left": "*fp64",
    "heights": "*fp64",
    "out": "*i32",
}


def _configuration(name: str, arguments: str, *, warps: int = 8, block: int | None = 1024) -> Configuration:
    constants = {"PROGRAMS": PROGRAMS} | ({} if block is None else {"BLOCK": block})
    return Configuration(
        name="any",
        kernel=f"draftwood.kernels.tree_race.kernel:{name}",
        types={argument: _POINTERS.get(argument, "i32") for argument in arguments.split()},
        constants=constants,
        warps=warps,
    )


CONFIGURATIONS = (
    _configuration("look", "plan inner laws drafts targets lines vocab span"),
    _configuration("light", "others factors counts sums vocab span"),
    _configuration(
        "weigh",
        "drafts targets tokens factors counts beside_top sums columns keys norms size vocab programs",
    ),
    _configuration(
        "allow",
        "plan inner laws numbers counts rests tokens columns orders again scratch flows places sums set_sums "
        "norms first lines size programs light_programs height",
        block=512,  # of 1024 some registers spill
    ),
    _configuration("spare", "plan inner numbers spares lines vocab span"),
    _configuration("walk", "plan numbers spares out lines programs", warps=1, block=None),
    _configuration("leave", "plan inner numbers tokens flows out left heights lines vocab span size"),
    _configuration("choose", "plan out left heights lines vocab span programs"),
)


def walk(trees: TreeArrays, waits: Floats) -> list[Walk | None]:
    """Judge all rows, with one copy to the device and one result read back.

    Args:
        trees: of all rows; several children of a node, at most `MOST`, are all drawn without replacement and
            differ.
        waits: exponential times of rate 1 for every node of more than two children, `[rows, nodes, MOST + 1]`
            of which a node uses one for each child and one more.

    Returns:
        For every row its walk; None where a distribution is none, where numbers leave their range, or where
        the uniforms are used up: the plain verifier then judges the row, and may say what is wrong.
    """
    together = DeviceTrees.of(trees, waits, kernels={one.kernel.split(":")[1]: one for one in CONFIGURATIONS})
    together.offer()
    together.allow()
    return walks_of(together.judge())
