"""A run of bench over a Ray cluster: an actor a GPU or machine measures cells that belong together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs

from draftwood.apps.bench.folder import Folder, describe
from draftwood.apps.bench.grid import Cell, cells
from draftwood.apps.bench.measure import Measurer
from draftwood.apps.bench.plan import BenchPlan
from draftwood.apps.files.datasets import DataSet
from draftwood.apps.files.journal_work import differences, listed
from draftwood.apps.generate import on_ray
from draftwood.apps.models import by_name as models
from draftwood.base.errors import InvalidInput

Sets = Mapping[str, DataSet]
Measured = dict[str, dict[str, Any]]


class MeasuringActor:
    """Measures cells on its machine; holds the models of one pair at a time."""

    def __init__(self, plan: BenchPlan, sets: Sets) -> None:
        models.quiet()
        self._plan = plan
        self._measurer = Measurer(plan, sets, {})

    def description(self) -> dict[str, Any]:
        """Returns the content of `run.json` for a run here."""
        return describe(self._plan.document())

    def measure(self, group: Sequence[Cell], known: Measured) -> Measured:
        """Returns the lines of `group` by key; `known` are the lines that they may read."""
        cells = self._measurer.known = dict(known)
        for cell in group:
            cells[cell.key] = self._measurer.measure(cell)
        return {cell.key: cells[cell.key] for cell in group}


@attrs.frozen
class Spread:
    """The actors of one run.

    Attributes:
        description: what `run.json` says, as all of them do.
        pool: Ray's, of the actors.
    """

    description: dict[str, Any]
    pool: Any

    def run(self, plan: BenchPlan, sets: Sets, folder: Folder) -> tuple[list[Cell], Iterator[Cell]]:
        """The cells that are missing, and an iterator that has them measured and keeps them.

        The contenders of a contest take turns on a prompt where they are measured: on one actor.
        """
        everything = list(cells(plan, sets))
        missing = [cell for cell in everything if cell.key not in folder.cells]
        keys: dict[tuple[str, str, int], list[str]] = {}
        for cell in everything:
            keys.setdefault(_place(cell), []).append(cell.key)

        def known(group: Sequence[Cell]) -> Measured:
            return {key: folder.cells[key] for key in keys[_place(group[0])] if key in folder.cells}

        def steps() -> Iterator[Cell]:
            # Prompts of later turns are made of answers.
            for answers in (True, False):
                groups = _groups([cell for cell in missing if (cell.kind == "answer") is answers])
                asked = self.pool.map_unordered(
                    lambda actor, group: actor.measure.remote(group, known(group)), groups
                )
                by_key = {cell.key: cell for group in groups for cell in group}
                for measured in asked:
                    for key, cell in measured.items():
                        folder.add(key, cell)
                        yield by_key[key]

        return missing, steps()


def _place(cell: Cell) -> tuple[str, str, int]:
    return cell.contest.pair, cell.contest.data, cell.prompt


def _groups(wanted: Sequence[Cell]) -> list[list[Cell]]:
    """Cells of one contest on one prompt; checks apart, which take other models, and so do passes."""
    groups: dict[Any, list[Cell]] = {}
    for cell in wanted:
        apart = cell.kind if cell.kind in ("check", "passes") else ""
        groups.setdefault((apart, cell.contest, cell.prompt), []).append(cell)
    return list(groups.values())


@contextmanager
def spread(address: str, plan: BenchPlan, sets: Sets, workers: int | None) -> Iterator[Spread]:
    """The actors of a run, which are alike.

    Raises:
        InvalidInput: there is no cluster, it fails, or its machines differ.
    """
    with on_ray.connected(address) as ray:
        from ray.util import ActorPool

        gpus = int(ray.cluster_resources().get("GPU", 0))
        machines = [node["Resources"].get("CPU", 1) for node in ray.nodes() if node["Alive"]]
        count = workers or gpus or len(machines)
        # A CPU's cell has its machine to itself, unless more workers were asked for than there are machines.
        cpus = 1 if gpus or count > len(machines) else int(min(machines))
        share = {"num_gpus": min(1.0, gpus / count)} if gpus else {}
        actor = ray.remote(MeasuringActor).options(
            num_cpus=cpus,
            max_restarts=-1,
            max_task_retries=on_ray.AGAIN,
            scheduling_strategy="SPREAD",
            **share,
        )
        actors = [actor.remote(plan, sets) for _ in range(count)]
        first, *others = ray.get([one.description.remote() for one in actors])
        for other in others:
            odd = [
                words
                for part in ("versions", "hardware", "configuration")
                for words in differences(first[part], other[part])
            ]
            if odd:
                raise InvalidInput(
                    f"The workers are not alike: {listed(odd)}; their figures cannot be in one "
                    "table, so take machines of one kind."
                )
        yield Spread(first, ActorPool(actors))
