"""What a model does behind its body: from the states that its output head reads to logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPast

from draftwood.backends.features import Features, Wish
from draftwood.backends.layers import body, count_layers, shared_copy
from draftwood.backends.recurrent.rebuild import reference
from draftwood.errors import UnsupportedModel


@dataclass
class Given(BaseModelOutputWithPast):
    """The output of a body that does not run."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)


class OutputHead:
    """Runs a model without its body, so that scales and soft-caps are as the model itself has them.

    A copy of its structure over the same weights, in which the body hands on what it is given.
    """

    def __init__(self, model: Any, *, device: torch.device) -> None:
        """That of `model`, compared with the model's own logits of a few tokens.

        Args:
            model: whose body is found.
            device: where its token ids go.

        Raises:
            UnsupportedModel: the logits do not follow from the body's output alone, or no copy can be made.
        """
        self._device = device
        tokens = torch.arange(3, device=device).unsqueeze(0)
        try:
            self._model = shared_copy(model)
            self._body = body(self._model)
            plain = reference(model)
            options = {"input_ids": tokens, "use_cache": False, "return_dict": True}
            with torch.no_grad():
                states, output = Features(plain, Wish([count_layers(plain)])).read(options)
                found = self(states)
        except Exception as error:  # models and their wrappers fail in many ways
            said = " ".join(str(error).split())[:160].rstrip(".")
            raise self._none(model, f"{type(error).__name__}: {said}") from error
        if not torch.allclose(found, output.logits, rtol=1e-3, atol=1e-3):
            raise self._none(model, "its logits do not follow from its body's output alone")

    def __call__(self, states: Tensor) -> Tensor:
        """Logits `[..., vocab]` of `[..., hidden]`."""
        flat = states.reshape(1, -1, states.shape[-1])
        tokens = torch.zeros(flat.shape[:2], dtype=torch.int64, device=self._device)
        self._body.forward = lambda *_, **__: Given(last_hidden_state=flat)
        logits: Tensor = self._model(input_ids=tokens, use_cache=False, return_dict=True).logits
        return logits.view(*states.shape[:-1], -1)

    def _none(self, model: Any, reason: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"{type(model).__name__} has no output head that stands alone ({reason}); use a draft model."
        )
