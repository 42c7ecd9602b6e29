"""Target and draft of one tokenizer whose logits were padded to different widths."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.base.errors import IncompatibleModels
from draftwood.protocols import Drafter
from draftwood.protocols.model_prompt import ModelPrompt
from draftwood.protocols.scored_nodes import ScoredNodes
from draftwood.trees.outcome import Outcome
from draftwood.trees.request import Request, Requests

PADDING = 1024
"""Widths that differ by more are taken for two tokenizers; Qwen2.5 has 151,936 and 152,064."""


def fit_vocabulary(drafter: Drafter, vocab_size: int) -> Drafter:
    """`drafter` with logits of `vocab_size` tokens.

    Raises:
        IncompatibleModels: the widths differ by more than padding does.
    """
    drafter_size = drafter.vocab_size
    if drafter_size == vocab_size:
        return drafter
    if abs(drafter_size - vocab_size) > min(PADDING, max(drafter_size, vocab_size) // 50):
        raise IncompatibleModels(
            f"The drafter has {drafter_size} tokens and the target {vocab_size}, which padding does not "
            "explain; they must share one tokenizer and vocabulary."
        )
    return FittedDrafter(drafter, vocab_size)


def unfitted(drafter: Drafter) -> Drafter:
    """The drafter that `fit_vocabulary` was given, which holds the rows."""
    return drafter.drafter if isinstance(drafter, FittedDrafter) else drafter


@attrs.define(eq=False)
class FittedDrafter(Drafter):
    """A drafter whose logits are cut to `vocab_size` tokens or padded with -inf.

    Tokens that the drafter does not know reach it as token 0. Whatever it proposes then, a verifier
    judges it, so nothing is lost but a proposal.
    """

    drafter: Drafter
    vocab_size: int

    def __attrs_post_init__(self) -> None:
        self.drafters, self.weight_bytes = self.drafter.drafters, self.drafter.weight_bytes
        self.backends, self.source = self.drafter.backends, self.drafter.source
        self.remembers, self.names = self.drafter.remembers, self.drafter.names
        self.reads_scores = self.drafter.reads_scores

    def scored(self, nodes: ScoredNodes) -> None:
        width = self.drafter.vocab_size - self.vocab_size
        logits = nodes.logits
        fitted = (
            logits[..., :width]
            if width < 0
            else torch.nn.functional.pad(logits, (0, width), value=-torch.inf)
        )
        self.drafter.scored(attrs.evolve(nodes, logits=fitted))

    def prefill(self, rows: Sequence[Int[Tensor, " length"]]) -> None:
        self.drafter.prefill([self._in_vocabulary(row) for row in rows])

    def prefill_prompt(self, prompt: ModelPrompt, rows: Sequence[int]) -> None:
        self.drafter.prefill_prompt(prompt, rows)

    def release(self, rows: Sequence[int] | None = None) -> None:
        self.drafter.release(rows)

    def distributions(
        self, requests: Sequence[Request | None]
    ) -> Float[Tensor, "rows nodes *drafters vocab"]:
        batch = Requests.of(requests)
        fitted_requests = attrs.evolve(batch, tokens=self._in_vocabulary(batch.tokens))
        logits = self.drafter.distributions(fitted_requests)[..., : self.vocab_size]
        missing = self.vocab_size - logits.shape[-1]
        return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf) if missing else logits

    def commit(self, outcomes: Sequence[Outcome]) -> None:
        drafter_size = self.drafter.vocab_size
        self.drafter.commit(
            [
                attrs.evolve(
                    outcome,
                    tokens=[token if token < drafter_size else 0 for token in outcome.tokens],
                    extra=outcome.extra if outcome.extra < drafter_size else 0,
                )
                for outcome in outcomes
            ]
        )

    def _in_vocabulary(self, tokens: Tensor) -> Tensor:
        return torch.where(tokens < self.drafter.vocab_size, tokens, 0)
