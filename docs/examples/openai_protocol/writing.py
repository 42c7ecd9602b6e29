"""The texts of one request while a `SharedDecoder` writes them, for a program of coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from threading import Thread

import attrs

from draftwood import IncompatibleStrategy, InvalidInput, SharedText
from draftwood.base.machine_faults import machine_fault
from openai_protocol.refused import Refused
from openai_protocol.texts import Choice, Piece


@attrs.define(eq=False)
class Writing:
    """One text, and the choice that it becomes.

    Attributes:
        tokens: of its prompt.
        start: characters of its prompt.
        first: whether it is the first one of its prompt.
        told: tokens that the choice has taken.
    """

    text: SharedText
    choice: Choice
    tokens: Sequence[int]
    start: int
    first: bool = attrs.field(kw_only=True)
    told: int = attrs.field(default=0, init=False)

    def take(self, came: list[int] | Exception | None) -> Piece:
        """Returns the piece that becomes certain by tokens, or by the end of the text (None).

        Raises:
            Refused: an error came, since the text cannot be written.
        """
        if isinstance(came, Exception):
            raise self._refusal(came)
        if came is None:
            assert self.text.text is not None
            assert self.text.text.finished is not None
            return self.choice.end(self.text.text.finished)
        begin, self.told = self.told, self.told + len(came)
        these = slice(begin, self.told)
        piece = self.choice.take(came, self.text.logprobs[these], self.text.top_logprobs[these])
        if self.choice.finish is not None:
            self.text.cancel()  # it ends at a stop string, which the row does not know of
        return piece

    def _refusal(self, error: Exception) -> Refused:
        cause = None if self.text.text is None else self.text.text.error
        if cause is None or machine_fault(cause) is not None:
            return Refused(503, str(error))  # memory ran out, or the decoder was closed
        of_request = isinstance(cause, InvalidInput | IncompatibleStrategy)
        return Refused(400 if of_request else 500, str(error))


async def pieces(writings: Sequence[Writing]) -> AsyncIterator[tuple[int, Piece]]:
    """Yields pieces of all texts as rounds bring them, each with the number of its text.

    Raises:
        Refused: one of them cannot be written.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[int, list[int] | Exception | None]] = asyncio.Queue()

    def tell(number: int, came: list[int] | Exception | None) -> None:
        with suppress(RuntimeError):  # the loop has ended, and nobody waits
            loop.call_soon_threadsafe(queue.put_nowait, (number, came))

    def follow(number: int, text: SharedText) -> None:
        try:
            for tokens in text:
                tell(number, tokens)
        except Exception as error:
            tell(number, error)
        else:
            tell(number, None)

    for number, writing in enumerate(writings):
        Thread(target=follow, args=(number, writing.text), daemon=True).start()
    while any(writing.choice.finish is None for writing in writings):
        number, came = await queue.get()
        if writings[number].choice.finish is None:
            yield number, writings[number].take(came)
