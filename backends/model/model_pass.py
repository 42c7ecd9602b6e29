"""The pass of a transformers model, as a function of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from draftwood.backends.attention.kv import RowCache
from draftwood.backends.attention.number_masks import Masks, NumberMasks
from draftwood.backends.attention.tree_attention import TreeAttention
from draftwood.backends.attention.tree_kernel import TRACED, BitMasks, under
from draftwood.backends.model.features import Features
from draftwood.backends.model.model_cache import with_source
from draftwood.backends.nodes.buckets import Shape
from draftwood.backends.nodes.pass_inputs import Inputs
from draftwood.backends.nodes.row_inputs import Source
from draftwood.backends.recurrent.states import States
from draftwood.backends.structure.forward import cache_argument, decoder_prefix, takes


class ModelPass:
    """A function from tokens, positions and what nodes see to logits, over the state of all rows so far.

    The state is in buffers: keys and values of attention layers are in `cache`, where a pass adds the new
    nodes', and what recurrent layers keep is in `states`. A pass changes nothing else, so it can be run as it
    is, or traced. `RowCache.write` or `RowCache.written_at` says before it which rows and slots it writes.

    Attributes:
        module: the model, or a copy of its structure over the same weights.
        cache: keys and values of all rows.
        states: of recurrent layers; None for a model without any.
        kinds: names of the kinds of attention layers.
        device: where token ids go.
        masks: the form in which a pass that runs as it is tells the model what nodes see.
        numbers: that of numbers, which any attention reads.
        reader: takes features from the pass, where they are kept.
    """

    def __init__(
        self,
        model: Any,
        module: Any,
        *,
        kinds: Sequence[str],
        cache: RowCache,
        states: States | None,
        device: torch.device,
    ) -> None:
        """The pass of `module`, which is `model` or runs in its place; the rest as above."""
        self.module, self.cache, self.states = module, cache, states
        self.kinds, self.device = tuple(kinds), device
        self.reader: Features | None = None
        self._attention = TreeAttention(module) if kinds else None
        by_numbers = self._attention.by_numbers if self._attention is not None else None
        self.numbers, self._standing = (
            NumberMasks(self.kinds, dtype=model.dtype, device=device, attention=by_numbers, standing=standing)
            for standing in (False, True)
        )
        self._bits: BitMasks | None = None
        self.masks: NumberMasks | BitMasks = self._standing
        self._prefix = decoder_prefix(model)
        self._takes_positions = takes(model, f"{self._prefix}position_ids")
        self._takes_kept = takes(model, "logits_to_keep")
        self._cache_name = cache_argument(model)

    def choose_masks(self) -> None:
        """Decide by which masks nodes are told what they see, until this is called again."""
        bits = self._attention is not None and self._attention.takes_bits(self.device)
        if bits and self._bits is None:
            assert self._attention is not None
            self._bits = BitMasks(self.kinds, attention=self._attention.by_bits)
        self.masks = self._bits if bits and self._bits is not None else self._standing

    @property
    def by_bits(self) -> bool:
        """Whether the tree kernel attends."""
        return self.masks is self._bits

    def around(self, masks: NumberMasks | BitMasks) -> AbstractContextManager[None]:
        """Inside it a pass under `masks` may be called, or traced."""
        return masks.attention if self.reader is None else self._watched(masks)

    @contextmanager
    def _watched(self, masks: NumberMasks | BitMasks) -> Iterator[None]:
        assert self.reader is not None
        with masks.attention, self.reader.watched():
            yield

    def __call__(
        self,
        tensors: Inputs,
        shape: Shape,
        masks: NumberMasks | BitMasks,
        *,
        kept: int | Tensor | None = None,
        constants: Mapping[str, Any] | None = None,
        source: Source | None = None,
    ) -> list[Tensor]:
        """Logits `[rows, nodes, vocab]`, and features `[rows, nodes, width]` where they are kept.

        Args:
            tensors: `PassInputs.arrays` on the device.
            shape: of the pass, for which the arrays were made.
            masks: for which they were made.
            kept: columns of which there are to be logits, or how many of the last ones; None for all.
            constants: what the forward is given besides, by name.
            source: of an encoder-decoder.
        """
        mask, bits = masks.of(tensors, shape)
        tokens, positions = tensors["tokens"], tensors["positions"]
        if not bits:
            return self.forward(tokens, positions, mask, kept=kept, constants=constants, source=source)
        if torch.compiler.is_compiling():
            TRACED.masks = bits
            found = self.forward(tokens, positions, mask, kept=kept)
            TRACED.masks = ()
            return found
        with under(bits):
            return self.forward(tokens, positions, mask, kept=kept, constants=constants, source=source)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        mask: Masks,
        *,
        kept: int | Tensor | None = None,
        cache: Cache | None = None,
        constants: Mapping[str, Any] | None = None,
        source: Source | None = None,
    ) -> list[Tensor]:
        """Run only the model: as above, with a mask for `attention_mask=`; over another `cache`, if given."""
        prefix, held = self._prefix, self.cache if cache is None else cache
        options: dict[str, Any] = {
            **(constants or {}),
            f"{prefix}input_ids": tokens,
            f"{prefix}attention_mask": mask,
            self._cache_name: held,
            "use_cache": True,
            "return_dict": True,
        }
        if source is not None:
            options[self._cache_name] = with_source(held, source.layers)
            options["encoder_outputs"] = (source.encoded,)
        if self._takes_positions:
            # Rows may share one line of positions.
            shared = positions.shape[-2] != tokens.shape[0]
            options[f"{prefix}position_ids"] = positions.expand(tokens.shape) if shared else positions
        if kept is not None and self._takes_kept:
            options["logits_to_keep"] = kept
        if self.reader is None:
            found = [self.module(**options).logits]
        else:
            features, output = self.reader.run(options)
            found = [output.logits, features]
        if kept is not None and not self._takes_kept:
            logits = found[0]
            found[0] = logits[:, -kept:] if isinstance(kept, int) else logits.index_select(1, kept)
        return found
