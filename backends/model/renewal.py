"""A backend is made anew where its model has changed since (law R)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from draftwood.base.errors import InvalidInput, UnsupportedModel
from draftwood.base.model_key import ModelKey
from draftwood.protocols import StateBackend


@attrs.frozen(eq=False)
class Origin:
    """The model that a backend was made from.

    Attributes:
        model: it may run a copy of it.
        make: makes the backend again, from the model as it is then.
        key: of the model when the backend was made.
    """

    model: Any
    make: Callable[[], StateBackend]
    key: ModelKey = attrs.field(default=attrs.Factory(lambda self: ModelKey.of(self.model), takes_self=True))


class RenewedBackend(StateBackend):
    """Abstract: a backend that knows its `Origin`, and takes up what has changed in it."""

    _origin: Origin

    def made_by(self, model: Any, make: Callable[[], StateBackend]) -> None:
        """From now on take up changes of `model`, of which `make` makes such a backend."""
        self._origin = Origin(model, make)

    def renew(self) -> None:
        """Take up changes of the model, as `StateBackend.renew` says.

        Raises:
            InvalidInput: the model has changed while there are rows, or is in a mode that is not supported.
            UnsupportedModel: a backend of this kind no longer supports the model.
        """
        origin, key = self._origin, ModelKey.of(self._origin.model)
        if key == origin.key and not self._outdated():
            return
        name = type(origin.model).__name__
        if self.lengths:
            raise InvalidInput(
                f"{name} was changed while {len(self.lengths)} row(s) were held; change it between calls."
            )
        fresh = origin.make()
        if type(fresh) is not type(self):
            raise UnsupportedModel(
                f"{name} was changed and now needs {type(fresh).__name__} in place of "
                f"{type(self).__name__}; load it again."
            )
        self._hand_on(fresh)
        vars(self).clear()
        vars(self).update(vars(fresh))
        self._origin = attrs.evolve(origin, key=key)

    def _outdated(self) -> bool:
        """Whether values of weights have changed of which this backend holds a copy."""
        return False

    def _hand_on(self, fresh: Any) -> None:
        """Give a backend that is to take this one's place what others have asked of this one."""
