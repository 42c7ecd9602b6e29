"""What every backend of a transformers model knows of it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from draftwood.backends.context import end_of_context
from draftwood.backends.layers import count_layers, without
from draftwood.errors import InvalidInput, UnsupportedModel
from draftwood.protocols import StateBackend


class ModelBackend(StateBackend):
    """Abstract: a backend that runs a decoder-only transformers model.

    Attributes:
        model: the transformers model, in evaluation mode, as it was given.
        chunk: tokens a prefill pass takes at once; fewer need less memory.
        vocab_size: width of the logits, which may exceed the tokenizer's vocabulary.
        max_length: positions the model has, or None where it computes them. A model whose rotation changes
            for all tokens of a text that grows long is served up to there.
        weight_bytes: bytes of its parameters, tied ones counted once.
        eos_token_ids: tokens that end a text, by the model's generation config.
        pad_token_id: what pads finished rows, by the same, or None.
        skippable_layers: its decoder layers; 0 where they are not found.
        hidden_size: what its LM head reads; None where that is not known.
        device: where token ids go.
    """

    def __init__(self, model: Any, *, chunk: int = 512) -> None:
        """Serve `model` with its weights, dtype and devices as they are.

        Raises:
            InvalidInput: a model in training mode, or `chunk` below 1.
        """
        _refuse_training(model)
        if chunk < 1:
            raise InvalidInput(f"A prefill chunk of {chunk} tokens is empty; give 1 or more.")
        text = model.config.get_text_config(decoder=True)
        head = model.get_output_embeddings()
        self.model, self.chunk = model, chunk
        # What runs: the model, or a copy of its structure over the same weights.
        self._module = model
        self.vocab_size = int(getattr(head, "out_features", None) or text.vocab_size)
        self.max_length = end_of_context(model)
        self.weight_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
        self.eos_token_ids = tuple(_listed(_generation(model, "eos_token_id")))
        self.pad_token_id: int | None = next(iter(_listed(_generation(model, "pad_token_id"))), None)
        self.skippable_layers = count_layers(model)
        width = getattr(head, "in_features", None)
        self.hidden_size: int | None = None if width is None else int(width)
        self.device = input_device(model)
        self._keeps_hidden = False
        self._read: Tensor
        self._takes_positions = takes(model, "position_ids")
        # Pure state-space models call their cache by another name.
        self._cache_name = "cache_params" if takes(model, "cache_params") else "past_key_values"
        self._prefill_options = {"logits_to_keep": 1} if takes(model, "logits_to_keep") else {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.model).__name__}, lengths={self.lengths})"

    def without_layers(self, layers: Sequence[int]) -> StateBackend:
        """A backend of the same class for the same weights without `layers`, with rows of its own.

        Raises:
            InvalidInput: a layer that the model does not have, one named twice, or all of them.
            UnsupportedModel: the model's layers are not found, or do not work without these.
        """
        from draftwood.backends.probe import disagreement  # which needs this module
        from draftwood.backends.recurrent.rebuild import reference

        smaller = type(self)(without(self.model, layers), chunk=self.chunk)
        plain = reference(smaller.model)
        checked = smaller if plain is smaller.model else type(self)(plain)
        if (reason := disagreement(checked, plain)) is not None:
            raise UnsupportedModel(
                f"{type(self.model).__name__} does not work without the layers {list(layers)} ({reason}); "
                "use a draft model."
            )
        return smaller

    def keep_hidden(self) -> None:
        """Keep what the LM head reads at every row's last committed token.

        Raises:
            InvalidInput: there are rows already.
            UnsupportedModel: the width of the LM head is not known.
        """
        if self.hidden_size is None:
            super().keep_hidden()
        if not self._keeps_hidden and self.lengths:
            raise InvalidInput(
                f"The hidden states of {len(self.lengths)} row(s) were not kept; call keep_hidden() before "
                "rows join."
            )
        self._keeps_hidden = True

    def _logits(self, tokens: Tensor, cache: Any, **options: Any) -> Tensor:
        """Logits `[batch, n, vocab]` for `tokens` `[batch, n]` behind what `cache` holds.

        Where hidden states are kept, `_read` is afterwards what the LM head read, `[batch, n, hidden]`.
        """
        _refuse_training(self._module)
        options[self._cache_name] = cache
        options |= {"input_ids": tokens, "use_cache": True, "return_dict": True}
        if self._keeps_hidden:
            self._read, output = self._watched(options)
        else:
            output = self._module(**options)
        logits: Tensor = output.logits
        return logits

    def _watched(self, options: dict[str, Any]) -> tuple[Tensor, Any]:
        """What the LM head read in a pass, and what the pass gave."""
        read: list[Tensor] = []
        # For this pass alone: the model is its owner's, who may run or copy it in between.
        hook = self._module.get_output_embeddings().register_forward_pre_hook(
            lambda _, given: read.append(given[0])
        )
        try:
            output = self._module(**options)
        finally:
            hook.remove()
        if len(read) != 1:
            raise UnsupportedModel(
                f"{type(self.model).__name__} called its LM head {len(read)} times in a pass, so its hidden "
                "states are not known; use a draft model."
            )
        return read[0], output


def input_device(model: Any) -> torch.device:
    """Where token ids go: the embedding's device, also where its weights are offloaded."""
    embedding = model.get_input_embeddings()
    placed = getattr(getattr(embedding, "_hf_hook", None), "execution_device", None)
    if placed is not None:
        return torch.device(placed)
    weight: Tensor | None = next(embedding.parameters(), None)
    if weight is None or weight.device.type == "meta":
        return torch.device(model.device)
    return weight.device


