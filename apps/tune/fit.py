"""Options of recipes that are fitted to a pair on the prompts that it is tuned on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
from rich.console import Console

from draftwood import SamplingParams, registry
from draftwood.apps import models
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
    drafter = models.model_drafter(trial.loaded)
    sizes = {spec: _budget(spec) for spec in specs if _fit(spec)}
    found: dict[str, Mapping[int, str]] = {}
    for name in {spec.name: None for spec in sizes}:
        found[name] = registry.get("recipes", name).fit(
            trial.loaded.target,
            drafter,
            trial.prompts,
            budgets=[size for spec, size in sizes.items() if spec.name == name],
            sampling=SamplingParams(temperature=trial.temperature),
            tokens=tokens,
            seed=trial.seed,
            watch=partial(_shown, f"fitting {name}"),
        )

    def with_option(spec: Spec, fit: Fit) -> Spec:
        word = f"{fit.option}={found[spec.name][sizes[spec]]}"
        return attrs.evolve(spec, options=(*spec.options, word))

    return [with_option(spec, fit) if (fit := _fit(spec)) else spec for spec in specs]


def _budget(spec: Spec) -> int:
    """The nodes asked for; 64 where none are."""
    return int(parse(spec.options).get("budget", 64))


def _shown(words: str, steps: Sequence[Any]) -> Iterable[Any]:
    return watched(steps, words, total=len(steps), console=Console(stderr=True))


def _fit(spec: Spec) -> Fit | None:
    """How the candidate is fitted; None where it cannot be, or was."""
    if spec.parts or spec.is_transformers:
        return None
    fit: Fit | None = getattr(registry.get("recipes", spec.name), "fit", None)
    chosen = parse(spec.options)
    return None if fit is None or fit.option in chosen or "drafter" in chosen else fit
