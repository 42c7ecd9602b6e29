"""The kernels that judge trees, by the verifiers whose rules they follow."""

from __future__ import annotations

from draftwood.kernels.tree_plan.arrays import TreeArrays, Walk
from draftwood.kernels.tree_race import dispatch as tree_race
from draftwood.kernels.tree_rejection import dispatch as tree_rejection
from draftwood.kernels.tree_traversal import dispatch as tree_traversal
from draftwood.strategies.verifiers.on_device import DeviceForm
from draftwood.strategies.verifiers.race_rows import race_walks


def _rejection(trees: TreeArrays) -> list[Walk | None]:
    return tree_rejection.walk(trees)


def _traversal(trees: TreeArrays) -> list[Walk | None]:
    return tree_traversal.walk(trees, leaf_first=True, classes=False)


def _class_ordered_rejection(trees: TreeArrays) -> list[Walk | None]:
    return tree_traversal.walk(trees, leaf_first=False, classes=True)


def _class_ordered_traversal(trees: TreeArrays) -> list[Walk | None]:
    return tree_traversal.walk(trees, leaf_first=True, classes=True)


# A coin a node and one for the extra token; going by leaves the root has one too. A window has two.
REJECTION = DeviceForm(tree_rejection.serves, _rejection, lambda nodes: nodes)
TRAVERSAL = DeviceForm(tree_traversal.serves, _traversal, lambda nodes: nodes + 1)
CLASS_ORDERED_REJECTION = DeviceForm(tree_traversal.serves, _class_ordered_rejection, lambda nodes: 3 * nodes)
CLASS_ORDERED_TRAVERSAL = DeviceForm(
    tree_traversal.serves, _class_ordered_traversal, lambda nodes: 3 * nodes + 1
)
# A node of more than two children has a stream of its own for its time, which one number starts.
RACE = DeviceForm(tree_race.serves, race_walks, lambda nodes: 2 * nodes + 1)
