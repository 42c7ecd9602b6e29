"""The kernels that walk trees, in one table by the walks that they stand for."""

from __future__ import annotations

from draftwood.kernels.tree_plan.arrays import TreeArrays, Walk
from draftwood.kernels.tree_rejection import dispatch as tree_rejection
from draftwood.kernels.tree_traversal import dispatch as tree_traversal
from draftwood.strategies.verifiers.batched.on_device import DeviceForm
from draftwood.strategies.verifiers.batched.race_rows import race_walks
from draftwood.strategies.verifiers.orders.class_order import ClassOrder
from draftwood.strategies.verifiers.orders.race_order import RaceOrder
from draftwood.strategies.verifiers.orders.sibling_order import DrawnOrder, SiblingOrder


def _rejection(trees: TreeArrays) -> list[Walk | None]:
    return tree_rejection.walk(trees)


def _traversal(trees: TreeArrays) -> list[Walk | None]:
    return tree_traversal.walk(trees, leaf_first=True, classes=False)


def _class_ordered_rejection(trees: TreeArrays) -> list[Walk | None]:
    return tree_traversal.walk(trees, leaf_first=False, classes=True)


def _class_ordered_traversal(trees: TreeArrays) -> list[Walk | None]:
    return tree_traversal.walk(trees, leaf_first=True, classes=True)


KERNELS: dict[tuple[type[SiblingOrder], bool], DeviceForm] = {
    # A coin a node and one for the extra token; leaf first, the root has one too. A window has two.
    (DrawnOrder, False): DeviceForm("tree_rejection", _rejection, lambda nodes: nodes),
    (DrawnOrder, True): DeviceForm("tree_traversal", _traversal, lambda nodes: nodes + 1),
    (ClassOrder, False): DeviceForm("tree_traversal", _class_ordered_rejection, lambda nodes: 3 * nodes),
    (ClassOrder, True): DeviceForm("tree_traversal", _class_ordered_traversal, lambda nodes: 3 * nodes + 1),
    # A node of more than two children has a separate stream for its time, which one number starts.
    (RaceOrder, True): DeviceForm("tree_race", race_walks, lambda nodes: 2 * nodes + 1),
}
"""By the exact class of the siblings' order, and whether the walk is leaf first."""
