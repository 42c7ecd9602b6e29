"""Rows of a session in random calls, on every kind of backend; `make soak` makes 10,000 of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

from draftwood.decoding.batch_row import BatchRow
from draftwood.decoding.loop import RoundLoop
from draftwood.decoding.round_records import Round
from draftwood.decoding.session import Session
from tests.framework.row_subjects import KINDS
from tests.framework.rows_machine import run_machine
from tests.thorough import some_of

USUAL = ["toy", "toy with first logits", "llama", "llama by paths", "mamba2", "jamba", "qwen3_next"]


@pytest.mark.parametrize("kind", some_of(KINDS, USUAL))
def test_rows_write_as_each_alone(kind: str) -> None:
    run_machine(kind, examples=10 if kind.startswith("toy") else 4, steps=25)


@contextmanager
def old_resume() -> Iterator[None]:
    """Inside it, texts that come in the order of `extend` go to rows in the order in which they joined."""
    called: list[BatchRow] = []
    extend, resume = Session.extend, RoundLoop.resume

    def noted(self: Session, row: int, tokens: Sequence[int], **options: Any) -> None:
        extend(self, row, tokens, **options)
        called.append(self._rows[row])

    def exchanged(self: RoundLoop, rows: Sequence[BatchRow]) -> Round:
        texts = [row.unread for row in called if row.unread]
        called.clear()
        for row, text in zip(rows, texts, strict=True):
            row.unread = text
        return resume(self, rows)

    with mock.patch.object(Session, "extend", noted), mock.patch.object(RoundLoop, "resume", exchanged):
        yield


@pytest.mark.parametrize("kind", ["toy", "llama", "mamba2"])
def test_exchanged_texts_are_found_within_100_steps(kind: str) -> None:
    with old_resume():
        counts, error = run_machine(kind, examples=10, steps=25, raises=False)
    assert isinstance(error, AssertionError)
    assert "and alone" in str(error)
    assert counts["failed at"] <= 100
