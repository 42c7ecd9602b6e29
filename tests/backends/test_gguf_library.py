"""Options of llama.cpp's models."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from draftwood.backends.gguf import library


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (b"CPU : AVX512 = 1 | AMX_INT8 = 1 | REPACK = 1 | ", False),
        (b"CPU : AVX512 = 1 | REPACK = 1 | ", True),
        (b"CPU : NEON = 1 | ", True),
    ],
)
def test_matrix_tiles_are_left_out(said: bytes, wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    llama_cpp = SimpleNamespace(
        llama_model_default_params=lambda: SimpleNamespace(use_extra_bufts=True),
        llama_print_system_info=lambda: said,
    )
    monkeypatch.setattr(library, "library", lambda: llama_cpp)
    assert library.model_options().use_extra_bufts is wanted
