"""The error that a check raises: the broken law, the size of the error, and the likely mistake."""

from __future__ import annotations

from collections.abc import Callable

from draftwood.base.errors import DraftwoodError


class LawBroken(AssertionError):
    """A law that does not hold.

    Attributes:
        error: how far off, where that is a number: of a probability, or of a logit.
        likely: the mistake that most likely made it, in a sentence; empty where nothing points to one.
    """

    def __init__(self, what: str, *, error: float | None = None, likely: str = "") -> None:
        super().__init__(f"{what}\nMost likely: {likely}" if likely else what)
        self.error = error
        self.likely = likely


def raises_on_purpose(what: str, call: Callable[[], object]) -> None:
    """Fail unless the malformed `call` (`what` it is) raises one of draftwood's errors, a sentence."""
    try:
        call()
    except DraftwoodError as error:
        message = str(error)
        assert message.endswith("."), f"The error of {what} is not a sentence: {message}"
    except Exception as error:  # a backend may fail in any way
        raise LawBroken(
            f"{what} raises {type(error).__name__} ({error}) instead of one of draftwood's errors.",
            likely="it is not checked; draftwood.backends.nodes.validation refuses what is malformed.",
        ) from error
    else:
        raise LawBroken(
            f"{what} goes through; it should raise InvalidTree or InvalidInput.",
            likely="it is not checked; draftwood.backends.nodes.validation refuses what is malformed.",
        )
