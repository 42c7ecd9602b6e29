"""How many known mistakes of samplers are named rightly: `python -m tests.framework.named_mistakes`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import attrs
import torch

from draftwood.testing import LawBroken, measure_sampler, sampler_models
from tests.framework import test_testing_mistakes as of_chains
from tests.framework import test_tree_mistakes as of_trees
from tests.framework.wrong_samplers import WRONG

MODELS = sampler_models()

PART = "no known mistake, but one in"
"""How a sentence begins that tells the wrong parts of a sampler, and no mistake."""

OF_REPORTS: dict[str, str] = {}
"""Of the mistakes of public reports: words of the right name; those without have no rule."""


@attrs.frozen
class KnownMistake:
    """A wrong sampler, the options of its proof, and words that a right name of its mistake has."""

    name: str
    sampler: Any
    options: dict[str, Any]
    says: str

    def told(self) -> str:
        """Returns what the prover says of it; raises where it does not call it wrong."""
        report = measure_sampler(self.sampler, **self.options)
        assert report.verdict in ("biased", "broken"), f"{self.name}: {report}"
        return report.likely


def known_mistakes() -> Iterator[KnownMistake]:
    """Yields the mistakes that are written out for chains and trees, and those of public reports."""
    for name, says in of_chains.NAMED.items():
        yield KnownMistake(f"chain: {name}", of_chains.biased(name), {"models": of_chains.FEW}, says)
    for (name, law), says in of_trees.NAMED.items():
        options = {"models": of_trees.FEW, "parents": of_trees.SHAPE, "law": law}
        yield KnownMistake(f"tree: {name}, {law.__name__}", of_trees.wrong(name), options, says)
    for name, (sampler, given) in WRONG.items():
        names = {"plain", "a draft near the target", given.get("models", "plain")}
        options = {**given, "models": {one: MODELS[one] for one in sorted(names)}}
        yield KnownMistake(f"report: {name}", sampler, options, OF_REPORTS.get(name, ""))


def judged(mistake: KnownMistake, told: str) -> str:
    """Returns "right", "part" where only the wrong parts are told, "none", or "WRONG"."""
    if not told:
        return "none"
    if told.startswith(PART):
        return "part"
    return "right" if mistake.says and mistake.says in told else "WRONG"


def main() -> None:
    torch.set_num_threads(1)
    counts = dict.fromkeys(("right", "part", "none", "WRONG", "not told"), 0)
    for mistake in known_mistakes():
        begin = time.process_time()
        try:
            told = mistake.told()
            verdict = judged(mistake, told)
        except LawBroken as broken:  # a batch that raises
            verdict = judged(mistake, told := broken.likely or "")
        except AssertionError as passed:
            verdict, told = "not told", str(passed)
        counts[verdict] += 1
        print(f"{verdict:5} {time.process_time() - begin:5.1f} s  {mistake.name}: {told}", flush=True)
    print(f"{sum(counts.values())} mistakes: {counts}")
    sys.exit(counts["WRONG"] + counts["not told"])


if __name__ == "__main__":
    main()
