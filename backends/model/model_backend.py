"""`ModelBackend`: what all backends of a transformers model share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.modules.dropout import _DropoutNd

from draftwood.backends.model.features import FeatureRequest, Features, Through
from draftwood.backends.model.output_head import OutputHead
from draftwood.backends.model.padding_check import reads_padding
from draftwood.backends.model.probe import disagreement
from draftwood.backends.model.renewal import RenewedBackend
from draftwood.backends.recurrent.rebuild import reference
from draftwood.backends.structure.context import end_of_context
from draftwood.backends.structure.forward import guarded_pass, input_device
from draftwood.backends.structure.layers import body, count_layers, count_skippable, without_layers
from draftwood.backends.weights.sharded import local_bytes, ranks_of
from draftwood.base.errors import InvalidInput, UnsupportedModel
from draftwood.protocols import StateBackend


class ModelBackend(RenewedBackend):
    """Abstract: a backend that runs a transformers model.

    Attributes:
        model: the transformers model, in evaluation mode.
        chunk: tokens a prefill pass takes at once; fewer need less memory.
        vocab_size: width of the logits, which may exceed the tokenizer's vocabulary.
        max_length: positions the model has, or None where it computes them. A model whose rotation changes
            for all tokens of a text that grows long is supported up to that length.
        weight_bytes: bytes of its parameters in this process, tied ones counted once.
        ranks: the processes over which it is sharded.
        eos_token_ids: tokens that end a text, by the model's generation config.
        pad_token_id: what pads finished rows, by the same, or None.
        skippable_layers: its decoder layers; 0 where they are not found.
        hidden_size: what its LM head reads; None where that is not known.
        feature_layers: as many, where a body runs them whose output the LM head reads; else 0.
        device: where token ids go.
    """

    def __init__(self, model: Any, *, chunk: int = 1024) -> None:
        """Serve `model` with its weights, dtype and devices as they are.

        Raises:
            InvalidInput: a model in training mode, or `chunk` below 1.
        """
        refuse_chance(model)
        if chunk < 1:
            raise InvalidInput(f"A prefill chunk of {chunk} tokens is empty; give 1 or more.")
        text = model.config.get_text_config(decoder=True)
        head = model.get_output_embeddings()
        self.model, self.chunk = model, chunk
        # What a backend of the same kind for another model is made with.
        self._options: dict[str, Any] = {"chunk": chunk}
        # What runs: the model, or a copy of its structure over the same weights.
        self._module = model
        self._training = model.training
        # Not by a method of this object, which would then be in a circle and be freed late.
        self.made_by(model, partial(_again, type(self), model, self._options))
        self.vocab_size = int(getattr(head, "out_features", None) or text.vocab_size)
        self.max_length = end_of_context(model)
        self.weight_bytes = sum(map(local_bytes, model.parameters()))
        self.ranks = ranks_of(model)
        self.eos_token_ids = tuple(_as_list(_generation(model, "eos_token_id")))
        self.pad_token_id: int | None = next(iter(_as_list(_generation(model, "pad_token_id"))), None)
        self.skippable_layers = count_skippable(model)
        width = getattr(head, "in_features", None)
        self.hidden_size: int | None = None if width is None else int(width)
        self.device = input_device(model)
        has_body = self.hidden_size is not None and body(model) is not None
        self.feature_layers = count_layers(model) if has_body else 0
        self._reader: Features | None = None
        self._head: OutputHead | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.model).__name__}, lengths={self.lengths})"

    def without_layers(self, layers: Sequence[int]) -> StateBackend:
        """Returns a backend of the same class for the same weights without `layers`, with separate rows.

        Where passes are captured, so are its own, which it compiles anew.

        Raises:
            InvalidInput: a layer that the model does not have, one named twice, or all of them.
            UnsupportedModel: the model's layers are not found, or do not work without these.
        """
        if self.model.config.is_encoder_decoder:
            raise UnsupportedModel(
                f"{type(self.model).__name__} is an encoder-decoder, of which no layers are left out; use a "
                "draft model."
            )
        smaller = type(self)(without_layers(self.model, layers), **self._options)
        plain = reference(smaller.model)
        # Passes as they are, even if `smaller` captures them: the check would compile them.
        if (reason := disagreement(type(self)(plain, chunk=self.chunk), plain)) is not None:
            raise UnsupportedModel(
                f"{type(self.model).__name__} does not work without the layers {list(layers)} ({reason}); "
                "use a draft model."
            )
        smaller.made_by(self._origin.model, lambda: self._still_without(layers))
        return smaller

    def _still_without(self, layers: Sequence[int]) -> StateBackend:
        self.renew()
        return self.without_layers(layers)

    def _hand_on(self, fresh: Any) -> None:
        if self._reader is not None:
            request = self._reader.request
            fresh.keep_features(request.layers, last=request.last, through=request.through)

    def keep_features(
        self, layers: Sequence[int], *, last: int | None = None, through: Through | None = None
    ) -> None:
        """Keep what these layers read at committed tokens; see `StateBackend.keep_features`.

        Raises:
            InvalidInput: a layer that the model does not have, `last` below 1, or rows without these.
            UnsupportedModel: the model's layers are not found, or not what runs them.
        """
        if not self.feature_layers:
            super().keep_features(layers, last=last, through=through)
        reader = Features(self._module, FeatureRequest(layers, last, through)) if len(layers) else None
        old, new = (None if features is None else features.request for features in (self._reader, reader))
        if old != new and self.lengths:
            raise InvalidInput(
                f"{len(self.lengths)} row(s) have joined without the features of layers {list(layers)}; call "
                "keep_features() before rows join."
            )
        self._reader = reader

    @property
    def reads_padding(self) -> bool:  # type: ignore[override]
        """Whether padding before a text changes what the model writes, which one short comparison shows."""
        return reads_padding(self.model, vocab_size=self.vocab_size)

    def input_embeddings(self, tokens: Int[Tensor, "*n"]) -> Float[Tensor, "*n hidden"]:
        """Returns the model's input embeddings of `tokens`, before the body changes them."""
        with guarded_pass(1):
            embeddings: Tensor = self.model.get_input_embeddings()(tokens.to(self.device))
        return embeddings

    def output_head(self, states: Float[Tensor, "*n hidden"]) -> Float[Tensor, "*n vocab"]:
        """Logits of features of the layer `feature_layers`, scales and soft-caps with them.

        Raises:
            UnsupportedModel: the model's logits depend on more than these features.
        """
        if not self.feature_layers:
            return super().output_head(states)
        with guarded_pass(1):
            if self._head is None:
                self._head = OutputHead(self.model, device=self.device)
            return self._head(states)

    def _check_source(self, texts: Sequence[Tensor]) -> None:
        """Refuse texts of an encoder-decoder, which needs a source."""
        if self.model.config.is_encoder_decoder and texts:
            raise UnsupportedModel(
                f"{type(self.model).__name__} is an encoder-decoder, which writes about a source; give "
                "ModelPrompt.of(model, **inputs), with what its processor or tokenizer returns."
            )

    def _joined(self, rows: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """The features of every row, from its pieces, for `take_features`."""
        if self._reader is None:
            return super().take_features()
        blank = torch.zeros(0, self.hidden_size or 0, dtype=self.model.dtype, device=self.device)
        return [self._reader.joined(pieces, blank=blank) for pieces in rows]

    def _refuse_mode(self) -> NoReturn:
        """Refuse a model whose mode was switched since rows joined."""
        now = "training" if self.model.training else "evaluation"
        raise InvalidInput(
            f"{type(self.model).__name__} was switched to {now} mode while rows were held; switch it "
            "between calls."
        )


def served_part(model: Any) -> Any:
    """Returns the part of a wrapped model that runs: of PEFT's, the model with the adapters in its layers.

    Raises:
        UnsupportedModel: the wrapper changes the text itself, which no backend follows.
    """
    # A transformers model that holds adapters only has the former.
    if not (hasattr(model, "peft_config") and hasattr(model, "get_base_model")):
        return model
    if model.active_peft_config.is_prompt_learning:
        raise UnsupportedModel(
            f"{type(model).__name__} puts learned vectors before every text, which no backend supports; "
            "train adapters such as LoRA instead."
        )
    return model.get_base_model()


def _again(kind: Any, model: Any, options: dict[str, Any]) -> StateBackend:
    backend: StateBackend = kind(model, **options)
    return backend


_BY_CHANCE = re.compile(r"dropout|pdrop|layerdrop|jitter")
"""What modules call the numbers by which they drop or shake something while they are trained."""


def refuse_chance(model: Any) -> None:
    """`InvalidInput` for a model in training mode whose output is random, or which keeps no cache there."""
    if not model.training:
        return
    name = type(model).__name__
    for path, module in model.named_modules():
        if not module.training:
            continue
        if getattr(module, "gradient_checkpointing", False):
            raise InvalidInput(
                f"{name} is in training mode with gradient checkpointing, where it keeps no cache; call "
                "model.eval() or model.gradient_checkpointing_disable()."
            )
        shares = {"p": module.p} if isinstance(module, _DropoutNd) else vars(module)
        for attribute, share in shares.items():
            by_chance = attribute == "p" or _BY_CHANCE.search(attribute)
            if by_chance and isinstance(share, float) and share > 0:
                raise InvalidInput(
                    f"{name} is in training mode, where {path or name} makes its output random "
                    f"({attribute} is {share}); call model.eval()."
                )


def _generation(model: Any, name: str) -> Any:
    """A special token by the generation config, which `generate` follows; without one by the model's own."""
    config = getattr(model, "generation_config", None)
    return getattr(model.config.get_text_config(decoder=True) if config is None else config, name, None)


def _as_list(value: int | Sequence[int] | None) -> list[int]:
    if value is None:
        return []
    return [int(value)] if isinstance(value, int) else [int(v) for v in value]
