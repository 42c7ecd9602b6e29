"""Several drafters of which a policy asks one at a time, by its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import torch
from torch import Tensor

from draftwood import Drafter, IncompatibleModels, InvalidInput, Outcome, Request, StateBackend
from draftwood.protocols.model_prompt import ModelPrompt
from draftwood.protocols.scored_nodes import ScoredNodes
from draftwood.strategies.drafters.windowed import check_one_a_target
from draftwood.trees.prefixes import Path


class _RowPaths:
    """The nodes of a row that were asked for in a round, of all drafters and of each."""

    def __init__(self) -> None:
        self.paths: list[Path] = []  # tokens from the root on, by request number
        self.of_member: dict[str, dict[Path, int]] = {}  # the member's own request numbers
        self.counts: dict[str, int] = {}

    def asked_of(self, name: str, request: Request) -> tuple[Request, list[int]]:
        """Returns what a drafter is asked for `request`, and the places of the request's nodes in it."""
        numbers = self.of_member.setdefault(name, {})
        tokens, parents, places = list[int](), list[int](), list[int]()

        def ask(path: Path) -> None:
            tokens.append(path[-1])
            parents.append(numbers[path[:-1]] if len(path) > 1 else -1)
            numbers[path] = self.counts.get(name, 0)
            self.counts[name] = numbers[path] + 1

        for token, parent in zip(request.tokens.tolist(), request.parents.tolist(), strict=True):
            path = (*(self.paths[parent] if parent >= 0 else ()), token)
            self.paths.append(path)
            for length in range(1, len(path)):
                if path[:length] not in numbers:
                    ask(path[:length])
            ask(path)
            places.append(len(tokens) - 1)
        asked = Request(torch.tensor(tokens), torch.tensor(parents), request.drafter)
        return asked, places


def _by_name(members: Mapping[str, Drafter]) -> dict[str, Drafter]:
    return dict(members)


@attrs.define(eq=False)
class Named(Drafter):
    """Drafters of which each request asks one, `TreeBuilder.request(nodes, drafter="lookup")`.

    So cascades and mixtures by position are policies: n-grams where they match, a model elsewhere. A request
    without a name asks the first. A drafter that is asked for a node whose ancestors only others were asked
    for reads these too, in the same call.

    Attributes:
        members: drafters by name, of one vocabulary.
    """

    members: Mapping[str, Drafter] = attrs.field(converter=_by_name)
    source = "draftwood (cascades)"
    _rows: list[_RowPaths] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        if not self.members:
            raise InvalidInput("members is empty; give at least one drafter under a name.")
        sizes = {member.vocab_size for member in self.members.values()}
        if len(sizes) > 1:
            raise IncompatibleModels(
                f"The drafters have {sorted(sizes)} tokens; they must share one vocabulary."
            )
        if several := [name for name, member in self.members.items() if member.drafters > 1]:
            raise InvalidInput(f"{several[0]!r} gives a node several distributions; give drafters of one.")
        check_one_a_target(self.members.values())

    @property
    def names(self) -> Sequence[str]:  # type: ignore[override]
        return list(self.members)

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return next(iter(self.members.values())).vocab_size

    @property
    def backends(self) -> Sequence[StateBackend]:  # type: ignore[override]
        return [backend for member in self.members.values() for backend in member.backends]

    @property
    def weight_bytes(self) -> int:  # type: ignore[override]
        return sum(member.weight_bytes for member in self.members.values())

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        return any(member.remembers for member in self.members.values())

    @property
    def reads_scores(self) -> bool:  # type: ignore[override]
        return any(member.reads_scores for member in self.members.values())

    def scored(self, nodes: ScoredNodes) -> None:
        for member in self.members.values():
            if member.reads_scores:
                member.scored(nodes)

    def prefill(self, rows: Sequence[Tensor]) -> None:
        for member in self.members.values():
            member.prefill(rows)
        self._rows += [_RowPaths() for _ in rows]

    def prefill_prompt(self, prompt: ModelPrompt, rows: Sequence[int]) -> None:
        for member in self.members.values():
            member.prefill_prompt(prompt, rows)
        self._rows += [_RowPaths() for _ in rows]

    def release(self, rows: Sequence[int] | None = None) -> None:
        for member in self.members.values():
            member.release(rows)
        gone = set(range(len(self._rows)) if rows is None else rows)
        self._rows = [row for number, row in enumerate(self._rows) if number not in gone]

    def distributions(self, requests: Sequence[Request | None]) -> Tensor:
        first = next(iter(self.members))
        for request in requests:
            if request is not None and (request.drafter or first) not in self.members:
                raise InvalidInput(
                    f"A request asks the drafter {request.drafter!r}; ask one of {self.names}."
                )
        width = max((len(request) for request in requests if request is not None), default=0)
        found: Tensor | None = None
        for name, member in self.members.items():
            asked: list[Request | None] = [None] * len(requests)
            wanted: dict[int, list[int]] = {}
            for row, request in enumerate(requests):
                if request is not None and (request.drafter or first) == name:
                    asked[row], wanted[row] = self._rows[row].asked_of(name, request)
            if not wanted:
                continue
            logits = member.distributions(asked)
            if found is None:
                found = logits.new_full((len(requests), width, self.vocab_size), -torch.inf)
            for row, columns in wanted.items():
                found[row, : len(columns)] = logits[row, columns].to(found.device, found.dtype)
        return torch.empty(len(requests), 0, self.vocab_size) if found is None else found

    def commit(self, outcomes: Sequence[Outcome]) -> None:
        for member in self.members.values():
            member.commit(outcomes)
        self._rows = [_RowPaths() for _ in self._rows]
