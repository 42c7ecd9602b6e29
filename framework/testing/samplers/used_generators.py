"""Recognises a `torch.Generator` that gives the same numbers again, because it is seeded inside the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch

from draftwood.testing.diagnosis.intervals import CannotEnumerate

_DRAW = torch.Tensor.random_  # torch's own, which is replaced while a sampler runs


@attrs.define(eq=False)
class UsedGenerators:
    """The states in which generators were used so far, in all runs of one sampler.

    Enumerated numbers do not come from the generator, so each use moves it on by one draw. A state that comes
    a second time is then that of a generator which was seeded, or set back, in between.
    """

    _states: set[int] = attrs.field(factory=set, init=False)

    def use(self, generator: torch.Generator) -> None:
        """Raise `CannotEnumerate` if the generator was used in this state before; else move it on."""
        state = hash(generator.get_state().numpy().tobytes())
        if state in self._states:
            raise CannotEnumerate(
                f"A torch.Generator with the seed {generator.initial_seed()} is seeded or set back inside "
                "the call, so that it gives the same numbers again; seed it outside, or give samples=."
            )
        self._states.add(state)
        _DRAW(torch.empty(1, device=generator.device), generator=generator)


def refused_seeding(name: str) -> Callable[..., Any]:
    """A function in place of `name`, which seeds the generator that all code shares.

    Without a seed it takes the system's entropy, so that what is drawn is chance as before.
    """

    def refuse(*given: Any, **named: Any) -> Any:
        if name.endswith(".seed") and not any(one is not None for one in (*given, *named.values())):
            return
        raise CannotEnumerate(
            f"{name} is called inside the call, so that it draws the same numbers every time; seed outside "
            "of it, or give samples=."
        )

    return refuse
