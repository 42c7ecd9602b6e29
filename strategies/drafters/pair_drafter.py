"""The common part of drafters with a head over pairs: EAGLE-3's, MTP layers and Hydra heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood import (
    Drafter,
    IncompatibleModels,
    InvalidInput,
    Outcome,
    Request,
    Requests,
    StateBackend,
    UnsupportedModel,
)
from draftwood.protocols.model_prompt import ModelPrompt, filled_words
from draftwood.strategies.heads.pair_rows import PairRows
from draftwood.strategies.heads.pairs import PairHead
from draftwood.strategies.heads.rotation import undone


@attrs.define(eq=False)
class PairDrafter(Drafter):
    """Drafts with `head`, a module over pairs, from the features of `target`; made whole by `_begin`.

    Of each token a pair with what the target made of the token before it is read, once it is committed. What
    is drafted goes on from the head's own states, and is dropped with the round.
    """

    target: StateBackend
    head: Any
    _rows: PairRows = attrs.field(init=False, repr=False)

    def _begin(self, taps: Sequence[int]) -> None:
        """Have the target keep the features `taps`, and begin without rows."""
        # Of a long prompt only what the head makes of its features is held.
        self.target.keep_features(taps, through=self._pairs.project)
        self._rows = PairRows(self._pairs, self._embed)

    @property
    def _pairs(self) -> PairHead:
        head: PairHead = self.head
        return head

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return self._pairs.vocab_size

    @property
    def weight_bytes(self) -> int:  # type: ignore[override]
        # Of a table of words a few rows are read.
        table = {id(weight) for weight in (self._pairs.embed_tokens or torch.nn.Identity()).parameters()}
        return sum(
            weight.numel() * weight.element_size()
            for weight in self.head.parameters()
            if id(weight) not in table
        )

    def prefill(self, rows: Sequence[Tensor]) -> None:
        lengths = [len(row) for row in rows]
        held = len(self._rows)
        if len(self.target.lengths) != held + len(rows) or self.target.lengths[held:] != lengths:
            raise InvalidInput(
                f"The head's target holds {len(self.target.lengths)} row(s), not the {len(rows)} that join "
                "here; give the drafter the same backend object as the decoder."
            )
        states = self._taken()
        self._rows.join([row.tolist() for row in rows], states[held:])

    def prefill_prompt(self, prompt: ModelPrompt, rows: Sequence[int]) -> None:
        # The target has features of all columns, images and embeddings among them.
        lengths = self.target.lengths[len(self._rows) :]
        self.prefill(filled_words(prompt, rows, lengths=lengths, vocab_size=self.vocab_size))

    def release(self, rows: Sequence[int] | None = None) -> None:
        self._rows.release(rows)

    @torch.no_grad()
    def distributions(self, requests: Sequence[Request | None]) -> Tensor:
        return self._rows.ask(Requests.of(requests))

    def commit(self, outcomes: Sequence[Outcome]) -> None:
        # The target has committed these by now.
        self._rows.commit([outcome.tokens for outcome in outcomes], self._taken())

    def _taken(self) -> list[Tensor]:
        states = self.target.take_features()
        for one in states:
            if one.shape[1] != self._pairs.width:
                raise InvalidInput(
                    f"The head reads states of width {self._pairs.width}, but its target keeps features of "
                    f"width {one.shape[1]}; give the drafter a separate backend."
                )
        return states

    def _embed(self, tokens: Tensor) -> Tensor:
        table = self._pairs.embed_tokens
        if table is None:
            return undone(self._pairs.rotation, self.target.input_embeddings(tokens))
        embeddings: Tensor = table(tokens)
        return embeddings


def check_sizes(target: StateBackend, *, width: int, vocabulary: int, kind: str) -> None:
    """Raise unless `target` gives features, of the width and vocabulary that a head was made for.

    Args:
        target: of the head.
        width: of the features that it reads.
        vocabulary: tokens that it knows.
        kind: of the head, as drafters are called.

    Raises:
        UnsupportedModel: it gives none.
        IncompatibleModels: another width or vocabulary.
    """
    if not target.feature_layers:
        name = {"eagle3": "an EAGLE-3 head", "hydra": "a Hydra head", "mtp": "an MTP layer"}[kind]
        raise UnsupportedModel(
            f"{type(target).__name__} declares no features (its feature_layers is 0), which {name} reads; "
            "draft with a model or by prompt lookup."
        )
    for what, ours, theirs in (
        ("features of width", width, target.hidden_size),
        ("a vocabulary of", vocabulary, target.vocab_size),
    ):
        if ours != theirs:
            raise IncompatibleModels(
                f"The head was made for {what} {ours}, but the target's is {theirs}; use one that was made "
                f"for this target{'' if kind == 'hydra' else f', or train it with `draftwood train {kind}`'}."
            )
