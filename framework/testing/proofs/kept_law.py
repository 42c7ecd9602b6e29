"""The law that a verifier's texts should have: the target's, or the one that the verifier declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import attrs
import torch
from torch import Tensor

from draftwood.distributions.sampling import SamplingParams
from draftwood.protocols import Drafter, Verifier
from draftwood.testing.models.toy import NextTokenModel
from draftwood.trees.request import Request

DraftLogits = Callable[[Sequence[int]], Tensor]
"""Draft logits `[vocab]` after a text, or `[drafters, vocab]`."""


@final
@attrs.frozen(eq=False)
class DeclaredModel(NextTokenModel):
    """The model whose next-token law is `verifier.declared_law` of a target and a draft.

    Attributes:
        verifier: declares the law.
        target: the target that it judges by.
        draft: the logits that its trees are drawn from.
    """

    verifier: Verifier = attrs.field(kw_only=True)
    target: NextTokenModel = attrs.field(kw_only=True)
    draft: DraftLogits = attrs.field(kw_only=True)
    _known: dict[tuple[float, tuple[int, ...]], Tensor] = attrs.field(factory=dict, init=False, repr=False)

    def logits(self, text: Sequence[int]) -> Tensor:
        return self.probs(text).log().to(self.dtype)

    def probs(self, text: Sequence[int], temperature: float = 1.0) -> Tensor:
        key = temperature, tuple(text)
        if key not in self._known:
            target = self.target.probs(text, temperature)
            draft = SamplingParams(temperature).distribution(self.draft(text))
            law = self.verifier.declared_law(target, draft.double()).double()
            is_law = law.shape == target.shape and bool((law >= 0).all()) and abs(float(law.sum()) - 1) < 1e-6
            assert is_law, (
                f"declared_law gives {law.tolist()} for the target {target.tolist()} and the draft "
                f"{draft.tolist()}, which is no distribution over {self.vocab_size} tokens."
            )
            self._known[key] = law
        return self._known[key]


def kept_model(
    verifier: Verifier, target: NextTokenModel, draft: Drafter | Sequence[NextTokenModel]
) -> NextTokenModel:
    """Returns the model whose law the texts of `verifier` should have: the target, or a declared law.

    Args:
        verifier: judges the trees.
        target: the target.
        draft: what the trees are drawn from: a drafter without rows, or its models, of which laws of several
            drafters read all and others the first.
    """
    if not verifier.declares_law:
        return target
    logits = _of_models(verifier, draft) if isinstance(draft, Sequence) else _of_drafter(draft)
    return DeclaredModel(
        target.vocab_size, target.seed, dtype=target.dtype, verifier=verifier, target=target, draft=logits
    )


def _of_models(verifier: Verifier, models: Sequence[NextTokenModel]) -> DraftLogits:
    if any(law.several_drafters for law in verifier.laws):
        return lambda text: torch.stack([model.logits(text) for model in models])
    return models[0].logits


def _of_drafter(drafter: Drafter) -> DraftLogits:
    def logits(text: Sequence[int]) -> Tensor:
        drafter.prefill([torch.tensor(text[:-1], dtype=torch.int64)])
        try:
            request = Request(torch.tensor(text[-1:]), torch.tensor([-1]))
            return drafter.distributions([request])[0, 0].clone()
        finally:
            drafter.release()

    return logits
