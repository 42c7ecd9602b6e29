"""A drafter with another vocabulary, which proposes the tokens that both have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import attrs
import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import pad

from draftwood import Drafter, IncompatibleModels, InvalidInput, Outcome, Request, Requests, StateBackend
from draftwood.strategies.drafters.token_map import TokenMap


@attrs.define(eq=False)
class _Row:
    """The inner request number of every node's last token, and how many nodes the drafter was asked for."""

    inner: list[int] = attrs.field(factory=list)
    asked: int = 0


@attrs.define(eq=False)
class SharedTokens(Drafter):
    """Lets `drafter`, whose vocabulary is another one, propose the tokens that both vocabularies have.

    Its logits of other tokens are left out. It reads the text token by token: a token that it lacks it
    reads as several that it has, so every answer is about the node's own text, and no law asks for more. A
    token that it does not have is never proposed; so acceptance falls about by the share of the text that
    they are (`TokenMap.coverage`), and by what the other spelling costs the draft.

    Attributes:
        drafter: what drafts.
        tokens: the map between the vocabularies.

    Raises:
        IncompatibleModels: the map is for a draft of another size.
        InvalidInput: the draft reads the target's logits, or is several drafters.

    Source: token-level intersection, Timor et al. 2025 (arXiv 2502.05202), algorithm 4.
    """

    drafter: Drafter
    tokens: TokenMap
    _rows: list[_Row] = attrs.field(factory=list, init=False, repr=False)
    # The draft's number by the target's; a token that it lacks has the column after its last one.
    _columns: Int[Tensor, " target"] = attrs.field(init=False, repr=False)
    source = "Timor et al. 2025 (arXiv 2502.05202), token-level intersection"

    def __attrs_post_init__(self) -> None:
        if self.tokens.draft_size != self.drafter.vocab_size:
            raise IncompatibleModels(
                f"The map is for a draft of {self.tokens.draft_size} tokens and this one has "
                f"{self.drafter.vocab_size}; make it with this draft's tokenizer."
            )
        if self.drafter.reads_scores or self.drafter.names:
            raise InvalidInput(
                f"{type(self.drafter).__name__} reads the target's logits or has several names, which a "
                "draft of another tokenizer cannot; give a drafter that does neither."
            )
        columns = torch.from_numpy(self.tokens.to_draft)
        self._columns = columns.masked_fill(columns < 0, self.tokens.draft_size)

    @classmethod
    def between(cls, drafter: Drafter, target: Any, draft: Any, *, vocab_size: int) -> Self:
        """`drafter` for a target of `vocab_size` tokens, by the tokenizers of `target` and `draft`.

        Raises:
            IncompatibleModels: the tokenizers have no token in common.
        """
        return cls(
            drafter,
            TokenMap.between(target, draft, target_size=vocab_size, draft_size=drafter.vocab_size),
        )

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return len(self.tokens.to_draft)

    @property
    def drafters(self) -> int:  # type: ignore[override]
        return self.drafter.drafters

    @property
    def backends(self) -> Sequence[StateBackend]:  # type: ignore[override]
        return self.drafter.backends

    @property
    def weight_bytes(self) -> int:  # type: ignore[override]
        return self.drafter.weight_bytes

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        return self.drafter.remembers

    def prefill(self, rows: Sequence[Tensor]) -> None:
        self.drafter.prefill(
            [torch.tensor(self.tokens.spelled(row.tolist()), dtype=torch.int64) for row in rows]
        )
        self._rows += [_Row() for _ in rows]

    def release(self, rows: Sequence[int] | None = None) -> None:
        self.drafter.release(rows)
        removed = set(range(len(self._rows)) if rows is None else rows)
        self._rows = [row for index, row in enumerate(self._rows) if index not in removed]

    def distributions(self, requests: Sequence[Request | None]) -> Tensor:
        batch = Requests.of(requests)
        widest = batch.tokens.shape[1]
        spelled = [self._spelled(row, request) for row, request in zip(self._rows, batch, strict=True)]
        logits = self.drafter.distributions([request for request, _ in spelled])
        if any(places != list(range(len(places))) for _, places in spelled):
            # Where a node was asked about by several tokens, the last one's logits are its own.
            wanted = torch.tensor([places + [0] * (widest - len(places)) for _, places in spelled])
            lines = torch.arange(len(spelled)).unsqueeze(1)
            logits = logits[lines.to(logits.device), wanted.to(logits.device)]
        self._columns = self._columns.to(logits.device)
        return pad(logits, (0, 1), value=-torch.inf).index_select(-1, self._columns)

    def _spelled(self, row: _Row, request: Request | None) -> tuple[Request | None, list[int]]:
        """Returns the request that the drafter gets for a row, and where the nodes' last tokens are in it."""
        if request is None:
            return None, []
        tokens: list[int] = []
        parents: list[int] = []
        first = row.asked
        for token, parent in zip(request.tokens.tolist(), request.parents.tolist(), strict=True):
            above = row.inner[parent] if parent >= 0 else -1
            for part in self.tokens.spellings[token]:
                tokens.append(part)
                parents.append(above)
                above, row.asked = row.asked, row.asked + 1
            row.inner.append(above)
        places = [number - first for number in row.inner[-len(request) :]]
        return Request(torch.tensor(tokens), torch.tensor(parents)), places

    def commit(self, outcomes: Sequence[Outcome]) -> None:
        self._rows = [_Row() for _ in outcomes]
        spelled = [self.tokens.spelled(outcome.tokens) for outcome in outcomes]
        self.drafter.commit(
            [
                attrs.evolve(
                    outcome,
                    path=range(len(tokens)),
                    tokens=tokens,
                    extra=self.tokens.spellings[outcome.extra][0],
                )
                for outcome, tokens in zip(outcomes, spelled, strict=True)
            ]
        )
