"""A prompt that holds more than tokens, read by the model's own forward as `generate()` calls it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.utils import ModelOutput

from draftwood.backends.model.features import Features, Pieces
from draftwood.backends.model.model_cache import columns_of, copied_inputs
from draftwood.backends.nodes.row_inputs import RowInputs, Source
from draftwood.backends.structure.forward import cache_argument, decoder_prefix, input_device
from draftwood.base.errors import DraftwoodError, InvalidInput, UnsupportedModel
from draftwood.base.machine_faults import machine_fault
from draftwood.decoding.given_cache import filled_cache
from draftwood.protocols.model_prompt import ModelPrompt, has_holes

# One value for each token; `generate()` makes the values of new tokens.
_BY_TOKEN = frozenset({"token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids"})
_REFUSALS = (ValueError, TypeError, LookupError, AttributeError, RuntimeError)
"""Errors by which forwards say that inputs do not fit each other."""
_TEXT_IS_ZERO = _BY_TOKEN - {"token_type_ids"}
"""Names of inputs that are 0 for a token of text, which a pass over text assumes."""


@attrs.frozen(eq=False)
class PromptRead:
    """The result of the model's own first forward.

    Attributes:
        logits: `[rows, vocab]` after the prompts.
        cache: all that the model keeps of them, with the columns of padding before shorter rows.
        seen: bool `[rows, columns]` on the host, the cached columns that later tokens may see.
        inputs: what every later pass of a row is given besides tokens.
        features: of every row, where a reader was given.
        source: what every later pass of an encoder-decoder is given of its source, for all rows.
    """

    logits: Tensor
    cache: Cache
    seen: Tensor
    inputs: RowInputs
    features: list[Pieces]
    source: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def lengths(self) -> list[int]:
        """Returns the visible columns of every row."""
        lengths: list[int] = self.seen.sum(1).tolist()
        return lengths


class PromptForward:
    """The steps that `generate()` of a model makes from a prompt, by its own methods.

    Attributes:
        cache: what the model keeps.
    """

    def __init__(self, module: Any, prompt: ModelPrompt, cache: Cache) -> None:
        """Begin with `prompt`; a filled cache that it brings is copied, else `cache` is filled."""
        self.module, device = module, input_device(module)
        self.prefix = decoder_prefix(module)
        self._ids = prompt.ids.to(device)
        self._kwargs = dict(prompt.inputs)
        caches = (name for name, value in self._kwargs.items() if isinstance(value, Cache))
        name, self._cached = next(caches, cache_argument(module)), 0
        if (given := filled_cache(self._kwargs)) is not None:
            cache, self._cached = copy.deepcopy(given), columns_of(given, otherwise=0)
        if prompt.encoded:  # some models add to it in place, and it may be read again
            self._kwargs["encoder_outputs"] = copied_inputs(self._kwargs["encoder_outputs"])
        self._kwargs |= {name: cache, "use_cache": True}
        self.cache = cache
        self.seen: Tensor | None = None

    def first(self) -> dict[str, Any]:
        """Returns the inputs of the first forward."""
        step: dict[str, Any] = {"is_first_iteration": True}
        if self._cached:
            embedded = None if self.prefix else self._kwargs.get("inputs_embeds")
            whole = self._ids.shape[1] if embedded is None else embedded.shape[1]
            step["next_sequence_length"] = whole - self._cached
        inputs = self._prepared(step)
        mask = inputs.get(f"{self.prefix}attention_mask")
        self.seen = mask if isinstance(mask, Tensor) and mask.dim() == 2 else None
        return inputs

    def next(self, output: Any, tokens: Tensor) -> dict[str, Any]:
        """Returns the inputs of the forward after `output`, which reads `tokens` `[rows]`."""
        self._kwargs = self.module._update_model_kwargs_for_generation(
            output, self._kwargs, is_encoder_decoder=bool(self.prefix)
        )
        found = next((v for v in self._kwargs.values() if isinstance(v, Cache)), None)
        self.cache = self.cache if found is None else found
        self._ids = torch.cat([self._ids, tokens.to(self._ids)[:, None]], 1)
        return self._prepared({"next_sequence_length": 1})

    def _prepared(self, step: Mapping[str, Any]) -> dict[str, Any]:
        inputs = self.module.prepare_inputs_for_generation(self._ids, **step, **self._kwargs)
        return {**inputs, "return_dict": True}


def read_prompt(
    module: Any, prompt: ModelPrompt, cache: Cache, *, reader: Features | None = None
) -> PromptRead:
    """Read `prompt` by the forward of `module`.

    Args:
        module: a transformers model.
        prompt: that it prepared.
        cache: an empty one, which it fills; a cache that the prompt brings is copied instead.
        reader: takes features from the pass.

    Raises:
        InvalidInput: inputs that the forward refuses, or a mask of other columns than the cache.
        UnsupportedModel: later steps need inputs that are not known.
    """
    forward = PromptForward(module, prompt, cache)
    inputs = forward.first()
    found: Tensor | None = None
    try:
        if reader is None:
            output = module(**inputs)
        else:
            found, output = reader.read(inputs)
    except _REFUSALS as error:
        if isinstance(error, DraftwoodError) or machine_fault(error):
            raise
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:200].rstrip('.')}"
        raise InvalidInput(
            f"{type(module).__name__} does not read this prompt, with or without draft trees ({said}); give "
            "what its processor returns for a text and its images, sound or videos."
        ) from error
    rows = len(prompt)
    step = forward.next(output, torch.zeros(rows, dtype=torch.int64))
    prefix = forward.prefix
    read = step["inputs_embeds"] if step.get(f"{prefix}input_ids") is None else step[f"{prefix}input_ids"]
    if read.shape[1] != 1:
        raise UnsupportedModel(
            f"generate() of {type(module).__name__} reads {read.shape[1]} columns for every new token after "
            "this prompt, as where PEFT puts learnt tokens before each of them; decode without "
            "custom_generate=."
        )
    if _hears(step, prefix):
        raise UnsupportedModel(
            f"generate() of {type(module).__name__} reads a piece of the sound with every new token, which "
            "draft trees do not have; decode without custom_generate=."
        )
    columns = columns_of(forward.cache, otherwise=prompt.columns)
    if not columns:
        raise UnsupportedModel(
            f"{type(module).__name__} keeps no cache of such a prompt; decode without custom_generate=."
        )
    seen = _seen(forward.seen, rows, columns)
    features: list[Pieces] = [()] * rows
    if found is not None and reader is not None:
        features = [
            reader.trimmed([states[row[-len(states) :]]]) for states, row in zip(found, seen, strict=True)
        ]
    return PromptRead(
        output.logits[:, -1].clone(),
        forward.cache,
        seen,
        _row_inputs(step, seen, prefix),
        features,
        _source_inputs(step) if prefix else {},
    )


def _hears(step: Mapping[str, Any], prefix: str) -> bool:
    """Returns whether a step of a decoder reads sound with its token, as where it writes while it listens."""
    ids = step.get("input_ids")
    numbers = isinstance(ids, Tensor) and ids.dim() > 2  # codes of a frame next to the token
    return not prefix and (numbers or isinstance(step.get("encoder_inputs_embeds"), Tensor))


def inputs_of_one_pass(read: PromptRead, *, name: str) -> RowInputs:
    """Returns what a pass over all rows is given after a prompt, with the sources of an encoder-decoder.

    Raises:
        UnsupportedModel: the model of this name is given more of its source than tensors of every row, or
            is no encoder-decoder and its cache holds the keys of a source.
    """
    if not isinstance(read.cache, EncoderDecoderCache):
        return read.inputs
    if "encoder_outputs" not in read.source:
        raise keeps_other_keys(name)
    more = {key: value for key, value in read.source.items() if key != "encoder_outputs"}
    rows = len(read.seen)
    if odd := [key for key, one in more.items() if not isinstance(one, Tensor) or one.shape[:1] != (rows,)]:
        raise UnsupportedModel(
            f"Passes of {name} after this prompt are given {', '.join(sorted(odd))}, which trees in one pass "
            'do not give; load it with attention="paths".'
        )
    layers: Any = read.cache.cross_attention_cache.layers
    source = Source(read.source["encoder_outputs"][0], [(layer.keys, layer.values) for layer in layers])
    return attrs.evolve(read.inputs, constants={**read.inputs.constants, **more}, source=source)


def keeps_other_keys(name: str) -> UnsupportedModel:
    """Returns the refusal of a model of this name, whose cache holds more than keys of the text."""
    return UnsupportedModel(
        f"After this prompt, {name} keeps a cache that draft trees cannot go on from, such as the keys of an "
        "image for its own layers; decode without custom_generate=."
    )


def _source_inputs(step: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tensors of the step after the prompt that say nothing of what is written."""
    return {
        name: value
        for name, value in step.items()
        if isinstance(value, Tensor | ModelOutput | tuple | list)
        and name not in ("decoder_input_ids", "decoder_attention_mask", "decoder_position_ids")
    }


