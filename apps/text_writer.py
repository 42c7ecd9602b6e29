"""What writes the texts of many prompts: on this machine, and in an actor of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import attrs

from draftwood import Constraint, QueuedText, RowQueue, SpeculativeDecoder
from draftwood.apps.method import Method
from draftwood.apps.models import Loaded
from draftwood.apps.text import decode

Record = dict[str, Any]
"""A line of the file of texts."""


@attrs.frozen
class Asked:
    """A prompt, its number in the file, and the seed of its text, which hold wherever it is written."""

    number: int
    prompt: str
    seed: int


@attrs.frozen(eq=False)
class TextWriter:
    """A decoder with what it takes to make lines of texts."""

    method: Method
    loaded: Loaded
    decoder: SpeculativeDecoder
    constraint: Constraint | None

    @classmethod
    def of(cls, method: Method, sample: str) -> TextWriter:
        """With the models of `method`; what a draft of other tokens costs is said of the text `sample`."""
        loaded = method.loaded()
        decoder = method.decoder(loaded, loaded.tokenizer(sample)["input_ids"])
        return cls(method, loaded, decoder, method.constraint(loaded))

    def queue(self, rows: int) -> RowQueue:
        return RowQueue(partial(self.method.session, self.decoder, self.loaded), rows)

    def tokens(self, prompt: str) -> list[int]:
        ids: list[int] = self.loaded.tokenizer(prompt)["input_ids"]
        return ids

    def record(self, asked: Asked, text: QueuedText) -> Record:
        """The line of a text that has ended."""
        begun = {"number": asked.number, "prompt": asked.prompt}
        if text.refused is not None:
            return {**begun, "refused": text.refused}
        return {
            **begun,
            "text": decode(self.loaded.tokenizer, text.tokens),
            "tokens": text.tokens,
            "finish_reason": text.finished,
            "prompt_tokens": len(text.prompt),
            "seed": asked.seed,
            "lossless": self.method.strategy.verifier.lossless,
            "statistics": text.statistics,
        }

    def write(self, missing: list[Asked], rows: int) -> Iterator[Record]:
        """The lines of all prompts in `missing`, in the order in which they end."""
        waiting, running = iter(missing), dict[QueuedText, Asked]()
        with self.queue(rows) as queue:
            while True:
                while queue.unfinished < 2 * rows and (asked := next(waiting, None)) is not None:
                    tokens = self.tokens(asked.prompt)
                    running[queue.add(tokens, seed=asked.seed, constraint=self.constraint)] = asked
                if not queue.unfinished:
                    return
                for text in queue.run():
                    if text.finished:
                        yield self.record(running.pop(text), text)
