"""Digests of what a run reads: models, heads and indices by their files, strategies by their code.

Two folders of one name are two models. So work that is to go on later is known by what the files hold: of
files up to 64 MB all of it, of larger ones size, header and blocks spread over the weights, which training of
any kind changes.
"""

from __future__ import annotations

import glob
import hashlib
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftwood import zoo
from draftwood.apps.models import by_name as models
from draftwood.apps.models import own_model
from draftwood.apps.models.method import Method, Strategy
from draftwood.base.errors import InvalidInput
from draftwood.base.gguf_name import names_gguf
from draftwood.protocols import registry

_WHOLE = 2**26  # bytes
_BLOCKS, _BLOCK = 256, 2**14
_LONGEST_HEADER = 2**26
# Weights, descriptions, tokenizers, code that comes with a model, and arrays of an index; no notes.
_READ = {
    ".json",
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".py",
    ".txt",
    ".model",
    ".jinja",
    ".tiktoken",
    ".npy",
}
_PART = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf")
"""The name of a part of a GGUF file, as llama.cpp's programs split it."""


def of_file(file: Path) -> str:
    """The digest of a file; of a large one that of its size and of parts of its content.

    Raises:
        InvalidInput: it cannot be read.
    """
    made = hashlib.blake2b(digest_size=16)
    try:
        size = file.stat().st_size
        made.update(f"{size}:".encode())
        with file.open("rb") as content:
            if size <= _WHOLE:
                while part := content.read(_BLOCK * 64):
                    made.update(part)
                return made.hexdigest()
            # A safetensors file begins with the length of its header.
            header = 8 + int.from_bytes(content.read(8), "little")
            content.seek(0)
            made.update(content.read(min(header, _LONGEST_HEADER)))
            for number in range(_BLOCKS):
                content.seek((size - _BLOCK) * number // (_BLOCKS - 1))
                made.update(content.read(_BLOCK))
    except OSError as error:
        raise InvalidInput(f"{str(file)!r} cannot be read: {error.strerror or error}.") from error
    return made.hexdigest()


def of_files(files: Sequence[Path]) -> str:
    """The digest of files in this order; that of a single file is its own."""
    digests = [of_file(file) for file in files]
    return (
        digests[0]
        if len(digests) == 1
        else hashlib.blake2b("".join(digests).encode(), digest_size=16).hexdigest()
    )


def of_folder(folder: Path) -> str:
    """The digest of the files of a model, a head or an index, by name; of what else is there nothing."""
    named = {file.name: of_file(file) for file in sorted(folder.iterdir()) if _counts(file)}
    return hashlib.blake2b(json.dumps(named).encode(), digest_size=16).hexdigest()


def _counts(file: Path) -> bool:
    return file.suffix in _READ and not file.name.startswith(".") and file.is_file()


def of_model(name: str) -> str | None:
    """The digest of a model, head or tokenizer; of a hub name the commit that loading it now gives.

    Of a function `package.module:function` it is the digest of its module.
    None where there is no such thing; loading it says why.
    """
    if own_model.is_own(name):
        file = own_model.file_of(name)
        return None if file is None else of_file(file)
    folder = Path(models.locate(name))
    if names_gguf(name):
        return of_gguf(folder) if folder.is_file() else None
    if not folder.is_dir():
        return _commit(name)
    digest = of_folder(folder)
    if folder.resolve().parent == zoo.path("tokenizer").parent:
        digest += of_folder(zoo.path("tokenizer"))  # which all of them share
    return digest


def of_gguf(file: Path) -> str:
    """The digest of a GGUF file, and of the other parts where it is one of several."""
    parts = [file]
    if found := _PART.fullmatch(file.name):
        parts = sorted(file.parent.glob(f"{glob.escape(found[1])}-?????-of-{found[2]}.gguf"))
    digests = [of_file(part) for part in parts]
    return (
        digests[0]
        if len(parts) == 1
        else hashlib.blake2b(" ".join(digests).encode(), digest_size=16).hexdigest()
    )


def _commit(name: str) -> str | None:
    from transformers.utils import cached_file

    for file in ("config.json", "tokenizer_config.json"):
        try:
            found = cached_file(name, file)
        except (OSError, ValueError):
            continue
        if found is not None and Path(found).parent.parent.name == "snapshots":
            return Path(found).parent.name
    return None


def of_method(method: Method) -> dict[str, Any]:
    """All that a method reads: `target_files` and the like, and `code` of strategies from elsewhere."""
    files = {"target_files": of_model(method.target)}
    if method.words.tokenizer is not None:
        files["tokenizer_files"] = of_model(method.words.tokenizer)
    return {**files, **of_strategy(method.strategy)}


def of_strategy(strategy: Strategy) -> dict[str, Any]:
    """Returns the identity of a strategy's drafter, and of its code if that is not part of this package."""
    files: dict[str, Any] = {"drafter_files": of_model(strategy.model)}
    if strategy.drafter is not None:
        files = {f"drafter_{name}_files": digest for name, digest in of_drafter(strategy).items()}
    code = of_code(strategy)
    return {**files, "code": code} if code else files


def of_drafter(strategy: Strategy) -> dict[str, str]:
    """Returns the files of a drafter without a model, such as a head or an index, by the naming option."""
    found = {name: _of_option(value) for name, value in strategy.drafter_options.items()}
    return {name: digest for name, digest in found.items() if digest is not None}


def _of_option(value: Any) -> str | None:
    """The digest of folders and files that an option names, also among others: `a,b:index=FOLDER`."""
    word = str(value) if isinstance(value, str | Path) else ""
    digests = []
    for name in dict.fromkeys([word, *re.split("[,:=]", word)]):
        place = Path(models.locate(name)) if name.strip() else None
        if place is not None and place.is_dir():
            digests.append(of_folder(place))
        elif place is not None and name == word and place.is_file():
            digests.append(of_file(place))
    return " ".join(digests) or None


def of_code(strategy: Strategy) -> dict[str, str]:
    """Modules of a strategy from elsewhere with a digest: an edited strategy is another one."""
    parts: list[type] = [type(strategy.policy), type(strategy.verifier)]
    if strategy.drafter:
        parts.append(registry.get("drafters", strategy.drafter))
    files = {part.__module__: sys.modules[part.__module__].__file__ for part in parts}
    return {
        module: of_file(Path(file))
        for module, file in files.items()
        if file and not module.startswith("draftwood.")
    }
