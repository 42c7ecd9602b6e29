"""Heads by name: a folder, or a repository on the Hugging Face hub whose files are here or can be fetched."""

from __future__ import annotations

import logging
import re
from math import inf
from os import PathLike
from pathlib import Path
from time import monotonic

import attrs

from draftwood import InvalidInput
from draftwood.strategies.heads.files import CONFIG, INDEX, PICKLES, WEIGHTS, files_of_index

log = logging.getLogger(__name__)
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SECONDS = 60.0
_missed: dict[str, float] = {}
"""When a repository could not be reached, by its name."""
_FILES = ["*.json", "*.safetensors", "*.bin", "*.pt"]
_repositories: dict[Path, str] = {}
"""Names of repositories, by the folder of their description."""


@attrs.frozen
class OnHub:
    """The files of a repository that are not here.

    Attributes:
        tensors: the names of its tensors; None where it has pickles only.
        has_tokenizer: whether it has files of a tokenizer.
    """

    tensors: frozenset[str] | None
    has_tokenizer: bool


def described_in(name: str | PathLike[str]) -> Path:
    """Returns the folder of the `config.json` that `name` leads to; `name` itself where there is none.

    A repository is looked up among the files that are here first. Only its `config.json` is fetched.
    """
    if not _is_hub_name(name):
        return Path(name)
    found = _described_on_hub(str(name))
    if found is None:
        return Path(name)
    _repositories[found] = str(name)
    return found


def on_hub(folder: str | PathLike[str]) -> OnHub | None:
    """Returns what the hub says of the files of a repository; of safetensors only their headers are fetched.

    Args:
        folder: where `described_in` found its description.

    Returns:
        None for a folder that is of no repository.

    Raises:
        InvalidInput: the hub cannot be asked.
    """
    name = _repositories.get(Path(folder))
    if name is None:
        return None
    from huggingface_hub import HfApi

    try:
        files = HfApi().list_repo_files(name)
        safe = any(file in (WEIGHTS, INDEX) for file in files)
        tensors = frozenset(HfApi().get_safetensors_metadata(name).weight_map) if safe else None
    except Exception as error:  # of the network or the hub, in many classes
        reason = " ".join(str(error).split())[:120].rstrip(".")
        raise InvalidInput(
            f"{name!r} describes one layer, which a head or a language model may have, and its files cannot "
            f"be looked up on the hub ({reason}); download it first, or try again."
        ) from error
    return OnHub(tensors, any("tokenizer" in file for file in files))


def local_or_fetched(folder: Path, file: str, repository: str | None) -> Path:
    """Returns the place of `file` in `folder`, whether it is there or not.

    Args:
        folder: a checkpoint's, in the hub's cache for a repository.
        file: its name.
        repository: where it is fetched from if it is not here; None: nowhere.
    """
    place = folder / file
    if repository is None or place.is_file():
        return place
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError

    # A folder of the cache is called by its commit.
    commit = folder.name
    known = try_to_load_from_cache(repository, file, revision=commit)
    if known is not None:
        return Path(known) if isinstance(known, str) else place
    try:
        return Path(hf_hub_download(repository, file, revision=commit))
    except EntryNotFoundError:
        log.debug("%s has no %s.", repository, file)
    except Exception as error:  # of the network, the hub or the disk, in many classes
        log.info("%s cannot be asked for %s (%s).", repository, file, type(error).__name__)
    return place


def folder_of(name: str | PathLike[str]) -> Path:
    """Returns the folder with the files of the head `name`.

    Args:
        name: a folder, or the name of a repository on the hub.

    Raises:
        InvalidInput: a repository whose files are not all here and cannot be fetched.
    """
    if not _is_hub_name(name):
        return Path(name)
    here = _described_on_hub(str(name))
    if here is not None and _is_whole(here):
        return here
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(name), allow_patterns=_FILES))
    except Exception as error:  # of the network, the hub or the disk, in many classes
        reason = " ".join(str(error).split())[:120].rstrip(".")
        raise InvalidInput(
            f"The head {str(name)!r} is no folder, and its files cannot be fetched from the hub ({reason}); "
            "check the name, or download it first."
        ) from error


def _is_hub_name(name: str | PathLike[str]) -> bool:
    return not Path(name).exists() and _HUB_NAME.fullmatch(str(name)) is not None


def _is_whole(folder: Path) -> bool:
    """Whether weights are there, and all files of an index."""
    if any(folder.glob("*.safetensors")) and not (folder / INDEX).is_file():
        return True
    if (folder / INDEX).is_file():
        return all((folder / file).is_file() for file in files_of_index(folder))
    return any(file.suffix in PICKLES for file in folder.iterdir())


def _described_on_hub(name: str) -> Path | None:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    found = try_to_load_from_cache(name, CONFIG)
    if isinstance(found, str):
        return Path(found).parent
    # Every kind of head asks, and without a network each answer takes long.
    if monotonic() - _missed.get(name, -inf) < _SECONDS:
        return None
    try:
        return Path(hf_hub_download(name, CONFIG)).parent
    except Exception:  # whoever loads it says why it cannot be
        _missed[name] = monotonic()
        return None
