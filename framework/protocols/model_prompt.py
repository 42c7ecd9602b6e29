"""`ModelPrompt`: prompts that hold more than tokens, such as images, sound or embeddings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood.base.errors import InvalidInput
from draftwood.base.machine_faults import machine_fault

_PLACEHOLDER = re.compile(r"(image|video|audio|speech|vision|sound|media)\w*_token(_id|_index)?$")
"""Names by which configurations call tokens that stand for images, videos or sound."""

# Arguments of a custom loop that are no inputs of the model.
_OF_THE_LOOP = ("logits_processor", "stopping_criteria", "generation_config", "synced_gpus", "streamer")


@attrs.define(eq=False, slots=False)
class ModelPrompt:
    """Prompts of one batch, with everything that the target's first forward reads.

    A target reads such prompts by the model's own forward. Rows of the batch are read together. The prompts
    of an encoder-decoder are the first tokens of its decoder, and `inputs` holds what its encoder gives.

    Attributes:
        ids: int64 `[rows, columns]`, padded on the left; of no columns where only embeddings were given.
        inputs: keyword arguments of the forward, as `generate()` of the model has them before its first step.
        given: keyword arguments of the call, for a draft model of the same family, which prepares its own.
        placeholders: tokens that stand for images, videos or sound.
        family: class of the model that is to read them; None where that is not known.
        source: `[rows, ...]`, the input of an encoder-decoder's encoder: int64 token ids, frames of sound,
            pixels or the like; None for other models.
    """

    ids: Tensor
    inputs: Mapping[str, Any]
    given: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    placeholders: frozenset[int] = frozenset()
    family: type | None = None
    source: Tensor | None = attrs.field(default=None, repr=False)

    @classmethod
    def of(cls, model: Any, input_ids: Tensor | None = None, **inputs: Any) -> ModelPrompt:
        """Returns the prompts that `model.generate(input_ids, **inputs)` would read.

        Args:
            model: the transformers model that is to read them.
            input_ids: int64 `[rows, columns]`, padded on the left.
            inputs: the rest of what a processor returns: `attention_mask`, `pixel_values`, and so on.

        Raises:
            InvalidInput: inputs that `generate()` of this model refuses; the message is its own.
        """
        given = inputs if input_ids is None else {"input_ids": input_ids, **inputs}
        try:
            model.generate(**given, custom_generate=_catch, max_new_tokens=1, do_sample=False)
        except _Prepared as found:
            whole, read = given.get(source_name(model)), found.source
            encoded = "encoder_outputs" in found.inputs
            if (
                encoded
                and isinstance(whole, Tensor)
                and read is not None
                and whole.shape[-1] > read.shape[-1]
            ):
                raise InvalidInput(
                    f"generate() of {type(model).__name__} reads {whole.shape[-1]} columns of "
                    f"{source_name(model)} in pieces of {read.shape[-1]}; decode with "
                    "generate(custom_generate=...)."
                ) from None
            prompt = cls.prepared(model, found.ids, found.inputs, given=given, source=read)
        except Exception as error:  # the code of a family fails in any way
            if machine_fault(error):
                raise
            said = " ".join(str(error).split())[:200].rstrip(".")
            raise InvalidInput(
                f"generate() of {type(model).__name__} does not take these inputs ({said}); give what its "
                "processor returns."
            ) from error
        else:
            raise InvalidInput(f"generate() of {type(model).__name__} calls no custom loop; decode with it.")
        return prompt

    @classmethod
    def prepared(
        cls,
        model: Any,
        ids: Tensor,
        inputs: Mapping[str, Any],
        *,
        given: Mapping[str, Any],
        source: Tensor | None,
    ) -> ModelPrompt:
        """Returns the prompts of a call whose inputs `generate()` of `model` has prepared.

        Args:
            model: that is to read them.
            ids: int64 `[rows, columns]`.
            inputs: keyword arguments of its forward.
            given: keyword arguments of the call.
            source: the tensor that `generate()` takes for its main input, before rows are repeated for
                `num_return_sequences`; only encoder-decoders need it.
        """
        prompt = cls(ids, inputs, given, placeholders_of(model), type(model))
        if not prompt.encoded or source is None:
            return prompt
        prompt.source = source.repeat_interleave(max(len(ids) // len(source), 1), 0)
        # Rows of its inputs are repeated as texts are.
        prompt.given = {name: inputs[name] for name in given if name in inputs}
        return prompt

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def encoded(self) -> bool:
        """Returns whether the model is an encoder-decoder, whose encoder has read a source."""
        return self.inputs.get("encoder_outputs") is not None

    @property
    def mask(self) -> Tensor | None:
        """Returns the attention mask `[rows, columns]` over all that is written to; None: it sees all."""
        mask = self.inputs.get("decoder_attention_mask" if self.encoded else "attention_mask")
        return mask if isinstance(mask, Tensor) and mask.dim() == 2 else None

    @property
    def columns(self) -> int:
        """Returns the columns that the first forward is given, padding included."""
        embedded = None if self.encoded else self.inputs.get("inputs_embeds")
        return int(self.ids.shape[1] if embedded is None else embedded.shape[1])

    @property
    def lengths(self) -> list[int]:
        """Returns the number of columns of every row that the mask shows."""
        if self.mask is None:
            return [self.columns] * len(self)
        lengths: list[int] = self.mask.bool().sum(1).tolist()
        return lengths

    @cached_property
    def texts(self) -> list[list[int]]:
        """Returns the tokens of every row that the mask shows, placeholders too; embeddings have none."""
        return _shown(self.ids, self.mask)

    @property
    def continues_in_tokens(self) -> bool:
        """Returns whether texts with images, videos or sound can go on after tokens only.

        They can where every column that the model reads of them is a token.
        """
        if self.encoded or (self.mask is not None and has_holes(self.mask)) or "inputs_embeds" in self.inputs:
            return False
        pictured = bool(self.ids.numel()) and any(map(self.placeholders.intersection, self.texts))
        return pictured and self.lengths == [len(text) for text in self.texts]

    @property
    def source_texts(self) -> list[list[int]]:
        """Returns the tokens that an encoder has read, row by row; without such tokens, empty lists."""
        source = self.source
        if source is None or source.dim() != 2 or source.is_floating_point() or bool((source < 0).any()):
            return [[] for _ in range(len(self))]
        return _shown(source, self.inputs.get("attention_mask"))

    @property
    def words(self) -> list[list[int]]:
        """Returns the tokens of every row without padding and placeholders, after an encoder's tokens."""
        return [
            [token for token in (*read, *text) if token not in self.placeholders]
            for read, text in zip(self.source_texts, self.texts, strict=True)
        ]

    def read_by(self, model: Any) -> ModelPrompt:
        """Returns the same prompts for a second model of the same class.

        Raises:
            InvalidInput: embeddings or a cache, which mean nothing to another model, or other inputs that
                this model does not take.
        """
        if unread := {"inputs_embeds", "mm_encoder_outputs", "cache", "past_key_values"} & self.given.keys():
            raise InvalidInput(f"{', '.join(sorted(unread))} can only be read by the target; give token ids.")
        if not self.encoded:
            own = ModelPrompt.of(model, **{"input_ids": self.ids, **self.given})
        else:
            source = self.source
            # Without inputs of the encoder, `generate()` has negative numbers in their place.
            if source is None or not (source.is_floating_point() or bool((source >= 0).all())):
                raise InvalidInput("encoder_outputs can only be read by the target; give inputs of encoders.")
            read = {source_name(model): source, "decoder_input_ids": self.ids}
            own = ModelPrompt.of(model, **{**self.given, **read})
        if own.ids.shape != self.ids.shape:
            raise InvalidInput(
                f"{len(own)} rows of {own.ids.shape[1]} tokens were given for {len(self)} texts of "
                f"{self.ids.shape[1]}; give one row for each text, and models that begin texts alike."
            )
        return own

    @property
    def rows(self) -> list[PromptRow]:
        """Returns the rows, which are read together."""
        return [PromptRow(self, number) for number in range(len(self))]


