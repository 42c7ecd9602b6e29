"""Law S of trees that llama.cpp runs: formats of weights, families, types of keys, larger contexts."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("llama_cpp", reason="the extra `gguf` brings it")
pytest.importorskip("gguf", reason="the extra `gguf` brings it")

from draftwood.backends import load_gguf
from draftwood.backends.gguf import context
from draftwood.backends.gguf.backend import GgufBackend
from draftwood.backends.gguf.model import GgufModel
from draftwood.base.errors import InvalidInput
from draftwood.testing.backends import Mirror, StateBackendTests
from tests.gguf_models.files import FORMATS, random_file, zoo_file

pytestmark = pytest.mark.gguf

ROUNDED = 0.25
"""Allowed where llama.cpp rounds activations; the logits spread by 1.5, and misread trees are off by more."""
GELU = 1e-2
"""Allowed where llama.cpp looks GELU up in a table of half precision."""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf")


@cache
def loaded(file: Path, **options: Any) -> GgufBackend:
    return load_gguf(file, threads=1, **options)


class LawS(StateBackendTests):
    __test__ = False
    backend: GgufBackend

    def make_backend(self) -> GgufBackend:
        self.backend.release()
        return self.backend

    def logits_after(self, tokens: list[int]) -> torch.Tensor:
        return own(self.backend.model, tuple(tokens))


@cache
def own(model: GgufModel, text: tuple[int, ...]) -> torch.Tensor:
    """Logits after a text, as one sequence."""
    return model.logits(list(text))


@pytest.mark.parametrize("kind", FORMATS)
class TestFormats(LawS):
    __test__ = True

    @pytest.fixture(autouse=True)
    def _model(self, kind: str, folder: Path) -> None:
        self.backend = loaded(random_file(folder / f"{kind}.gguf", kind=kind))
        self.vocab_size, self.tolerance = self.backend.vocab_size, 1e-4 if kind == "F32" else ROUNDED


@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
class TestFamilies(LawS):
    """Norms of keys, and windows: of 24 tokens, which long texts and some trees pass."""

    __test__ = True
    context, longest = 40, 200

    @pytest.fixture(autouse=True)
    def _model(self, family: str, folder: Path) -> None:
        window = 24 if family == "gemma3" else None
        self.backend = loaded(random_file(folder / f"{family}.gguf", family, layers=7, window=window))
        self.vocab_size, self.tolerance = self.backend.vocab_size, GELU if window else 1e-4


@pytest.mark.parametrize(
    ("dtype", "flash"),
    [("float16", False), ("float16", True), ("bfloat16", False), ("bfloat16", True), ("float32", True)],
)
def test_types_of_keys_and_flash_attention(folder: Path, dtype: str, flash: bool) -> None:
    backend = loaded(zoo_file(folder, "F32"), dtype=dtype, flash=flash)
    backend.release()
    mirror = Mirror(backend, backend.model.logits, 0.05)
    mirror.prefill([[5, 6, 7] * 30, [8, 9]])
    mirror.extend([[(1, -1), (2, 0), (3, 0), (4, 2)], [(5, -1)]])
    mirror.extend([[(6, 0), (7, 3)], [(8, 0), (9, 0), (10, -1)]])
    mirror.commit([[0, 2, 3], [0, 2]])
    mirror.check_state()


def test_a_window_hides_tokens_from_a_node_as_it_should(folder: Path) -> None:
    file = random_file(folder / "window.gguf", "gemma3", layers=5, window=24)
    model = loaded(file).model
    text = [3 + place % 50 for place in range(60)]
    others = [[7] * 10 + text[10:], [7] * 45 + text[45:]]
    same, other = ((model.logits(text) - model.logits(one)).abs().max() for one in others)
    # All layers have windows, so 5 x 23 tokens matter a little and the last 24 most.
    assert 0 < same < other


def test_contexts_grow_with_all_that_they_hold(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "SMALLEST", 256)
    monkeypatch.setattr(context, "FEWEST_SEQUENCES", 4)
    backend = load_gguf(random_file(folder / "grows.gguf"), threads=1)
    mirror = Mirror(backend, backend.model.logits, 1e-4)
    mirror.prefill([[5 + place % 90 for place in range(230)], [8, 9]])
    mirror.extend([[(1, -1), (2, 0), (3, 0), (4, 2)], [(5, -1), (6, 0), (7, 0)]])
    # Both more cells and more sequences than there are.
    mirror.extend([[(place % 90, place % 3) for place in range(24)] for _ in range(2)])
    mirror.prefill([[6 + place % 80 for place in range(300)]])
    mirror.extend([[(6, 1)], [(7, 2)], [(8, -1)]])
    mirror.commit([[0, 2, 3], [0, 2], [0]])
    mirror.release([0])
    mirror.check_state()


def test_more_leaves_than_sequences_are_refused_and_the_region_stays(folder: Path) -> None:
    backend = load_gguf(random_file(folder / "leaves.gguf"), threads=1)
    mirror = Mirror(backend, backend.model.logits, 1e-4)
    mirror.prefill([[1, 2, 3], [4, 5]])
    mirror.extend([[(1, -1), (2, 0)], [(3, -1)]])
    wide = torch.ones(2, 130, dtype=torch.int64)
    with pytest.raises(InvalidInput, match="more leaves than the 256 sequences of llama.cpp"):
        backend.extend(wide, wide - 1)
    mirror.extend([[(place % 90, 1) for place in range(120)], [(place % 90, 0) for place in range(130)]])
    mirror.commit([[0, 1, 5], [0, 7]])
    with pytest.raises(
        InvalidInput, match="300 more rows need as many sequences, and llama.cpp has 254 of 256"
    ):
        backend.prefill([torch.tensor([1])] * 300)
    mirror.check_state()


def test_a_failed_pass_leaves_the_region(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = load_gguf(random_file(folder / "fails.gguf"), threads=1)
    mirror = Mirror(backend, backend.model.logits, 1e-4)
    mirror.prefill([[1, 2, 3], [4, 5]])
    mirror.extend([[(1, -1), (2, 0), (3, 0)], [(3, -1)]])
    made = backend._context
    decode = made.decode

    def fails(call: Any) -> Any:
        decode(call)  # which leaves what it read
        raise KeyboardInterrupt

    calls: list[Any] = [
        lambda: backend.extend(torch.tensor([[5, 6, 7]] * 2), torch.tensor([[0, 0, -1]] * 2)),
        lambda: backend.prefill([torch.tensor([5, 6])]),
    ]
    for call in calls:
        monkeypatch.setattr(made, "decode", fails)
        with pytest.raises(KeyboardInterrupt):
            call()
        monkeypatch.undo()
        mirror.check_lengths()
        mirror.extend([[(8, 1), (9, 2), (4, -1)], [(7, 0), (5, 0)]])
    mirror.commit([[0, 2], [0]])
    monkeypatch.setattr(made, "decode", fails)
    with pytest.raises(KeyboardInterrupt):
        backend.read([[5, 6], [7]])
    monkeypatch.undo()
    mirror.check_state()


def test_turns_are_read_on_and_the_context_is_a_limit(folder: Path) -> None:
    backend = load_gguf(random_file(folder / "turns.gguf", context=64), threads=1)
    backend.prefill([torch.tensor([1, 2, 3]), torch.tensor([4])])
    logits = backend.read([[5, 6], []])
    assert torch.allclose(logits[0], backend.model.logits([1, 2, 3, 5, 6]), atol=1e-4)
    assert not logits[1].any()
    assert (backend.lengths, backend.max_length) == ([5, 1], 64)
    with pytest.raises(InvalidInput, match="Row 0 has 65 tokens, but the model's context holds 64"):
        backend.read([[5] * 60, []])
    chain = torch.arange(63)[None].expand(2, -1)
    with pytest.raises(
        InvalidInput, match="A node of row 0 has position 67, but the model's context holds 64"
    ):
        backend.extend(chain, chain - 1)
    assert backend.lengths == [5, 1]


def test_rotations_that_change_with_the_context_bound_all_rows(folder: Path) -> None:
    backend = load_gguf(random_file(folder / "switch.gguf", context=4096, switch=512), threads=1)
    assert backend.max_length == 512
    mirror = Mirror(backend, backend.model.logits, 1e-4)
    mirror.prefill([[5 + place % 90 for place in range(300)]])
    with pytest.raises(
        InvalidInput, match="All rows together hold 600 tokens, and this model's rotations change beyond 512"
    ):
        backend.prefill([torch.ones(300, dtype=torch.int64)])
    mirror.check_state()
