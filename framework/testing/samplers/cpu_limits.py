"""The limit of the CPU time that a proof takes: past it a proof ends without a verdict, in a sentence."""

from __future__ import annotations

import time

import attrs

from draftwood.testing.diagnosis.intervals import CannotEnumerate

_OF_OUTCOMES = 2 / 3
"""Part of the time in which outcomes are listed and compared with ordinary calls; naming takes the rest."""

_now = time.process_time


@attrs.define
class CpuLimit:
    """CPU seconds that one proof may take, of all threads of the process, from the time it is made.

    A clock is no chance of the sampler, so it is asked between calls of the sampler, never during one.
    """

    seconds: float
    _begun: float = attrs.field(factory=_now, init=False)

    def check(self) -> None:
        """Raise `CannotEnumerate` if the time for listing outcomes is over."""
        most = _OF_OUTCOMES * self.seconds
        if self._spent() > most:
            raise CannotEnumerate(
                f"Its outcomes take more than {most:.3g} CPU seconds to list, so there is no verdict; give "
                f"samples=, more than cpu_seconds={self.seconds:g}, or fewer drafted or possible tokens."
            )

    def check_naming(self) -> None:
        """Raise `CannotEnumerate` if nearly all of the time is over; the verdict is known then."""
        if self._spent() > (1 + _OF_OUTCOMES) / 2 * self.seconds:
            raise CannotEnumerate("No time is left to name the mistake; give more cpu_seconds=.")

    def _spent(self) -> float:
        return _now() - self._begun
