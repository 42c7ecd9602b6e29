"""`measure_costs`: the seconds of target passes, draft calls and all else in a round, measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median, median_high
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwood.base.errors import InvalidInput
from draftwood.decoding.decoder import SpeculativeDecoder, as_backend, as_drafter
from draftwood.decoding.experts_touched import experts_touched
from draftwood.decoding.round_records import Round
from draftwood.decoding.running_rows import NOTHING
from draftwood.distributions.sampling import SamplingParams
from draftwood.protocols import Drafter, StateBackend, registry
from draftwood.protocols.named_heads import NamedHead
from draftwood.protocols.pass_costs import PassCosts, PassTable, Point
from draftwood.protocols.vocabulary import fit_vocabulary
from draftwood.trees.request import Requests

NODES = (1, 2, 3, 4, 5, 8, 9, 16, 17, 32)
"""Small sizes, which many rows have, and those on both sides of where passes take a step."""

REST_BUDGETS, REST_TOKENS = (1, 8), 24
"""Nodes without the root, and tokens, of the texts that time the rest of a round."""

WARM_ROUNDS, WARM_SECONDS = 5, 0.05
"""Rounds of a size before one is timed, and seconds after which none is added."""

Times = dict[int, list[float]]
"""Seconds by the nodes of a row."""

Way = Callable[[], list[Round]]
"""Writes a text in every row, and returns the rounds that all rows had a part in."""


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

    Sizes take turns, and whole rounds are written in the same turns, so that a slow moment of the machine
    affects all of them; medians count.

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
    most, longest = max(contexts) + max(nodes) + REST_TOKENS, target.max_length
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
    """Returns the times of target passes, of draft calls with the growth of their layer, and of the rest.

    The rest is what rounds take besides what their passes took in the same turn: all work on the host, and
    the time by which passes and calls are slower in a round, where the draft reads the accepted tokens first
    and other work has come between.
    """
    ends = perf_counter() + seconds
    passes: Times = {}
    calls: Times = {}
    ways = [] if drafter is None or drafter.drafters > 1 else _ways(target, drafter, batch, temperature)
    written: list[list[Round]] = [[] for _ in ways]
    outside: list[list[float]] = [[] for _ in ways]
    for turn in range(repetitions):
        if turn and _over(target, ends):
            break
        of_turn = _passes(target, drafter, batch, sizes, ends=None if turn else ends)
        sizes = list(of_turn[0])
        for times, found in zip((passes, calls), of_turn, strict=True):
            for nodes, taken in found.items():
                times.setdefault(nodes, []).extend(taken)
        measured = _medians(*of_turn, batch)
        for rounds, besides, way in zip(written, outside, ways, strict=True):
            new = way()
            rounds += new
            besides += [_outside(one, measured, batch) for one in new]
    if not ways:
        return passes, calls, {}
    rest, layer = _by_nodes(written, outside)
    return passes, {n: [call + layer for call in taken] for n, taken in calls.items()}, rest


def _passes(
    target: StateBackend,
    drafter: Drafter | None,
    batch: Sequence[Sequence[int]],
    sizes: Sequence[int],
    *,
    ends: float | None,
) -> tuple[Times, Times]:
    """Returns the times of a target pass and of draft calls of each size, and of two sizes after `ends`."""
    passes: Times = {}
    calls: Times = {}
    try:
        _prefill(target, drafter, batch)
        for size in sizes:
            if ends is not None and len(passes) > 1 and _over(target, ends):
                break
            # A round without a tree has no draft call.
            drafting_too = drafter if size > 1 or max(sizes) == 1 else None
            _warm_up(target, drafting_too, batch, size)
            drafting, taken = _one_round(target, drafting_too, batch, size)
            passes[size] = [taken]
            for nodes, call in drafting.items():
                calls.setdefault(nodes, []).append(call)
    finally:
        target.release()
        if drafter is not None:
            drafter.release()
    return passes, calls


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


def _ways(
    target: StateBackend, drafter: Drafter, batch: Sequence[Sequence[int]], temperature: float
) -> list[Way]:
    """Returns what writes rounds: without a tree, with trees of one layer and `REST_BUDGETS`, and a deep one.

    The policy that weighs costs chooses node by node, which takes longer than a fixed shape. Nodes cost
    nothing here, so that it draws what it can.
    """
    law = "without-replacement" if temperature > 0 else "top-k"
    free = PassCosts(PassTable([(size, len(batch), len(batch[0]), 1.0) for size in (1, 9)]))
    verifier = registry.create("verifiers", "recursive-rejection" if temperature > 0 else "greedy")
    sampling = SamplingParams(temperature=temperature)

    def way(name: str, options: dict[str, Any]) -> Way:
        policy = registry.create("policies", name, options)

        def write() -> list[Round]:
            decoder = SpeculativeDecoder(target, drafter, policy, verifier, pass_costs=free)
            rounds = decoder.stream(
                batch, max_new_tokens=REST_TOKENS, sampling=sampling, seed=0, eos_token_id=[]
            )
            return [one for one in rounds if not one.prefill and len(one.rows) == len(batch)]

        return write

    flat = ({"budget": nodes, "depth": 1, "law": law} for nodes in REST_BUDGETS)
    deep = {"budget": max(REST_BUDGETS), "law": law}
    return [way("ordinary", {}), *(way("throughput-dyspec", options) for options in (*flat, deep))]


def _by_nodes(written: Sequence[list[Round]], outside: Sequence[list[float]]) -> tuple[Times, float]:
    """Returns seconds outside of passes by nodes of a flat tree, its layer left out, and those of a layer.

    Args:
        written: the rounds of each of the `_ways`.
        outside: the seconds of each round besides its passes.
    """
    sizes = [_tree_size(rounds) for rounds in written]
    layers = median_high(one.draft_calls for one in written[-1]) - 1
    *flat, deep = map(median, outside)
    of_nodes = float(np.interp(sizes[-1], sizes[:-1], flat))
    layer = (deep - of_nodes) / layers if layers > 0 else 0.0
    # The only layer of a tree with one node takes no more than that tree does.
    layer = max(min(layer, flat[1] - flat[0]), 0.0)
    times: Times = {}
    for size, besides in zip(sizes[:-1], outside[:-1], strict=True):
        grown = layer if size > 1 else 0.0
        times.setdefault(size, []).extend(max(one - grown, 0.0) for one in besides)
    return times, layer


def _tree_size(rounds: Sequence[Round]) -> int:
    """Returns the median number of nodes of the largest tree of a round, with its root."""
    return 1 + median_high(max(row.outcome.drafted for row in one.rows) for one in rounds)


def _medians(passes: Times, calls: Times, batch: Sequence[Sequence[int]]) -> PassCosts:
    """Returns the costs of these passes and draft calls of a batch."""
    rows, context = len(batch), len(batch[0])

    def table(times: Times) -> PassTable:
        return PassTable([(nodes, rows, context, median(taken)) for nodes, taken in times.items()])

    return PassCosts(table(passes), table(calls) if calls else None)


def _outside(one: Round, measured: PassCosts, batch: Sequence[Sequence[int]]) -> float:
    """Returns the seconds of a round besides a pass and draft calls as they were measured."""
    size = 1 + max(row.outcome.drafted for row in one.rows)
    at = {"rows": len(batch), "context": len(batch[0])}
    parts = measured.target(size, **at) + measured.tree_seconds(size, one.draft_calls, **at)
    return max(one.seconds - float(parts), 0.0)
