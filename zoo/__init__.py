"""Small models with one tokenizer, for tests, demos and acceptance statistics.

`load("llama-7m")` is a target, `load("llama-draft")` its draft for temperature 0,
`load("llama-draft-sampled")` that for temperatures above it, of one layer, and
`load("llama-draft-deep")` of two; `tokenizer()` is for all of them.
`draftwood.zoo.widen` makes a target of any size out of a small one, `python -m draftwood.zoo.train`
trains and distils.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from draftwood.base.errors import InvalidInput, nearest

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["head_names", "load", "names", "path", "tokenizer"]

_ROOT = Path(__file__).resolve().parent
_MODELS = (
    "bamba-6m",
    "llama-7m",
    "llama-draft",
    "llama-draft-deep",
    "llama-draft-sampled",
    "mamba2-5m",
    "mamba2-draft",
)
_HEADS = ("bamba-6m-mtp", "llama-7m-dspark", "llama-7m-eagle3")
_TOKENIZER = "tokenizer"


def names() -> tuple[str, ...]:
    """The models of the zoo by name; a wheel carries only llama-7m and its drafts."""
    return _MODELS


def head_names() -> tuple[str, ...]:
    """Heads that draft from a target's features, by name: that of the target, and the kind."""
    return _HEADS


def path(name: str) -> Path:
    """The Hugging Face folder of a model, of a head, or of `"tokenizer"`.

    Raises:
        InvalidInput: no model of the zoo has this name.
        FileNotFoundError: this installation does not carry the model.
    """
    known = (*_MODELS, *_HEADS, _TOKENIZER)
    if name not in known:
        raise InvalidInput(f"the zoo has no model {name!r}{nearest(name, known)}")
    folder = _ROOT / name
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{name!r} is not part of the wheel; clone the repository and install it from there"
        )
    return folder


def load(name: str, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """The model `name` in eval mode on the CPU, in `dtype` (float32 when None).

    The stored weights are bfloat16, so float32 and bfloat16 hold the same numbers.
    Raises as `path`.
    """
    if name in _HEADS:
        raise InvalidInput(f"{name!r} is a head, which draws on its target; name it with --drafter.")
    folder = path(name)

    import torch
    from transformers import AutoModelForCausalLM

    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype or torch.float32)
    model.train(False)
    return model


def tokenizer() -> PreTrainedTokenizerBase:
    """The tokenizer all models of the zoo share: byte-level BPE, 4,096 tokens, end of text is 0."""
    from transformers import AutoTokenizer

    shared: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(path(_TOKENIZER))
    return shared
