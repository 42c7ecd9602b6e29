"""`SharedDecoder`: many threads write through one decoder, each its own text."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from threading import Condition, Thread
from types import TracebackType
from typing import Unpack

import attrs

from draftwood.base.errors import DraftwoodError, InvalidInput
from draftwood.decoding.row_queue import QueuedText, RowQueue
from draftwood.decoding.text_request import RequestOptions, TextRequest


@attrs.define(eq=False)
class SharedText:
    """A text that a `SharedDecoder` writes: an iterator of lists of tokens, as rounds give them.

    Attributes:
        request: the prompt and everything that decides its text.
        text: the text itself; None until the writing thread has taken the request.
        logprobs: log-probabilities of the tokens that were handed over, where the request asks for them.
        top_logprobs: for each of these tokens, the likeliest in its place and their log-probabilities.
    """

    request: TextRequest
    _owner: SharedDecoder = attrs.field(repr=False)
    text: QueuedText | None = attrs.field(default=None, init=False)
    logprobs: list[float] = attrs.field(factory=list, init=False)
    top_logprobs: list[list[tuple[int, float]]] = attrs.field(factory=list, init=False)
    _told: list[int] = attrs.field(factory=list, init=False)
    _pieces: SimpleQueue[list[int] | None] = attrs.field(factory=SimpleQueue, init=False)
    _error: DraftwoodError | None = attrs.field(default=None, init=False)
    _over: bool = attrs.field(default=False, init=False)

    def __iter__(self) -> Iterator[list[int]]:
        return self

    def __next__(self) -> list[int]:
        """Tokens that came since, waiting for them.

        Raises:
            DraftwoodError: the text cannot be written, or the decoder was closed, or is another process's.
        """
        self._owner.check_process()
        piece = None if self._over else self._pieces.get()
        if piece is not None:
            return piece
        self._over = True
        if self._error is not None:
            raise self._error
        raise StopIteration

    def wait(self) -> QueuedText:
        """The finished text; `refused` says why where it could not be written.

        Raises:
            DraftwoodError: the decoder was closed.
        """
        try:
            for _ in self:
                pass
        except DraftwoodError:
            if self.text is None or self.text.refused is None:
                raise
        assert self.text is not None
        return self.text

    def cancel(self) -> None:
        """Give the text up; the next text takes its row."""
        self._owner.give_up(self)

    def tell(self) -> bool:
        """Hand over new tokens and return whether the text has ended. For the writing thread."""
        text = self.text
        assert text is not None
        if text.refused is not None:
            refused = InvalidInput(text.refused)
            refused.__cause__ = text.error
            return self.end(refused)
        common = min(len(self._told), len(text.tokens))
        if text.tokens[:common] != self._told[:common]:
            return self.end(
                InvalidInput(
                    "The text was restarted after a fault and came out differently; request it again."
                )
            )
        if new := text.tokens[len(self._told) :]:
            self.logprobs += text.logprobs[len(self._told) :]
            self.top_logprobs += text.top_logprobs[len(self._told) :]
            self._told += new
            self._pieces.put(new)
        return self.end() if text.finished else False

    def end(self, error: DraftwoodError | None = None) -> bool:
        """Nothing more will come; True. For the writing thread."""
        self._error = error
        self._pieces.put(None)
        return True


@attrs.define(eq=False)
class SharedDecoder:
    """A `RowQueue` for many threads, whose rounds a thread of this object runs, for a server or an actor.

    A context manager: texts that are not done when it ends are given up, and whoever waits is told.

    Attributes:
        queue: of rows; nobody else may use it meanwhile.
        most: texts that may be there at once, those that wait included; None: any number.

    It belongs to the process that made it: a child made by `os.fork` has no writing thread.
    """

    queue: RowQueue
    most: int | None = None
    # All below is for holders of the condition's lock.
    _texts: list[SharedText] = attrs.field(factory=list, init=False)
    _given_up: list[SharedText] = attrs.field(factory=list, init=False)
    _closed: DraftwoodError | None = attrs.field(default=None, init=False)
    _changed: Condition = attrs.field(factory=Condition, init=False)
    _thread: Thread = attrs.field(init=False)
    _process: int = attrs.field(factory=os.getpid, init=False)

    def __attrs_post_init__(self) -> None:
        self._thread = Thread(target=self._write, name="draftwood writer", daemon=True)
        self._thread.start()

    def __enter__(self) -> SharedDecoder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the thread after its round, and give up the texts that are not done."""
        if os.getpid() != self._process:
            return
        with self._changed:
            self._closed = self._closed or InvalidInput(
                "The decoder was closed before the text was finished; ask another."
            )
            self._changed.notify()
        self._thread.join()

    @property
    def closed(self) -> DraftwoodError | None:
        """The reason why no text can be added any more, or None while texts can be."""
        return self._closed

    @property
    def unfinished(self) -> int:
        """Texts that are being written, or wait."""
        return len(self._texts)

    def add(self, prompt: Sequence[int], *, seed: int, **options: Unpack[RequestOptions]) -> SharedText:
        """A text that is written from now on, as soon as there is room for it.

        It takes the arguments of `Session.add`.

        Raises:
            InvalidInput: there are `most` texts already, or the decoder was closed, or is another process's.
        """
        self.check_process()
        text = SharedText(TextRequest(prompt, seed, **options), self)
        with self._changed:
            if self._closed is not None:
                raise self._closed
            if self.most is not None and len(self._texts) >= self.most:
                raise InvalidInput(f"{self.most} texts are being written or wait already; ask again later.")
            self._texts.append(text)
            self._changed.notify()
        return text

    def check_process(self) -> None:
        """Raise `InvalidInput` in a process that a fork made after this decoder."""
        if os.getpid() != self._process:
            raise InvalidInput(
                f"This decoder belongs to process {self._process}, and a fork does not copy its thread; make "
                f"another decoder in process {os.getpid()}."
            )

    def give_up(self, text: SharedText) -> None:
        """End the text, as `SharedText.cancel` does."""
        self.check_process()
        with self._changed:
            if text in self._texts:
                self._given_up.append(text)
                self._changed.notify()

    def _write(self) -> None:
        closed: DraftwoodError | None = None
        try:
            with self.queue:
                while closed is None:
                    closed = self._round()
        except BaseException as error:  # a thread that dies in silence would leave everyone waiting
            closed = InvalidInput(f"The decoder failed ({type(error).__name__}: {error}); start it anew.")
        with self._changed:
            self._closed = closed
            texts, self._texts = self._texts, []
        for text in texts:
            text.end(closed)

    def _round(self) -> DraftwoodError | None:
        """Wait for something to do, and do it; the error that ends everything, or None."""
        with self._changed:
            while self._closed is None and not self._texts:
                self._changed.wait()
            if self._closed is not None:
                return self._closed
            texts, given_up = list(self._texts), self._given_up
            self._given_up = []
        for text in texts:
            if text.text is None:
                text.text = self.queue.append(text.request)
        for text in given_up:
            if text.text is not None and text.text.finished is None:
                self.queue.cancel(text.text)
                text.end(InvalidInput("The text was cancelled."))
        changed = set(map(id, self.queue.run())) if self.queue.unfinished else set()
        over = [text for text in texts if text in given_up or (id(text.text) in changed and text.tell())]
        if over:
            with self._changed:
                self._texts = [text for text in self._texts if text not in over]
        return None
