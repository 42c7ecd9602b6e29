"""Safetensors of pickled weights, without running code that a pickle may hold."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from draftwood.base.errors import InvalidInput
from draftwood.strategies.heads import hydra_files, medusa
from draftwood.strategies.heads.files import INDEX, WEIGHTS, read_description, read_pickle, write_head
from draftwood.strategies.heads.found import folder_of

PICKLE = "pytorch_model.bin"
# By the pickle, what its safetensors are called.
_FILES = {PICKLE: WEIGHTS, medusa.PICKLE: medusa.SAFE, hydra_files.PICKLE: hydra_files.SAFE}


def converted(name: str | PathLike[str], out: Path) -> int:
    """Write the head `name`, a folder or a hub name, to the new folder `out` as safetensors.

    Returns how many tensors it has.

    Tensors keep their names, dtypes and values, and the description stays as it is.

    Raises:
        InvalidInput: a folder without a description or such weights, weights that cannot be read without
            running code, or an `out` that holds something.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InvalidInput(f"{str(out)!r} holds something; name a new folder.")
    head = folder_of(name)
    pickle = next((name for name in _FILES if (head / name).is_file()), None)
    if pickle is None and any((head / name).is_file() for name in (WEIGHTS, INDEX, *_FILES.values())):
        raise InvalidInput(
            f"{str(head)!r} already holds safetensors, so there is nothing to convert; use it as it is."
        )
    if pickle is None:
        raise InvalidInput(f"There is no {PICKLE} in {str(head)!r}; name a folder with a head that has one.")
    description, tensors = read_description(head), read_pickle(head / pickle)
    # Tensors that share memory would be refused.
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    write_head(out, description, copies, weights=_FILES[pickle])
    return len(tensors)
