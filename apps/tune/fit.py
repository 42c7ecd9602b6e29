"""Options of recipes that are fitted to a pair on the prompts that it is tuned on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import attrs
from rich.console import Console

from draftwood import SamplingParams, create, registry
from draftwood.apps.bench.specs import Spec
from draftwood.apps.options import parse
from draftwood.apps.progress import watched
from draftwood.apps.tune.measure import TuneTrial
from draftwood.recipe import Fit


def fitted(specs: Sequence[Spec], trial: TuneTrial, *, tokens: int) -> list[Spec]:
    """The candidates, with the option that their recipe can fit to a pair, unless it was chosen.

    At temperature 0 they stay as they are, as those with a drafter of their own do.
    """
    if trial.temperature == 0 or trial.loaded.draft is None:
        return list(specs)
    drafter = create("drafters", "model", {"backend": trial.loaded.draft})
    budgets: dict[str, list[int]] = {}
    for spec in specs:
        if _fit(spec) is not None and spec.budget is not None:
            budgets.setdefault(spec.name, []).append(spec.budget)
    found: dict[tuple[str, int], str] = {}
    for name, sizes in budgets.items():
        fit: Fit = registry.get("recipes", name).fit
        options = fit(
            trial.loaded.target,
            drafter,
            trial.prompts,
            budgets=sizes,
            sampling=SamplingParams(temperature=trial.temperature),
            tokens=tokens,
            seed=trial.seed,
            watch=partial(_shown, f"fitting {name}"),
        )
        found |= {(name, size): f"{fit.option}={text}" for size, text in options.items()}
    return [
        attrs.evolve(spec, options=(*spec.options, found[key]))
        if spec.budget is not None and (key := (spec.name, spec.budget)) in found and _fit(spec)
        else spec
        for spec in specs
    ]


def _shown(words: str, steps: Sequence[Any]) -> Iterable[Any]:
    return watched(steps, words, total=len(steps), console=Console(stderr=True))


def _fit(spec: Spec) -> Any:
    """How the candidate is fitted; None where it cannot be, or was."""
    if spec.parts or spec.is_transformers:
        return None
    fit = getattr(registry.get("recipes", spec.name), "fit", None)
    chosen = parse(spec.options)
    return None if fit is None or fit.option in chosen or "drafter" in chosen else fit
