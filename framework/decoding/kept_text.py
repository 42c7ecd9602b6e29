"""`KeptText`: the states of a text that has ended, which the next call of `generate()` goes on from."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from operator import is_
from typing import Any

import attrs
import torch

from draftwood.base import locks
from draftwood.base.errors import InvalidInput
from draftwood.base.model_key import ModelKey
from draftwood.decoding.batch_row import BatchRow
from draftwood.decoding.given_cache import GivenCache
from draftwood.decoding.loop import RoundLoop
from draftwood.protocols import Drafter, StateBackend
from draftwood.protocols.vocabulary import unfitted


@attrs.define(eq=False, slots=False)
class KeptText:
    """A text whose states target and drafter still hold, as `past_key_values` of the next call.

    They hold them until a call of either of them begins that does not go on from here, or until this
    object is no longer used. Then a call that is given it reads its text again.

    Attributes:
        tokens: the text; the last one is in no state yet.
        undrafted: tokens that the drafter is still to read; None where it has read the text.
        pictured: whether the target read images, sound or videos in it, which its tokens do not hold.
    """

    tokens: list[int]
    undrafted: list[int] | None
    pictured: bool
    _parts: tuple[Any, ...] = attrs.field(repr=False)
    _key: Any = attrs.field(repr=False)
    _hold: object = attrs.field(factory=object, init=False, repr=False)

    @classmethod
    def of(cls, row: BatchRow, tokens: Sequence[int], loop: RoundLoop, *, pictured: bool) -> KeptText:
        """Keeps the states of target and drafter of `loop` for its only row."""
        parts = _parts_of(loop)
        kept = cls(list(tokens), row.undrafted, pictured, parts, _key_of(parts))
        hold, target, drafter = kept._hold, loop.target, loop.drafter

        def release() -> None:
            try:
                target.release()
            finally:
                drafter.release()

        locks.keep(hold, parts, release)
        weakref.finalize(kept, locks.drop, hold)
        return kept

    @property
    def hold(self) -> object:
        """The key by which `locks` know it."""
        return self._hold

    def current(self) -> bool:
        """Returns whether the models and their weights are as they were when the states were made."""
        return bool(_key_of(self._parts) == self._key)

    def begin(self, loop: RoundLoop, rows: Sequence[BatchRow]) -> bool:
        """Let the only row go on from these states, which are then no longer kept here.

        Returns:
            Whether it does: where they are still there and belong to the target and drafter of `loop`, and
            where its text, which is unread, begins with this one.

        Raises:
            InvalidInput: it does not, and the images of this text cannot be read again.
        """
        (row,) = rows
        parts = _parts_of(loop)
        same = len(parts) == len(self._parts) and all(map(is_, parts, self._parts))
        begins = row.unread[: len(self.tokens)] == self.tokens
        if not (same and begins and locks.take(self._hold)):
            if self.pictured:
                reason = (
                    "another call has used the model or its draft since" if begins else "the text is another"
                )
                raise InvalidInput(
                    f"past_key_values belongs to a text with images, videos or sound, and {reason}; give the "
                    "whole text with what belongs to it, and no past_key_values."
                )
            return False
        row.go_on_after(len(self.tokens), undrafted=self.undrafted)
        return True

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens whose states are held, as `generate()` asks every cache."""
        return len(self.tokens) - 1

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise InvalidInput(
            "This past_key_values was made by draft trees and holds no keys and values; give it to a call "
            "with the custom_generate= that made it."
        )


def _parts_of(loop: RoundLoop) -> tuple[Any, ...]:
    return (loop.target, unfitted(loop.drafter), *loop.drafter.backends)


def _key_of(parts: Sequence[Any]) -> Any:
    """Returns a key of all that the states depend on: the models, and the write counts of their weights."""
    models = [part.model for part in parts if isinstance(getattr(part, "model", None), torch.nn.Module)]
    return [(ModelKey.of(model), sum(map(_written, model.parameters()))) for model in models]


def _written(tensor: torch.Tensor) -> int:
    """Returns how often a tensor was written to in place; tensors of inference mode do not count this."""
    return 0 if tensor.is_inference() else tensor._version


@attrs.define
class Turn:
    """One turn of a chat: the states that a call continues, and the states that it leaves for the next.

    Attributes:
        past: of the turn before, or a cache that was given; None: it reads the whole prompt.
        pictured: whether the text holds images, sound or videos.
        kept: the states that this call leaves, once its text has ended; None where it has not, or there are
            several rows.
    """

    past: KeptText | GivenCache | None = None
    pictured: bool = False
    kept: KeptText | None = attrs.field(default=None, init=False)


def renew(target: StateBackend, drafter: Drafter, *, past: KeptText | GivenCache | None = None) -> None:
    """Let backends that hold no rows take up changes of their models (law R).

    States that were kept after an earlier call are released, except for the states of `past` if they are
    current.
    """
    backends = (target, *drafter.backends)
    current = isinstance(past, KeptText) and past.current()
    locks.drop_of((drafter, *backends), but=past.hold if isinstance(past, KeptText) and current else None)
    for backend in backends:
        if not backend.lengths:
            backend.renew()
