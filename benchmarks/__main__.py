"""`python -m benchmarks`: what the project measures on the zoo's models, and on transformers' families."""

import typer

from benchmarks.agreement import agreement
from benchmarks.blocks import blocks
from benchmarks.certainty import certainty
from benchmarks.constraints import constraints
from benchmarks.families import families
from benchmarks.growth import growth
from benchmarks.half_precision import half_precision
from benchmarks.kernels import kernels
from benchmarks.optimum import optimum
from benchmarks.packed import packed
from benchmarks.prefix_cost import prefix_cost
from benchmarks.recipes import recipes
from benchmarks.speed import speed
from benchmarks.verifiers import verifiers
from draftwood.apps.failures import plainly

app = typer.Typer(help="Measurements on the zoo's models.", no_args_is_help=True, add_completion=False)
app.command("agreement")(plainly(agreement))
app.command("certainty")(plainly(certainty))
app.command("blocks")(plainly(blocks))
app.command("constraints")(plainly(constraints))
app.command("families")(plainly(families))
app.command("growth")(plainly(growth))
app.command("half-precision")(plainly(half_precision))
app.command("kernels")(plainly(kernels))
app.command("optimum")(plainly(optimum))
app.command("packed")(plainly(packed))
app.command("prefix-cost")(plainly(prefix_cost))
app.command("recipes")(plainly(recipes))
app.command("speed")(plainly(speed))
app.command("verifiers")(plainly(verifiers))
if __name__ == "__main__":  # worker processes import this module too
    app()
