"""Values fitted to a pair on the prompts of its tuning: the draft's temperature, options of recipes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs

from draftwood import Deterministic, SamplingParams
from draftwood.apps.bench.specs import Spec
from draftwood.apps.models import drafters_by_name as drafters
from draftwood.apps.terminal.options import parse
from draftwood.apps.terminal.plain_console import PlainConsole
from draftwood.apps.terminal.progress import watched
from draftwood.apps.terminal.shown import to_stderr
from draftwood.apps.tune.measure import TuneTrial
from draftwood.methods.draft_temperature import best_draft_temperature
from draftwood.methods.recipe import Fit
from draftwood.protocols import Drafter, TreePolicy, registry

LIKELY_PATHS = "batch-dyspec", "beam", "dynamic-depth", "dyspec", "expand-rerank", "layered-dyspec"
"""Registered policies whose trees at temperature 0 are the draft's most likely paths."""


def fitted(specs: Sequence[Spec], trial: TuneTrial, *, tokens: int) -> list[Spec]:
    """The candidates, with what can be fitted and was not chosen: at temperature 0 no options of recipes."""
    fitting = _with_draft_temperature(specs, trial, tokens=tokens)
    return fitting if trial.temperature == 0 else _with_own_options(fitting, trial, tokens=tokens)


def _with_draft_temperature(specs: Sequence[Spec], trial: TuneTrial, *, tokens: int) -> list[Spec]:
    """The candidates that a draft temperature matters to, at the best one."""
    found: dict[str, float] = {}
    greedy = trial.temperature == 0
    usual = trial.temperature or 1.0  # where a recipe names none

    def fit(spec: Spec) -> Spec:
        chosen = spec.strategy(trial.temperature)
        # At temperature 0 papers that name a draft temperature have chosen it for their trees.
        shaped = chosen.draft_temperature is None and _is_shaped(chosen.policy)
        matters = shaped if greedy else _draws(chosen.policy)
        if "draft_temperature" in parse(spec.options) or not matters:
            return spec
        drafter = f"{chosen.drafter} {chosen.drafter_options}"
        if drafter not in found:
            found[drafter] = best_draft_temperature(
                trial.loaded.target,
                _drafter(spec, trial),
                _shown("fitting the draft's temperature", trial.prompts),
                temperature=trial.temperature,
                tokens=tokens,
                seed=trial.seed,
            )
        best = found[drafter]
        if best == (chosen.draft_temperature or usual):
            return spec
        return attrs.evolve(spec, options=(*spec.options, f"draft_temperature={best:g}"))

    fitting = [fit(spec) for spec in specs]
    for best in {temperature: None for temperature in found.values() if temperature != usual}:
        does = "knows best what the target chooses" if greedy else "overlaps most with the target"
        to_stderr(f"The draft {does} at draft temperature {best:g}.")
    return fitting


def _draws(policy: TreePolicy) -> bool:
    """Whether its children are drawn, from one draft."""
    return not any(law is Deterministic or law.several_drafters for law in policy.laws)


def _is_shaped(policy: TreePolicy) -> bool:
    """Whether its trees are the draft's most likely paths, so that the draft's temperature shapes them."""
    kinds = tuple(registry.get("policies", name) for name in LIKELY_PATHS)
    return isinstance(policy, kinds) and not getattr(policy, "acceptance", ())


def _drafter(spec: Spec, trial: TuneTrial) -> Drafter:
    chosen = spec.strategy(trial.temperature)
    if chosen.drafter is None:
        return drafters.model_drafter(trial.loaded)
    return drafters.create_drafter(chosen.drafter, chosen.drafter_options, trial.loaded)


def _with_own_options(specs: Sequence[Spec], trial: TuneTrial, *, tokens: int) -> list[Spec]:
    """The candidates that a model drafts for, with the option that their recipe can fit."""
    sizes = {spec: _budget(spec) for spec in specs if trial.loaded.draft is not None and _fit(spec)}
    found: dict[tuple[str, float | None], Mapping[int, str]] = {}
    sampling = SamplingParams(temperature=trial.temperature)
    for name, drawn_at in {_kind(spec, trial): None for spec in sizes}:
        found[name, drawn_at] = registry.get("recipes", name).fit(
            trial.loaded.target,
            drafters.model_drafter(trial.loaded),
            trial.prompts,
            budgets=[size for spec, size in sizes.items() if _kind(spec, trial) == (name, drawn_at)],
            sampling=sampling,
            draft_sampling=sampling if drawn_at is None else SamplingParams(temperature=drawn_at),
            tokens=tokens,
            seed=trial.seed,
            watch=partial(_shown, f"fitting {name}"),
        )

    def with_option(spec: Spec, fit: Fit) -> Spec:
        word = f"{fit.option}={found[_kind(spec, trial)][sizes[spec]]}"
        return attrs.evolve(spec, options=(*spec.options, word))

    return [with_option(spec, fit) if spec in sizes and (fit := _fit(spec)) else spec for spec in specs]


def _kind(spec: Spec, trial: TuneTrial) -> tuple[str, float | None]:
    """Recipe and draft temperature: candidates that have both alike are fitted together."""
    return spec.name, spec.strategy(trial.temperature).draft_temperature


def _budget(spec: Spec) -> int:
    """The nodes asked for; 64 where none are."""
    return int(parse(spec.options).get("budget", 64))


def _shown(words: str, steps: Sequence[Any]) -> Iterable[Any]:
    return watched(steps, words, total=len(steps), console=PlainConsole(stderr=True))


def _fit(spec: Spec) -> Fit | None:
    """Returns the fit of the candidate; None if it cannot be fitted, or was already."""
    if spec.parts or spec.is_transformers:
        return None
    fit: Fit | None = getattr(registry.get("recipes", spec.name), "fit", None)
    chosen = parse(spec.options)
    return None if fit is None or fit.option in chosen or "drafter" in chosen else fit