def _seen(mask: Tensor | None, rows: int, columns: int) -> Tensor:
    """The cached columns that the mask of the forward shows, bool `[rows, columns]` on the host."""
    if mask is None or bool(mask.bool().all()):
        return torch.ones(rows, columns, dtype=torch.bool)
    if len(mask) == rows and mask.shape[1] < columns:
        # Some models put what they see before the text, and mask the text only.
        mask = torch.nn.functional.pad(mask, (columns - mask.shape[1], 0), value=1)
    if mask.shape != (rows, columns):
        raise InvalidInput(
            f"attention_mask has shape {tuple(mask.shape)} and the model read {columns} columns of {rows} "
            "rows; give rows of one length, without padding."
        )
    return mask.bool().cpu()


def _row_inputs(step: Mapping[str, Any], seen: Tensor, prefix: str) -> RowInputs:
    """Returns the inputs of later passes, from the inputs of the step after the prompt."""
    (rows, columns), held = seen.shape, seen.sum(1).numpy()
    positions = step.get(f"{prefix}position_ids")
    if positions is None:
        shift = columns - held
    else:
        at = positions[..., -1].cpu().numpy()
        shift = np.broadcast_to(at, (*at.shape[:-1], rows)) - held
    constants = {
        name: value
        for name in sorted(_BY_TOKEN & step.keys())
        if isinstance(value := step[name], Tensor)
        and value.shape == (rows, 1)
        and not (name in _TEXT_IS_ZERO and not bool(value.any()))
    }
    if shift.ndim == 2 and (shift == shift[:1]).all():
        shift = shift[0]
    return RowInputs(np.ascontiguousarray(shift), constants, _holes(seen))


def _holes(seen: Tensor) -> tuple[NDArray[np.int64], ...]:
    """Returns for each row the hidden columns, counted from the first visible one; empty: no row has any."""
    if not has_holes(seen):
        return ()
    starts = (int(row.argmax()) if row.any() else len(row) for row in seen.numpy())
    return tuple(np.flatnonzero(~row[start:]) for row, start in zip(seen.numpy(), starts, strict=True))
