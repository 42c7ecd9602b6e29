"""The figures people compare, each defined once: for one call's statistics and for the bench's tables.

A figure is a ratio of sums over texts, so that it can be worked out for one call, for many texts together,
and for every resample of a bootstrap. The sums, all over texts unless said otherwise:

    texts, tokens, rounds       batch rows, tokens written, rounds that a row took part in
    first_tokens                tokens that came at first_token_seconds
    prefill_tokens              tokens that the prompts' own passes gave
    drafted, accepted, depth    draft tokens in trees, those accepted, depths of trees
    seconds                     wall time; rows of one batch share it
    text_seconds                wall time of every text; equal to `seconds` where texts are written one by one
    first_token_seconds         time of every text until its first token was there
    round_seconds               wall time of the rounds only
    prefill_seconds, draft_seconds, target_seconds, verify_seconds      parts of `seconds`
    draft_cost_calls            draft passes, each as a share of a target pass by the bytes of its weights
    right, scored               right answers, and texts that have one
    plain_...                   the same of ordinary generate() on the same prompts
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np

Sums = Mapping[str, Any]
"""Floats, or arrays of one shape."""


@attrs.frozen
class Metric:
    """A figure.

    Attributes:
        name: as attribute, in JSON and in CSV.
        unit: in words.
        of: the figure from the sums, elementwise.
    """

    name: str
    unit: str
    of: Callable[[Sums], Any]


_PARTS = ("prefill_seconds", "draft_seconds", "target_seconds", "verify_seconds")


def _rest(s: Sums) -> Any:
    return s["seconds"] - sum(s[part] for part in _PARTS)


def _of_rounds(s: Sums) -> Any:
    return s["tokens"] - s["prefill_tokens"]


METRICS = (
    Metric("tokens_per_second", "tokens/s", lambda s: s["tokens"] / s["seconds"]),
    Metric("seconds_per_token", "s", lambda s: s["seconds"] / s["tokens"]),
    Metric(
        "speed_up",
        "times generate()",
        lambda s: s["tokens"] / s["seconds"] * s["plain_seconds"] / s["plain_tokens"],
    ),
    # What one of several users has, whose texts share the passes.
    Metric("user_speed", "tokens/s a text", lambda s: s["tokens"] / s["text_seconds"]),
    Metric("time_to_first_token", "s", lambda s: s["first_token_seconds"] / s["texts"]),
    Metric(
        "time_per_output_token",
        "s",
        lambda s: (s["text_seconds"] - s["first_token_seconds"]) / (s["tokens"] - s["first_tokens"]),
    ),
    # The extra token is counted, and a token that came with the prompt's pass is not.
    Metric("tokens_per_round", "tokens", lambda s: _of_rounds(s) / s["rounds"]),
    # That token counted too, as in papers that divide a text's length by its target calls.
    Metric("block_efficiency", "tokens", lambda s: s["tokens"] / s["rounds"]),
    Metric("acceptance_rate", "share", lambda s: s["accepted"] / s["drafted"]),
    # Root and extra token are not counted.
    Metric("path_length", "tokens", lambda s: s["accepted"] / s["rounds"]),
    Metric("depth_share", "share of the tree's depth", lambda s: s["accepted"] / s["depth"]),
    Metric("tree_size", "nodes", lambda s: s["drafted"] / s["rounds"]),
    Metric("tree_depth", "levels", lambda s: s["depth"] / s["rounds"]),
    Metric("rounds", "rounds a text", lambda s: s["rounds"] / s["texts"]),
    # RSD's MBSU: the speed-up if a pass cost the bytes of its weights.
    Metric(
        "memory_bound_speed_up",
        "times generate()",
        lambda s: _of_rounds(s) / (s["rounds"] + s["draft_cost_calls"]),
    ),
    Metric("prefill_seconds", "s a text", lambda s: s["prefill_seconds"] / s["texts"]),
    Metric("draft_seconds", "s a token", lambda s: s["draft_seconds"] / s["tokens"]),
    Metric("target_seconds", "s a token", lambda s: s["target_seconds"] / s["tokens"]),
    Metric("verify_seconds", "s a token", lambda s: s["verify_seconds"] / s["tokens"]),
    Metric("rest_seconds", "s a token", lambda s: _rest(s) / s["tokens"]),
    # The part of the rounds' time that is neither draft pass nor target pass.
    Metric(
        "overhead",
        "share of the rounds' time",
        lambda s: 1 - (s["draft_seconds"] + s["target_seconds"]) / s["round_seconds"],
    ),
    Metric("score", "share of right answers", lambda s: s["right"] / s["scored"]),
)


def value(metric: str, sums: Sums) -> float:
    """A figure by its name; 0 where nothing was counted that it is a share of."""
    (of,) = (entry.of for entry in METRICS if entry.name == metric)
    with np.errstate(invalid="ignore", divide="ignore"):
        figure = float(of({name: np.float64(total) for name, total in sums.items()}))
    return figure if np.isfinite(figure) else 0.0
