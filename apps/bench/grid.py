"""The grid of a run, cell by cell: what is measured and kept at a time, in the order of measuring."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence

import attrs

from draftwood.apps.bench.plan import BenchPlan, Contest, contests
from draftwood.apps.bench.specs import ORDINARY, Spec
from draftwood.apps.files.datasets import DataSet
from draftwood.apps.models import drafters_by_name as drafters


@attrs.frozen
class Cell:
    """One thing to measure.

    Attributes:
        kind: `"text"`, or the texts of a batch; `"check"`: the same in float32, whose time does not count;
            `"answer"`: what ordinary greedy `generate` answers in a turn, in float32, for the prompts of
            later turns; `"pair"`: how well draft and target agree on a prompt's text; `"passes"`: the time
            of passes; `"capacity"`: what ordinary decoding finishes a second; `"arrivals"`: requests that
            arrive.
        contest: where it belongs; of `"passes"`, any of the pair; of `"answer"`, one at temperature 0.
        spec: who writes; None where nobody in the contest does.
        prompt: index of the prompt in its data set; of a batch, the index of the batch.
        repetition: counted from 0.
        turn: of the prompt's conversation, counted from 0.
    """

    kind: str
    contest: Contest
    spec: Spec | None = None
    prompt: int = 0
    repetition: int = 0
    turn: int = 0

    @property
    def key(self) -> str:
        if self.kind == "passes":
            return f"passes | {self.contest.pair}"
        who = self.spec.label if self.spec else ""
        return f"{self.kind} | {self.contest.key} | {who} | {self.prompt} | {self.repetition} | {self.turn}"

    def seed(self, of_run: int) -> int:
        """Returns the seed of only this cell, so that texts of two contenders, and of two runs, are apart."""
        return zlib.crc32(self.key.encode(), of_run % 2**32)

    @property
    def capacity(self) -> Cell:
        """Returns the cell that says how many requests of this contest ordinary decoding finishes."""
        return Cell("capacity", self.contest.at_once)

    def answer(self, turn: int) -> Cell:
        """Returns the cell whose text is the answer to an earlier `turn` in this cell's prompt."""
        contest = attrs.evolve(self.contest, temperature=0.0)
        return Cell("answer", contest, prompt=self.prompt, turn=turn)


def cells(plan: BenchPlan, sets: Mapping[str, DataSet]) -> Iterator[Cell]:
    """Every cell of a plan in the order of measuring.

    In a contest the contenders take turns on every prompt, and who begins changes from prompt to prompt, so
    that a slow moment of the machine falls on all of them.
    """
    for pair in plan.pairs:
        of_pair = [contest for contest in contests(plan, list(sets)) if contest.pair == pair]
        yield from _answers(of_pair, sets)
        if plan.dtype != "float32":
            for contest in of_pair:
                if contest.temperature == 0 and not contest.arrivals:
                    yield from _in_turn(plan, contest, sets[contest.data], "check", 1)
        yield Cell("passes", of_pair[0])
        for contest in of_pair:
            if contest.arrivals:
                yield from _arriving(plan, contest)
                continue
            yield from _in_turn(plan, contest, sets[contest.data], "text", plan.repetitions)
            if contest.rows > 1:
                continue
            if drafters.names_head(pair.split(",")[1].strip()):
                continue  # a head drafts from the target's states in a round, and not along a text
            for prompt, turn in _asked(sets[contest.data]):
                yield Cell("pair", contest, prompt=prompt, turn=turn)


def batch(data_set: DataSet, rows: int, number: int) -> list[int]:
    """Returns the indices of the prompts of a batch."""
    return [(number * rows + row) % len(data_set.prompts) for row in range(rows)]


def _arriving(plan: BenchPlan, contest: Contest) -> Iterator[Cell]:
    """Every contender under the same arrivals, in turns; before it the capacity, which sets their rate.

    Ordinary `generate` is none of them: no request can join its batch.
    """
    entrants = [spec for spec in plan.contenders(contest.temperature) if spec.name != ORDINARY]
    if contest.load and contest.load == plan.loads[0] and contest.arrivals == plan.arrivals[0]:
        yield Cell("arrivals", contest).capacity
    for repetition in range(plan.repetitions):
        first = repetition % len(entrants)
        for spec in (*entrants[first:], *entrants[:first]):
            yield Cell("arrivals", contest, spec, repetition=repetition)


def _asked(data_set: DataSet, rows: int = 1) -> Iterator[tuple[int, int]]:
    """Every prompt with each of its turns; of several rows, every batch."""
    if rows > 1:
        yield from ((number, 0) for number in range(max(len(data_set.prompts) // rows, 1)))
        return
    for number, prompt in enumerate(data_set.prompts):
        for turn in range(1 + len(prompt.later)):
            yield number, turn


def _answers(of_pair: Sequence[Contest], sets: Mapping[str, DataSet]) -> Iterator[Cell]:
    """The answers to all turns but the last ones that no file gives, once for all temperatures."""
    for contest in dict.fromkeys(attrs.evolve(contest, temperature=0.0) for contest in of_pair):
        for number, turn in _asked(sets[contest.data]):
            asked = sets[contest.data].prompts[number]
            if turn < len(asked.later) and not asked.is_answered(turn):
                yield Cell("answer", contest, prompt=number, turn=turn)


def _in_turn(
    plan: BenchPlan, contest: Contest, data_set: DataSet, kind: str, repetitions: int
) -> Iterator[Cell]:
    entrants, begins = plan.contenders(contest.temperature), 0
    for repetition in range(repetitions):
        for prompt, turn in _asked(data_set, contest.rows):
            first = begins % len(entrants)
            begins += 1
            for spec in (*entrants[first:], *entrants[:first]):
                yield Cell(kind, contest, spec, prompt, repetition, turn)
