"""A text as a head sees it: features of every token, and the target's logits, from one forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.nn.functional import pad

from draftwood.base.errors import UnsupportedModel
from draftwood.strategies.blocks.head import BlockHead
from draftwood.strategies.blocks.over_text import unrolled_blocks
from draftwood.strategies.drafters.medusa import Heads
from draftwood.strategies.heads.pairs import PairHead
from draftwood.strategies.heads.peagle import PEagleHead
from draftwood.strategies.heads.rotation import undone
from draftwood.strategies.heads.unrolled import unrolled


@attrs.frozen(eq=False)
class KnownText:
    """Rows of a text of n tokens, read by their target.

    Place i is the pair of token i + 1 with the features of token i, for i from 0 to n - 3: what is guessed
    there is the token i + 2.

    Attributes:
        embeddings: of the tokens 1 to n - 2 by the target's own table, `[rows, n - 2, hidden]`.
        tokens: these tokens.
        features: of the tokens 0 to n - 3, `[rows, n - 2, taps * hidden]`.
        logits: the target's, of the token that follows each of these tokens, `[rows, n - 2, vocab]`.
    """

    embeddings: Tensor
    tokens: Tensor
    features: Tensor
    logits: Tensor

    def drafted(self, head: PairHead, *, depths: int, shift: int = 0) -> Iterator[Tensor]:
        """Returns the output of the head's layer at every place and depth; see `unrolled`."""
        embeddings = self._embedded(head)
        yield from unrolled(head, embeddings, head.project(self.features), depths=depths, shift=shift)

    def guesses(
        self,
        target: Any,
        head: PairHead | BlockHead | PEagleHead | Heads,
        *,
        depths: int,
        shift: int = 0,
        first: int = 0,
    ) -> Iterator[Tensor]:
        """Logits `[rows, places, vocab]` of every place from `first` on, a depth at a time.

        Args:
            target: the model, whose embeddings and output head a drafter without its own takes.
            head: the drafter.
            depths: how many.
            shift: added to the positions of what is drafted.
            first: a place.
        """
        if isinstance(head, PEagleHead):
            yield from self._masked_guesses(target, head, depths=depths, shift=shift, first=first)
            return
        if isinstance(head, Heads):
            for depth in range(min(depths, head.count)):
                read = pad(self.features[:, : self.features.shape[1] - depth], (0, 0, depth, 0))
                yield head.guess(depth, read[:, first:].to(head.output.dtype))
            return
        if not isinstance(head, BlockHead):
            for out in self.drafted(head, depths=depths, shift=shift):
                yield head.target_logits(out[:, first:])
            return
        output = target.get_output_embeddings() if head.lm_head is None else head.lm_head
        states = head.project(self.features)
        embeddings = self._embedded(head).to(states.dtype)
        mask = self._mask(target, head, head.config.mask_token_id).to(states.dtype)
        before = None
        for depth, out in enumerate(
            unrolled_blocks(head, embeddings, mask, states, depths=depths, first=first, shift=shift)
        ):
            logits = output(out[:, first:])
            if head.corrects:
                change, after = head.correction(self.tokens, embeddings, out, before, depth=depth)
                logits = logits + change[:, first:]
                # The drafts of a place come before the next place.
                before = None if after is None else pad(after[:, :-1], (0, 0, 1, 0))
            yield head.over_target(logits)

    def _masked_guesses(
        self, target: Any, head: PEagleHead, *, depths: int, shift: int, first: int
    ) -> Iterator[Tensor]:
        parts = head.head
        embeddings, states = self._embedded(parts), parts.project(self.features)
        mask = self._mask(target, parts, head.config.mask_token_id), head.masked()
        for out in unrolled(parts, embeddings, states, depths=depths, shift=shift, mask=mask):
            yield parts.target_logits(out[:, first:])

    def _embedded(self, head: PairHead | BlockHead) -> Tensor:
        if head.embed_tokens is None:
            return undone(head.rotation, self.embeddings)
        embeddings: Tensor = head.embed_tokens(self.tokens)
        return embeddings

    def _mask(self, target: Any, head: PairHead | BlockHead, token: int) -> Tensor:
        place = torch.tensor(token, device=self.tokens.device)
        if head.embed_tokens is None:
            return undone(head.rotation, target.get_input_embeddings()(place))
        embedding: Tensor = head.embed_tokens(place)
        return embedding


@attrs.frozen(eq=False)
class ReadText:
    """Rows of a text and all that its target made of them, of which `at` takes the features of some layers.

    Attributes:
        target: the transformers model.
        tokens: int64 `[rows, n]`.
        hidden: by layer, what it reads of the tokens 0 to n - 2; then what the output head reads, and where
            the last layer is found what it puts out before the final norm.
        logits: `[rows, n - 1, vocab]`.
    """

    target: Any
    tokens: Tensor
    hidden: Sequence[Tensor]
    logits: Tensor

    def at(self, taps: Sequence[int]) -> KnownText:
        """Returns the text as a head with these taps sees it.

        Raises:
            UnsupportedModel: the model gives no hidden states of one of them.
        """
        if len(self.hidden) <= max(taps):
            raise UnsupportedModel(
                f"{type(self.target).__name__} gives no hidden states of the layers "
                f"{', '.join(map(str, taps))}, which heads read; distil a draft model instead."
            )
        read = self.tokens[:, 1:-1]
        return KnownText(
            embeddings=self.target.get_input_embeddings()(read),
            tokens=read,
            features=torch.cat([self.hidden[tap][:, :-1] for tap in taps], -1),
            logits=self.logits[:, 1:],
        )


@torch.no_grad()
def known_text(target: Any, tokens: Tensor, taps: Sequence[int]) -> KnownText:
    """Read int64 `tokens` `[rows, n]`, n at least 3.

    Args:
        target: a transformers model.
        tokens: on any device.
        taps: layers whose input is read, counted from 0; after the last one, what the output head reads.

    Raises:
        UnsupportedModel: the model gives no hidden states.
    """
    return read_text(target, tokens).at(taps)


@torch.no_grad()
def read_text(target: Any, tokens: Tensor) -> ReadText:
    """Returns int64 `tokens` `[rows, n]`, n at least 3, as `target` reads them in one pass."""
    tokens = tokens.to(target.device)
    with _put_out(target) as last:
        output = target(tokens[:, :-1], use_cache=False, output_hidden_states=True)
    hidden = getattr(output, "hidden_states", None)
    parameters = signature(target.forward).parameters
    if hidden and "output_hidden_states" in parameters and "position_ids" not in parameters:
        # Pure state-space models put out nothing of what their first layer reads, and what lies after the
        # last one twice, without and with the norm.
        hidden = (target.get_input_embeddings()(tokens[:, :-1]), *hidden[:-2], hidden[-1])
    return ReadText(target, tokens, (*(hidden or ()), *(last if hidden else ())), output.logits)


@contextmanager
def _put_out(target: Any) -> Iterator[list[Tensor]]:
    """Inside it a pass of `target` leaves in the list what its last layer puts out, where that is found."""
    found: list[Tensor] = []
    layers = getattr(target.get_decoder(), "layers", None) if hasattr(target, "get_decoder") else None
    if not layers:
        yield found
        return
    hook = layers[-1].register_forward_hook(
        lambda _, __, out: found.append(out[0] if isinstance(out, tuple) else out)
    )
    try:
        yield found
    finally:
        hook.remove()
