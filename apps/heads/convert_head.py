"""`draftwood convert-head`: safetensors of a head's pickled weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftwood.apps.models import drafters_by_name as drafters
from draftwood.apps.terminal.shown import to_stderr
from draftwood.zoo.heads.convert import converted


def convert_head(
    head: Annotated[str, typer.Argument(help="Folder, or hub name, with config.json and pickled weights.")],
    out: Annotated[Path, typer.Argument(help="A new folder for what is written.")],
) -> None:
    """Make safetensors of a head's pickled weights.

    A pickle can run code when it is read. This reads pytorch_model.bin, medusa_lm_head.pt or
    hydra_lm_head.pt with torch.load(weights_only=True), which refuses all but plain tensors, writes them to
    OUT under the same names, and copies config.json.

    \b
    Examples:
      draftwood convert-head EAGLE3-head/ head/
    """
    count = converted(head, out)
    to_stderr(f"{out}: {count} tensors of {head}'s pickle, read without running code in it.")
    if drafters.drafter_of(str(out)) is None:
        to_stderr(f"{out} does not look like a head that draftwood reads; its config.json is not of one.")
