"""The speed of several drafters on one widened target, from their texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
import typer

from draftwood.apps.bench import figures, intervals
from draftwood.apps.bench.specs import ORDINARY
from draftwood.apps.bench.writers import Text
from draftwood.decoding.metrics import METRICS

Key = tuple[float, str, str]
"""Temperature, strategy and drafter; of ordinary decoding `ORDINARY` and none."""

Texts = dict[Key, list[Text]]
"""Of every contender one text a prompt."""

_SPEED, _PER_TOKEN, _A_ROUND = (
    next(metric.of for metric in METRICS if metric.name == name)
    for name in ("speed_up", "time_per_output_token", "tokens_per_round")
)


def show(found: Texts, drafters: Sequence[str]) -> None:
    """A line a contender: tokens a round, tokens per second, and its speed over ordinary decoding's.

    Tokens a second are the median over prompts, of whole calls. Ratios are of sums over prompts, with 95 %
    intervals by the bootstrap: of whole calls, and of what follows a text's first token.
    """
    typer.echo(f"{'':<30}{'tokens a round':>22}{'tokens/s':>10}{'vs generate()':>24}{'after token 1':>24}")
    for (temperature, strategy, name), texts in found.items():
        plain = found[temperature, ORDINARY, ""]
        if strategy == ORDINARY:
            typer.echo(f"T={temperature:g} generate(){'':<38}{_a_second(texts):>10.2f}")
            continue
        if name == drafters[0]:
            typer.echo(f"T={temperature:g} {strategy}")
        sums = sums_of(texts, beside=plain)
        typer.echo(
            f"  {name:<28}{_cell(sums, _A_ROUND):>22}{_a_second(texts):>10.2f}"
            f"{_cell(sums, _SPEED):>24}{_cell(sums, _later_speed):>24}"
            f"{'-' if temperature else f'{_agreement(texts, plain):.1%}':>12}"
        )
        if name != drafters[0]:
            first = sums_of(found[temperature, strategy, drafters[0]], beside=texts)
            typer.echo(
                f"    {f'{drafters[0]} vs it':<48}{'':>10}"
                f"{_cell(first, _SPEED):>24}{_cell(first, _later_speed):>24}"
            )


def sums_of(texts: Sequence[Text], *, beside: Sequence[Text]) -> dict[str, Any]:
    """Returns sums of `draftwood.decoding.metrics` by prompt, `[prompts]`; for `beside` as `plain_...`."""
    of: dict[str, Any] = {}
    for prefix, some in (("", texts), ("plain_", beside)):
        for name in ("seconds", "first_token_seconds", "first_tokens", "rounds", "prefill_tokens"):
            of[prefix + name] = np.array([float(getattr(text, name)) for text in some])
        of[f"{prefix}text_seconds"] = of[f"{prefix}seconds"]  # one after another
        of[f"{prefix}tokens"] = np.array([float(len(text.tokens)) for text in some])
    return of


def _later_speed(sums: Mapping[str, Any]) -> Any:
    """Returns the ratio of speeds after the first token."""
    plain = {name.removeprefix("plain_"): values for name, values in sums.items() if name[:6] == "plain_"}
    return _PER_TOKEN(plain) / _PER_TOKEN(sums)


def _a_second(texts: Sequence[Text]) -> float:
    return median(len(text.tokens) / text.seconds for text in texts)


def _agreement(texts: Sequence[Text], plain: Sequence[Text]) -> float:
    agreeing = sum(
        figures.common(ours.tokens, theirs.tokens) for ours, theirs in zip(texts, plain, strict=True)
    )
    return agreeing / sum(len(text.tokens) for text in plain)


def _cell(sums: Mapping[str, Any], of: Any) -> str:
    figure = intervals.interval(sums, of)
    if figure is None:
        return "-"
    if figure.low is None:
        return f"{figure.value:.2f}"
    return f"{figure.value:.2f} ({figure.low:.2f} to {figure.high:.2f})"
