"""`python -m benchmarks` (or `make bench`): the decoding race; the verifiers on real and on toy models."""

import typer

from benchmarks.decode import decode
from benchmarks.optimum import optimum
from benchmarks.speed import speed
from benchmarks.verifiers import verifiers
from draftwood.apps.failures import plainly

app = typer.Typer(help="Measurements on the zoo's models.", no_args_is_help=True, add_completion=False)
app.command("decode")(plainly(decode))
app.command("optimum")(plainly(optimum))
app.command("speed")(plainly(speed))
app.command("verifiers")(plainly(verifiers))
app()
