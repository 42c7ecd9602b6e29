"""A verifier that judges as another does, for what is measured beside it."""

from __future__ import annotations

from typing import Any

import attrs

from draftwood.protocols import Verifier


@attrs.frozen(eq=False)
class WatchedVerifier(Verifier):
    """Serves what `judge` serves; a subclass looks at the tree in `verify`, and hands it on.

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
