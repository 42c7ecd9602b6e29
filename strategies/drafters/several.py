"""Several drafters together: every node gets a distribution from each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce

import attrs
import torch
from torch import Tensor

from draftwood import Drafter, IncompatibleModels, InvalidInput, Outcome, Request, StateBackend
from draftwood.protocols.model_prompt import ModelPrompt
from draftwood.protocols.scored_nodes import ScoredNodes
from draftwood.strategies.drafters.windowed import check_one_a_target


def _as_members(members: Iterable[Drafter]) -> tuple[Drafter, ...]:
    return tuple(members)


@attrs.define(eq=False)
class Several(Drafter):
    """Stacks the logits of its `members`, `[rows, nodes, drafters, vocab]`, for the law `PerChild`.

    Source: SpecInfer, merge-based expansion (arXiv 2305.09781); several-drafter rejection in RSD's sense.
    """

    members: tuple[Drafter, ...] = attrs.field(converter=_as_members)
    source = "SpecInfer, section 3"

    def __attrs_post_init__(self) -> None:
        if len(self.members) < 2:
            raise InvalidInput(f"{len(self.members)} drafter(s) in members; give at least 2.")
        sizes = {member.vocab_size for member in self.members}
        if len(sizes) > 1:
            raise IncompatibleModels(
                f"The drafters have {sorted(sizes)} tokens; they must share one vocabulary."
            )
        check_one_a_target(self.members)

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return self.members[0].vocab_size

    @property
    def drafters(self) -> int:  # type: ignore[override]
        return len(self.members)

    @property
    def backends(self) -> Sequence[StateBackend]:  # type: ignore[override]
        return [backend for member in self.members for backend in member.backends]

    @property
    def weight_bytes(self) -> int:  # type: ignore[override]
        return sum(member.weight_bytes for member in self.members)

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        return any(member.remembers for member in self.members)

    @property
    def reads_scores(self) -> bool:  # type: ignore[override]
        return any(member.reads_scores for member in self.members)

    def scored(self, nodes: ScoredNodes) -> None:
        for member in self.members:
            if member.reads_scores:
                member.scored(nodes)

    def prefill(self, rows: Sequence[Tensor]) -> None:
        for member in self.members:
            member.prefill(rows)

    def prefill_prompt(self, prompt: ModelPrompt, rows: Sequence[int]) -> None:
        for member in self.members:
            member.prefill_prompt(prompt, rows)

    def release(self, rows: Sequence[int] | None = None) -> None:
        for member in self.members:
            member.release(rows)

    def distributions(self, requests: Sequence[Request | None]) -> Tensor:
        logits = [member.distributions(requests) for member in self.members]
        dtype = reduce(torch.promote_types, (each.dtype for each in logits))
        return torch.stack([each.to(logits[0].device, dtype) for each in logits], dim=2)

    def commit(self, outcomes: Sequence[Outcome]) -> None:
        for member in self.members:
            member.commit(outcomes)
