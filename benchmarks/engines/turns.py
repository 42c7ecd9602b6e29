"""Texts of all contenders in turns, and the table of their times."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from itertools import cycle, groupby
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter, sleep
from typing import Any

import attrs
import numpy as np
import torch

from benchmarks.engines.contenders import Contender
from draftwood.apps.bench import intervals

IN_A_TURN = 4
"""Prompts after which a contender writes before the next one's turn."""

CALM = 0.2
"""Seconds before and after the probe: just after work, threads may still be busy."""

PROBE = 512
"""Rows of the square matrices that the probe multiplies."""


@attrs.frozen
class TimedText:
    """One text of one contender.

    Attributes:
        contender: its name.
        repetition: counted from 0.
        prompt: its number.
        seconds: that the text took.
        cpu: seconds of all threads.
        tokens: written.
        passes: of the target; 0 where that is not known.
        noise: seconds of a fixed piece of work before the turn; more than usual where the machine is busy.
        equal: whether the text is that of the first contender which is to write the same texts.
    """

    contender: str
    repetition: int
    prompt: int
    seconds: float
    cpu: float
    tokens: int
    passes: int
    noise: float
    equal: bool = False


def taken(
    contenders: Sequence[Contender],
    prompts: Sequence[list[int]],
    *,
    count: int,
    repetitions: int,
    warm_up: float,
) -> list[TimedText]:
    """Every contender over all prompts, in turns, after texts that are not timed.

    Each contender first writes a text for every prompt, and goes on until it has written for `warm_up`
    seconds: engines compile what returns often. Then it has a turn of a few prompts, one text after another,
    as in use. The first text of a turn is not timed: just after a rest it is slower.

    The order is drawn for every turn, so that none always follows the same one.

    Returns:
        The texts that were timed, of every prompt in the order of `contenders`.
    """
    for contender in contenders:
        started = perf_counter()
        for number, prompt in enumerate(cycle(prompts)):
            if number >= len(prompts) and perf_counter() - started >= warm_up:
                break
            contender.write(prompt, count)
    turns, texts = list[TimedText](), dict[tuple[str, int, int], list[int]]()
    draws = Random(0)
    for repetition in range(repetitions):
        for first in range(0, len(prompts), IN_A_TURN):
            numbers = range(len(prompts))[first : first + IN_A_TURN]
            for contender in draws.sample(contenders, len(contenders)):
                noise = _probe()
                contender.write(prompts[numbers[-1]], count)
                for number in numbers:
                    written = contender.write(prompts[number], count)
                    texts[contender.name, repetition, number] = written.tokens
                    turn = TimedText(
                        contender=contender.name,
                        repetition=repetition,
                        prompt=number,
                        seconds=written.seconds,
                        cpu=written.cpu,
                        tokens=len(written.tokens),
                        passes=written.passes,
                        noise=noise,
                    )
                    turns.append(turn)
    names = [contender.name for contender in contenders]
    turns.sort(key=lambda turn: (turn.repetition, turn.prompt, names.index(turn.contender)))
    firsts: dict[str, str] = {}
    for contender in contenders:
        firsts.setdefault(contender.texts, contender.name)
    like = {contender.name: firsts[contender.texts] for contender in contenders}
    return [
        attrs.evolve(
            turn,
            equal=texts[turn.contender, turn.repetition, turn.prompt]
            == texts[like[turn.contender], 0, turn.prompt],
        )
        for turn in turns
    ]


def _probe() -> float:
    """Seconds of one matrix product, the second of two: just after a rest the first takes longer."""
    sleep(CALM)
    square = torch.ones(PROBE, PROBE)
    square @ square
    started = perf_counter()
    square @ square
    seconds = perf_counter() - started
    sleep(CALM)
    return seconds


def table(contenders: Sequence[Contender], turns: Sequence[TimedText]) -> list[str]:
    """Returns the lines of the table; ratios are over the first contender, with 95 % intervals.

    A contender's time for a prompt is its median over repetitions, and intervals come from the bootstrap
    over prompts. At the end the best of draftwood is compared with the best of all others, for each kind of
    weights.
    """
    lines = [
        f"{'way':<48}{'tokens/s':>10}{'least':>9}{'most':>9}{'ratio':>21}{'per CPU s':>11}{'per pass':>10}"
        f"{'equal':>12}"
    ]
    of = {one.name: [turn for turn in turns if turn.contender == one.name] for one in contenders}
    base = of[contenders[0].name]
    for name, some in of.items():
        rates = [_rate(list(group)) for _, group in groupby(some, lambda turn: turn.repetition)]
        tokens, passes = sum(turn.tokens for turn in some), sum(turn.passes for turn in some)
        lines.append(
            f"{name:<48}{median(rates):>10.1f}{min(rates):>9.1f}{max(rates):>9.1f}{_ratio(some, base):>21}"
            f"{tokens / max(sum(turn.cpu for turn in some), 1e-9):>11.1f}"
            f"{f'{tokens / passes:.2f}' if passes else '':>10}"
            f"{f'{sum(turn.equal for turn in some)} of {len(some)}':>12}"
        )
    for weights in dict.fromkeys(one.weights for one in contenders):
        # By the same times as the ratio: a pass that an engine compiles meanwhile decides on neither.
        best = [
            min(
                (of[one.name] for one in contenders if one.weights == weights and one.ours == ours),
                key=lambda turns: _by_prompt(turns).mean(),
                default=None,
            )
            for ours in (True, False)
        ]
        if best[0] is not None and best[1] is not None:
            lines.append(
                f"weights {weights}: {best[0][0].contender} over {best[1][0].contender}: "
                f"{_ratio(best[0], best[1])}"
            )
    noise = sorted(turn.noise for turn in turns)
    lines.append(
        f"noise: a fixed piece of work took {1e3 * noise[0]:.2f} ms at least, {1e3 * median(noise):.2f} at "
        f"the median, {1e3 * noise[len(noise) * 9 // 10]:.2f} at the 90th percentile."
    )
    return lines


def write_csv(turns: Sequence[TimedText], to: Path) -> None:
    """Write one line for every turn."""
    with to.open("w", newline="", encoding="utf-8") as file:
        rows = csv.DictWriter(file, [field.name for field in attrs.fields(TimedText)], lineterminator="\n")
        rows.writeheader()
        rows.writerows(attrs.asdict(turn) for turn in turns)


def _rate(turns: Sequence[TimedText]) -> float:
    """Tokens a second."""
    return sum(turn.tokens for turn in turns) / sum(turn.seconds for turn in turns)


def _ratio(turns: Sequence[TimedText], others: Sequence[TimedText]) -> str:
    """The ratio of speeds, with its interval."""
    sums: dict[str, Any] = {"seconds": _by_prompt(turns), "others": _by_prompt(others)}
    figure = intervals.interval(sums, lambda all_of: all_of["others"] / all_of["seconds"])
    if figure is None:
        return "-"
    if figure.low is None or figure.high is None:
        return f"{figure.value:.2f}"
    return f"{figure.value:.2f} ({figure.low:.2f}-{figure.high:.2f})"


def _by_prompt(turns: Sequence[TimedText]) -> Any:
    """Seconds a token by prompt, medians over repetitions."""
    prompts = sorted({turn.prompt for turn in turns})
    return np.array(
        [median(turn.seconds / turn.tokens for turn in turns if turn.prompt == number) for number in prompts]
    )
