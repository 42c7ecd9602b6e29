"""Rotated targets: the matrix by which a quantiser turned a model's hidden states, and how heads undo it.

QuaRot and SpinQuant multiply what a model's layers hand on, from its embeddings to its output head, by one
orthogonal matrix. The model's logits stay, and a head that was trained on the model before that reads other
features than in its training.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood import InvalidInput, UnsupportedModel
from draftwood.base.json_text import parse_json
from draftwood.strategies.heads.files import CONFIG, check_floats, read_description, read_file
from draftwood.strategies.heads.found import local_or_fetched

QUANTISED = "quant_model_description.json"
_NAME = "global_rotation"
_CLOSE = 1e-2  # of Q Q^T to the identity, for matrices in half precision
_PLACES = ("weight_output", "weight_input")


@attrs.frozen(eq=False)
class Rotation:
    """A rotation of a target's hidden states.

    Attributes:
        matrix: orthogonal `[hidden, hidden]`; a row of states h became `h @ matrix`.

    Source: QuaRot (arXiv 2404.00456), section 4.
    """

    matrix: Tensor

    def undone(self, states: Tensor) -> Tensor:
        """Returns states `[..., layers * hidden]` of one or more layers in the basis before the rotation."""
        turn = self.matrix.T.to(states)
        turned: Tensor = states.unflatten(-1, (-1, len(turn))) @ turn
        return turned.flatten(-2)


def undone(rotation: Rotation | None, states: Tensor) -> Tensor:
    """Returns `states` without the rotation of a target, which may have none."""
    return states if rotation is None else rotation.undone(states)


def rotation_in(folder: Path, repository: str | None = None) -> Rotation | None:
    """Returns the rotation that the files of a target tell of; None where they tell of none.

    It is read where `quant_model_description.json` names its file, as msModelSlim writes it.

    Args:
        folder: with the files.
        repository: of the hub, from which files that are not there are fetched; None: nothing is.

    Raises:
        InvalidInput: a file that is missing or corrupt, or one without an orthogonal matrix.
        UnsupportedModel: `config.json` says that the embeddings were transformed, and no file has the matrix.
    """
    description = local_or_fetched(folder, QUANTISED, repository)
    if description.is_file():
        try:
            told = parse_json(description.read_bytes())
        except (OSError, ValueError) as error:
            raise InvalidInput(
                f"{QUANTISED} in {str(folder)!r} is not sound JSON: {error}; copy it again."
            ) from error
        file = _inside(told, "optional", "quarot", "rotation_map", _NAME)
        if file is not None:
            return read_rotation(local_or_fetched(folder, str(file), repository))
    try:
        config = read_description(folder)
    except InvalidInput:
        return None
    for key in ("quantization_config", "compression_config"):
        transforms = _inside(config, key, "transform_config")
        for groups in ("config_groups", "transform_groups"):
            for name, scheme in (_inside(transforms, groups) or {}).items():
                if _turns_embeddings(scheme):
                    raise UnsupportedModel(
                        f"{CONFIG} in {str(folder)!r} says that the hidden states of the target are rotated "
                        f"(transform {name!r:.40}), and no file of it holds the matrix; give that as -o "
                        "rotation=FILE, or -o rotation=none for a head that was trained on this very target."
                    )
    return None


def _inside(table: Any, *keys: str) -> Any:
    """Returns what nested tables hold at `keys`; None where one of them is missing or no table."""
    for key in keys:
        table = table.get(key) if isinstance(table, Mapping) else None
    return table


def _turns_embeddings(scheme: Any) -> bool:
    """Returns whether a transform of compressed-tensors was merged into the embeddings."""
    applied = _inside(scheme, "apply")
    return isinstance(applied, list) and any(
        _inside(one, "location") in _PLACES
        and any("embed" in str(target) for target in _inside(one, "targets") or ())
        for one in applied
    )


def read_rotation(file: Path) -> Rotation:
    """Returns the rotation in a file of safetensors, whose only tensor it is or whose `global_rotation`.

    Raises:
        InvalidInput: a file that is missing or corrupt, or one without an orthogonal matrix.
    """
    if not file.is_file():
        raise InvalidInput(
            f"There is no file {str(file)!r} with the rotation of the target; copy the target again, or name "
            "the file as -o rotation=FILE."
        )
    stored = read_file(file.parent, file.name)
    if len(stored) != 1 and _NAME not in stored:
        raise InvalidInput(f"{str(file)!r} holds no tensor {_NAME}; name a file with the target's rotation.")
    matrix = stored.get(_NAME, next(iter(stored.values())))
    check_floats({_NAME: matrix}, repr(str(file)))
    exact = matrix.double()
    if exact.ndim != 2 or exact.shape[0] != exact.shape[1]:
        raise InvalidInput(
            f"The rotation in {str(file)!r} has the shape {tuple(exact.shape)}; name a file with a square "
            "matrix."
        )
    if not torch.allclose(exact @ exact.T, torch.eye(len(exact), dtype=exact.dtype), atol=_CLOSE, rtol=0):
        raise InvalidInput(
            f"The matrix in {str(file)!r} is not orthogonal, so it is no rotation; name another file."
        )
    return Rotation(matrix.float())
