"""From cells to figures: every metric with its bootstrapped interval, and the check of the texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from math import comb, prod
from statistics import median_low
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from draftwood.apps.bench.arrival_figures import arrival_figures
from draftwood.apps.bench.intervals import Figure, interval
from draftwood.apps.bench.plan import BenchPlan, Contest, contests
from draftwood.apps.bench.specs import ORDINARY, OURS, Spec, measured
from draftwood.decoding.metrics import METRICS

Pair = tuple[Hashable, Sequence[int], Sequence[int]]  # a prompt, tokens of one after it, and of the other
_PERMUTATIONS = 2000
_HAND_OUTS = 64  # below which the permutation test says nothing; mirrored ones have equal distances
_LEAST = 5  # tokens seen fewer times than this are one class of the test


@attrs.frozen
class Check:
    """The comparison of a contender's texts with the texts of ordinary `generate`.

    Attributes:
        agreement: at temperature 0, the share of tokens before the first that differs; 1 is equality.
        precision: that the texts were compared in.
        p_value: above temperature 0, how likely texts of one distribution are to differ as much as these;
            None where there are too few texts to tell.
        p_together: the same of the texts of all data sets; None also where there is only one.
    """

    agreement: float | None = None
    precision: str | None = None
    p_value: float | None = None
    p_together: float | None = None


@attrs.frozen
class ResultRow:
    """One contender in one contest.

    Attributes:
        figures: by the names of `METRICS`; what cannot be known is missing.
        peak_memory: bytes, the most of all texts.
        prompts: how many are measured.
        prompt_tokens: mean length of the prompts.
        refused: why transformers does not run it; there are no figures then.
        lossless: whether its texts are distributed as the target's own.
    """

    contest: Contest
    spec: Spec
    figures: dict[str, Figure] = attrs.field(factory=dict)
    check: Check = attrs.field(factory=Check)
    peak_memory: int = 0
    prompts: int = 0
    prompt_tokens: float = 0.0
    refused: str | None = None
    lossless: bool = True

    def value(self, name: str) -> float | None:
        """The value of a metric, where it is known."""
        return self.figures[name].value if name in self.figures else None


Cells = Mapping[str, Mapping[str, Any]]
Texts = Sequence[Mapping[str, Any]]


def rows(plan: BenchPlan, names: Sequence[str], cells: Cells) -> list[ResultRow]:
    """Every contender of every contest that has a finished text."""
    texts: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for cell in cells.values():
        if cell["kind"] in ("text", "check", "arrivals"):
            contest = Contest(**{f.name: cell.get(f.name, f.default) for f in attrs.fields(Contest)})
            texts.setdefault((cell["kind"], contest.key, cell["contender"]), []).append(cell)
    all_rows: list[ResultRow] = []
    sampled_pairs: dict[tuple[Contest, str], list[Pair]] = {}  # of all data sets
    for contest in contests(plan, names):
        kind = "arrivals" if contest.arrivals else "text"
        # Nobody queues for generate(), so requests that arrive are compared with ordinary decoding of ours.
        plain = texts.get((kind, contest.key, OURS if contest.arrivals else ORDINARY), [])
        for label in [label for of, key, label in texts if (of, key) == (kind, contest.key)]:
            spec, written = measured(label, plan.strategies, plan.budgets), texts[kind, contest.key, label]
            if refused := next((cell["refused"] for cell in written if "refused" in cell), None):
                all_rows.append(ResultRow(contest, spec, refused=refused))
            else:
                exact = [texts.get(("check", contest.key, label), []) for label in (spec.label, ORDINARY)]
                pairs = _pairs(contest, *(exact if all(exact) else (written, plain)))
                precision = "float32" if all(exact) or plan.dtype == "float32" else plan.dtype
                sampled = contest.temperature > 0
                check = Check() if sampled and written is plain else _check(contest, pairs, precision)
                if contest.arrivals:
                    all_rows.append(_arrival_row(contest, spec, written, check, plan.promise))
                else:
                    all_rows.append(_row(contest, spec, written, plain, check))
                if sampled and written is not plain:
                    sampled_pairs.setdefault((contest.on_all_data, spec.label), []).extend(pairs)
    several = len(names) > 1
    p_together = {key: two_sample(pairs) for key, pairs in sampled_pairs.items() if several}
    return [
        attrs.evolve(row, check=attrs.evolve(row.check, p_together=p))
        if (p := p_together.get((row.contest.on_all_data, row.spec.label)))
        else row
        for row in all_rows
    ]


def _row(
    contest: Contest,
    spec: Spec,
    written: Texts,
    plain: Texts,
    check: Check,
) -> ResultRow:
    shared = {_asked(cell) for cell in written} & {_asked(cell) for cell in plain}
    ours, theirs = (_by_prompt(contest, [c for c in cs if _asked(c) in shared]) for cs in (written, plain))
    if not shared:
        ours = _by_prompt(contest, written)
    sums = {**ours, **{f"plain_{name}": values for name, values in theirs.items()}}
    return ResultRow(
        contest,
        spec,
        figures={metric.name: figure for metric in METRICS if (figure := interval(sums, metric.of))},
        check=check,
        peak_memory=max(cell["peak_memory"] for cell in written),
        prompts=len({cell["prompt"] for cell in written}),
        prompt_tokens=float(np.mean([cell["prompt_tokens"] for cell in written])),
        lossless=all(cell.get("lossless", True) for cell in written),
    )


def _arrival_row(contest: Contest, spec: Spec, written: Texts, check: Check, promise: float) -> ResultRow:
    return ResultRow(
        contest,
        spec,
        figures=arrival_figures(written, promise),
        check=check,
        prompts=len(written[0]["arrived"]),
        prompt_tokens=float(np.mean([cell["prompt_tokens"] for cell in written])),
        lossless=all(cell.get("lossless", True) for cell in written),
    )


def _asked(cell: Mapping[str, Any]) -> tuple[int, int]:
    """The prompt and its turn."""
    return cell["prompt"], cell["turn"]


_COUNTED = (
    "seconds",
    "first_token_seconds",
    "first_tokens",
    "rounds",
    "draft_calls",
    "drafted",
    "accepted",
    "depth",
    "round_seconds",
    "prefill_seconds",
    "draft_seconds",
    "target_seconds",
    "verify_seconds",
)


def _by_prompt(contest: Contest, cells: Sequence[Mapping[str, Any]]) -> dict[str, NDArray[np.float64]]:
    """Sums over the texts of every prompt, `[prompts]`; NaN for what is not known.

    The turns of a conversation count together. At temperature 0 all texts of a turn are one text, so the one
    of median time stands for it.
    """
    turns: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    for cell in cells:
        turns.setdefault(_asked(cell), []).append(cell)
    by: dict[int, list[Mapping[str, Any]]] = {}
    for (prompt, _), texts in turns.items():
        by.setdefault(prompt, []).extend([_median(texts)] if contest.temperature == 0 else texts)
    groups = [by[prompt] for prompt in sorted(by)]

    def sums(of: Callable[[Mapping[str, Any]], float | None]) -> NDArray[np.float64]:
        return np.array([sum(np.nan if (v := of(c)) is None else v for c in g) for g in groups])

    quantities = {name: sums(lambda c, name=name: c.get(name)) for name in _COUNTED}  # type: ignore[misc]
    quantities["tokens"] = sums(lambda c: len(c["tokens"]))
    # Runs of before the first token came with the prompt say nothing of it.
    quantities["prefill_tokens"] = sums(lambda c: c.get("prefill_tokens", 0))
    rows = contest.rows
    quantities["texts"] = sums(lambda c: rows)
    quantities["first_token_seconds"] = rows * quantities["first_token_seconds"]
    quantities["text_seconds"] = sums(
        lambda c: rows * c["seconds"] if c.get("text_seconds") is None else c["text_seconds"]
    )
    quantities["scored"] = sums(lambda c: c["right"] is not None)
    quantities["right"] = sums(lambda c: bool(c["right"]))
    quantities["draft_cost_calls"] = sums(
        # Rows share their passes, so a batch has no bytes a text.
        lambda c: None if c["draft_calls"] is None or rows > 1 else c["draft_cost"] * c["draft_calls"]
    )
    return quantities


def _median(texts: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    middle = median_low([cell["seconds"] for cell in texts])
    return next(cell for cell in texts if cell["seconds"] == middle)


def _pairs(contest: Contest, written: Texts, plain: Texts) -> list[Pair]:
    """Returns both contenders' texts after a prompt and turn, for every repetition that both have.

    Texts of a batch and texts of requests come one by one.
    """
    together = contest.rows > 1 or contest.arrivals
    length = contest.new_tokens if together else None
    ours, theirs = (
        {
            (*_asked(c), text, c["repetition"]): c["tokens"][start:][:length]
            for c in texts
            if "tokens" in c
            for text, start in enumerate(range(0, len(c["tokens"]), length or len(c["tokens"])))
        }
        for texts in (written, plain)
    )
    shared = sorted(ours.keys() & theirs.keys())
    return [((contest.data, *key[:3]), ours[key], theirs[key]) for key in shared]


def _check(contest: Contest, pairs: Sequence[Pair], precision: str) -> Check:
    if not pairs:
        return Check()
    if contest.temperature == 0:
        agreeing = sum(common(ours, theirs) for _, ours, theirs in pairs)
        return Check(agreeing / sum(len(theirs) for _, _, theirs in pairs), precision)
    return Check(p_value=two_sample(pairs))


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def two_sample(pairs: Sequence[Pair]) -> float | None:
    """A permutation test of whether two contenders' texts come from one distribution.

    The statistic is the chi-square distance between the two histograms of tokens over all texts. If the
    distributions are one, the texts after a prompt can be handed to the contenders in any way; that
    holds however much the tokens of one text depend on each other.

    Args:
        pairs: (prompt, tokens of one, tokens of the other).

    Returns:
        The share of random hand-outs, the actual one included, with at least its distance; None where
        there are so few that no distance could be called unlikely.
    """
    behind = Counter(prompt for prompt, *_ in pairs)
    if prod(comb(2 * texts, texts) for texts in behind.values()) < _HAND_OUTS:
        return None
    texts = [tokens for _, ours, theirs in pairs for tokens in (ours, theirs)]
    numbers = {prompt: number for number, prompt in enumerate(behind)}
    prompts = np.array([numbers[prompt] for prompt, *_ in pairs for _ in range(2)])
    sides = np.tile([1.0, -1.0], len(pairs))
    seen, flat = np.unique(
        np.concatenate([np.asarray(t, dtype=np.int64) for t in texts]), return_inverse=True
    )
    owner = np.repeat(np.arange(len(texts)), [len(tokens) for tokens in texts])
    counts = np.zeros((len(texts), len(seen)))
    np.add.at(counts, (owner, flat), 1)
    rare = counts.sum(0) < _LEAST
    counts = np.concatenate([counts[:, ~rare], counts[:, rare].sum(1, keepdims=True)], 1)
    total = np.maximum(counts.sum(0), 1)
    rng = np.random.default_rng(0)
    groups = [np.flatnonzero(prompts == prompt) for prompt in np.unique(prompts)]

    def distance(assigned: NDArray[np.float64]) -> float:
        return float((((assigned @ counts) ** 2) / total).sum())

    actual, reached = distance(sides), 1
    for _ in range(_PERMUTATIONS - 1):
        assigned = np.empty(len(texts))
        for group in groups:
            assigned[group] = rng.permutation(sides[group])
        # Sums in another order round apart, so that an equal distance may seem a little less.
        reached += distance(assigned) >= actual * (1 - 1e-12)
    return reached / _PERMUTATIONS
