"""Self-speculation: the target without some of its layers drafts for the whole of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood import Drafter, InvalidInput, Outcome, Request, StateBackend, UnsupportedModel
from draftwood.protocols.model_prompt import ModelPrompt
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.drafters.target import as_target

SEGMENT = 64


def as_layers(value: str | Sequence[int]) -> tuple[int, ...]:
    """`"2,3,5"` or `(2, 3, 5)` as a tuple."""
    if isinstance(value, str):
        try:
            return tuple(int(word) for word in value.split(","))
        except ValueError:
            raise InvalidInput(
                f"skip is {value!r}; give layers separated by commas, such as 2,3,5."
            ) from None
    return tuple(value)


@attrs.define(eq=False)
class LayerSkip(Drafter):
    """Drafts with the target's own weights, without the layers `skip`, on a separate state.

    Needs no second model and no training: it runs the passes of a `ModelDrafter` on
    `target.without_layers(skip)`. `choose_layers` finds layers worth skipping.

    Attributes:
        target: a backend that declares `skippable_layers`. It may be the one that verifies; its rows are
            not touched.
        skip: layers to leave out, counted from 0, as numbers or as text such as `"2,3,5"`.

    Raises:
        UnsupportedModel: the target declares that it cannot leave out layers.
        InvalidInput: no layer, one that the target does not have, one named twice, or all of them.

    Source: Zhang et al. 2023, Draft & Verify (arXiv 2309.08168), section 3.
    """

    target: StateBackend = attrs.field(converter=as_target, repr=False)
    skip: tuple[int, ...] = attrs.field(converter=as_layers)
    _drafter: ModelDrafter = attrs.field(init=False, repr=False)
    source = "Draft & Verify (Zhang et al. 2023), section 3"

    def __attrs_post_init__(self) -> None:
        _check_skippable(self.target)
        if not self.skip:
            raise InvalidInput("skip is empty, and the target would draft for itself; name a layer or more.")
        self._drafter = ModelDrafter(self.target.without_layers(self.skip))

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return self._drafter.vocab_size

    @property
    def backends(self) -> Sequence[StateBackend]:  # type: ignore[override]
        return self._drafter.backends

    @property
    def weight_bytes(self) -> int:  # type: ignore[override]
        return self._drafter.weight_bytes

    @property
    def model(self) -> Any:
        return self._drafter.model

    def prefill(self, rows: Sequence[Tensor]) -> None:
        self._drafter.prefill(rows)

    def prefill_prompt(self, prompt: ModelPrompt, rows: Sequence[int]) -> None:
        self._drafter.prefill_prompt(prompt, rows)

    def release(self, rows: Sequence[int] | None = None) -> None:
        self._drafter.release(rows)

    def distributions(self, requests: Sequence[Request | None]) -> Tensor:
        return self._drafter.distributions(requests)

    def commit(self, outcomes: Sequence[Outcome]) -> None:
        self._drafter.commit(outcomes)


@torch.no_grad()
def choose_layers(target: StateBackend, text: Sequence[int], *, count: int) -> tuple[int, ...]:
    """`count` layers of `target` to skip, by greedy search on how well the rest agrees on `text`.

    Starts from the whole model and leaves out, one at a time, the layer whose absence keeps the agreement
    highest. Agreement is the mean over positions of the sum of min(p, q), p and q being the next-token
    distributions of the whole and of the rest: the chance that a token drawn from q is accepted. Runs
    `text` some `count * skippable_layers` times; the target's own rows are not touched.

    Draft & Verify searches with Bayesian optimisation for the fastest set; this is simpler, and needs
    no timing.

    Args:
        target: declares `skippable_layers`. Its passes are best not captured, as every candidate would be
            compiled.
        text: int token ids, 2 or more; text that the target wrote is best.
        count: layers to skip, from 1 to all but one.

    Returns:
        The layers in ascending order.

    Raises:
        UnsupportedModel: the target declares that it cannot leave out layers.
        InvalidInput: `count` out of range, or a text that is too short.
    """
    _check_skippable(target)
    layers = target.skippable_layers
    if not 1 <= count < layers:
        raise InvalidInput(f"count is {count}; give a number of layers to skip from 1 to {layers - 1}.")
    if len(text) < 2:
        raise InvalidInput(f"The text has {len(text)} token(s); give at least 2 to compare the models on.")
    full = _probabilities(target.without_layers(()), text)
    skipped: tuple[int, ...] = ()
    for _ in range(count):
        candidates = [(*skipped, layer) for layer in range(layers) if layer not in skipped]
        skipped = max(candidates, key=lambda chosen: _agreement(target, chosen, text, full))
    return tuple(sorted(skipped))


def _agreement(target: StateBackend, skipped: Sequence[int], text: Sequence[int], full: Tensor) -> float:
    rest = _probabilities(target.without_layers(skipped), text)
    return float(torch.minimum(full, rest).sum(-1).mean())


def _probabilities(backend: StateBackend, text: Sequence[int]) -> Tensor:
    """float32 `[len(text), vocab]`: what follows every token of `text`."""
    backend.prefill([torch.tensor([], dtype=torch.int64)])
    probs = []
    for segment in torch.tensor(list(text)).split(SEGMENT):
        chain = torch.arange(-1, len(segment) - 1)
        probs.append(backend.extend(segment.unsqueeze(0), chain.unsqueeze(0))[0].float().softmax(-1))
        backend.commit([range(len(segment))])
    backend.release()
    return torch.cat(probs)


def _check_skippable(target: StateBackend) -> None:
    if not target.skippable_layers:
        raise UnsupportedModel(
            f"{type(target).__name__} declares no layers that can be skipped (its skippable_layers is "
            f"{target.skippable_layers}); draft with a model or by prompt lookup."
        )
