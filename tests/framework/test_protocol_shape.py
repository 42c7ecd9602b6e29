"""A strategy whose methods and attributes have another form than its protocol's is told so."""

from __future__ import annotations

from typing import Any

import pytest

from draftwood import Drafter, InvalidInput, SpeculativeDecoder, StateBackend, TreePolicy, Verifier
from draftwood.drafters import ModelDrafter
from draftwood.policies import BatchDySpec, Chain, ThroughputDySpec
from draftwood.protocols.shape import check_shape
from draftwood.testing import ToyBackend, ToyModel, checks_for
from draftwood.verifiers import RecursiveRejection


class LengthsIsAMethod(ToyBackend):
    def lengths(self):  # type: ignore[override]
        return [len(text) for text in self.committed]


class ExtendWithoutCounts(ToyBackend):
    def extend(self, tokens, parents):  # type: ignore[override]
        return super().extend(tokens, parents)


class Named(StateBackend):
    """Every method under another name."""

    vocab_size, max_length, weight_bytes = 3, None, 0
    lengths = []  # noqa: RUF012

    def prefil(self, rows): ...

    def release(self, rows=None): ...

    def extend(self, tokens, parents, counts=None): ...

    def commit(self, paths): ...


class NoCommit(Drafter):
    vocab_size = 3

    def prefill(self, rows): ...

    def release(self, rows=None): ...

    def distributions(self, requests): ...


class OneRow(NoCommit):
    def commit(self, outcome, row): ...  # type: ignore[override]


class ReadsRowWithoutView(Chain):
    reads_row = True


class SharesWithoutViews(BatchDySpec):
    reads_row = True

    def share(self, states):  # type: ignore[override]
        return [None] * len(states)


class Property(ToyBackend):
    @property
    def commit(self):  # type: ignore[override]
        return super().commit


class Branches(Chain):
    def branches(self):  # type: ignore[override]
        return False


class NoVerify(Verifier):
    laws = frozenset()

    def accept(self, tree, target_probs, rng): ...


class NoRoot(TreePolicy):
    laws = frozenset()

    def grow(self, rng): ...  # type: ignore[override]


TOY = ToyModel(3)


def made(kind: Any) -> Any:
    """An object of a class that lacks a method."""
    return kind()


WRONG: list[tuple[Any, str]] = [
    (LengthsIsAMethod(TOY), "LengthsIsAMethod.lengths is a method and is read without a call; put @property"),
    (ExtendWithoutCounts(TOY), r"cannot be called as extend\(tokens, parents, counts\)"),
    (made(Named), "Named does not define 'prefill', which every StateBackend has; rename 'prefil' to it"),
    (made(NoCommit), "NoCommit does not define 'commit', which every Drafter has; define it"),
    (OneRow(), r"OneRow.commit cannot be called as commit\(outcomes\)"),
    (Property(TOY), "Property.commit is an attribute; make it a method"),
    (Branches(2), "Branches.branches is a method and is read without a call"),
    (made(NoVerify), "NoVerify does not define 'verify', which every Verifier has"),
    (NoRoot(), r"NoRoot.grow cannot be called as grow\(root, rng\)"),
    (ReadsRowWithoutView(2), r"cannot be called as grow\(root, rng, view=\)"),
    (SharesWithoutViews(8), r"cannot be called as share\(states, views\)"),
]


@pytest.mark.parametrize(("strategy", "words"), WRONG, ids=lambda value: type(value).__name__)
def test_another_form_is_told(strategy: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        list(checks_for(strategy, models=0))


def test_a_decoder_tells_it_too() -> None:
    parts: list[Any] = [ModelDrafter(ToyBackend(TOY)), Chain(2), RecursiveRejection()]
    with pytest.raises(InvalidInput, match="lengths is a method"):
        SpeculativeDecoder(LengthsIsAMethod(TOY), *parts)


class MoreArguments(ToyBackend):
    """More than the protocol has, with defaults, and other names."""

    def extend(self, ids, above, valid=None, *more, scale=1.0, **others):  # type: ignore[override]
        return super().extend(ids, above, valid)

    max_length = 7


def test_a_policy_that_reads_rows_takes_their_views() -> None:
    check_shape(ThroughputDySpec(8))


def test_more_than_the_protocol_asks_is_fine() -> None:
    check_shape(MoreArguments(TOY))
