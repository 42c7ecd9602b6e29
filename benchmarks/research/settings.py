"""Every recipe at equal budgets: its options for trees of about so many nodes, by temperature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from draftwood.base.errors import InvalidInput
from draftwood.strategies.policies.shapes import Shape, as_text

BUDGETS = (6, 14, 30, 64)

# Where a method leaves the shape open, all shapes of a budget run and the best is shown, as in RSD's
# figure 5. Its appendix D.3.2 has the settings of 6, 14 and 30 nodes (of paths that are to fill the budget).
_PATHS = {
    6: [(2, 3), (3, 2)],
    14: [(2, 7), (7, 2)],
    16: [(2, 8), (4, 4)],
    30: [(5, 6), (6, 5)],
    64: [(8, 8), (16, 4)],
}
_BRANCHING = {
    6: [(2, 1, 1), (2, 2), (3, 1)],
    14: [(2,) + (1,) * 6, (2, 2, 2), (7, 1)],
    16: [(2,) + (1,) * 7, (4, 3), (8, 1)],
    30: [(2, 2, 2, 2), (5,) + (1,) * 5, (6,) + (1,) * 4],
    64: [(2, 2, 2, 2, 2), (8,) + (1,) * 7, (4, 3, 2, 1, 1)],
}
_BINARY = {6: 2, 14: 3, 16: 3, 30: 4, 64: 5}  # levels of a binary tree
# STree's own trees, by size.
_STREE = {6: (), 14: ("stree-a", "stree-c", "stree-d", "stree-e"), 16: (), 30: ("stree-b",), 64: ()}
_SHARP = 0.6
LARGE = 768  # DySpec's appendix B: its threshold form against Sequoia


@attrs.frozen
class Setting:
    """A recipe with its options, and the draft's temperature where it is not the target's."""

    recipe: str
    options: Mapping[str, Any]
    draft_temperature: float | None = None

    @property
    def label(self) -> str:
        """The row of the table that holds it; settings of one label compete for it."""
        if self.recipe == "dyspec" and "acceptance" in self.options:
            return "dyspec, measured acceptance"
        if self.draft_temperature is None:
            return self.recipe
        return f"{self.recipe}, draft at {self.draft_temperature}"

    @property
    def words(self) -> str:
        """Its options in words."""
        return " ".join(f"{name}={_short(value)}" for name, value in self.options.items())


def _short(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return "-".join(f"{part:.3f}" if isinstance(part, float) else str(part) for part in value)
    return str(value)


def check_budget(budget: int) -> None:
    """Let a budget pass that there are settings for.

    Raises:
        InvalidInput: another one.
    """
    known = (*_BINARY, LARGE)
    if budget not in known:
        raise InvalidInput(f"budget is {budget}; take one of {', '.join(map(str, known))}.")


def settings(
    budget: int,
    *,
    temperature: float,
    acceptance: Sequence[float],
    shape: Shape | None,
    drafter_options: Mapping[str, Mapping[str, Any]],
) -> list[Setting]:
    """Returns the settings that run at a budget.

    Args:
        budget: which `check_budget` lets pass.
        temperature: of the target. At 0 recipes that differ from another by verification
            or by only the law of drawing are left out.
        acceptance: measured, for the trees that are made for it.
        shape: searched, for race verification; None where there is none.
        drafter_options: the options of recipes that have their own drafters and can run here.
    """
    vector = tuple(acceptance)
    sampled = temperature > 0
    if budget == LARGE:
        made = {"budget": budget, "acceptance": vector}
        large = [
            Setting("dyspec", {"budget": budget}),
            Setting("dyspec", made),
            *(Setting("dyspec-threshold", {"budget": budget, "threshold": t}) for t in (0.001, None)),
            *(Setting("sequoia", {"budget": budget, "depth": d, "acceptance": vector}) for d in (10, 24)),
        ]
        if sampled:
            large.append(Setting("class-ordered-sequoia", made))
            large += [Setting("race", {"shape": as_text(shape)})] if shape else []
        return large
    binary = (2,) * _BINARY[budget]
    chosen = [
        Setting("leviathan", {"length": budget}),
        *(Setting("spectr", {"paths": k, "length": n}) for k, n in _PATHS[budget]),
        Setting("spechub", {"length": _BINARY[budget]}),
    ]
    if sampled:
        chosen += [
            Setting("block", {"length": budget}),
            Setting("traversal", {"branching": binary}),
            Setting("class-ordered", {"branching": binary}),
            Setting("class-ordered-sequoia", {"budget": budget, "acceptance": vector}),
        ]
        chosen += [Setting("race", {"shape": as_text(shape)})] if shape else []
    chosen += [Setting("specinfer", {"branching": shape}) for shape in _BRANCHING[budget][1:] if sampled]
    chosen += [Setting("rsd-c", {"branching": shape}) for shape in _BRANCHING[budget]]
    chosen += [Setting("rsd-s", {"width": k, "depth": n}) for k, n in _PATHS[budget]]
    chosen += [
        Setting("sequoia", {"budget": budget, "acceptance": vector}),
        Setting("dyspec", {"budget": budget}),
        *(Setting("dyspec-threshold", {"budget": budget, "threshold": t}) for t in (None, 0.3 / budget)),
        Setting("fixed-tree", {"budget": budget}),
        Setting("dynatree", {"budget": budget}),
        *(Setting("stree", {"shape": shape}) for shape in _STREE[budget]),
        Setting("stree-beam", dict(zip(("beams", "steps"), _PATHS[budget][0], strict=True))),
        Setting("redrafter", dict(zip(("width", "length"), _PATHS[budget][0], strict=True))),
        Setting("eagle2", {"budget": budget}),
        Setting("dynamic-depth", {"budget": budget}),
        Setting("opt-tree", {"budget": budget}),
        Setting("specexec", {"budget": budget, "width": min(budget, 32)}),
    ]
    if sampled:
        chosen.append(Setting("dyspec", {"budget": budget, "acceptance": vector}))
    if temperature != _SHARP:
        # The draft temperature of both papers, where it is not the target's.
        chosen += [
            Setting("sequoia", {"budget": budget, "acceptance": vector}, _SHARP),
            Setting("dyspec", {"budget": budget}, _SHARP),
        ]
    sizes: dict[str, dict[str, Any]] = {
        "prompt-lookup": {"length": budget},
        "rest": {"budget": budget},
        "medusa": {"budget": budget, "acceptance": vector},
        "draft-verify": {"length": budget},
    }
    return chosen + [Setting(name, {**sizes[name], **options}) for name, options in drafter_options.items()]
