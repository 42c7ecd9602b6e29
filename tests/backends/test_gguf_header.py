"""Headers of GGUF files, and what is refused before llama.cpp is needed."""

from __future__ import annotations

import importlib.util
import random
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from draftwood import InvalidInput, UnsupportedModel, load
from draftwood.backends.gguf import library
from draftwood.backends.gguf.header import GgufHeader
from draftwood.base.gguf_name import names_gguf


def text(word: str) -> bytes:
    return struct.pack("<Q", len(word.encode())) + word.encode()


def value(one: Any) -> bytes:
    """A value with the number of its type before it."""
    if isinstance(one, str):
        return struct.pack("<I", 8) + text(one)
    if isinstance(one, bool):
        return struct.pack("<I?", 7, one)
    if isinstance(one, int):
        return struct.pack("<II", 4, one)
    if isinstance(one, float):
        return struct.pack("<If", 6, one)
    inner = value(one[0])[:4]
    return (
        struct.pack("<I", 9) + inner + struct.pack("<Q", len(one)) + b"".join(value(each)[4:] for each in one)
    )


def gguf(
    values: dict[str, Any], tensors: tuple[str, ...] = ("token_embd.weight",), *, version: int = 3
) -> bytes:
    """A file that ends with its header."""
    pairs = b"".join(text(name) + value(one) for name, one in values.items())
    shapes = b"".join(text(name) + struct.pack("<IQQIQ", 2, 4, 8, 0, 0) for name in tensors)
    return b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(values)) + pairs + shapes


VALUES = {
    "general.architecture": "llama",
    "general.file_type": 7,
    "tokenizer.ggml.tokens": ["a", "bc", "d"],
    "tokenizer.ggml.scores": [0.5, 1.5],
    "llama.nested": [[1, 2], [3]],
    "llama.flag": True,
    "llama.context_length": 4096,
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


@pytest.mark.parametrize("version", [2, 3])
def test_values_and_names_of_tensors(file: Path, version: int) -> None:
    file.write_bytes(gguf(VALUES, ("token_embd.weight", "output.weight"), version=version))
    header = GgufHeader.of_file(file)
    assert header.values == {name: one for name, one in VALUES.items() if not isinstance(one, list)}
    assert header.tensors == {"token_embd.weight", "output.weight"}
    assert (header.architecture, header.context, header.original_context) == ("llama", 4096, None)


def test_rotations_that_change(file: Path) -> None:
    long = ("token_embd.weight", "rope_factors_long.weight")
    file.write_bytes(gguf(VALUES, long))
    assert GgufHeader.of_file(file).original_context == 4096
    file.write_bytes(gguf({**VALUES, "llama.rope.scaling.original_context_length": 512}, long))
    assert GgufHeader.of_file(file).original_context == 512


def test_every_header_that_ends_early_is_refused(file: Path) -> None:
    whole = gguf(VALUES)
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(
            InvalidInput, match="is no GGUF file|is damaged or ends early|of another byte order"
        ):
            GgufHeader.of_file(file)


def test_damaged_headers_are_refused_or_read(file: Path) -> None:
    rng = random.Random(0)
    for _ in range(500):
        damaged = bytearray(gguf(VALUES))
        for _ in range(3):
            damaged[rng.randrange(4, len(damaged))] = rng.randrange(256)
        file.write_bytes(damaged)
        with suppress(InvalidInput):
            GgufHeader.of_file(file)


def test_other_files_are_refused(file: Path) -> None:
    with pytest.raises(InvalidInput, match="No such file or directory; name a GGUF file on this machine"):
        load(file)
    with pytest.raises(InvalidInput, match="cannot be read"):
        load(str(file.parent / "a" / "b.gguf"))
    file.write_bytes(b"")
    with pytest.raises(InvalidInput, match="is no GGUF file: it begins with b''"):
        load(file)
    file.write_bytes(b"PK\x03\x04 and so on")
    with pytest.raises(InvalidInput, match="is no GGUF file: it begins with b'PK"):
        load(str(file))
    file.write_bytes(gguf(VALUES, version=1))
    with pytest.raises(InvalidInput, match="is a GGUF file of version 1, or of another byte order"):
        load(str(file))
    file.write_bytes(gguf(VALUES, version=3)[:4] + struct.pack(">I", 3) + gguf(VALUES)[8:])
    with pytest.raises(InvalidInput, match="of another byte order"):
        load(str(file))


@pytest.mark.parametrize(
    ("values", "tensors", "error", "message"),
    [
        (
            {"general.type": "adapter"},
            ("a",),
            UnsupportedModel,
            "holds a model's adapter and no language model",
        ),
        (
            {"general.type": "mmproj"},
            ("a",),
            UnsupportedModel,
            "holds a model's mmproj and no language model",
        ),
        (
            {"split.no": 1, "split.count": 3},
            ("a",),
            InvalidInput,
            "is part 2 of a model; name the first part",
        ),
        ({}, (), UnsupportedModel, "holds a vocabulary without weights"),
    ],
)
def test_what_is_no_model_is_refused_before_llama_cpp_is_needed(
    file: Path, values: dict[str, Any], tensors: tuple[str, ...], error: type[Exception], message: str
) -> None:
    file.write_bytes(gguf({**VALUES, **values}, tensors))
    with pytest.raises(error, match=message):
        load(file)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"engine": "openvino"},
            "engine is 'openvino', which is not for a GGUF file: llama.cpp runs its passes",
        ),
        ({"engine": "inductor"}, "engine is 'inductor', which is not for a GGUF file"),
        ({"engine": "inductor", "capture": "compile"}, "capture is 'compile', which is not for a GGUF file"),
        (
            {"attention": "paths"},
            "attention is 'paths', which is not for a GGUF file: trees run as sequences",
        ),
        ({"offload": "somewhere"}, "offload is 'somewhere', which is not for a GGUF file: llama.cpp maps"),
        (
            {"dtype": "float64"},
            "dtype is 'float64'; llama.cpp keeps keys and values in one of float32, float16, bf",
        ),
        ({"dtype": "int8"}, "dtype is 'int8'; llama.cpp keeps keys and values"),
        (
            {"trust_remote_code": True},
            "trust_remote_code is 'True', which is not for a GGUF file: it holds no code",
        ),
    ],
)
def test_options_of_other_models_are_refused(file: Path, options: dict[str, Any], message: str) -> None:
    from draftwood.backends import load

    file.write_bytes(gguf(VALUES))
    with pytest.raises(InvalidInput, match=message):
        load(file, **options)


def test_the_package_is_named_where_it_is_missing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_bytes(gguf(VALUES))
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "llama_cpp" else find(name))
    library.library.cache_clear()
    with pytest.raises(InvalidInput, match="needs the package llama-cpp-python, which is not installed; run"):
        load(file)


def test_names_that_lead_to_gguf_files(tmp_path: Path) -> None:
    blob = tmp_path / "sha256-1234"
    blob.write_bytes(gguf(VALUES))
    other = tmp_path / "model.bin"
    other.write_bytes(b"GGML")
    assert names_gguf("a/b.gguf")
    assert names_gguf("B.GGUF")
    assert names_gguf(blob)
    assert names_gguf(str(blob))
    for name in (other, tmp_path, "gpt2", "organisation/model-gguf", b"x.gguf", None, 7, "\0"):
        assert not names_gguf(name)
