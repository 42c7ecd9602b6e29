"""Safetensors of pickled weights, without running code that a pickle may hold."""

from __future__ import annotations

from pathlib import Path

from draftwood.base.errors import InvalidInput
from draftwood.strategies.heads.files import read_description, read_pickle, write_head

PICKLE = "pytorch_model.bin"


def converted(head: Path, out: Path) -> int:
    """Write the head in `head` to the new folder `out` as safetensors; how many tensors it has.

    Tensors keep their names, dtypes and values, and the description stays as it is.

    Raises:
        InvalidInput: a folder without a description or such weights, weights that cannot be read without
            running code, or an `out` that holds something.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InvalidInput(f"{str(out)!r} holds something; name a new folder.")
    if not (head / PICKLE).is_file():
        raise InvalidInput(f"There is no {PICKLE} in {str(head)!r}; name a folder with a head that has one.")
    description, tensors = read_description(head), read_pickle(head / PICKLE)
    # Tensors that share memory would be refused.
    write_head(out, description, {name: tensor.clone() for name, tensor in tensors.items()})
    return len(tensors)
