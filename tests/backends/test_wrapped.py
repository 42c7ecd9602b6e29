"""Models inside wrappers, and models whose layers round by the other tokens of a pass."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from draftwood.backends.kinds.transformer import TransformerBackend
from draftwood.backends.loading.loader import load
from draftwood.backends.weights.quantized import rounds_activations
from draftwood.base.errors import UnsupportedModel
from tests.backends.attention_models import against, tiny


class Wrapper(torch.nn.Module):
    """A wrapper that looks like PEFT's model from outside."""

    def __init__(self, model: Any, *, learns_prompts: bool) -> None:
        super().__init__()
        self.base_model, self.config = model, model.config
        self.active_peft_config = SimpleNamespace(is_prompt_learning=learns_prompts)
        self.peft_config = {"default": self.active_peft_config}

    def get_base_model(self) -> Any:
        return self.base_model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.base_model(*args, **kwargs)


def test_a_compiled_model_keeps_its_mask() -> None:
    model = tiny(num_hidden_layers=1)  # what is compiled is compiled again for many a shape
    # Past the first of them, shapes run as they are.
    with torch._dynamo.config.patch(recompile_limit=1):
        backend = load(torch.compile(model, backend="eager"))
    assert type(backend) is TransformerBackend
    mirror = against(model, backend)
    mirror.prefill([[1, 2, 3]])
    mirror.extend([[(1, -1), (2, 0), (3, 0)]])
    mirror.check_state()


def test_adapters_are_served_by_the_model_that_holds_them() -> None:
    model = tiny()
    backend: Any = load(Wrapper(model, learns_prompts=False).eval())
    assert type(backend) is TransformerBackend
    assert backend.model is model


def test_learned_prompts_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="Wrapper puts learned vectors before every text"):
        load(Wrapper(tiny(), learns_prompts=True).eval())


def test_eight_bit_activations_are_judged_by_a_tolerance_of_their_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = torch.ao.quantization.quantize_dynamic(tiny(), {torch.nn.Linear}, dtype=torch.qint8)
    with caplog.at_level(logging.WARNING):
        assert type(load(model)) is TransformerBackend
    assert "rounds its activations by the other tokens of a pass" in caplog.text


@pytest.mark.parametrize(
    ("home", "name", "attributes", "rounds"),
    [
        ("torchao.quantization", "Int8Tensor", {"act_quant_kwargs": None}, False),
        ("torchao.quantization", "Int8Tensor", {"act_quant_kwargs": "per row"}, True),
        ("torchao.quantization", "IntxUnpackedToInt8Tensor", {"activation_quantization": None}, False),
        ("torchao.quantization", "IntxUnpackedToInt8Tensor", {"activation_quantization": "int8"}, True),
        ("torchao.quantization.linear_activation", "LinearActivationQuantizedTensor", {}, True),
        ("optimum.quanto.nn.qlinear", "QLinear", {"activation_qtype": None}, False),
        ("optimum.quanto.nn.qlinear", "QLinear", {"activation_qtype": "qint8"}, True),
        ("bitsandbytes.nn.modules", "Linear4bit", {}, False),
        ("bitsandbytes.nn.modules", "Linear8bitLt", {}, True),
    ],
)
def test_weights_of_few_bits_round_no_activations(
    home: str, name: str, attributes: dict[str, Any], rounds: bool
) -> None:
    """Layers and weights as torchao 0.18, optimum-quanto 0.2.7 and bitsandbytes 0.50 describe themselves."""
    model = tiny()
    model.lm_head.__class__ = type(name, (torch.nn.Linear,), {"__module__": home, **attributes})
    assert rounds_activations(model) == rounds
