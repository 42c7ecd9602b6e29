"""Converted models are kept on the disk, and used again only for models of the same content."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("openvino", reason="the extra `openvino` brings it")

from draftwood import load
from draftwood.backends.openvino import kept_models
from tests.backends.attention_models import tiny, words

pytestmark = pytest.mark.openvino


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Grows by an item for every model that is converted; models are kept in a new folder."""
    monkeypatch.setenv(kept_models.VARIABLE, str(tmp_path))
    import openvino

    counted, convert = list[int](), openvino.convert_model

    def counting(*args: Any, **options: Any) -> Any:
        counted.append(1)
        return convert(*args, **options)

    monkeypatch.setattr(openvino, "convert_model", counting)
    return counted


def changed(by: float) -> Any:
    model = tiny()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 2] += by
    return model


def logits(model: Any, **options: Any) -> Any:
    return load(model, engine="openvino", **options).first_logits([torch.tensor(words(20))])


def exact(model: Any) -> Any:
    return load(model).first_logits([torch.tensor(words(20))])


def test_an_equal_model_is_converted_once(conversions: list[int]) -> None:
    first = logits(tiny())
    assert len(conversions) == 1
    assert torch.equal(logits(tiny()), first)
    assert len(conversions) == 1


def test_a_model_with_another_weight_is_converted_again(conversions: list[int]) -> None:
    for number, by in enumerate((0.0, 1e-6, 2.0), 1):
        model = changed(by)
        assert torch.allclose(logits(model), exact(model), rtol=1e-4, atol=1e-5)
        assert len(conversions) == number


def test_rounded_weights_are_kept_apart_from_exact_ones(conversions: list[int]) -> None:
    model = tiny(hidden_size=64, intermediate_size=128)
    rounded = logits(model, weights="int8")
    before = len(conversions)
    assert torch.equal(logits(model, weights="int8"), rounded)
    assert torch.allclose(logits(model), exact(model), rtol=1e-4, atol=1e-5)
    assert len(conversions) == before


def test_a_model_with_hooks_is_converted_every_time(conversions: list[int]) -> None:
    for number in (1, 2):
        model = tiny()
        model.model.layers[0].register_forward_hook(lambda *_: None)
        load(model, engine="openvino")
        assert len(conversions) == number


def test_files_that_are_broken_or_of_another_model_are_made_anew(
    conversions: list[int], tmp_path: Path
) -> None:
    logits(changed(2.0))
    (other,) = (tmp_path / "openvino").iterdir()
    other = other.rename(tmp_path / "other")
    logits(tiny())
    (kept,) = (tmp_path / "openvino").iterdir()
    shutil.copy(other / "model.bin", kept / "model.bin")
    assert torch.allclose(logits(tiny()), exact(tiny()), rtol=1e-4, atol=1e-5)
    assert len(conversions) == 3
    (kept / "model.xml").write_text("<net", encoding="utf-8")
    assert torch.allclose(logits(tiny()), exact(tiny()), rtol=1e-4, atol=1e-5)
    assert len(conversions) == 4


def test_models_that_were_longest_unused_go(
    conversions: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits(tiny())
    (kept,) = (tmp_path / "openvino").iterdir()
    size = sum(file.stat().st_size for file in kept.iterdir())
    monkeypatch.setattr(kept_models, "LIMIT", int(1.5 * size))
    logits(changed(2.0))
    (newer,) = (tmp_path / "openvino").iterdir()
    assert newer.name != kept.name
    assert len(conversions) == 2


def test_nothing_is_kept_where_that_is_switched_off_or_impossible(
    conversions: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    for place in ("off", str(file)):
        monkeypatch.setenv(kept_models.VARIABLE, place)
        logits(tiny())
    assert len(conversions) == 2
    assert list(tmp_path.iterdir()) == [file]


def test_the_engine_sees_that_queries_and_keys_are_rotated() -> None:
    backend: Any = load(tiny(), engine="openvino")
    graph = backend._runner._converted.compiled.form.get_runtime_model()
    kinds = [node.get_rt_info()["layerType"].astype(str) for node in graph.get_ops()]
    assert kinds.count("RoPE") == 2 * len(backend.model.model.layers)
