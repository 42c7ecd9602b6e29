"""Counts the known mistakes that are named rightly: `python -m tests.framework.named_mistakes [KIND ...]`."""

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
"""The beginning of a sentence that tells the wrong parts of a sampler, and no mistake."""

OF_REPORTS = {
    "vllm#47386: noise of the draft used again": "the coin that rejected a token also chooses",
    "vllm#10198: settings not applied to the target": "the target has an extra temperature (2)",
    "vllm-ascend#7807: block acceptance, token residual": "draw from max(r T - D, 0)",
    "sglang#35771: coin <= p": "it tests coin <= p",
    "TensorRT-LLM#15098: rows of parent and child": "every row of the target is that of the parent",
    "transformers#47932: the draft before its temperature": "the draft has an extra temperature (0.5)",
    "ml-recurrent-drafter#6: beams verified with p / q": "though the siblings were chosen and not drawn",
    "speculative-sampling#3: argmax verified as drawn": "though the siblings were chosen and not drawn",
    "DeepSpec#31: the draft in bfloat16": "the draft's probabilities are rounded to bfloat16",
    "the residual not divided by its sum": "without dividing by their sum",
    "siblings in another order": "from the likeliest of the draft on",
    "duplicates merged": "equal siblings are tested once",
    "the bonus of another row": "comes from the row before the last",
    "the target for the residual": "after a rejection it draws from the target;",
    "top-k after the test": "only the 2 most likely tokens are kept after a rejection",
    "a rejected sibling left in the target": "from the target",
    "a scaled coin": "it accepts with 0.909 T / D",
    "Medusa's typical acceptance": "typical acceptance",
    "SpecInfer's rule without replacement": "by the distribution of the first",
}
"""Words of the right name of each mistake from a public report; a mistake without them has no rule."""


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


def of_reports() -> Iterator[KnownMistake]:
    """Yields the mistakes of public reports."""
    for name, (sampler, given) in WRONG.items():
        names = {"plain", "a draft near the target", given.get("models", "plain")}
        options = {**given, "models": {one: MODELS[one] for one in sorted(names)}}
        if "samples" in given:  # nothing is named by samples
            options["samples"] = 10_000
        yield KnownMistake(f"report: {name}", sampler, options, OF_REPORTS.get(name, ""))


def of_written_trees() -> Iterator[KnownMistake]:
    """Yields the mistakes that are written out for trees."""
    for (name, law), says in of_trees.NAMED.items():
        options = {"models": of_trees.FEW, "parents": of_trees.SHAPE, "law": law}
        yield KnownMistake(f"tree: {name}, {law.__name__}", of_trees.wrong(name), options, says)


def of_written_chains() -> Iterator[KnownMistake]:
    """Yields the mistakes that are written out for chains."""
    for name, says in of_chains.NAMED.items():
        yield KnownMistake(f"chain: {name}", of_chains.biased(name), {"models": of_chains.FEW}, says)


KINDS = {"reports": of_reports, "trees": of_written_trees, "chains": of_written_chains}


def judged(mistake: KnownMistake, told: str) -> str:
    """Returns "right", "part" where only the wrong parts are told, "none", or "WRONG"."""
    if not told:
        return "none"
    if told.startswith(PART):
        return "part"
    return "right" if mistake.says and mistake.says in told else "WRONG"


def main(*kinds: str) -> None:
    """Print every mistake of these kinds with what is told of it, and the counts; all kinds without any."""
    torch.set_num_threads(1)
    counts = dict.fromkeys(("right", "part", "none", "WRONG", "not told"), 0)
    for mistake in (one for kind in kinds or KINDS for one in KINDS[kind]()):
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
    main(*sys.argv[1:])
