"""Running a model: what its forward takes, its logits without cache or mask, and what guards a pass."""

from __future__ import annotations

import inspect
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from draftwood.base.errors import DraftwoodError, OutOfMemory
from draftwood.base.machine_faults import machine_fault


def input_device(model: Any) -> torch.device:
    """Where token ids go: the embedding's device, also where its weights are offloaded."""
    embedding = word_embedding(model)
    if embedding is None:
        return torch.device(model.device)
    device = getattr(getattr(embedding, "_hf_hook", None), "execution_device", None)
    if device is not None:
        return torch.device(device)
    weight: Tensor | None = next(embedding.parameters(), None)
    if weight is None or weight.device.type == "meta":
        return torch.device(model.device)
    return weight.device


def word_embedding(model: Any) -> Any:
    """The model's table of words, or None where transformers does not find it."""
    try:
        return model.get_input_embeddings()
    except NotImplementedError:
        return None


def plain_logits(model: Any, tokens: list[int]) -> Tensor:
    """Logits `[len(tokens), vocab]` of one forward pass without cache or mask.

    Raises:
        OutOfMemory: the pass does not fit.
    """
    ids = torch.tensor([tokens], device=input_device(model))
    options: dict[str, Any] = {"input_ids": ids, "use_cache": False}
    if takes(model, "position_ids"):
        # Some count from elsewhere by themselves, but not where generate() counts for them.
        options["position_ids"] = torch.arange(len(tokens), device=ids.device).unsqueeze(0)
    with guarded_pass(1):
        logits: Tensor = model(**options).logits[0]
    return logits


def takes(model: Any, argument: str) -> bool:
    """Whether the model's forward has an argument of this name."""
    # What torch.compile() returns takes anything.
    inner = getattr(model, "_orig_mod", model)
    parameters = dict(inspect.signature(inner.forward).parameters)
    if "forward" in vars(inner) and any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        # One that took the place of the class's hands on what it does not name.
        parameters = {**inspect.signature(type(inner).forward).parameters, **parameters}
    return argument in parameters


def decoder_prefix(model: Any) -> str:
    """Returns `decoder_` for an encoder-decoder, whose inputs for a text have this prefix; else nothing."""
    return "decoder_" if model.config.is_encoder_decoder else ""


def cache_argument(model: Any) -> str:
    """The name by which the forward of a model or layer takes its cache; transformers has had three."""
    # From 5.24 on it is `cache`, which the older names are mapped to.
    return next((name for name in ("cache", "cache_params") if takes(model, name)), "past_key_values")


class guarded_pass:
    """Runs a pass without autograd and turns a lack of memory, on a CPU or GPU, into `OutOfMemory`.

    An object may be used for one pass after another over as many rows, but not for a pass within a pass.

    State must not be made of inference tensors, even where a caller is in inference mode: a later call
    from outside it could not write to them.
    """

    __slots__ = ("_gradients", "_inference", "_rows")

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __enter__(self) -> None:
        self._inference = torch.inference_mode(False) if torch.is_inference_mode_enabled() else None
        if self._inference is not None:
            self._inference.__enter__()
        self._gradients = torch.is_grad_enabled()
        # What `torch.set_grad_enabled` does, without an object a time.
        torch._C._set_grad_enabled(False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch._C._set_grad_enabled(self._gradients)
        if self._inference is not None:
            self._inference.__exit__(kind, error, trace)
        if error is None or isinstance(error, DraftwoodError):
            return
        fault = machine_fault(error)
        if fault is not None and fault.kind == "memory":
            reason = (str(error).strip() or type(error).__name__).split("\n")[0].rstrip(".")
            raise OutOfMemory(
                f"The device ran out of memory in a pass over {self._rows} rows ({reason}); use fewer rows, "
                "a smaller tree budget, a shorter prompt or a half-precision dtype."
            ) from error
