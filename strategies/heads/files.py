"""The files of a head: a JSON description and safetensors; pickles are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from draftwood import InvalidInput
from draftwood.base.json_text import parse_json
from draftwood.base.placeholders import placeholder
from draftwood.base.whole_files import write_by, write_json

T = TypeVar("T")
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


def read_description(folder: str | PathLike[str]) -> dict[str, Any]:
    """Returns the content of `config.json`.

    Raises:
        InvalidInput: it is missing, or no JSON object.
    """
    return _json(Path(folder), CONFIG, "a head")


def read_tensors(folder: str | PathLike[str]) -> dict[str, Tensor]:
    """All tensors of a folder, in one file or in several that an index names.

    Raises:
        InvalidInput: there are none, they are pickles, or a file is missing or corrupt.
    """
    return read_named(folder, lambda _: True)


def read_named(folder: str | PathLike[str], wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    """Returns the tensors whose names are `wanted`, like `read_tensors`; files without one are not opened."""
    tensors: dict[str, Tensor] = {}
    for file in _files(Path(folder), wanted):
        tensors |= _opened(
            Path(folder),
            file,
            lambda stored: {name: stored.get_tensor(name) for name in stored.keys() if wanted(name)},  # noqa: SIM118
        )
    return tensors


def read_file(folder: str | PathLike[str], name: str) -> dict[str, Tensor]:
    """Returns all tensors of one file of safetensors.

    Raises:
        InvalidInput: it is corrupt.
    """
    return _opened(
        Path(folder),
        name,
        lambda stored: {key: stored.get_tensor(key) for key in stored.keys()},  # noqa: SIM118
    )


def read_heads(folder: str | PathLike[str], name: str) -> dict[str, Tensor]:
    """Returns all tensors of the file `name`, or else of the usual one.

    Raises:
        InvalidInput: there is neither, only a pickle, or it is corrupt.
    """
    folder = Path(folder)
    for one in (name, WEIGHTS):
        if (folder / one).is_file():
            return read_file(folder, one)
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLES)
    if pickles:
        raise InvalidInput(
            f"{pickles[0]} in {str(folder)!r} is a pickle, which can run code when it is read; make "
            f"safetensors of it with `draftwood convert-head {folder} OUT`."
        )
    raise InvalidInput(f"There is no {name} in {str(folder)!r}; copy the heads again.")


FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def check_floats(tensors: Mapping[str, Tensor], where: str) -> None:
    """Refuse tensors that are no floats of 16 bits or more, or that hold values that are not finite, by name.

    Raises:
        InvalidInput: such a tensor.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in FLOATS:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise InvalidInput(f"{name} in {where} is {kind}; heads in float16, bfloat16 or more are read.")
        check_finite(name, tensor, where)


def check_finite(name: str, tensor: Tensor, where: str) -> None:
    """Refuse a tensor with infinite values or values that are no numbers.

    Raises:
        InvalidInput: such a tensor.
    """
    if not torch.isfinite(tensor).all():
        raise InvalidInput(
            f"{name} in {where} holds values that are not finite, as after an overflow in float16; copy the "
            "head again, or save it in bfloat16."
        )


def stored_names(folder: str | PathLike[str]) -> frozenset[str]:
    """Returns the names of the tensors in a folder, which are not read; pickles are looked into as well.

    Raises:
        InvalidInput: there are no weights, or a file is missing or corrupt.
    """
    pickled = Path(folder) / "pytorch_model.bin"
    try:
        return _names_in_safetensors(Path(folder))
    except InvalidInput:
        if not pickled.is_file():
            raise
    return frozenset(read_pickle(pickled, device="meta"))


def _names_in_safetensors(folder: Path) -> frozenset[str]:
    return frozenset(
        name
        for file in _files(folder, lambda _: True)
        for name in _opened(folder, file, lambda stored: list(stored.keys()))
    )


# Names of a language model's tensors begin so; no head's do.
_OF_MODELS = ("model.layers.", "transformer.h.", "backbone.layers.")
_OF_HEADS = ("fc.weight", "hidden_norm.weight")


def check_no_model(folder: str | PathLike[str]) -> None:
    """Refuse the folder of a language model, by the names of its tensors, which are not read.

    Raises:
        InvalidInput: there is a language model in `folder`; or its files are missing or corrupt.
    """
    names = _names_in_safetensors(Path(folder))
    if any(name.startswith(_OF_MODELS) for name in names) and not any(
        name.endswith(_OF_HEADS) for name in names
    ):
        raise InvalidInput(
            f"{str(folder)!r} holds a language model, and no head; name it as the target, or as a draft "
            "model without head=."
        )