@attrs.frozen(eq=False)
class PromptRow:
    """One row of a `ModelPrompt`."""

    prompt: ModelPrompt
    number: int

    @property
    def tokens(self) -> list[int]:
        """Returns its tokens without padding, placeholders included."""
        return self.prompt.texts[self.number]

    @property
    def length(self) -> int:
        """Returns the columns that the model reads of it."""
        return self.prompt.lengths[self.number]


class _Prepared(Exception):
    """Leaves a call of `generate()`, with the inputs that it has prepared for its loop."""

    def __init__(self, ids: Tensor, source: Tensor | None, inputs: Mapping[str, Any]) -> None:
        super().__init__("generate() has prepared its inputs")
        self.ids, self.source, self.inputs = ids, source, inputs


def _catch(_: Any, input_ids: Tensor, inputs_tensor: Tensor | None = None, **prepared: Any) -> Tensor:
    """A loop that only looks at the inputs; `generate()` of a family may look at its result."""
    inputs = {name: value for name, value in prepared.items() if name not in _OF_THE_LOOP}
    raise _Prepared(input_ids, inputs_tensor, inputs)


def source_name(model: Any) -> str:
    """Returns the name by which `generate()` of a transformers model takes what its encoder reads."""
    own: str = model.main_input_name
    return getattr(getattr(model, "encoder", None), "main_input_name", None) or own


