"""Models and tokenizers by name for the command line, loaded quietly."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import attrs
import torch
import typer

from draftwood import StateBackend, create, zoo
from draftwood.apps.models import own_model
from draftwood.apps.models.own_model import OwnModel
from draftwood.apps.terminal.cli_errors import first_line
from draftwood.base.devices import default_device
from draftwood.base.errors import IncompatibleModels, InvalidInput, UnsupportedModel
from draftwood.base.gguf_name import names_gguf
from draftwood.base.machine_faults import machine_fault
from draftwood.protocols import registry
from draftwood.protocols.named_heads import check_no_head

TARGET, DRAFT = "llama-7m", "llama-draft"


class EngineName(StrEnum):
    """Engines that the command line offers."""

    eager = "eager"
    inductor = "inductor"
    openvino = "openvino"
    auto = "auto"


Offload = Annotated[
    Path | None,
    typer.Option(
        help="Stream the target's layers from the disk in every pass; a folder for what the checkpoint's own "
        "files do not hold as the model needs it.",
        file_okay=False,
    ),
]
"""The option of every command whose target may be larger than memory."""

Engine = Annotated[
    EngineName,
    typer.Option(
        help="What runs the models: eager; inductor compiles them; openvino, on a CPU, needs "
        "draftwood[openvino]; auto takes openvino where it supports the model."
    ),
]
"""The option of every command that grows trees."""

ChosenEngine = Annotated[
    EngineName | None,
    typer.Option(
        help="eager, inductor, openvino or auto; default: the tuned file's, else eager.", show_default=False
    ),
]
"""The same where a tuned file may have chosen one."""

Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; default: what there is.")]
"""The option of every command that loads models."""

TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with the models.")
]
"""The option of every command that loads models of others."""


class Dtype(StrEnum):
    """Precisions that the command line offers."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


@attrs.frozen
class Loader:
    """A loader of the models of one command.

    Every name is a folder, a model of the zoo, a hub name or a function `package.module:function`.
    """

    dtype: Dtype
    device: torch.device
    trust_remote_code: bool
    engine: EngineName = EngineName.eager
    # Models of functions that were called for their tokenizer, by name.
    _made: dict[str, OwnModel] = attrs.field(factory=dict, init=False, eq=False, repr=False)

    def backend(self, name: str, *, offload: Path | None = None) -> StateBackend:
        if own_model.is_own(name):
            made = self._made.pop(name) if name in self._made else own_model.make(name)
            return self.own(name, made, offload=offload)
        check_no_head(locate(name))
        return registry.load(
            locate(name),
            dtype=_dtype(self.dtype, self.device),
            device=self.device,
            trust_remote_code=self.trust_remote_code,
            offload=offload,
            engine=self.engine.value,
        )

    def tokenizer(self, name: str) -> Any:
        """The tokenizer of `name`, or None where there is none."""
        if own_model.is_own(name):
            if name not in self._made:
                self._made[name] = own_model.make(name)
            return self._made[name].tokenizer
        return _tokenizer(locate(name), self.trust_remote_code)

    def own(self, name: str, own: OwnModel, *, offload: Path | None = None) -> StateBackend:
        """The backend of the model that the function `name` has made; raises as `OwnModel.backend`."""
        if offload is not None:
            raise InvalidInput(
                f"--offload streams the layers of a folder or hub name; leave it out for {name!r}, whose "
                "model accelerate can offload."
            )
        # On a CPU, auto means float32 for checkpoints; an own model is taken as it was made.
        dtype = None if self.dtype is Dtype.auto else _dtype(self.dtype, self.device)
        return own.backend(name, dtype=dtype, device=self.device, engine=self.engine.value)


@attrs.frozen(eq=False)
class Loaded:
    """A target and a draft (None where the drafter needs no model), and the target's `tokenizer`.

    Attributes:
        draft_tokenizer: the draft's own where that is another one; None where it is shared.
        head: the name of the head that drafts in place of a model, or None.
    """

    target: StateBackend
    draft: StateBackend | None
    tokenizer: Any
    loader: Loader
    draft_tokenizer: Any = None
    head: str | None = None

    @cached_property
    def token_map(self) -> Any:
        """Returns the map from the target's tokens to the draft's vocabulary; None if they share a tokenizer.

        Raises:
            IncompatibleModels: the tokenizers have no token in common.
        """
        if self.draft_tokenizer is None:
            return None
        made = registry.get("drafters", "shared-tokens").between(
            create("drafters", "model", {"backend": self.draft}),
            self.tokenizer,
            self.draft_tokenizer,
            vocab_size=self.target.vocab_size,
        )
        return made.tokens


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
    other_tokens: bool = False,
    offload: Path | None = None,
    engine: EngineName = EngineName.eager,
) -> Loaded:
    """Both models and their tokenizer; every name is a folder, a model of the zoo or a hub name.

    With `offload` the target's layers stay on the disk; `engine` runs both models (see
    `draftwood.backends.loading.loader.load`).

    Raises:
        IncompatibleModels: target and draft come with different tokenizers, and not `other_tokens`.
        InvalidInput: a name or device that does not exist, or a corrupt folder.
        UnsupportedModel: a model that cannot be served, or loaded safely.
    """
    loader = Loader(dtype, find_device(device), trust_remote_code, engine)
    own = loader.tokenizer(target)
    shared = loader.tokenizer(tokenizer) if tokenizer else own
    if shared is None and tokenizer is None:
        loader.backend(target, offload=offload)  # the name itself may be wrong
    if shared is None:
        raise _no_tokenizer(tokenizer or target)
    theirs = loader.tokenizer(draft) if draft is not None else None
    if theirs is not None and theirs.get_vocab() == (own or shared).get_vocab():
        theirs = None
    if theirs is not None and not other_tokens:
        check_same_tokens(own or shared, theirs)
    backend = loader.backend(target, offload=offload)
    return Loaded(backend, loader.backend(draft) if draft else None, shared, loader, theirs)