def served_part(model: Any) -> Any:
    """What of a wrapped model is served: of PEFT's, the model that holds the adapters, which it runs itself.

    Raises:
        UnsupportedModel: the wrapper does something of its own that no backend follows.
    """
    # A transformers model that holds adapters has the former alone.
    if not (hasattr(model, "peft_config") and hasattr(model, "get_base_model")):
        return model
    if model.active_peft_config.is_prompt_learning:
        raise UnsupportedModel(
            f"{type(model).__name__} puts learned vectors before every text, which no backend follows; train "
            "adapters such as LoRA instead."
        )
    return model.get_base_model()


def plain_logits(model: Any, tokens: list[int]) -> Tensor:
    """Logits `[len(tokens), vocab]` of one forward pass without cache or mask."""
    ids = torch.tensor([tokens], device=input_device(model))
    options: dict[str, Any] = {"input_ids": ids, "use_cache": False}
    if takes(model, "position_ids"):
        # Some count from elsewhere by themselves, but not where generate() counts for them.
        options["position_ids"] = torch.arange(len(tokens), device=ids.device).unsqueeze(0)
    with torch.no_grad():
        logits: Tensor = model(**options).logits[0]
    return logits


def takes(model: Any, argument: str) -> bool:
    """Whether the model's forward has an argument of this name."""
    # What torch.compile() returns takes anything.
    inner = getattr(model, "_orig_mod", model)
    return argument in inspect.signature(inner.forward).parameters


def _refuse_training(model: Any) -> None:
    if model.training:
        raise InvalidInput(
            f"{type(model).__name__} is in training mode, where dropout makes its output random; call "
            "model.eval()."
        )


def _generation(model: Any, name: str) -> Any:
    """A special token by the generation config, which `generate` follows, else by the model's own."""
    value = getattr(getattr(model, "generation_config", None), name, None)
    return getattr(model.config.get_text_config(decoder=True), name, None) if value is None else value


def _listed(value: int | Sequence[int] | None) -> list[int]:
    if value is None:
        return []
    return [int(value)] if isinstance(value, int) else [int(v) for v in value]
