"""Tree shapes for race verification, searched on the prompts that a pair is tuned on."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from rich.console import Console

from draftwood import SamplingParams, create
from draftwood.apps.bench.specs import Spec
from draftwood.apps.options import parse
from draftwood.apps.progress import watched
from draftwood.apps.tune.measure import TuneTrial
from draftwood.strategies.policies.shapes import as_text
from draftwood.strategies.shape_search import best_sorted_shape, measured_shares, probe_shapes
from draftwood.strategies.verifiers.race_traversal import RaceTraversal

_DEPTH = 16


def with_shapes(specs: Sequence[Spec], trial: TuneTrial, *, tokens: int) -> list[Spec]:
    """The candidates, each `race` without a shape with the one that is best for its budget on this pair.

    At temperature 0 they stay as they are, as those with a drafter of their own do.
    """
    searched = [spec for spec in specs if _is_searched(spec)]
    if not searched or trial.temperature == 0 or trial.loaded.draft is None:
        return list(specs)
    probes = probe_shapes(max(_budget(spec) for spec in searched))
    shares = measured_shares(
        trial.loaded.target,
        create("drafters", "model", {"backend": trial.loaded.draft}),
        trial.prompts,
        shapes=watched(probes, "judging trees", total=len(probes), console=Console(stderr=True)),
        verifier=RaceTraversal(),
        sampling=SamplingParams(temperature=trial.temperature),
        tokens=tokens,
        seed=trial.seed,
    )

    def shaped(spec: Spec) -> Spec:
        if not _is_searched(spec):
            return spec
        shape, _ = best_sorted_shape(shares, budget=_budget(spec), depth=_DEPTH)
        return attrs.evolve(spec, options=(*spec.options, f"shape={as_text(shape)}"))

    return [shaped(spec) for spec in specs]


def _is_searched(spec: Spec) -> bool:
    words = parse(spec.options)
    return spec.name == "race" and "shape" not in words and "drafter" not in words


def _budget(spec: Spec) -> int:
    return int(parse(spec.options).get("budget", 64))
