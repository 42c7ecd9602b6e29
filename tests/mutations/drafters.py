"""Drafters with one mistake each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import count

import attrs
import torch
from torch import Tensor

from draftwood import Drafter, Outcome, Request
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from draftwood.testing import ToyBackend, ToyModel
from tests.mutations.mistake import Mistake

MODEL = ToyModel(11, seed=5)


class Listed(Drafter):
    """Keeps each row's text and nodes in lists, and asks a model about them."""

    vocab_size, model = MODEL.vocab_size, MODEL

    def __init__(self) -> None:
        self.texts: list[list[int]] = []
        self.nodes: list[list[tuple[int, int]]] = []

    def prefill(self, rows: Sequence[Tensor]) -> None:
        self.texts += [row.tolist() for row in rows]
        self.nodes += [[] for _ in rows]

    def release(self, rows: Sequence[int] | None = None) -> None:
        stay = [row for row in range(len(self.texts)) if rows is not None and row not in rows]
        self.texts, self.nodes = [self.texts[row] for row in stay], [self.nodes[row] for row in stay]

    def distributions(self, requests: Sequence[Request | None]) -> Tensor:
        widest = max(len(request) if request is not None else 0 for request in requests)
        logits = torch.full((len(requests), widest, self.vocab_size), -torch.inf, dtype=torch.float64)
        for row, request in enumerate(requests):
            start = len(self.nodes[row])
            for index, (token, parent) in enumerate(self.asked(request)):
                self.nodes[row].append((token, self.parent(parent, start, start + index)))
                logits[row, index] = self.logits(row, self.path(row, start + index))
        return logits

    def commit(self, outcomes: Sequence[Outcome]) -> None:
        for row, outcome in enumerate(outcomes):
            self.texts[row] = self.kept(self.texts[row], outcome)
            self.nodes[row] = []

    def asked(self, request: Request | None) -> list[tuple[int, int]]:
        if request is None:
            return []
        return list(zip(request.tokens.tolist(), request.parents.tolist(), strict=True))

    def parent(self, numbered: int, start: int, index: int) -> int:
        return numbered

    def path(self, row: int, node: int) -> list[int]:
        tokens = []
        while node >= 0:
            token, node = self.nodes[row][node]
            tokens.append(token)
        return tokens[::-1]

    def logits(self, row: int, path: list[int]) -> Tensor:
        return MODEL.logits(self.texts[row] + path)

    def kept(self, text: list[int], outcome: Outcome) -> list[int]:
        return [*text, *outcome.tokens]


class OtherTemperature(Listed):
    def logits(self, row: int, path: list[int]) -> Tensor:
        return super().logits(row, path) / 0.6


class ExtraKept(Listed):
    def kept(self, text: list[int], outcome: Outcome) -> list[int]:
        return [*super().kept(text, outcome), outcome.extra]


class EmittedKept(Listed):
    """Keeps the tokens that the round emitted, without its root."""

    def kept(self, text: list[int], outcome: Outcome) -> list[int]:
        return [*text, *outcome.tokens[1:]]


class RootAlone(Listed):
    def kept(self, text: list[int], outcome: Outcome) -> list[int]:
        return [*text, outcome.tokens[0]]


class LongPathsCut(Listed):
    def kept(self, text: list[int], outcome: Outcome) -> list[int]:
        return [*text, *outcome.tokens[:4]]


class AllNodesKept(Listed):
    """The state is not rolled back."""

    def commit(self, outcomes: Sequence[Outcome]) -> None:
        for row, outcome in enumerate(outcomes):
            tokens = [token for token, _ in self.nodes[row]]
            self.texts[row] += tokens or outcome.tokens
            self.nodes[row] = []


class LastTokensAlone(Listed):
    def kept(self, text: list[int], outcome: Outcome) -> list[int]:
        return super().kept(text, outcome)[-64:]


class ParentsOfTheRequest(Listed):
    def parent(self, numbered: int, start: int, index: int) -> int:
        return numbered + start if 0 <= numbered + start < index and numbered >= 0 else numbered


class NodesAsTheyStand(Listed):
    def path(self, row: int, node: int) -> list[int]:
        return [token for token, _ in self.nodes[row][: node + 1]]


class FirstRow(Listed):
    def logits(self, row: int, path: list[int]) -> Tensor:
        return MODEL.logits(self.texts[0] + path)


class FourRows(Listed):
    def logits(self, row: int, path: list[int]) -> Tensor:
        return MODEL.logits(self.texts[min(row, 3)] + path)


class SilentRowsLeftOut(Listed):
    """The answers have no gaps for rows that requested nothing."""

    def distributions(self, requests: Sequence[Request | None]) -> Tensor:
        logits = super().distributions(requests)
        asking = [row for row, request in enumerate(requests) if request is not None]
        silent = [row for row, request in enumerate(requests) if request is None]
        return logits[asking + silent]


class LastRowsReleased(Listed):
    def release(self, rows: Sequence[int] | None = None) -> None:
        rows_before = len(self.texts)
        super().release(None if rows is None else range(rows_before - len(rows), rows_before))


class DropoutLeftOn(Listed):
    def __init__(self) -> None:
        super().__init__()
        self.calls = count()

    def logits(self, row: int, path: list[int]) -> Tensor:
        logits = super().logits(row, path)
        return logits + 1e-6 * (next(self.calls) % 7)


