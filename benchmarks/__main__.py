"""`python -m benchmarks`: what the project measures on the zoo's models, and on transformers' families."""

from typing import Any

import typer

from benchmarks.engines.command import engines
from benchmarks.engines.folders import engine_folders
from benchmarks.engines.passes import engine_passes
from benchmarks.kernels.captured import captured
from benchmarks.kernels.command import kernels
from benchmarks.kernels.first_token import first_token
from benchmarks.kernels.gpu import gpu
from benchmarks.kernels.long_texts import long_texts
from benchmarks.kernels.many_rows import many_rows
from benchmarks.kernels.mixed_rows import mixed_rows
from benchmarks.kernels.offloaded import offloaded
from benchmarks.kernels.packed import packed
from benchmarks.kernels.plain_round import plain_round
from benchmarks.kernels.prefix_cost import prefix_cost
from benchmarks.kernels.round import round_times
from benchmarks.kernels.speed import speed
from benchmarks.kernels.streamed import streamed
from benchmarks.research.agreement import agreement
from benchmarks.research.blocks import blocks
from benchmarks.research.broken_heads import broken_heads
from benchmarks.research.certainty import certainty
from benchmarks.research.constraints import constraints
from benchmarks.research.encoder_decoders import encoder_decoders
from benchmarks.research.families import families
from benchmarks.research.growth import growth
from benchmarks.research.half_precision import half_precision
from benchmarks.research.hard_prompts import hard_prompts
from benchmarks.research.heads import heads
from benchmarks.research.level import level
from benchmarks.research.methods_2026 import methods_2026
from benchmarks.research.optimum import optimum
from benchmarks.research.overlaps import overlaps
from benchmarks.research.pictured import pictured
from benchmarks.research.recipes import recipes
from benchmarks.research.retokenised import retokenised
from benchmarks.research.rollouts import rollouts
from benchmarks.research.samples import samples
from benchmarks.research.shapes import shapes
from benchmarks.research.speech import speech
from benchmarks.research.transformers_tests import transformers_tests
from benchmarks.research.verifiers import verifiers
from benchmarks.research.vocabularies import vocabularies
from draftwood.apps.terminal.cli_errors import with_plain_errors

KERNELS, RESEARCH = "Times of kernels and passes", "Research questions"

app = typer.Typer(help="Measurements on the zoo's models.", no_args_is_help=True, add_completion=False)
measurement: Any
for measurement in (
    gpu,
    captured,
    engine_folders,
    engine_passes,
    engines,
    first_token,
    kernels,
    long_texts,
    many_rows,
    mixed_rows,
    offloaded,
    packed,
    plain_round,
    prefix_cost,
    speed,
    streamed,
):
    app.command(rich_help_panel=KERNELS)(with_plain_errors(measurement))
app.command("round", rich_help_panel=KERNELS)(with_plain_errors(round_times))
for measurement in (
    agreement,
    blocks,
    broken_heads,
    certainty,
    constraints,
    encoder_decoders,
    families,
    growth,
    half_precision,
    hard_prompts,
    heads,
    level,
    methods_2026,
    optimum,
    overlaps,
    pictured,
    recipes,
    retokenised,
    rollouts,
    samples,
    shapes,
    speech,
    transformers_tests,
    verifiers,
    vocabularies,
):
    app.command(rich_help_panel=RESEARCH)(with_plain_errors(measurement))
if __name__ == "__main__":  # worker processes import this module too
    app()
