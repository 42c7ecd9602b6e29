"""The part of a model after its body: from the states that its output head reads to logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPast

from draftwood.backends.model.features import FeatureRequest, Features
from draftwood.backends.recurrent.rebuild import reference
from draftwood.backends.structure.layers import body, count_layers, shared_copy
from draftwood.base.errors import UnsupportedModel
from draftwood.base.machine_faults import machine_fault


@dataclass
class FixedBodyOutput(BaseModelOutputWithPast):
    """The output of a body that does not run."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)


class OutputHead:
    """Runs a model without its body, so that scales and soft-caps are as the model itself has them.

    A copy of its structure over the same weights, in which the body puts out the states of the caller.
    """

    def __init__(self, model: Any, *, device: torch.device) -> None:
        """That of `model`, compared with the model's own logits of a few tokens.

        Args:
            model: one whose body `layers.body` finds.
            device: where its token ids go.

        Raises:
            UnsupportedModel: the logits depend on more than the body's output, or no copy can be made.
        """
        self._device = device
        tokens = torch.arange(3, device=device).unsqueeze(0)
        try:
            self._model = shared_copy(model)
            self._body = body(self._model)
            plain = reference(model)
            options = {"input_ids": tokens, "use_cache": False, "return_dict": True}
            with torch.no_grad():
                states, output = Features(plain, FeatureRequest([count_layers(plain)])).read(options)
                logits = self(states)
        except Exception as error:  # models and their wrappers fail in many ways
            if machine_fault(error) is not None:
                raise
            text = " ".join(str(error).split())[:160].rstrip(".")
            raise self._error(model, f"{type(error).__name__}: {text}") from error
        if not torch.allclose(logits, output.logits, rtol=1e-3, atol=1e-3):
            raise self._error(model, "its logits depend on more than its body's output")

    def __call__(self, states: Tensor) -> Tensor:
        """Logits `[..., vocab]` of `[..., hidden]`."""
        flat = states.reshape(1, -1, states.shape[-1])
        tokens = torch.zeros(flat.shape[:2], dtype=torch.int64, device=self._device)
        self._body.forward = lambda *_, **__: FixedBodyOutput(last_hidden_state=flat)
        logits: Tensor = self._model(input_ids=tokens, use_cache=False, return_dict=True).logits
        # By its width: -1 is ambiguous where there is no state.
        return logits.view(*states.shape[:-1], logits.shape[-1])

    def _error(self, model: Any, reason: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"{type(model).__name__} has no output head that can be used separately ({reason}); use a draft "
            "model."
        )
