"""A head whose drafts are hardly ever accepted: the text is right, and only its speed tells."""

from __future__ import annotations

from draftwood import Statistics

_ROUNDS = 100
_FEWEST = 40  # rounds below which a few refused drafts say nothing
_LEAST = 0.2  # share of first drafted tokens that a head which fits its target gets accepted
_ERRORS = 3.0  # standard errors below it


def warning_of(statistics: Statistics, *, target: str, head: str) -> str | None:
    """Returns a sentence where a head's first drafted tokens are accepted less often than chance allows.

    Args:
        statistics: of the call.
        target: its name.
        head: its name.

    Returns:
        None if the first hundred rounds with drafts look like a fitting head's, or are too few.
    """
    drafted = [
        record.outcome.accepted > 0
        for one in statistics.rounds
        for record in one.rows
        if record.outcome.drafted
    ][:_ROUNDS]
    count = len(drafted)
    if count < _FEWEST:
        return None
    least = _LEAST * count - _ERRORS * (_LEAST * (1 - _LEAST) * count) ** 0.5
    if sum(drafted) >= least:
        return None
    return (
        f"In {count} rounds tokens of the head were accepted {sum(drafted)} times, less often than "
        f"a head that fits its target; run draftwood check-head {target} {head} to see what is wrong with it."
    )
