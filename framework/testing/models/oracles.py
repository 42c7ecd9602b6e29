"""Oracles: next-token logits, computed independently, with which a backend or drafter is compared."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood.protocols import StateBackend

LogitsAfter = Callable[[list[int]], Tensor]
"""Next-token logits `[vocab]` after a list of one token or more."""

FeaturesAfter = Callable[[list[int], Sequence[int]], Tensor]
"""Features `[tokens, layers * hidden]` of these layers of a list of one token or more."""

_KEPT = 4096
_CACHES = ("cache", "past_key_values", "cache_params")
"""What modules call their cache."""


class Text(list[int]):
    """The tokens of a row; the first `prompt` of them are read and not written."""

    def __init__(self, tokens: Sequence[int], prompt: int) -> None:
        super().__init__(tokens)
        self.prompt = prompt

    def __add__(self, tokens: list[int]) -> Text:  # type: ignore[override]
        return Text([*self, *tokens], self.prompt)

    def __getitem__(self, places: Any) -> Any:
        found = super().__getitem__(places)
        return Text(found, self.prompt - (places.start or 0)) if isinstance(places, slice) else found


@attrs.define(eq=False, slots=False)
class PlainForward:
    """A module's plain forward over a text, without cache, mask or other rows.

    A recurrent layer may clamp its steps in a prompt and in no written token. A forward over the whole text
    is then not what decoding gives, so what was written is decoded with the module's own cache.

    Attributes:
        module: takes `input_ids` `[1, n]` and gives logits `[1, n, vocab]`, or an object that has them as
            `logits`, as transformers' models do; in evaluation mode.
    """

    module: torch.nn.Module
    _cache: dict[tuple[int, ...], Tensor] = attrs.field(factory=dict, init=False, repr=False)

    def __call__(self, tokens: list[int]) -> Tensor:
        key = (self._prompt_of(tokens), *tokens)
        if key not in self._cache:
            if len(self._cache) >= _KEPT:
                self._cache.clear()
            self._cache[key] = self._run(tokens)
        return self._cache[key]

    @cached_property
    def _prompt_of(self) -> Callable[[list[int]], int]:
        return prompt_of if _clamps(self.module) else len

    def _run(self, tokens: list[int]) -> Tensor:
        output = _decoded(self.module, tokens, self._prompt_of(tokens))
        logits: Tensor = getattr(output, "logits", output)
        return logits[0, -1]


@attrs.define(eq=False)
class PlainFeatures:
    """Features of a module's plain forward over a text: inputs of its decoder layers, and its body's output.

    Attributes:
        module: has one outermost `ModuleList` of `count` decoder layers.
        count: number of decoder layers.
    """

    module: torch.nn.Module
    count: int

    def __call__(self, tokens: list[int], layers: Sequence[int]) -> Tensor:
        lists = [
            name
            for name, part in self.module.named_modules()
            if isinstance(part, torch.nn.ModuleList) and len(part) == self.count
        ]
        name = min(lists, key=lambda name: name.count("."))
        parts: list[Any] = [*self.module.get_submodule(name)]  # type: ignore[misc]
        body = self.module.get_submodule(name.rpartition(".")[0])
        read: dict[int, list[Tensor]] = {layer: [] for layer in range(self.count + 1)}

        def reader(layer: int) -> Callable[[Any, Any, Any], None]:
            def note(_: Any, args: Any, named: Any) -> None:
                read[layer].append((args[0] if args else named["hidden_states"])[0].clone())

            return note

        def behind(_: Any, __: Any, output: Any) -> None:
            read[self.count].append(output[0][0].clone())

        hooks = [
            part.register_forward_pre_hook(reader(layer), with_kwargs=True)
            for layer, part in enumerate(parts)
        ]
        hooks.append(body.register_forward_hook(behind))
        try:
            _decoded(self.module, tokens, prompt_of(tokens) if _clamps(self.module) else len(tokens))
        finally:
            for hook in hooks:
                hook.remove()
        # Layers may be on several devices.
        return torch.cat([torch.cat(read[layer]).cpu() for layer in layers], -1)


def prompt_of(tokens: list[int]) -> int:
    """Tokens of a text that were read and not written; all of them where nobody says."""
    return min(tokens.prompt, len(tokens)) if isinstance(tokens, Text) else len(tokens)


def _decoded(module: torch.nn.Module, tokens: list[int], prompt: int) -> Any:
    """Returns a module's output for the last token of one text, whose first `prompt` tokens are one call."""
    output = _plain(module, tokens[:prompt], cached=prompt < len(tokens))
    for place in range(prompt, len(tokens)):
        cache = next(output[name] for name in _CACHES if output.get(name) is not None)
        output = _plain(module, tokens[place : place + 1], cached=True, after=place, cache=cache)
    return output


def _clamps(module: torch.nn.Module) -> bool:
    limits = [getattr(part, "time_step_limit", None) for part in module.modules()]
    return any(limit is not None and tuple(limit) != (0.0, math.inf) for limit in limits)


@torch.no_grad()
def _plain(
    module: torch.nn.Module, tokens: list[int], *, cached: bool = False, after: int = 0, cache: Any = None
) -> Any:
    """Returns a module's plain output for one text, or for its tokens after the `after` tokens in `cache`."""
    first = next(module.parameters(), None)
    embedding = getattr(module, "get_input_embeddings", lambda: None)()
    weight = getattr(embedding, "weight", first)
    # Whoever brings offloaded weights for every call brings the tokens along.
    device = None if weight is None or weight.device.type == "meta" else weight.device
    ids = torch.tensor([tokens], device=device)
    takes = inspect.signature(module.forward).parameters
    options: dict[str, Any] = {"use_cache": cached} if "use_cache" in takes else {}
    if cache is not None:
        options[next(name for name in _CACHES if name in takes)] = cache
    if "position_ids" in takes:
        # Some count from elsewhere by themselves, but not where generate() counts for them.
        options["position_ids"] = torch.arange(after, after + len(tokens), device=ids.device).unsqueeze(0)
    return module(input_ids=ids, **options)


def oracle_of(part: object) -> LogitsAfter | None:
    """Returns the oracle of a backend's or drafter's `model`, or None where it has no `model`.

    For a torch module this is its plain forward, for anything else its method `logits`, which takes the text.
    """
    model = getattr(part, "model", None)
    if isinstance(model, torch.nn.Module):
        return PlainForward(model)
    logits = getattr(model, "logits", None)
    return logits if callable(logits) else None


def features_oracle_of(backend: StateBackend) -> FeaturesAfter | None:
    """Returns the feature oracle of a backend's `model`, or None where it has no `model`.

    This is the model's method `features` where it has one, else the plain forward of a torch module.
    """
    features = getattr(backend.model, "features", None)
    if callable(features):
        return features  # type: ignore[no-any-return]
    if isinstance(backend.model, torch.nn.Module):
        return PlainFeatures(backend.model, backend.feature_layers)
    return None
