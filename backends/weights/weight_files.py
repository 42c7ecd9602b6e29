"""The files of a folder's weights: all of them inside it."""

from __future__ import annotations

from pathlib import Path

from draftwood.base.errors import InvalidInput, UnsupportedModel
from draftwood.base.json_text import parse_json


def check_inside(folder: Path) -> None:
    """See that every index of `folder` names files within it, before any is opened.

    A link may lead out of a folder of the hub's cache, to the files that the hub keeps for it.

    Raises:
        InvalidInput: an index that cannot be read.
        UnsupportedModel: a file elsewhere.
    """
    root = folder.resolve()
    homes = [root, root.parents[1] / "blobs"] if root.parent.name == "snapshots" else [root]
    for index in sorted(folder.glob("*.safetensors.index.json")):
        for name in _named(index):
            try:
                file = (root / name).resolve()
            except (OSError, ValueError, RuntimeError) as error:  # a loop of links, a name that is none
                raise InvalidInput(
                    f"{index} names a file {name!r:.60} that cannot exist; download it again."
                ) from error
            if not any(file.is_relative_to(home) for home in homes):
                raise UnsupportedModel(
                    f"{index} names the file {name!r:.200}, which lies outside its folder; copy it there."
                )


def _named(index: Path) -> list[str]:
    try:
        content = parse_json(index.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{index} could not be read ({error}); download the model again.") from error
    names = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise InvalidInput(f"{index} does not say which file holds which weight; download the model again.")
    return sorted(set(names.values()))