def _shown(ids: Tensor, mask: Any) -> list[list[int]]:
    """The tokens of every row that a mask of the same shape shows; all of them without one."""
    rows: list[list[int]] = ids.tolist()
    if not isinstance(mask, Tensor) or mask.shape != ids.shape:
        return rows
    kept = mask.bool().tolist()
    return [[t for t, k in zip(row, seen, strict=True) if k] for row, seen in zip(rows, kept, strict=True)]


def has_holes(mask: Tensor) -> bool:
    """Returns whether a mask `[rows, columns]` hides more than the beginning of rows, or all of a row."""
    seen = mask.bool()
    return not bool(seen[:, -1:].all()) or bool((seen[:, :-1] & ~seen[:, 1:]).any())


def placeholders_of(model: Any) -> frozenset[int]:
    """Returns the tokens that a transformers model replaces by images, videos or sound."""
    config = getattr(model, "config", None)
    return frozenset(
        value
        for name, value in (vars(config) if config is not None else {}).items()
        if _PLACEHOLDER.search(name) and isinstance(value, int) and not isinstance(value, bool)
    )


def words_of(prompt: ModelPrompt, rows: Sequence[int], *, vocab_size: int) -> list[Tensor]:
    """Returns the words of these rows as int64 vectors; tokens outside of a vocabulary are 0."""
    return [_vector(prompt.words[row], vocab_size) for row in rows]


def filled_words(
    prompt: ModelPrompt, rows: Sequence[int], *, lengths: Sequence[int], vocab_size: int
) -> list[Tensor]:
    """Returns one token for each column of these rows, for drafters that read the target's features of all.

    Placeholders stay; columns without a token, such as embeddings, and unknown tokens are 0.

    Args:
        prompt: that the target has read.
        rows: of the prompt.
        lengths: columns that the target holds of each of these rows.
        vocab_size: tokens that the drafter knows.
    """
    texts = [prompt.texts[row] for row in rows]
    return [
        _vector([0] * (length - len(text)) + text[max(len(text) - length, 0) :], vocab_size)
        for text, length in zip(texts, lengths, strict=True)
    ]


def _vector(tokens: Sequence[int], vocab_size: int) -> Tensor:
    return torch.tensor([token if 0 <= token < vocab_size else 0 for token in tokens], dtype=torch.int64)
