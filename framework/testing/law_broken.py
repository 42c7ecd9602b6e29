"""What a check raises: that a law is broken, by how much, and which mistake that looks like."""

from __future__ import annotations


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
