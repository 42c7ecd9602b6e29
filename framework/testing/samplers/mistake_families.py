"""Known mistakes of samplers of chains with one number that is not known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from draftwood.testing.samplers.known_mistakes import (
    Mistake,
    Step,
    cooled_step,
    ratio_of,
    residual_at,
    residual_of,
    sharpened,
)


def _family(side: str, where: str) -> Callable[[float], Mistake]:
    """Returns the mistake of an extra temperature, as a function of that temperature."""

    def mistake(temperature: float) -> Mistake:
        def cooled(rule: Callable[[Step], Any]) -> Callable[[Step], Any]:
            return lambda step: rule(cooled_step(step, side, temperature))

        parts: dict[str, Any] = {}
        if "test" in where:
            parts["ratio"] = cooled(ratio_of)
        if "residual" in where:
            parts["left"] = cooled(residual_at)
        if "last token" in where:
            parts["last"] = cooled(lambda step: step.targets[-1])
        place = "" if side == "draft" and where == "test and residual" else f" in the {where}"
        return Mistake(
            f"the {side} has an extra temperature ({temperature:.3g}){place}; target and draft as they were "
            "drawn belong into test and residual.",
            **parts,
        )

    return mistake


def _lenient(factor: float) -> Mistake:
    return Mistake(
        f"it accepts with {factor:.3g} T / D, not with T / D; leave the factor out.",
        ratio=lambda step: factor * ratio_of(step),
    )


def _powered(exponent: float) -> Mistake:
    return Mistake(
        f"it accepts with T / D to the power of {exponent:.3g}; leave the power out.",
        ratio=lambda step: ratio_of(step) ** exponent,
    )


def _constant(eighths: float) -> Mistake:
    return Mistake(
        f"it accepts every drafted token with probability {eighths / 8:.3g}; accept with T / D.",
        ratio=lambda step: eighths / 8,
    )


def _part_of_the_draft(factor: float) -> Mistake:
    return Mistake(
        f"after a rejection it draws from max(T - {factor:.3g} D, 0); draw from max(T - D, 0).",
        left=lambda step: residual_of(step.target, factor * step.draft),
    )


def _cooled_tokens(temperature: float) -> Mistake:
    return Mistake(
        f"the tokens that it draws have an extra temperature ({temperature:.3g}); draw by the residual and "
        "the target as they are.",
        left=lambda step: sharpened(residual_at(step), temperature),
        last=lambda step: sharpened(step.targets[-1], temperature),
    )


def _cooled_residual(temperature: float) -> Mistake:
    return Mistake(
        f"the token after a rejection has an extra temperature ({temperature:.3g}); draw by the residual as "
        "it is.",
        left=lambda step: sharpened(residual_at(step), temperature),
    )


FAMILIES = (
    _lenient,
    _powered,
    _constant,
    _part_of_the_draft,
    _cooled_tokens,
    _cooled_residual,
    *(
        _family(side, where)
        for side in ("draft", "target")
        for where in ("test and residual", "test", "residual")
    ),
    _family("target", "last token"),
    _family("target", "test, the residual and the last token"),
)
"""Mistakes with one number that is not known: a temperature, or a factor, between 1/8 and 8."""
