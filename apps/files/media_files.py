"""The files of images, sound and videos that rows of JSON name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftwood.apps.files.conversations import WrongField

KINDS = ("image", "audio", "video")


def files_in(row: Mapping[str, Any], *, folder: Path) -> dict[str, tuple[Path, ...]]:
    """Returns the files that a row names, by kind; relative ones are in `folder`.

    Raises:
        WrongField: a field that holds neither a name nor a list of names, or a file that is not there.
    """
    found = {}
    for kind in KINDS:
        if row.get(kind) is None:
            continue
        names = [row[kind]] if isinstance(row[kind], str) else row[kind]
        if not isinstance(names, list) or not names or not all(isinstance(one, str) for one in names):
            shown = json.dumps(row[kind], ensure_ascii=False)[:40]
            raise WrongField(f'"{kind}" is {shown}; give the name of a file, or a list of names')
        found[kind] = tuple(folder / name for name in names)
        for file in found[kind]:
            if not file.is_file():
                raise WrongField(f'"{kind}" names {str(file)!r}, which is no file; correct it')
    return found


def refuse_files(row: Mapping[str, Any]) -> None:
    """Raise `WrongField` where a row names files that nobody reads."""
    if named := next((kind for kind in KINDS if row.get(kind)), None):
        raise WrongField(f'"{named}" is only read next to "prompt", by draftwood bench; leave it out')