def load_tokenizer(name: str, *, trust_remote_code: bool) -> Any:
    """The tokenizer of a folder, a model of the zoo or a hub name; raises as `load`."""
    own = own_model.is_own(name)
    tokenizer = own_model.make(name).tokenizer if own else _tokenizer(locate(name), trust_remote_code)
    if tokenizer is None:
        raise _no_tokenizer(name)
    return tokenizer


def vocabulary_digest(tokenizer: Any) -> str:
    """Returns a digest that two tokenizers share exactly if they give every token the same number."""
    pairs = sorted(tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()


def check_same_tokens(
    target: Any, draft: Any, *, remedy: str = "choose a draft that shares the target's tokenizer"
) -> None:
    """Raise `IncompatibleModels` unless both tokenizers give every token the same number."""
    ours, theirs = target.get_vocab(), draft.get_vocab()
    if ours == theirs:
        return
    differing = sorted(
        (number, token)
        for token, number in {**ours, **theirs}.items()
        if ours.get(token) != theirs.get(token)
    )
    number, token = differing[0]
    raise IncompatibleModels(
        f"The tokenizers of target and draft differ in {len(differing)} tokens, {token!r} (number {number}) "
        f"first; {remedy}."
    )


def shared_tokens(loaded: Loaded, texts: Sequence[Sequence[int]]) -> dict[str, Any] | None:
    """Returns a record of the tokens shared by target and draft; None if they have one tokenizer.

    Returns:
        `shared`: tokens that both have; `target`: all of the target; `coverage`: the share of `texts` that
        the shared ones are.
    """
    if (known := loaded.token_map) is None:
        return None
    coverage = known.coverage([token for text in texts for token in text])
    return {"shared": known.shared, "target": len(known.to_draft), "coverage": coverage}


def _no_tokenizer(name: str) -> InvalidInput:
    if own_model.is_own(name):
        return InvalidInput(
            f"{name!r} returns no tokenizer; let it return the model and its tokenizer (draftwood generate "
            "also takes one by --tokenizer)."
        )
    return InvalidInput(
        f"There is no tokenizer in {name!r}; save the model's there (draftwood generate also takes one by "
        "--tokenizer)."
    )


def locate(name: str) -> str:
    """The folder of a model of the zoo; any other name as it is."""
    if Path(name).exists() or name not in (*zoo.names(), *zoo.head_names(), "tokenizer"):
        return name
    try:
        return str(zoo.path(name))
    except FileNotFoundError as error:
        raise InvalidInput(f"The zoo's {first_line(error)}.") from None


def _tokenizer(folder: str, trust_remote_code: bool) -> Any:
    """The tokenizer in a folder or hub repository, or None where there is none."""
    from transformers import AutoTokenizer

    if names_gguf(folder):
        return registry.get("loaders", "gguf-tokenizer")(Path(folder))
    if Path(folder).is_dir():
        if Path(folder).resolve().parent == zoo.path("tokenizer").parent:
            return zoo.tokenizer()  # the models of the zoo share one
        if not any(Path(folder).glob("*token*")) and not (Path(folder) / "vocab.json").exists():
            return None
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as error:  # `tokenizers` raises plain Exception
        if machine_fault(error) is not None:
            raise
        if "trust_remote_code" in str(error):
            raise UnsupportedModel(
                f"The tokenizer of {folder!r} asks to run its own code; that needs --trust-remote-code."
            ) from error
        if not Path(folder).is_dir():
            return None  # the model's own loading says what is wrong with the name
        raise InvalidInput(f"The tokenizer in {folder!r} cannot be read: {first_line(error)}.") from error


def context(backend: StateBackend) -> int | None:
    """Tokens for which the model of `backend` was made; None where that is not said.

    A text may go on beyond them, but what is measured there says nothing of the model.
    """
    config = getattr(backend.model, "config", None)
    text = None if config is None else config.get_text_config(decoder=True)
    known = (backend.max_length, getattr(text, "max_position_embeddings", None))
    return min((length for length in known if length and length > 0), default=None)


def find_device(name: str | None) -> torch.device:
    """The device `name`; None: the accelerator where there is one, else the CPU.

    Raises:
        InvalidInput: there is no such device here, or it has no float64 (MPS).
    """
    if name is None:
        return default_device()
    try:
        device = torch.device(name)
        torch.empty(1, device=device, dtype=torch.float64)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise InvalidInput(
            f"The device {name!r} cannot be used here; give 'cpu', or 'cuda' on a machine that has one."
        ) from error
    return device


def _dtype(wanted: Dtype, device: torch.device) -> torch.dtype | None:
    """None keeps the stored precision; a CPU computes fastest and most exactly in float32."""
    if wanted is Dtype.auto:
        return torch.float32 if device.type == "cpu" else None
    return {Dtype.float32: torch.float32, Dtype.bfloat16: torch.bfloat16}[wanted]
