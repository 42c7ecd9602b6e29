"""The model of a GGUF file as it decodes by itself: what the backend is compared with."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from draftwood.backends.gguf.context import Context, Settings, Tokens
from draftwood.backends.gguf.library import Weights


class GgufModel:
    """A model in a GGUF file, decoded by llama.cpp as one sequence.

    Attributes:
        file: the file.
        weights: what llama.cpp holds of it.
        settings: of its contexts.
    """

    def __init__(self, file: Path, weights: Weights, settings: Settings) -> None:
        """Decode by a context of its own, which is made when it is first needed."""
        self.file, self.weights, self.settings = file, weights, settings
        self._context: Context | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.file)!r})"

    def logits(self, tokens: list[int]) -> Tensor:
        """Returns the logits `[vocab]` after a text, which is read from its beginning."""
        if self._context is None:
            self._context = Context(self.weights, self.settings)
        context, count = self._context, len(tokens)
        context.reserve(cells=count, sequences=1)
        wanted = [False] * (count - 1) + [True]
        try:
            found = context.decode(Tokens(tokens, range(count), [(0,)] * count, wanted))
            return torch.tensor(found[0])
        finally:
            context.cut(0, length=0)
