"""Code that a row's caller hands in ends that row when it raises, and no other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf

from draftwood import Constraint, InvalidInput, OutOfMemory, SamplingParams
from draftwood.base.errors import DraftwoodError
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.testing import ToyBackend
from tests.framework.decoding import TARGET, decoder
from tests.framework.test_row_queue import alone, queue_of, written
from tests.framework.test_session import ScoringBackend, drain

SAMPLED = SamplingParams(temperature=0.8)
TARGETS = [ToyBackend, ScoringBackend]


class Own(Exception):
    """Raised by the code of a row's caller."""


class Raises:
    """Raises `error` at its call number `at`."""

    def __init__(self, at: int, error: BaseException) -> None:
        self.left, self.error = at, error

    def passing(self) -> None:
        if not self.left:
            raise self.error
        self.left -= 1


class Anything(Constraint):
    """Allows every token."""

    def __init__(self, where: str, raises: Raises) -> None:
        self.where, self.raises = where, raises

    def _in(self, where: str) -> None:
        if where == self.where:
            self.raises.passing()

    def start(self, prompt: Any) -> int:
        self._in("start")
        return 0

    def advance(self, state: int, token: int) -> int:
        self._in("advance")
        return 0

    def masks(self, states: Any, vocab_size: int) -> torch.Tensor:
        self._in("masks")
        return torch.ones(len(states), vocab_size, dtype=torch.bool)


class Criterion(hf.StoppingCriteria):
    def __init__(self, raises: Raises) -> None:
        self.raises = raises

    def __call__(self, input_ids: Any, scores: Any, **options: Any) -> torch.Tensor:
        self.raises.passing()
        return torch.zeros(len(input_ids), dtype=torch.bool)


class Processor(hf.LogitsProcessor):
    """Raises where a text has more than `length` tokens."""

    def __init__(self, length: int, error: BaseException) -> None:
        self.length, self.error = length, error

    def __call__(self, input_ids: Any, scores: Any) -> torch.Tensor:
        if input_ids.shape[1] > self.length:
            raise self.error
        return scores


def brought(kind: str, at: int, error: BaseException) -> dict[str, Any]:
    """The arguments of `add` that bring code which fails."""
    if kind == "criterion":
        return {"stopping_criteria": [Criterion(Raises(at, error))]}
    if kind == "processor":
        sampling = SamplingParams(temperature=0.8, processors=[Processor(3 + at, error)])
        return {"sampling": sampling}
    return {"constraint": Anything(kind, Raises(at, error))}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["advance", "masks", "processor", "criterion"])
@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("error", [Own("mine"), StopIteration(), SystemExit(3), MemoryError()], ids=repr)
def test_the_row_ends_by_its_error_and_the_others_go_on(target, kind, at, error):
    one = decoder(LayeredDySpec(6), target=target(TARGET))
    with one.session(max_new_tokens=12, sampling=SAMPLED) as session:
        others = [session.add([row], seed=row, kept=row == 1) for row in range(2)]
        culprit = session.add([1, 2], seed=7, kept=True, **brought(kind, at, error))
        others += [session.add([3, row], seed=row) for row in range(2)]
        records = [record for entry in drain(session) for record in entry.rows]
        (failed,) = [record for record in records if record.error is not None]
        assert (failed.row, failed.finished, failed.tokens) == (culprit, "error", ())
        assert failed.error is error
        assert len(one.target.lengths) == 1  # of the kept row
        with pytest.raises(InvalidInput, match=f"Row {culprit} is not there"):
            session.extend(culprit, [1])
        texts = [session.text(row) for row in others]
        whole = session.text(culprit)
    for text, (prompt, seed) in zip(texts, [([0], 0), ([1], 1), ([3, 0], 0), ([3, 1], 1)], strict=True):
        assert one.generate([prompt], seed=seed, sampling=SAMPLED, max_new_tokens=12)[0].tolist() == text
    expected = one.generate([[1, 2]], seed=7, sampling=SAMPLED, max_new_tokens=12)[0].tolist()
    assert expected[: len(whole)] == whole