class WritesToParents(Listed):
    def distributions(self, requests: Sequence[Request | None]) -> Tensor:
        logits = super().distributions(requests)
        for request in requests:
            if request is not None:
                request.parents.add_(1)
        return logits


class OneBuffer(Listed):
    def __init__(self) -> None:
        super().__init__()
        self.buffer = torch.zeros(16, 16, self.vocab_size, dtype=torch.float64)

    def distributions(self, requests: Sequence[Request | None]) -> Tensor:
        logits = super().distributions(requests)
        view = self.buffer[: logits.shape[0], : logits.shape[1]]
        view.copy_(logits)
        return view


class StateOfTheRoundBefore(Listed):
    """A commit is taken over one round late."""

    def __init__(self) -> None:
        super().__init__()
        self.late: dict[int, tuple[int, ...]] = {}

    def commit(self, outcomes: Sequence[Outcome]) -> None:
        for row, outcome in enumerate(outcomes):
            self.texts[row] = [*self.texts[row], *self.late.pop(row, ())]
            self.late[row] = outcome.tokens
            self.nodes[row] = []

    def release(self, rows: Sequence[int] | None = None) -> None:
        super().release(rows)
        if rows is None:
            self.late = {}


class UnaskedLeafLost(ModelDrafter):
    """Tokens that the model never saw are not fed to it."""

    def commit(self, outcomes: Sequence[Outcome]) -> None:
        super().commit(outcomes)
        self._round.caught_up()


class OneTable(PromptLookup):
    """All rows learn into one table."""

    def prefill(self, rows: Sequence[Tensor]) -> None:
        super().prefill(rows)
        for row in self._rows:
            row.table = self._rows[0].table  # type: ignore[attr-defined]


class LearnsForGood(PromptLookup):
    """Keeps what it learnt after its row has left."""

    known: dict[tuple[int, ...], Counter[int]] = attrs.field(factory=dict, init=False)

    def prefill(self, rows: Sequence[Tensor]) -> None:
        super().prefill(rows)
        for row in self._rows:
            for key, followers in row.table.items():  # type: ignore[attr-defined]
                self.known.setdefault(key, Counter()).update(followers)
            row.table = {key: Counter(followers) for key, followers in self.known.items()}  # type: ignore[attr-defined]


LearnsForGood = attrs.define(eq=False)(LearnsForGood)  # type: ignore[misc]


def _as_a_chain(
    self: ToyBackend, tokens: Tensor, parents: Tensor, counts: Sequence[int] | None = None
) -> Tensor:
    """`ToyBackend.extend` whose nodes see all nodes before them."""
    starts = torch.tensor([len(nodes) for nodes in self._nodes], dtype=torch.int64).unsqueeze(1)
    return _extend(self, tokens, starts + torch.arange(-1, tokens.shape[1] - 1), counts)


_extend = ToyBackend.extend


def model_drafter(kind: type[ModelDrafter] = ModelDrafter) -> ModelDrafter:
    return kind(ToyBackend(MODEL))


def _of(name: str, story: str, wrong: type[Listed]) -> Mistake:
    return Mistake(name, story, "drafter", Listed, wrong)


MISTAKES: list[Mistake] = [
    _of("the draft's logits are at another temperature", "transformers#47932, #32867", OtherTemperature),
    _of("the next root is committed twice", "the bonus token taken for an accepted one", ExtraKept),
    _of("the root is not committed", "what was emitted taken for what was accepted", EmittedKept),
    _of("nothing but the root is committed", "acceptance forgotten", RootAlone),
    _of("accepted paths are cut at four tokens", "a buffer for a few tokens", LongPathsCut),
    _of("rejected nodes stay in the state", "mlx-lm#1446: no roll back", AllNodesKept),
    _of("only the last 64 tokens are kept", "speculators#684: 1.08 tokens a round at 20k", LastTokensAlone),
    _of("parents count from the request", "request numbers that do not count on", ParentsOfTheRequest),
    _of("nodes see what stands before them", "a draft without a tree mask", NodesAsTheyStand),
    _of("all rows are answered as the first", "a batch written as if for one", FirstRow),
    _of("a fifth row is answered as the fourth", "a buffer for four rows", FourRows),
    _of("rows that ask for nothing are left out", "answers packed, not padded", SilentRowsLeftOut),
    _of("the last rows are released", "a batch cut at its end", LastRowsReleased),
    _of("the logits have noise", "dropout left on: another text from the same seed", DropoutLeftOn),
    _of("parents of a request are shifted in place", "an offset added for one's own use", WritesToParents),
    _of("one buffer is returned by all calls", "a static output of a captured graph", OneBuffer),
    _of("commits are one round late", "vllm#50170: states of the wrong place", StateOfTheRoundBefore),
    Mistake(
        "a leaf that was never asked about is lost",
        "mlx-lm#1446: skipped tokens",
        "drafter",
        model_drafter,
        partial(model_drafter, UnaskedLeafLost),
    ),
    Mistake(
        "the draft model scores the tree as a chain",
        "the tree mask forgotten",
        "drafter",
        model_drafter,
        patches=[(ToyBackend, "extend", _as_a_chain)],
    ),
    Mistake(
        "rows learn into one table",
        "a default that is shared",
        "drafter",
        lambda: PromptLookup(13),
        lambda: OneTable(13),
    ),
    Mistake(
        "what was learnt outlives its row",
        "another text from the same seed",
        "drafter",
        lambda: PromptLookup(13),
        lambda: LearnsForGood(13),
    ),
]
