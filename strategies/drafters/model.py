"""A model that drafts, on any backend."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from os import PathLike
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood import (
    Drafter,
    DraftwoodError,
    InvalidInput,
    LevelPlan,
    Levels,
    Outcome,
    OutOfMemory,
    Request,
    Requests,
    StateBackend,
    load,
)
from draftwood.protocols.model_prompt import ModelPrompt
from draftwood.strategies.drafters.requested_nodes import RequestedNodes

log = logging.getLogger(__name__)


def _is_encoder_decoder(model: Any) -> bool:
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def _as_backend(model: Any) -> StateBackend:
    return load(model) if isinstance(model, (str, PathLike, torch.nn.Module)) else model


@attrs.define(eq=False)
class ModelDrafter(Drafter):
    """Asks a smaller model for the nodes' distributions, layer by layer on its own backend.

    Nodes it was never asked about (leaves of the tree) have no state in it; when one is accepted, its
    token is fed before the next root, in the same pass. Where the text has outgrown the model's context
    it proposes nothing.

    Of a prompt with images, videos or sound a model of the target's own class reads all, by its own forward;
    other models read the words around them, and of embeddings nothing. A draft that is an encoder-decoder
    reads the source of an encoder-decoder by its own encoder; other models read its tokens before the text.
    """

    backend: StateBackend = attrs.field(converter=_as_backend)
    _round: RequestedNodes = attrs.field(factory=RequestedNodes, init=False)
    _grows: bool = attrs.field(default=False, init=False)  # whether the backend has grown all levels at once
    source = "Leviathan et al. 2023"

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return self.backend.vocab_size

    @property
    def backends(self) -> Sequence[StateBackend]:  # type: ignore[override]
        return (self.backend,)

    @property
    def weight_bytes(self) -> int:  # type: ignore[override]
        return self.backend.weight_bytes

    @property
    def model(self) -> Any:
        return self.backend.model

    def prefill(self, rows: Sequence[Tensor]) -> None:
        room = self.backend.max_length
        # A prompt beyond the context leaves the row without proposals rather than without an answer.
        fits = [room is None or len(row) < room for row in rows]
        self.backend.prefill([row if fit else row[:0] for row, fit in zip(rows, fits, strict=True)])
        pending = [[] if fit else row.tolist() for row, fit in zip(rows, fits, strict=True)]
        self._round.join(pending)

    def prefill_prompt(self, prompt: ModelPrompt, rows: Sequence[int]) -> None:
        held = len(self.backend.lengths)
        encodes = _is_encoder_decoder(self.model)
        reads = prompt.encoded if encodes else type(self.model) is prompt.family
        if not (reads and self._reads(prompt, only=encodes)):
            super().prefill_prompt(prompt, rows)
            return
        self.backend.release([held + row for row in range(len(prompt)) if row not in rows])
        self._round.join([[] for _ in rows])

    def _reads(self, prompt: ModelPrompt, *, only: bool) -> bool:
        """Returns whether the model has read all of `prompt`; one of the target's class may still not.

        Args:
            prompt: that the target has read.
            only: whether the model reads nothing else, as an encoder-decoder.

        Raises:
            InvalidInput: it reads nothing else, and not this.
        """
        try:
            self.backend.read_prompt(prompt.read_by(self.model))
        except OutOfMemory:
            raise
        except (DraftwoodError, ValueError, RuntimeError) as error:
            if only:
                raise InvalidInput(
                    f"{type(self.model).__name__} drafts from a source that its own encoder reads, and does "
                    f"not read this one ({str(error).rstrip('.')}); use another drafter, such as "
                    "prompt-lookup."
                ) from error
            # Made for other images, say: proposals without them are judged too.
            log.warning("The draft model reads only the words of this prompt (%s).", error)
            return False
        return True

    def release(self, rows: Sequence[int] | None = None) -> None:
        self.backend.release(rows)
        self._round.release(rows)

    def distributions(self, requests: Sequence[Request | None]) -> Tensor:
        if not isinstance(requests, Requests):
            requests = Requests.of(requests)
        backend, room = self.backend, self.backend.max_length
        fed = self._round.take(requests, lengths=() if room is None else backend.lengths, room=room)
        logits = backend.extend(fed.tokens, fed.parents, fed.counts.tolist())
        return logits if fed.lead == 0 else fed.asked(logits)

    def planned_levels(
        self, roots: Sequence[int], plan: LevelPlan, *, temperature: float = 1.0
    ) -> Levels | None:
        # A drafter derived from this one may give other logits, of which the backend knows nothing.
        if type(self).distributions is not ModelDrafter.distributions:
            return None
        backend = self.backend
        if self._grows and self._round.lacks_several:
            self._catch_up(plan.depth)
        first = self._round.root_pass(
            roots, depth=plan.depth, lengths=backend.lengths, room=backend.max_length
        )
        if first is None or (levels := backend.extend_levels(*first, plan, temperature=temperature)) is None:
            return None
        self._grows = True
        self._round.grown(roots, *levels.nodes(root=first[0].shape[1] - 1))
        return levels

    def _catch_up(self, depth: int) -> None:
        """Read the tokens that were accepted and never asked about, as those that a text copies from itself.

        One pass more lets all levels, `depth` of them, be grown in one.
        """
        tokens, parents, counts = self._round.lacking()
        room, longest = self.backend.max_length, max(map(sum, zip(self.backend.lengths, counts, strict=True)))
        if room is not None and longest + depth >= room:
            return
        self.backend.extend(tokens, parents, counts)
        self.backend.commit([list(range(count)) for count in counts])
        self._round.caught_up()

    def commit(self, outcomes: Sequence[Outcome]) -> None:
        self.backend.commit(self._round.commit([outcome.tokens for outcome in outcomes]))
