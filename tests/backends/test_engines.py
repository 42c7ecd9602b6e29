"""Names of engines, and what is said where one is not installed."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from draftwood import load
from draftwood.backends.loading import engines
from draftwood.backends.loading import openvino_loading as loading
from draftwood.backends.model.weight_values import WeightValues
from draftwood.base.errors import InvalidInput
from tests.backends.attention_models import tiny


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (engines, loading):
        monkeypatch.setattr(module, "is_installed", lambda: False)


@pytest.mark.usefixtures("not_installed")
def test_an_engine_that_is_not_installed_is_refused_with_what_to_install() -> None:
    with pytest.raises(
        InvalidInput, match=r'run `pip install "draftwood\[openvino\]"`, or use engine="eager"'
    ):
        load(tiny(), engine="openvino")


@pytest.mark.usefixtures("not_installed")
def test_auto_is_eager_where_openvino_is_not_installed(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "draftwood"):
        load(tiny(), engine="auto")
    assert "run eagerly, as OpenVINO is not installed" in caplog.text


def test_inductor_is_what_capture_compile_is() -> None:
    backend: Any = load(tiny(), engine="inductor")
    assert backend.captured is not None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"engine": "tvm"}, 'engine is \'tvm\'; it must be one of "auto", "eager"'),
        ({"engine": "openvino", "capture": "compile"}, "which engine='openvino' does not run; leave one"),
        ({"engine": "auto", "capture": "cuda-graphs"}, "which engine='auto' does not run; leave one"),
        ({"weights": "int8"}, "and engine='eager' may run something else; add engine=\"openvino\""),
        ({"engine": "openvino", "weights": "int2"}, "weights is 'int2'; it must be None"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        load(tiny(), **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_values_of_weights_that_change_in_place_are_noticed(dtype: torch.dtype) -> None:
    model = tiny().to(dtype)
    seen = WeightValues(model)
    assert not seen.changed()
    with torch.no_grad():
        model.lm_head.weight[7, 5] += 1.0
    assert seen.changed()
    seen = WeightValues(model)
    model.model.norm.weight.data.mul_(2.0)  # which torch does not count
    assert seen.changed()
    seen = WeightValues(model)
    model.model.rotary_emb.inv_freq.data.mul_(2.0)
    assert seen.changed()
    seen = WeightValues(model)
    model.load_state_dict(tiny().state_dict())
    assert seen.changed()
    assert not WeightValues(model).changed()
