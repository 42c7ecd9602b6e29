"""Every mistake of a policy, a verifier, of decoding or of a source of chance is caught by a named check."""

import io
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from rich.console import Console

from tests.mutations import decoding_mistakes, policy_mistakes, race_mistakes, verifier_mistakes
from tests.mutations.__main__ import report_checks
from tests.mutations.every import EVERY, known_checks
from tests.mutations.mistake import Caught, Mistake
from tests.thorough import every

# What catches them, where it is not the first that comes to mind: law P of policies, a round of verifiers.
CAUGHT = {
    "a learning policy prunes drawn children after a bad round": "learnt",
    "the same after four rounds": "learnt",
    "a policy drops tokens that were rejected in the last round": "learnt",
    "state kept on self during grow, rows share it": "interleaved",
    "a draw in bfloat16, in float32 runs only": "arithmetic",
    "a draw among the top four, the whole distribution declared": "wide",
    "chance from torch's own generator": "repeatable",
    "a guess where nothing is proposed": "nothing-to-propose",
    "unlikely tokens dropped from the third level on": "deep",
    "one node over the budget": "budget",
    "the target for the residual, in float32 only": "arithmetic-Deterministic",
    "half precision in the comparison, in float32 only": "arithmetic-Deterministic",
    "wrong from depth 2 on": "deep-Deterministic",
    "siblings taken to be numbered in a row": "deep-Deterministic",
    "padding judged as nodes": "deep-Deterministic",
    "the fifth sibling is accepted": "wide-Deterministic",
    "the residual's four largest entries alone": "wide-Deterministic",
    "paths told from other trees by the drawn shape": "silent-WithReplacement",
    "a residual remembered from another call": "lossless-Deterministic",
    "one stream for all rows": "together",
    "class order that peeks at a later sibling's token": "lossless-WithoutReplacement",
    "class order said to hold on adaptive trees": "adaptive-WithoutReplacement",
    "siblings tried by the target's wish, by the allowances of a race": "lossless-WithoutReplacement",
    "a race ranked by what was drawn": "lossless-WithoutReplacement",
    "a clock that does not know the drawn tokens": "siblings-WithoutReplacement",
    "the mark of the next token forgotten": "siblings-WithoutReplacement",
    "the mark of a pair forgotten": "lossless-WithoutReplacement",
    "a sibling dropped after it was drawn, by the verifier": "lossless-WithoutReplacement",
    "race verification said to hold on adaptive trees": "adaptive-WithoutReplacement",
    "filters and processors applied at the root alone": "temperature",
    "two rows share a verification stream": "row-alone",
    "all rows verify by equal streams": "streams",
    "draft and verification draw from one seed": "streams",
    "row i has the seed plus i": "streams",
    "all rows have one seed": "streams",
    "the draft's sampling used for the target": "temperature",
    "processors see another row's text": "rows",
    "filters before the temperature": "filters",
    "a node is masked by its parent's constraint state": "constraint",
    "the next root is the last accepted token": "rounds",
    "the last token at the limit is padding": "rounds",
    "the target's temperature is not applied": "temperature",
    "processors that read the prefix see the root's at every node": "processors",
    "an end-of-text inside the accepted path is ignored": "end-of-text",
    "uniforms of 8 bits": "uniforms",
    "uniforms of 24 bits": "uniforms",
    "the coin's test is coin <= p, and the coin may be 0": "edges",
    "without replacement by dropping duplicates": "without-replacement",
    "looking ahead takes the numbers": "ahead",
    "an inverse CDF whose test is not strict": "edges",
}
LIKELY = {
    "a learning policy prunes drawn children after a bad round": "dropped for its own token",
    "state kept on self during grow, rows share it": "shared state",
    "a draw in bfloat16, in float32 runs only": "half precision",
    "another temperature from the second level on": r"another temperature than it was drawn at \(2 times\)",
    "a draw among the top four, the whole distribution declared": "kept out of the draw",
    "the token after a rejection is drawn from the target": "drawn from the target; draw it",
    "the draft's law keeps the rejected sibling": "judged by the first one's law",
    "the residual is not renormalised after a rejected sibling": "not normalised",
    "siblings are judged in another order than they were drawn in": "another order",
    "the target for the residual, in float32 only": "in float64 it is exact",
    "wrong from the third sibling on": "judged by the first one's law",
}
MINE = [
    *policy_mistakes.MISTAKES,
    *verifier_mistakes.MISTAKES,
    *race_mistakes.MISTAKES,
    *decoding_mistakes.MISTAKES,
]


def one(name: str) -> Mistake:
    (found,) = (mistake for mistake in EVERY if mistake.name == name)
    return found


@cache
def caught_as_said(name: str) -> Caught | None:
    """Returns the result of the table's check for the mistake, or of the first check that fails."""
    return one(name).caught(CAUGHT.get(name))


@cache
def without_mistake(part: str, right: Callable[[], object], check: str) -> Caught | None:
    """Returns the result of `check` for the part without a mistake; many mistakes share a part."""
    return Mistake("no mistake", "", part, right).clean(check)


@pytest.mark.parametrize("name", every(5, [mistake.name for mistake in MINE]))
def test_the_named_check_catches_the_mistake_and_passes_without_it(name: str) -> None:
    mistake = one(name)
    check = CAUGHT.get(name)
    caught = caught_as_said(name)
    assert caught is not None
    assert check is None or caught.check == check
    if check is not None:
        assert without_mistake(mistake.part, mistake.right, check) is None


@pytest.mark.parametrize("name", LIKELY)
def test_the_likely_mistake_is_named(name: str) -> None:
    caught = caught_as_said(name)
    assert caught is not None
    assert re.search(rf"Most likely: .*{LIKELY[name]}", caught.message)


def test_there_are_seventy_and_more_of_every_part() -> None:
    parts = [mistake.part for mistake in EVERY]
    assert len({(mistake.part, mistake.name) for mistake in EVERY}) == len(EVERY) >= 70
    assert set(parts) == {"policy", "verifier", "drafter", "backend", "decoding", "randomness"}


def test_the_report_counts_what_slips_past() -> None:
    harmless = Mistake("nothing is wrong", "", "policy", policy_mistakes.Draws)
    shown = io.StringIO()
    console = Console(file=shown, width=160)
    assert report_checks([one("siblings sorted once they are drawn"), harmless], console) == 1
    printed = shown.getvalue()
    assert "proposal-law" in printed
    assert "slips past" in printed
    assert "1 of 2" in printed


def test_every_check_of_the_table_exists() -> None:
    for name, check in CAUGHT.items():
        assert check in known_checks(one(name)), name


def test_the_page_has_every_mistake_and_none_slips_past() -> None:
    root = Path(__file__).parents[1]
    page = (root / "docs" / "mistakes.md").read_text(encoding="utf-8")
    assert "slips past" not in page
    assert f"\n{len(EVERY)} mistakes" in page
    assert f"[{len(EVERY)} mistakes](docs/mistakes.md)" in (root / "README.md").read_text(encoding="utf-8")
    for mistake in EVERY:
        assert f"| {mistake.part} | {mistake.name} |" in page, mistake.name
