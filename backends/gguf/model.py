"""The model of a GGUF file as llama.cpp decodes it, with which the backend is compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from draftwood.backends.gguf.context import Context, Settings, Tokens
from draftwood.backends.gguf.library import Weights


class GgufModel:
    """A model in a GGUF file, decoded by llama.cpp as one sequence.

    Attributes:
        file: the file.
        weights: its weights, which llama.cpp holds.
        settings: of its contexts.
    """

    def __init__(self, file: Path, weights: Weights, settings: Settings) -> None:
        """Decode by a separate context, which is made when it is first needed."""
        self.file, self.weights, self.settings = file, weights, settings
        self._context: Context | None = None
        self._stamp = _stamp(file)

    def is_outdated(self) -> bool:
        """Returns whether the file is there and was changed since it was loaded."""
        return _stamp(self.file) not in (None, self._stamp)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.file)!r})"

    def logits(self, tokens: list[int]) -> Tensor:
        """Returns the logits `[vocab]` after a text, which is read from its beginning."""
        return self.continued(tokens[:-1], [tokens[-1:]])[0][0]

    def continued(self, text: Sequence[int], paths: Sequence[Sequence[int]]) -> list[Tensor]:
        """Returns the logits `[len(path), vocab]` after each token of every path, one path after the other.

        Args:
            text: what comes before every path; it is read once.
            paths: tokens that follow, at least one.
        """
        if self._context is None:
            self._context = Context(self.weights, self.settings)
        context, begun = self._context, len(text)
        context.reserve(cells=begun + max(map(len, paths)), sequences=1)
        try:
            context.decode(_of_one(text, start=0, wanted=False))
            found = list[Tensor]()
            for path in paths:
                context.cut(0, length=begun)
                found.append(torch.tensor(context.decode(_of_one(path, start=begun, wanted=True))))
            return found
        finally:
            context.cut(0, length=0)


def _stamp(file: Path) -> tuple[int, int] | None:
    """Size and time of a file; None where it is gone."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _of_one(tokens: Sequence[int], *, start: int, wanted: bool) -> Tokens:
    """A call of one sequence."""
    count = len(tokens)
    return Tokens(tokens, range(start, start + count), [(0,)] * count, [wanted] * count)
