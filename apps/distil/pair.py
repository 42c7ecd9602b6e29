"""A target and a draft to train."""

from __future__ import annotations

from typing import Any

import attrs
import torch

from draftwood.apps.models import by_name as models
from draftwood.apps.models import own_model
from draftwood.base.errors import IncompatibleModels, InvalidInput, UnsupportedModel
from draftwood.protocols import registry


@attrs.frozen(eq=False)
class Pair:
    """Two transformers models on one device.

    Attributes:
        target: as it is decoded with, in eval mode.
        draft: in float32.
        tokenizer: of both.
        saved: the precision that the draft came in and goes out in.
    """

    target: Any
    draft: Any
    tokenizer: Any
    saved: torch.dtype

    @property
    def context(self) -> int | None:
        """Tokens for which both were made; None where neither says."""
        known = [
            getattr(model.config, "max_position_embeddings", None) for model in (self.target, self.draft)
        ]
        return min((length for length in known if length), default=None)


def load(
    target: str, draft: str, *, dtype: models.Dtype, device: str | None, trust_remote_code: bool
) -> Pair:
    """Both models; every name is a folder, a model of the zoo or a hub name.

    Raises:
        IncompatibleModels: their tokenizers differ, or the draft is the larger one.
        InvalidInput: as `models.load`.
        UnsupportedModel: likewise, or one that transformers' `generate` does not run.
    """
    if own_model.is_own(draft):
        raise InvalidInput(
            f"The draft {draft!r} is a function; save its model to a folder and give that, since the trained "
            "draft is written as such a folder."
        )
    loaded = models.load(
        target, None, tokenizer=None, dtype=dtype, device=device, trust_remote_code=trust_remote_code
    )
    own = loaded.loader.tokenizer(draft)
    if own is not None:
        models.check_same_tokens(
            loaded.tokenizer,
            own,
            remedy="a draft that is distilled must share the target's tokenizer, so give one that does "
            "(generate, bench and tune take this one as it is)",
        )
    backend = registry.load(
        models.locate(draft), device=loaded.loader.device, trust_remote_code=trust_remote_code
    )
    teacher, student = _model(loaded.target, target), _model(backend, draft)
    large, small = _parameters(teacher), _parameters(student)
    if small > large:
        raise IncompatibleModels(
            f"The draft {draft!r} has {small} parameters and the target {target!r} only {large}; give the "
            "larger model first."
        )
    if not all(weight.is_floating_point() for weight in student.parameters()):
        raise InvalidInput(f"The draft {draft!r} is quantized; give one with floating-point weights.")
    saved = student.dtype
    return Pair(teacher.requires_grad_(False), student.float(), loaded.tokenizer, saved)


def _model(backend: Any, name: str) -> Any:
    model = getattr(backend, "model", None)
    if not callable(getattr(model, "generate", None)):
        raise UnsupportedModel(
            f"{name!r} is no model that generate() runs; distil a pair of transformers models."
        )
    return model


def _parameters(model: Any) -> int:
    return sum(weight.numel() for weight in model.parameters())
