"""Models and tokenizers by name for the command line, loaded quietly."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Any

import attrs
import torch

from draftwood import Drafter, StateBackend, create, registry, zoo
from draftwood.apps.failures import one_line
from draftwood.errors import IncompatibleModels, InvalidInput, UnsupportedModel

TARGET, DRAFT = "llama-7m", "llama-draft"


class Dtype(StrEnum):
    """Precisions that the command line offers."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


@attrs.frozen(eq=False)
class Loaded:
    """A target and a draft (None where the drafter needs no model) that share `tokenizer`."""

    target: StateBackend
    draft: StateBackend | None
    tokenizer: Any


def quiet() -> None:
    """Keep transformers' progress bars and warnings from the terminal."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import warnings

    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", module="transformers")


def load(
    target: str,
    draft: str | None,
    *,
    tokenizer: str | None,
    dtype: Dtype,
    device: str | None,
    trust_remote_code: bool,
) -> Loaded:
    """Both models and their tokenizer; every name is a folder, a model of the zoo or a hub name.

    Raises:
        IncompatibleModels: target and draft come with different tokenizers.
        InvalidInput: a name or device that does not exist, or a corrupt folder.
        UnsupportedModel: a model that cannot be served, or loaded safely.
    """
    folders = [_locate(name) for name in (target, draft) if name is not None]
    tokenizers = [_tokenizer(folder, trust_remote_code) for folder in folders]
    shared = _tokenizer(_locate(tokenizer), trust_remote_code) if tokenizer else tokenizers[0]
    if shared is None and tokenizer is None:
        registry.load(folders[0], trust_remote_code=trust_remote_code)  # the name itself may be wrong
    if shared is None:
        lacking = tokenizer or target
        raise InvalidInput(f"There is no tokenizer in {lacking!r}; name one with --tokenizer.")
    if tokenizers[-1] is not None and tokenizers[0] is not None:
        check_same_tokens(tokenizers[0], tokenizers[-1])
    place = _device(device)
    backends = [
        registry.load(
            folder,
            dtype=_dtype(dtype, place),
            device=place,
            trust_remote_code=trust_remote_code,
        )
        for folder in folders
    ]
    return Loaded(backends[0], backends[1] if draft else None, shared)


def check_same_tokens(target: Any, draft: Any) -> None:
    """Raise `IncompatibleModels` unless both tokenizers give every token the same number."""
    ours, theirs = target.get_vocab(), draft.get_vocab()
    if ours == theirs:
        return
    odd = sorted(
        (number, token)
        for token, number in {**ours, **theirs}.items()
        if ours.get(token) != theirs.get(token)
    )
    number, token = odd[0]
    raise IncompatibleModels(
        f"The tokenizers of target and draft differ in {len(odd)} tokens, {token!r} (number {number}) "
        "first; choose a draft that shares the target's tokenizer."
    )


def is_drafter(name: str) -> bool:
    """Whether `name` is a registered drafter that needs no model, and no folder stands in its way."""
    return name != "model" and name in registry.names("drafters") and not Path(name).exists()


def create_drafter(name: str, options: dict[str, Any], target: StateBackend) -> Drafter:
    """The registered drafter `name`; what it must know of the target is filled in."""
    if "vocab_size" in registry.options("drafters", name):
        options = {"vocab_size": target.vocab_size, **options}
    drafter: Drafter = create("drafters", name, options)
    return drafter


def _locate(name: str) -> str:
    if Path(name).exists() or name not in (*zoo.names(), "tokenizer"):
        return name
    try:
        return str(zoo.path(name))
    except FileNotFoundError as error:
        raise InvalidInput(f"The zoo's {one_line(error)}.") from None


def _tokenizer(folder: str, trust_remote_code: bool) -> Any:
    """The tokenizer in a folder or hub repository, or None where there is none."""
    from transformers import AutoTokenizer

    if Path(folder).is_dir():
        if Path(folder).resolve().parent == zoo.path("tokenizer").parent:
            return zoo.tokenizer()  # the models of the zoo share one
        if not any(Path(folder).glob("*token*")) and not (Path(folder) / "vocab.json").exists():
            return None
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as error:  # `tokenizers` raises plain Exception
        if "trust_remote_code" in str(error):
            raise UnsupportedModel(
                f"The tokenizer of {folder!r} asks to run code of its own; that needs --trust-remote-code."
            ) from error
        if not Path(folder).is_dir():
            return None  # the model's own loading says what is wrong with the name
        raise InvalidInput(f"The tokenizer in {folder!r} cannot be read: {one_line(error)}.") from error


def _device(name: str | None) -> torch.device:
    if name is None:
        accelerator = torch.accelerator.current_accelerator()
        return accelerator or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InvalidInput(
            f"The device {name!r} cannot be used here; give 'cpu', or 'cuda' on a machine that has one."
        ) from error
    return device


def _dtype(wanted: Dtype, device: torch.device) -> torch.dtype | None:
    """None keeps the stored precision; a CPU computes fastest and most exactly in float32."""
    if wanted is Dtype.auto:
        return torch.float32 if device.type == "cpu" else None
    return {Dtype.float32: torch.float32, Dtype.bfloat16: torch.bfloat16}[wanted]
