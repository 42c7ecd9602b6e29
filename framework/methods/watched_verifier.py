"""A verifier that delegates to another one, so that its trees can be measured."""

from __future__ import annotations

from typing import Any

import attrs

from draftwood.protocols import Verifier


@attrs.frozen(eq=False)
class WatchedVerifier(Verifier):
    """A verifier for the same trees as `judge`; a subclass reads the tree in `verify`, and passes it on.

    Attributes:
        judge: decides.
    """

    judge: Any

    @property
    def laws(self) -> Any:  # type: ignore[override]
        return self.judge.laws

    @property
    def adaptive(self) -> bool:  # type: ignore[override]
        return bool(self.judge.adaptive)