def _opened(folder: Path, file: str, take: Callable[[Any], T]) -> T:
    """Returns the result of `take` on a file of safetensors."""
    if Path(file).name != file:
        raise InvalidInput(
            f"{INDEX} in {str(folder)!r} names {file!r:.60}, which lies outside its folder; copy it there."
        )
    try:
        with safe_open(folder / file, framework="pt") as stored:
            return take(stored)
    except (OSError, ValueError, SafetensorError) as error:
        if instead := placeholder(folder / file):
            raise InvalidInput(f"{file} in {str(folder)!r} {instead}.") from error
        reason = " ".join(str(error).split())[:160].rstrip(".")
        raise InvalidInput(
            f"{file} in {str(folder)!r} cannot be read ({reason}); copy the head again."
        ) from error


def _files(folder: Path, wanted: Callable[[str], bool]) -> list[str]:
    if (folder / WEIGHTS).is_file():
        return [WEIGHTS]
    if not (folder / INDEX).is_file():
        raise _no_weights(folder)
    return files_of_index(folder, wanted)


def files_of_index(folder: Path, wanted: Callable[[str], bool] = lambda _: True) -> list[str]:
    """Returns the files that an index names for tensors whose names are `wanted`."""
    places = _json(folder, INDEX, "an index of weights").get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise InvalidInput(f"{INDEX} in {str(folder)!r} has no weight_map; copy the head again.")
    return sorted({file for name, file in places.items() if wanted(name)})


def write_head(
    folder: str | PathLike[str],
    description: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    weights: str = WEIGHTS,
) -> None:
    """Write `config.json` and the file `weights`, the tensors in the dtypes that they have."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_by(folder / weights, lambda part: save_file(whole, part, metadata={"format": "pt"}))
    write_json(folder / CONFIG, description)


def read_pickle(file: Path, *, device: str = "cpu") -> dict[str, Tensor]:
    """The tensors by name in a file that `torch.save` wrote; code in it is not run.

    Args:
        file: the pickle.
        device: `"meta"` for shapes without values.

    Raises:
        InvalidInput: it cannot be read so, or holds anything but tensors by name.
    """
    try:
        content = torch.load(file, map_location=device, weights_only=True)
    except Exception as error:  # torch and pickle raise many kinds
        reason = " ".join(str(error).split())[:120].rstrip(".")
        raise InvalidInput(
            f"{str(file)!r} cannot be read without running code in it ({reason}); ask for safetensors."
        ) from error
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in content.items()
    ):
        raise InvalidInput(f"{str(file)!r} does not hold tensors by name; ask for safetensors.")
    return content


def _no_weights(folder: Path) -> InvalidInput:
    pickles = (
        sorted(file.name for file in folder.iterdir() if file.suffix in PICKLES) if folder.is_dir() else []
    )
    if pickles:
        return InvalidInput(
            f"{pickles[0]} in {str(folder)!r} is a pickle, which can run code when it is read; make "
            f"safetensors of it with `draftwood convert-head {folder} OUT`."
        )
    others = sorted(file.name for file in folder.glob("*.safetensors"))
    if others:
        return InvalidInput(
            f"There is neither {WEIGHTS} nor {INDEX} in {str(folder)!r}, but {', '.join(others)[:120]}; copy "
            f"the index too, or rename a single file to {WEIGHTS}."
        )
    return InvalidInput(f"There is no {WEIGHTS} in {str(folder)!r}; name a folder with a head.")


def _json(folder: Path, name: str, what: str) -> dict[str, Any]:
    try:
        content = parse_json((folder / name).read_bytes())
    except OSError as error:
        raise InvalidInput(
            f"There is no {name} that can be read in {str(folder)!r}; name a folder with {what}."
        ) from error
    except ValueError as error:
        if instead := placeholder(folder / name):
            raise InvalidInput(f"{name} in {str(folder)!r} {instead}.") from error
        raise InvalidInput(f"{name} in {str(folder)!r} is not valid JSON: {error}.") from error
    if not isinstance(content, dict):
        raise InvalidInput(f"{name} in {str(folder)!r} is no JSON object; name a folder with {what}.")
    return content
