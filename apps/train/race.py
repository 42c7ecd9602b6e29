"""The trained head against ordinary `generate()`, on prompts that it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from draftwood.apps.bench.specs import ORDINARY, Spec
from draftwood.apps.bench.writers import writer
from draftwood.apps.models import by_name as models
from draftwood.zoo.distil.rows import Rows
from draftwood.zoo.heads.loops import loop_start

TREE = Spec("layered-dyspec", ("budget=16",))
_PROMPTS = 4
_LEAST, _MOST = 6, 64  # tokens of a text


def race(loaded: models.Loaded, head: Path, tests: Sequence[Rows]) -> dict[str, Any] | None:
    """Returns the tokens per round of a tree and the speed over `generate()`, at temperature 0.

    Texts end where the held-out ones run into a loop, which any draft guesses.

    Returns:
        `tree`, `prompts`, `tokens`, `tokens_per_round` and `speed_up`; None if every held-out text runs
        into a loop at once.
    """
    asked = [
        (row[: shard.prompt], min(loop_start(row) - shard.prompt, _MOST))
        for shard in tests
        if shard.temperature == 0
        for row in shard.tokens.tolist()
    ]
    asked = [(prompt, length) for prompt, length in asked if length >= _LEAST][:_PROMPTS]
    if not asked:
        return None
    ours = writer(TREE, attrs.evolve(loaded, head=str(head)), 0.0)
    plain = writer(Spec(ORDINARY), loaded, 0.0)
    entrants = {"ours": ours, "plain": plain}
    for one in entrants.values():
        one.write(asked[0][0], _LEAST, 0)  # warms up
    seconds, rounds, given, tokens = dict.fromkeys(entrants, 0.0), 0, 0, 0
    for number, (prompt, length) in enumerate(asked):
        names = list(entrants) if number % 2 else list(reversed(entrants))  # they take turns
        texts = {name: entrants[name].write(prompt, length, 0) for name in names}
        for name, text in texts.items():
            seconds[name] += text.seconds
        rounds += texts["ours"].rounds
        given += length - texts["ours"].prefill_tokens
        tokens += length
    return {
        "tree": TREE.label,
        "prompts": len(asked),
        "tokens": tokens,
        "tokens_per_round": given / rounds,
        "speed_up": seconds["plain"] / seconds["ours"],
    }
