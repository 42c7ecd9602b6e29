"""A model's digest by content: equal for equal models, another one for everything that a pass depends on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

import pytest
import torch

from draftwood.backends.model.content_digest import content_digest
from tests.backends.attention_models import tiny


def test_models_of_the_same_content_have_the_same_digest() -> None:
    model = tiny()
    assert content_digest(model) == content_digest(tiny())
    model.load_state_dict(tiny().state_dict())
    assert content_digest(model) == content_digest(tiny())


def one_value(model: Any) -> None:
    model.lm_head.weight.data[7, 5] += 1e-4


def a_buffer(model: Any) -> None:
    model.model.rotary_emb.inv_freq.mul_(1.5)


def a_setting(model: Any) -> None:
    model.config.rms_norm_eps = 1e-3


def an_attribute(model: Any) -> None:
    model.model.layers[0].self_attn.scaling *= 2


def an_activation(model: Any) -> None:
    model.model.layers[0].mlp.act_fn = torch.nn.GELU()


def a_partial_function(model: Any) -> None:
    model.model.layers[0].mlp.extra = partial(torch.add, alpha=2)


def the_dtype(model: Any) -> None:
    model.to(torch.bfloat16)


@pytest.mark.parametrize(
    "change",
    [one_value, a_buffer, a_setting, an_attribute, an_activation, a_partial_function, the_dtype],
)
def test_a_changed_model_has_another_digest(change: Callable[[Any], None]) -> None:
    model = tiny()
    before = content_digest(model)
    with torch.no_grad():
        change(model)
    assert content_digest(model) not in (before, None)


def test_another_forward_of_the_class_is_another_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    before = content_digest(model)

    def forward(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.weight * hidden_states

    monkeypatch.setattr(type(model.model.norm), "forward", forward)
    assert content_digest(model) not in (before, None)


def a_hook(model: Any) -> None:
    model.model.layers[0].register_forward_hook(lambda *_: None)


def a_forward_of_its_own(model: Any) -> None:
    norm = model.model.norm
    norm.forward = MethodType(lambda self, x: self.weight * x, norm)


def an_object(model: Any) -> None:
    model.model.helper = object()


@pytest.mark.parametrize("change", [a_hook, a_forward_of_its_own, an_object])
def test_what_has_no_known_content_has_no_digest(change: Callable[[Any], None]) -> None:
    model = tiny()
    change(model)
    assert content_digest(model) is None
