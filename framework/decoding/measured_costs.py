"""`measure_costs`: the seconds of target passes, draft calls and all else in a round, measured."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from draftwood.base.errors import InvalidInput
from draftwood.decoding.decoder import as_backend, as_drafter
from draftwood.decoding.experts_touched import experts_touched
from draftwood.decoding.running_rows import NOTHING
from draftwood.decoding.timed_rounds import TOKENS, TimedRounds
from draftwood.protocols import Drafter, StateBackend
from draftwood.protocols.named_heads import NamedHead
from draftwood.protocols.pass_costs import PassCosts, PassTable, Point
from draftwood.protocols.vocabulary import fit_vocabulary
from draftwood.trees.request import Requests

NODES = (1, 2, 3, 4, 5, 8, 9, 16, 17, 32)
"""Small sizes, which many rows have, and those on both sides of where passes take a step."""

WARM_ROUNDS, WARM_SECONDS = 5, 0.05
"""Rounds of a size before one is timed, and seconds after which none is added."""

Times = dict[int, list[float]]
"""Seconds by the nodes of a row."""


def measure_costs(
    target: Any,
    drafter: Any = None,
    *,
    nodes: Sequence[int] = NODES,
    rows: Sequence[int] = (1,),
    contexts: Sequence[int] = (128,),
    tokens: Sequence[int] = (),
    temperature: float = 1.0,
    repetitions: int = 6,
    seconds: float = 30.0,
    machine: str = "",
) -> PassCosts:
    """Measures passes of a target and calls of its drafter, and returns their costs.

    Sizes take turns, medians count, and every time is a multiple of what passes over one node a row take at
    that moment, since a machine may change its speed by a third within seconds.

    Args:
        target: a backend, model object, folder or hub name.
        drafter: as `SpeculativeDecoder` takes it; None: ordinary decoding's costs only.
        nodes: of every row, in target passes and draft calls.
        rows: of a pass.
        contexts: committed tokens of a row.
        tokens: a text of which rows are read, best of prompts; default: tokens 0, 1, 2 and so on, after
            which the draft guesses the target less often. A rejected node takes more time than an accepted
            one, and mixtures of experts route real text otherwise.
        temperature: of the target. It decides how children are drawn and judged, which is most of what a
            round takes outside of its passes.
        repetitions: turns, at most.
        seconds: for one number of rows and one context. Once they are over, no turn begins, and the first
            leaves larger sizes out; the smallest two are measured in any case, and rounds once.
        machine: the machine's name, which is kept with the costs.

    Raises:
        InvalidInput: the target or drafter is decoding, or a size is below 1 or beyond the target's context.
    """
    target, drafter = as_backend(target), None if drafter is None else as_drafter(drafter)
    if isinstance(drafter, NamedHead):
        drafter = drafter.drafter_for(target)
    sizes = sorted(set(nodes))
    _check(target, drafter, sizes, rows, contexts)
    if drafter is not None:
        fit_vocabulary(drafter, target.vocab_size)
    for backend in (target, *(() if drafter is None else drafter.backends)):
        backend.renew()
    points: list[list[Point]] = [[], [], []]
    for context in contexts:
        for count in rows:
            batch = _batch(target, count, context, tokens)
            parts = _turns(
                target, drafter, batch, sizes, temperature, repetitions=repetitions, seconds=seconds
            )
            for of_part, times in zip(points, parts, strict=True):
                of_part += [(n, count, context, median(taken)) for n, taken in times.items() if taken]
    if target.ranks is not None:
        points = target.ranks.agreed(points)  # clocks differ
    of_layers, of_rest = (PassTable(of_part) if of_part else None for of_part in points[1:])
    in_pass = sorted({size * count for size in (1, *sizes) for count in rows_between(rows)})
    experts = experts_touched(target.model, in_pass, tokens=tokens)
    return PassCosts(PassTable(points[0], experts), of_layers, of_rest, machine=machine)


def rows_between(rows: Sequence[int]) -> list[int]:
    """Returns the numbers of rows, and their doubles from 1 on up to the most."""
    return sorted({*rows, *(2**power for power in range(max(rows).bit_length()))})


def _check(
    target: StateBackend,
    drafter: Drafter | None,
    nodes: Sequence[int],
    rows: Sequence[int],
    contexts: Sequence[int],
) -> None:
    if any(backend.lengths for backend in (target, *(() if drafter is None else drafter.backends))):
        raise InvalidInput("The target or drafter is decoding; measure its passes before or after.")
    if not (nodes and rows and contexts) or min(*nodes, *rows, *contexts) < 1:
        raise InvalidInput(
            f"Costs were asked for nodes {list(nodes)}, rows {list(rows)} and contexts {list(contexts)}; "
            "give numbers from 1, at least one of each."
        )
    most, longest = max(contexts) + max(nodes) + TOKENS, target.max_length
    if longest is not None and most > longest:
        raise InvalidInput(
            f"Passes over {max(nodes)} nodes after {max(contexts)} tokens need {most} tokens of context, and "
            f"the target has {longest}; give smaller contexts."
        )


def _batch(target: StateBackend, rows: int, context: int, tokens: Sequence[int]) -> list[list[int]]:
    """Returns the text of every row, each of which begins elsewhere."""
    text = list(tokens) or list(range(target.vocab_size))
    return [[text[(17 * row + place) % len(text)] for place in range(context)] for row in range(rows)]


def _turns(
    target: StateBackend,
    drafter: Drafter | None,
    batch: Sequence[Sequence[int]],
    sizes: Sequence[int],
    temperature: float,
    *,
    repetitions: int,
    seconds: float,
) -> tuple[Times, Times, Times]:
    """Returns the times of target passes, of draft calls with the growth of their layer, and of the rest."""
    ends = perf_counter() + seconds
    passes: Times = {}
    calls: Times = {}
    smallest: list[float] = []
    rounds = None if drafter is None or drafter.drafters > 1 else TimedRounds(target, drafter, temperature)
    for turn in range(repetitions):
        if turn and _over(target, ends):
            break
        smallest += _passes(target, drafter, batch, sizes, (passes, calls), ends=None if turn else ends)
        sizes = list(passes)
        if rounds is not None:
            rounds.write(batch)
    unit = median(smallest)
    passes, calls = (
        {nodes: [unit * time for time in taken] for nodes, taken in times.items()}
        for times in (passes, calls)
    )
    if rounds is None:
        return passes, calls, {}
    rest, layer = rounds.by_nodes(_medians(passes, calls, batch), unit=unit)
    return passes, {nodes: [call + layer for call in taken] for nodes, taken in calls.items()}, rest


def _passes(
    target: StateBackend,
    drafter: Drafter | None,
    batch: Sequence[Sequence[int]],
    sizes: Sequence[int],
    times: tuple[Times, Times],
    *,
    ends: float | None,
) -> list[float]:
    """Time a target pass and draft calls of each size, and only of two sizes after `ends`.

    Args:
        times: of passes and of calls, to which these are added as multiples of passes over one node a row.

    Returns:
        The seconds of those.
    """
    passes, calls = times
    smallest: list[float] = []

    def timed(size: int, drafting_too: Drafter | None) -> tuple[dict[int, float], float]:
        _warm_up(target, drafting_too, batch, size)
        return _one_round(target, drafting_too, batch, size)

    try:
        _prefill(target, drafter, batch)
        smallest.append(timed(1, None)[1])
        for number, size in enumerate(sizes):
            if ends is not None and number > 1 and _over(target, ends):
                break
            # A round without a tree has no draft call.
            drafting, taken = timed(size, drafter if size > 1 or max(sizes) == 1 else None)
            smallest.append(timed(1, None)[1])
            around = sum(smallest[-2:]) / 2
            passes.setdefault(size, []).append(taken / around)
            for nodes, call in drafting.items():
                calls.setdefault(nodes, []).append(call / around)
    finally:
        target.release()
        if drafter is not None:
            drafter.release()
    return smallest


def _warm_up(
    target: StateBackend, drafter: Drafter | None, batch: Sequence[Sequence[int]], size: int
) -> None:
    """Let rounds of this size go before those that are timed.

    What a round reads is where the last one left it, and after a pass of another size it is not. A small
    model's pass takes up to a fifth less at the sixth of alike rounds.
    """
    ends = perf_counter() + WARM_SECONDS
    for _ in range(WARM_ROUNDS):
        _one_round(target, drafter, batch, size)
        if _over(target, ends):
            return


def _over(target: StateBackend, ends: float) -> bool:
    """Returns whether `ends` is over; where ranks share passes, by the clock of the first."""
    over = perf_counter() > ends
    return over if target.ranks is None else target.ranks.agreed(over)


def _prefill(target: StateBackend, drafter: Drafter | None, batch: Sequence[Sequence[int]]) -> None:
    texts = [torch.tensor(text[:-1], dtype=torch.int64) for text in batch]
    target.prefill(texts)
    if drafter is not None:
        drafter.prefill(texts)


def _one_round(
    target: StateBackend, drafter: Drafter | None, batch: Sequence[Sequence[int]], size: int
) -> tuple[dict[int, float], float]:
    """Returns the times of draft calls by their nodes, and of a target pass over `size` nodes a row."""
    tokens = torch.tensor([[text[-1], *(text[0] for _ in range(size - 1))] for text in batch])
    drafting: dict[int, float] = {}
    if drafter is not None:
        drafting[1] = _call(drafter, tokens[:, :1], -1)
        if size > 1:
            drafting[size] = _call(drafter, tokens[:, 1:2].expand(-1, size), 0)
    started = perf_counter()
    # Reading a logit waits for the end of a pass that runs asynchronously.
    float(target.extend(tokens, torch.arange(-1, size - 1).expand(len(batch), -1))[0, -1, 0])
    taken = perf_counter() - started
    target.commit([[]] * len(batch))
    if drafter is not None:
        drafter.commit([NOTHING] * len(batch))
    return drafting, taken


def _call(drafter: Drafter, tokens: Tensor, parent: int) -> float:
    """Returns the seconds of a draft call for `tokens` `[rows, nodes]`, all of them below one node."""
    parents = torch.full_like(tokens, parent)
    requests = Requests(tokens, parents, [tokens.shape[1]] * len(tokens))
    started = perf_counter()
    float(drafter.distributions(requests).flatten()[-1])
    return perf_counter() - started


def _medians(passes: Times, calls: Times, batch: Sequence[Sequence[int]]) -> PassCosts:
    """Returns the costs of these passes and draft calls of a batch."""
    rows, context = len(batch), len(batch[0])

    def table(times: Times) -> PassTable:
        return PassTable([(nodes, rows, context, median(taken)) for nodes, taken in times.items()])

    return PassCosts(table(passes), table(calls) if calls else None)
