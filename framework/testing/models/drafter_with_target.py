"""A drafter that reads its target, together with that target, so that a check can call it by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from draftwood.base.errors import InvalidInput
from draftwood.protocols import Drafter, StateBackend
from draftwood.trees.outcome import Outcome
from draftwood.trees.request import Request


class DrafterWithTarget(Drafter):
    """A drafter and the target that it reads, called in the order in which the decoder calls them.

    Checks and proofs call only a drafter. One that reads its target's features, such as EAGLE, Medusa or an
    MTP layer, needs the target to be called before it; this does both. The target reads the accepted
    tokens as a chain, which by law S leaves the state that the whole tree would have left.

        target = draftwood.load(folder)
        check_strategy(DrafterWithTarget(target, MyEagle(target, head)))
    """

    def __init__(self, target: StateBackend, drafter: Drafter) -> None:
        """Puts them together.

        Args:
            target: the backend that `drafter` was made with; it holds no rows, and nobody else may use it.
            drafter: the drafter under test.

        Raises:
            InvalidInput: one of them is something else, or they have vocabularies of different size.
        """
        for name, value, kind in (("target", target, StateBackend), ("drafter", drafter, Drafter)):
            if kind not in type(value).__mro__:
                raise InvalidInput(
                    f"{name} is a {type(value).__name__}, not derived from {kind.__name__}; give the "
                    + ("backend, such as draftwood.load(model)." if kind is StateBackend else "drafter.")
                )
        if target.vocab_size != drafter.vocab_size:
            raise InvalidInput(
                f"The target has {target.vocab_size} tokens and the drafter {drafter.vocab_size}; a drafter "
                "proposes tokens of its target's vocabulary."
            )
        self.target, self.drafter = target, drafter

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return self.drafter.vocab_size

    @property
    def drafters(self) -> int:  # type: ignore[override]
        return self.drafter.drafters

    @property
    def backends(self) -> Sequence[StateBackend]:  # type: ignore[override]
        return (self.target, *self.drafter.backends)

    @property
    def weight_bytes(self) -> int:  # type: ignore[override]
        return self.drafter.weight_bytes

    @property
    def source(self) -> str:  # type: ignore[override]
        return self.drafter.source

    @property
    def model(self) -> Any:
        return self.drafter.model

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        return self.drafter.remembers

    def prefill(self, rows: Sequence[Tensor]) -> None:
        self.target.prefill(rows)
        self.drafter.prefill(rows)

    def release(self, rows: Sequence[int] | None = None) -> None:
        self.target.release(rows)
        self.drafter.release(rows)

    def distributions(self, requests: Sequence[Request | None]) -> Tensor:
        return self.drafter.distributions(requests)

    def commit(self, outcomes: Sequence[Outcome]) -> None:
        counts = [len(outcome.tokens) for outcome in outcomes]
        longest = max(counts, default=0)
        if longest:
            tokens = torch.zeros(len(outcomes), longest, dtype=torch.int64)
            for row, outcome in enumerate(outcomes):
                tokens[row, : counts[row]] = torch.tensor(outcome.tokens)
            parents = torch.arange(-1, longest - 1).expand(len(outcomes), -1)
            device = self.target.device
            self.target.extend(tokens.to(device), parents.to(device), counts)
        self.target.commit([range(count) for count in counts])
        self.drafter.commit(outcomes)


def judged(strategy: object) -> object:
    """Returns the strategy that checks are about: the drafter of a `DrafterWithTarget`, else itself."""
    return strategy.drafter if isinstance(strategy, DrafterWithTarget) else strategy
