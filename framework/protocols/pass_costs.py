"""`PassCosts`: the seconds that passes over a target and its draft take on one machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs
import numpy as np
from jaxtyping import Float

from draftwood.base.errors import InvalidInput

CONTEXT = 16
"""Tokens of a text within which readers of costs take passes to cost the same."""

Point = tuple[int, int, int, float]
"""Nodes of every row, rows, committed tokens of a row, and seconds."""

Line = tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]


def _points(value: Any) -> tuple[Point, ...]:
    try:
        return tuple((int(n), int(rows), int(context), float(time)) for n, rows, context, time in value)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"The points of a pass table are {value!r:.80}; give (nodes, rows, context, seconds) for each."
        ) from error


def _measured(_: object, __: object, points: tuple[Point, ...]) -> None:
    if not points:
        raise InvalidInput("A pass table has no points; measure a pass, or leave the table out.")
    for point in points:
        if point[0] < 1 or point[1] < 1 or point[2] < 0 or not 0 <= point[3] < float("inf"):
            raise InvalidInput(
                f"A pass table holds {point}; give nodes and rows above 0, a context of 0 or more, and "
                "finite seconds."
            )


def _as_pairs(pairs: Iterable[tuple[Any, Any]]) -> tuple[tuple[int, float], ...]:
    return tuple((int(tokens), float(touched)) for tokens, touched in pairs)


def _rising(_: object, __: object, pairs: tuple[tuple[int, float], ...]) -> None:
    tokens, touched = zip(*pairs, strict=True) if pairs else ((), ())
    if list(tokens) != sorted(set(tokens)) or list(touched) != sorted(touched) or min(tokens, default=1) < 1:
        raise InvalidInput(
            f"The experts of a pass table are {pairs!r:.80}; give pairs of tokens and experts, both rising."
        )


@attrs.frozen(cache_hash=True)
class PassTable:
    """Seconds by nodes of a row, rows and context, as measured; between them, interpolated.

    Between two sizes the time grows with the tokens of the pass. In a mixture of experts it grows with the
    experts that these tokens touch: eight rows of one token read up to eight times the weights of one row,
    and sixty-four rows hardly more than sixteen do.

    Attributes:
        points: `(nodes, rows, context, seconds)` of every measured pass. `nodes` counts the row
            that has the most, since a batch is padded to it.
        experts: for mixtures of experts, pairs of a number of tokens in a pass and the mean number of
            experts of a layer that they touch; empty for other models.
    """

    points: tuple[Point, ...] = attrs.field(converter=_points, validator=_measured)
    experts: tuple[tuple[int, float], ...] = attrs.field(default=(), converter=_as_pairs, validator=_rising)

    @classmethod
    def of(
        cls,
        time: Callable[[int, int, int], float],
        *,
        nodes: Sequence[int],
        rows: Sequence[int] = (1,),
        contexts: Sequence[int] = (0,),
    ) -> PassTable:
        """Returns the table of a formula `time(nodes, rows, context)`."""
        return cls([(n, r, c, time(n, r, c)) for c in contexts for r in rows for n in nodes])

    def __call__(self, nodes: Any, *, rows: int = 1, context: float = 0) -> Any:
        """Returns the seconds of passes over `nodes` nodes in each of `rows` rows.

        Below the smallest measured size the smallest counts. Beyond the largest number of nodes or tokens the
        time grows as it did between the smallest and the largest. Rows beyond the largest number that was
        measured count as more nodes of so many rows.

        Args:
            nodes: a number, or an array of them.
            rows: of the pass.
            context: committed tokens of a row.

        Returns:
            A float, or an array of the shape of `nodes`.
        """
        sizes = np.asarray(nodes, dtype=float)
        by_context = []
        for at, lines in self._lines:
            most = lines[-1][0]
            wider = sizes * max(rows / most, 1)
            by_rows = [(self._work(of), self._on_line(wider, of, line)) for of, line in lines]
            by_context.append((at, _between(self._work(min(rows, most)), by_rows)))
        found = _between(context, by_context)
        return found if sizes.ndim else float(found)

    def _work(self, tokens: Any) -> Any:
        """Returns what the time of a pass grows with between two sizes: its tokens, or the experts."""
        if not self.experts:
            return tokens
        # The tokens decide between two sizes that touch the same experts.
        places, touched = zip(*self.experts, strict=True)
        return np.interp(tokens, places, touched) + 1e-3 * np.asarray(tokens)

    def _on_line(self, sizes: Float[np.ndarray, "..."], rows: int, line: Line) -> Float[np.ndarray, "..."]:
        """Returns the seconds of passes over `sizes` nodes a row, of passes measured with so many rows."""
        measured, times = line
        found: Float[np.ndarray, "..."] = np.interp(
            self._work(rows * sizes), self._work(rows * measured), times
        )
        if len(measured) > 1:
            slope = max((times[-1] - times[0]) / (measured[-1] - measured[0]), 0.0)
            found = found + slope * np.maximum(sizes - measured[-1], 0)
        return found

    @cached_property
    def _lines(self) -> list[tuple[int, list[tuple[int, Line]]]]:
        """Returns sizes and seconds by context, then by rows, each ascending."""
        lines: dict[int, dict[int, dict[int, float]]] = {}
        for nodes, rows, context, seconds in self.points:
            lines.setdefault(context, {}).setdefault(rows, {})[nodes] = seconds
        return [
            (context, [(rows, _line(by_nodes)) for rows, by_nodes in sorted(of_context.items())])
            for context, of_context in sorted(lines.items())
        ]


def _line(by_nodes: Mapping[int, float]) -> Line:
    sizes = sorted(by_nodes)
    return np.array(sizes, dtype=float), np.array([by_nodes[size] for size in sizes])


def _between(at: float, values: Sequence[tuple[float, Float[np.ndarray, "..."]]]) -> Float[np.ndarray, "..."]:
    """Returns the value at `at`, of values at ascending places."""
    (first, least), (last, most) = values[0], values[-1]
    if at <= first:
        return least
    if at >= last:
        beyond = (at - last) / (last - first) if last > first else 0.0
        further: Float[np.ndarray, "..."] = most + beyond * np.maximum(most - least, 0)
        return further
    number = next(number for number, (place, _) in enumerate(values) if place > at)
    (low, below), (high, above) = values[number - 1], values[number]
    share = (at - low) / (high - low)
    between: Float[np.ndarray, "..."] = (1 - share) * below + share * above
    return between


def _as_table(value: Any) -> Any:
    """Returns a table as a file has it as one; anything else as it is."""
    if isinstance(value, Mapping):
        if not {"points"} <= set(value) <= {"points", "experts"}:
            raise InvalidInput(f"A pass table is {dict(value)!r:.80}, not an object with points.")
        return PassTable(**value)
    return value


@attrs.frozen(cache_hash=True)  # every round looks up what was worked out from the same costs
class PassCosts:
    """The seconds of a round's parts, measured once for a target, a drafter and an engine on one machine.

    `PassCosts` is read by policies (`RowView.costs`), by `draftwood tune` and by `bench`.
    `draftwood.measure_costs` makes it, and a file of `draftwood tune` holds it.

    Attributes:
        target: of a target pass; nodes count the root.
        draft: of a draft call and the growth of its layer; None where no drafter was measured.
        rest: of all else in a round, by the nodes of a row's tree with its root; None: not measured.
        machine: on which they were measured.
    """

    target: PassTable = attrs.field(converter=_as_table, validator=attrs.validators.instance_of(PassTable))
    draft: PassTable | None = attrs.field(
        default=None,
        converter=_as_table,
        validator=attrs.validators.optional(attrs.validators.instance_of(PassTable)),
    )
    rest: PassTable | None = attrs.field(
        default=None,
        converter=_as_table,
        validator=attrs.validators.optional(attrs.validators.instance_of(PassTable)),
    )
    machine: str = ""

    @classmethod
    def of_file(cls, value: Any) -> PassCosts:
        """Returns the costs that `attrs.asdict` gave, as a JSON file holds them.

        Raises:
            InvalidInput: they are no such object.
        """
        try:
            return cls(**value)
        except InvalidInput:
            raise
        except (TypeError, ValueError) as error:
            raise InvalidInput(
                f"pass_costs is {value!r:.80}, not the costs of draftwood tune; run draftwood tune again."
            ) from error

    def draft_seconds(self, nodes: Any, *, rows: int = 1, context: float = 0) -> Any:
        """Returns the seconds of layers, as `draft` does; 0 where no drafter was measured."""
        if self.draft is None:
            return np.zeros(np.shape(nodes)) if np.ndim(nodes) else 0.0
        return self.draft(nodes, rows=rows, context=context)

    def tree_seconds(self, nodes: int, calls: int, *, rows: int = 1, context: float = 0) -> float:
        """Returns the seconds of the layers of a tree that has `nodes` with its root and took so many calls.

        A first layer has one node to expand, and the others are taken to be alike.
        """
        if not calls:
            return 0.0
        wide = max((nodes - 1) // calls, 1)
        first, later = (self.draft_seconds(size, rows=rows, context=context) for size in (1, wide))
        return float(first + (calls - 1) * later)

    def rest_seconds(self, nodes: Any, *, rows: int = 1, context: float = 0) -> Any:
        """Returns the seconds of a round outside of its passes; 0 where they were not measured."""
        if self.rest is None:
            return np.zeros(np.shape(nodes)) if np.ndim(nodes) else 0.0
        return self.rest(nodes, rows=rows, context=context)
