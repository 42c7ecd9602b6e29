"""Models with recurrent layers in which a forward was replaced."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest

from draftwood.backends.kinds.ssm import HybridBackend, SSMBackend
from draftwood.backends.kinds.unrolled import UnrolledBackend
from draftwood.backends.loading.loader import load
from draftwood.backends.structure.layers import decoder_layers
from draftwood.base.errors import UnsupportedModel
from tests.backends import recurrent_models
from tests.backends.attention_models import against


def closed(forward: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: forward(*args, **kwargs)


WAYS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "closure": closed,
    "partial": functools.partial,
    "nested": lambda forward: closed(functools.partial(closed(forward))),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("whole", [False, True])
def test_a_forward_that_holds_parts_of_the_model_is_told(
    way: str, whole: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model = recurrent_models.build("mamba2")
    module = model if whole else decoder_layers(model)[0]
    where = "Mamba2ForCausalLM" if whole else "backbone.layers.0"
    module.forward = WAYS[way](module.forward)
    if way == "partial":  # copies of it are of the copy's parts
        assert type(load(model)) is SSMBackend
        return
    with caplog.at_level(logging.WARNING):
        assert type(load(model)) is UnrolledBackend
    assert f"The forward of {where} was replaced by a function that holds the {type(module).__name__}" in (
        caplog.text
    )


def test_it_is_the_reason_of_a_refusal() -> None:
    model = recurrent_models.build("mamba")  # which goes on by mask only
    layer = decoder_layers(model)[1]
    layer.forward = closed(layer.forward)
    with pytest.raises(UnsupportedModel, match=r"^The forward of backbone\.layers\.1 was replaced"):
        load(model)
    del layer.forward
    assert type(load(model)) is SSMBackend


def test_a_method_that_takes_anything_is_served_with_the_arguments_of_its_class() -> None:
    model = recurrent_models.build("bamba")  # counts positions from 0 where none are given
    model.forward = MethodType(lambda self, *args, **kwargs: type(self).forward(self, *args, **kwargs), model)
    backend = load(model)
    assert type(backend) is HybridBackend
    mirror = against(model, backend)
    mirror.prefill([[1, 2, 3], [4, 5]])
    mirror.extend([[(1, -1), (2, 0), (3, 0)], [(7, -1)]])
    mirror.check_state()


def test_a_mixer_whose_forward_computes_something_else_is_not_served_by_mask() -> None:
    model = recurrent_models.build("mamba2")
    mixer: Any = decoder_layers(model)[0].mixer
    before = mixer.forward
    mixer.forward = lambda *args, **kwargs: 2 * before(*args, **kwargs)
    assert type(load(model)) is UnrolledBackend
