"""What a backend or drafter is compared with: next-token logits that it had no part in computing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor

LogitsAfter = Callable[[list[int]], Tensor]
"""Next-token logits `[vocab]` after a list of one token or more."""

_KEPT = 4096


@attrs.define(eq=False)
class PlainForward:
    """A module's own forward over a whole text, without cache, mask or other rows.

    Attributes:
        module: takes `input_ids` `[1, n]` and gives logits `[1, n, vocab]`, or an object that has them as
            `logits`, as transformers' models do; in evaluation mode.
    """

    module: torch.nn.Module
    _known: dict[tuple[int, ...], Tensor] = attrs.field(factory=dict, init=False, repr=False)

    def __call__(self, tokens: list[int]) -> Tensor:
        key = tuple(tokens)
        if key not in self._known:
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[key] = self._run(tokens)
        return self._known[key]

    @torch.no_grad()
    def _run(self, tokens: list[int]) -> Tensor:
        first = next(self.module.parameters(), None)
        embedding = getattr(self.module, "get_input_embeddings", lambda: None)()
        weight = getattr(embedding, "weight", first)
        ids = torch.tensor([tokens], device=None if weight is None else weight.device)
        takes = inspect.signature(self.module.forward).parameters
        options: dict[str, Any] = {"use_cache": False} if "use_cache" in takes else {}
        if "position_ids" in takes:
            # Some count from elsewhere by themselves, but not where generate() counts for them.
            options["position_ids"] = torch.arange(len(tokens), device=ids.device).unsqueeze(0)
        output = self.module(input_ids=ids, **options)
        logits: Tensor = getattr(output, "logits", output)
        return logits[0, -1]


def oracle_of(part: object) -> LogitsAfter | None:
    """What the `model` of a backend or drafter says, or None where it names none.

    A torch module answers by its plain forward, anything else by its method `logits`, which takes the text.
    """
    model = getattr(part, "model", None)
    if isinstance(model, torch.nn.Module):
        return PlainForward(model)
    found = getattr(model, "logits", None)
    return found if callable(found) else None