@pytest.mark.parametrize("kind", ["start", "advance", "masks", "criterion"])
def test_generate_raises_the_error_itself(kind):
    one, error = decoder(), Own("mine")
    options = brought(kind, 0, error)
    with pytest.raises(Own) as raised:
        one.generate([[1]], max_new_tokens=5, sampling=SAMPLED, **options)
    assert raised.value is error
    assert one.target.lengths == []
    one.generate([[1]], max_new_tokens=2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"constraint": 5}, "AttributeError: 'int' object has no attribute 'start'"),
        ({"constraint": Anything("start", Raises(0, Own("mine")))}, "Own: mine"),
        ({"constraint": Anything("masks", Raises(2, SystemExit("out")))}, "SystemExit: out"),
        ({"stopping_criteria": [None]}, "TypeError: 'NoneType' object is not callable"),
        ({"sampling": 3}, "AttributeError"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0; ask for at least 1."),
        ({"constraint": Anything("start", Raises(0, MemoryError("no room")))}, "Memory ran out"),
        ({"constraint": Anything("masks", Raises(0, MemoryError("no room")))}, "Memory ran out"),
    ],
)
def test_a_queue_refuses_that_text_and_writes_the_others(options, said):
    with queue_of(rows=4) as rows:
        texts = [rows.add([1, row], seed=row) for row in range(3)]
        culprit = rows.add([1], seed=9, **options)
        texts += [rows.add([2, row], seed=row) for row in range(5)]
        while rows.unfinished:
            rows.run()
    assert culprit.finished == "refused"
    assert culprit.refused.startswith(said)
    assert culprit.error is not None
    assert culprit.error.__traceback__ is None
    assert [text.tokens for text in texts] == [alone(text.prompt, text.request.seed) for text in texts]


class Full(ToyBackend):
    """Cannot read prompts of more than `most` rows at once."""

    most = 2

    def prefill(self, rows):
        if len(rows) > self.most:
            raise OutOfMemory("no more")
        super().prefill(rows)


def test_rows_whose_prefill_fails_wait_on():
    target = Full(TARGET)
    one = decoder(target=target)
    with one.session(max_new_tokens=5) as session:
        rows = [session.add([1, row]) for row in range(3)]
        for _ in range(2):
            with pytest.raises(OutOfMemory):
                session.run()
        assert session.unfinished == 3
        assert target.lengths == []
        target.most = 3
        drain(session)
        texts = [session.text(row) for row in rows]
    assert texts == one.generate([[1, 0], [1, 1], [1, 2]], max_new_tokens=5).tolist()


def test_a_session_whose_round_failed_can_only_be_closed():
    class Breaks(ToyBackend):
        def commit(self, paths):
            raise ZeroDivisionError

    target = Breaks(TARGET)
    with decoder(target=target).session(max_new_tokens=5) as session:
        session.add([1])
        with pytest.raises(ZeroDivisionError):
            session.run()
        with pytest.raises(InvalidInput, match=r"has failed \(ZeroDivisionError\).*open another"):
            session.run()
    assert target.lengths == []


def test_kept_rows_that_fill_the_session_are_told():
    with decoder().session(max_new_tokens=4, max_rows=2) as session:
        kept = [session.add([row], kept=True) for row in range(2)]
        drain(session)
        waiting = session.add([3])
        for _ in range(2):
            with pytest.raises(InvalidInput, match=r"max_rows is 2, and 2 kept row\(s\).*release\(\)"):
                session.run()
        session.extend(kept[0], [1])
        while session.running:
            session.run()
        session.release(kept[1])
        drain(session)
        assert len(session.text(waiting)) == 5


def test_a_pass_that_fails_for_one_text_only_is_that_texts_error():
    class Odd(ToyBackend):
        """Fails wherever a row has read token 4 first."""

        def extend(self, tokens, parents, counts=None):
            if any(text[:1] == [4] for text in self.committed):
                raise ValueError("a bug")
            return super().extend(tokens, parents, counts)

    prompts = [[1, 2], [4, 1], [0, 0], [2, 3]]
    texts = written(queue_of(Odd(TARGET), rows=4), prompts)
    assert [text.refused for text in texts] == [None, "ValueError: a bug", None, None]
    assert all(text.refused or text.tokens == alone(text.prompt, text.request.seed) for text in texts)


def test_a_lost_process_ends_the_queue():
    class Lost(ToyBackend):
        def extend(self, tokens, parents, counts=None):
            raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1")

    with queue_of(Lost(TARGET)) as rows:
        rows.add([1, 2], seed=0)
        with pytest.raises((RuntimeError, DraftwoodError), match="closed by peer"):
            rows.run()
