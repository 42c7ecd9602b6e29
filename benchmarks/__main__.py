"""`python -m benchmarks` (or `make bench`): the decoding race."""

import typer

from benchmarks.decode import decode
from draftwood.apps.failures import plainly

typer.run(plainly(decode))
