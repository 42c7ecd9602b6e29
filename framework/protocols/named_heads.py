"""Heads by name or as objects: which drafter reads one, and the drafter that it makes for a target."""

from __future__ import annotations

from os import PathLike
from typing import Any

import attrs

from draftwood.base.errors import InvalidInput
from draftwood.protocols import Drafter, StateBackend, registry


@attrs.frozen
class NamedHead:
    """A head without its target.

    Attributes:
        drafter: the registered name of the drafter that reads it.
        head: a folder, a hub name or a module.
    """

    drafter: str
    head: Any

    def drafter_for(self, target: StateBackend) -> Drafter:
        """Returns the drafter over this head on `target`; raises as that drafter does."""
        made: Drafter = registry.create("drafters", self.drafter, {"target": target, self.option: self.head})
        return made

    @property
    def option(self) -> str:
        """The option by which the drafter takes the head: Medusa has several."""
        return "head" if "head" in registry.options("drafters", self.drafter) else "heads"


def named_head(head: Any) -> NamedHead | None:
    """Returns what `head` is where a registered drafter reads it; None for a model or anything else.

    Args:
        head: a folder, a hub name or a module. Drafters that read heads have a static method `reads`, which
            looks at the description in a folder and opens no weights.
    """
    for name in registry.names("drafters"):
        try:
            reads = getattr(registry.get("drafters", name), "reads", None)
        except Exception:  # another package's, which may fail in any way; `strategies` says how
            continue
        if reads is not None and reads(head):
            return NamedHead(name, head)
    return None


def check_no_head(model: Any) -> None:
    """Refuse a head where a language model is wanted.

    Raises:
        InvalidInput: `model` names a head, with the drafter that reads it.
    """
    if isinstance(model, str | PathLike) and (found := named_head(model)) is not None:
        raise InvalidInput(
            f"{str(model)!r} holds a head that the drafter {found.drafter!r} reads, and no language model; "
            "name its target here, and the head as the drafter."
        )
