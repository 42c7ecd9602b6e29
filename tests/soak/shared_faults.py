"""Faults in a decoder that eight callers share: of the machine, of a caller's code, of callers that leave.

All other texts must come out as without the fault, every caller must be told the end of its text once, and
the decoder must go on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial, wraps
from threading import Thread
from typing import Any
from unittest import mock

import attrs

from draftwood import RowQueue, SharedDecoder, SharedText, SpeculativeDecoder
from draftwood.base.errors import DraftwoodError
from draftwood.decoding import new_rows
from tests.framework.row_options import OddThenEven, RowOptions
from tests.framework.row_subjects import RowSubject
from tests.soak.brought_faults import PARTS, brought
from tests.soak.result import SoakResult

TEXTS, ROWS = 8, 4
PATIENCE = 60.0
"""Seconds after which a caller is said to wait for ever."""
TRIALS_A_DECODER = 25

SUBJECTS = [
    RowSubject("toy", "model", "tree"),
    RowSubject("toy with first logits", "model", "levels"),
    RowSubject("toy with first logits", "lookup", "chain"),
    RowSubject("llama", "model", "tree"),
    RowSubject("llama by paths", "lookup", "levels"),
]


STAGES = ("joining", "prefilling", "drafting", "verifying", "finishing")


@attrs.define(eq=False)
class Injector:
    """Raises at one moment of a stage in the writing thread.

    Attributes:
        stage: of the moment; None: never.
        left: moments of the stage until then.
        times: how many moments in a row fail.
        failing: what is called there.
        failed: how often it failed.
    """

    stage: str | None = None
    left: int = 0
    times: int = 1
    failing: Callable[[], Any] = bool
    failed: int = 0

    def passing(self, stage: str) -> None:
        if stage != self.stage:
            return
        if self.left:
            self.left -= 1
        elif self.failed < self.times:
            self.failed += 1
            self.failing()


@contextmanager
def injected(decoder: SpeculativeDecoder, injector: Injector) -> Iterator[None]:
    """Inside it, calls of the decoder's parts pass `injector`, before they begin and after they end."""
    target, drafter = decoder.target, decoder.drafter
    points: list[tuple[Any, Any, str, str]] = [
        (target, type(target), "prefill", "prefilling"),
        (target, type(target), "first_logits", "prefilling"),
        (drafter, type(drafter), "prefill", "prefilling"),
        (drafter, type(drafter), "distributions", "drafting"),
        (decoder.policy, type(decoder.policy), "grow", "drafting"),
        (decoder.policy, type(decoder.policy), "grow", "drafting"),
        (target, type(target), "extend", "verifying"),
        (decoder.verifier, type(decoder.verifier), "verify_rows", "verifying"),
        (target, type(target), "commit", "finishing"),
        (drafter, type(drafter), "commit", "finishing"),
        (target, type(target), "release", "finishing"),
        (drafter, type(drafter), "release", "finishing"),
    ]
    with ExitStack() as stack:
        for part, kind, name, stage in points:
            if hasattr(kind, name):
                hooked = _hooked(getattr(kind, name), part, stage, injector)
                stack.enter_context(mock.patch.object(kind, name, hooked))
        for name in ("check_prompts", "BatchRow"):
            real = getattr(new_rows, name)

            def joining(*args: Any, _real: Any = real, **options: Any) -> Any:
                injector.passing("joining")
                return _real(*args, **options)

            stack.enter_context(mock.patch.object(new_rows, name, joining))
        yield


def _hooked(original: Any, part: Any, stage: str, injector: Injector) -> Any:
    @wraps(original)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        if self is not part:  # a draft of the target's own class
            return original(self, *args, **options)
        injector.passing(stage)
        result = original(self, *args, **options)
        injector.passing(stage)
        return result

    return call


@attrs.define(eq=False)
class Caller:
    """One text, and what its caller was told.

    Attributes:
        arguments: of `SharedDecoder.add`.
        expected: the tokens of the text without others; None where the caller brings a fault.
        leaves: how the caller leaves: `"cancel"`, `"cancel later"`, `"silence"` or not at all.
        pieces: tokens that came.
        ends: how often the end was told.
        error: with which it was told.
        refused: the error of `add` itself.
    """

    arguments: dict[str, Any]
    expected: list[int] | None
    leaves: str | None = None
    pieces: list[int] = attrs.field(factory=list)
    ends: int = 0
    error: Exception | None = None
    refused: Exception | None = None
    text: SharedText | None = None

    def run(self, shared: SharedDecoder) -> None:
        """Ask for the text and read it, in a thread."""
        try:
            text = self.text = shared.add(**self.arguments)
        except Exception as error:
            self.refused = error
            return
        if self.leaves == "cancel":
            text.cancel()
        for _ in range(10_000):
            try:
                piece = next(text)
            except StopIteration:
                break
            except Exception as error:
                self.error = error
                break
            self.pieces += piece
            if self.leaves == "silence":
                return
            if self.leaves == "cancel later":
                text.cancel()
                text.cancel()
        self.ends += 1
        # Nothing comes after the end, and nobody waits for it.
        with suppress(DraftwoodError):
            self.ends += sum(1 for _ in text)

    @property
    def fits(self) -> bool:
        """Whether its text is to be written to the end."""
        return self.expected is not None and self.leaves is None

    def wrong(self) -> str | None:
        """Returns the fault of the text that it received."""
        whole = self.expected
        told_once = self.ends == (self.refused is None and self.leaves != "silence")
        if not told_once:
            return f"a caller was told the end {self.ends} times"
        if whole is not None and self.pieces != whole[: len(self.pieces)]:
            return f"a text was told as {self.pieces}, and alone it is {whole}"
        if not self.fits or self.error is not None:
            return None
        assert whole is not None
        if self.refused is not None or self.text is None:
            return f"an innocent caller was refused: {self.refused}"
        if self.pieces != whole:
            return f"a text ended as {self.pieces}, and alone it is {whole}"
        logprobs = len(whole) if self.arguments.get("logprobs") is not None else 0
        if len(self.text.logprobs) != logprobs:
            return f"{len(self.text.logprobs)} log-probabilities came with {len(whole)} tokens"
        return None


@attrs.define(eq=False)
class Workplace:
    """A shared decoder, and the same parts once more for texts without others."""

    subject: RowSubject
    decoder: SpeculativeDecoder
    alone: SpeculativeDecoder
    shared: SharedDecoder
    known: dict[str, list[int]] = attrs.field(factory=dict)

    @classmethod
    def of(cls, subject: RowSubject) -> Workplace:
        decoder = subject.decoder()
        queue = RowQueue(partial(decoder.session, max_new_tokens=12, eos_token_id=[3]), ROWS)
        return cls(subject, decoder, subject.decoder(), SharedDecoder(queue))

    def expected(self, arguments: dict[str, Any]) -> list[int]:
        """Returns the tokens of the text in a separate session."""
        with self.alone.session(max_new_tokens=12, eos_token_id=[3]) as one:
            row = one.add(**arguments)
            while one.unfinished:
                one.run()
            return one.text(row)[len(arguments["prompt"]) :]

    def innocent(self, rng: random.Random) -> Caller:
        """A caller whose text can be written."""
        vocab = self.decoder.target.vocab_size
        options = RowOptions(
            temperature=rng.choice([None, 0.0, 0.7, 1.2]),
            top_k=rng.choice([None, 3]),
            min_p=rng.choice([None, 0.2]),
            processor=rng.choice([None, None, "repetition"]),
            ends_at=rng.choice([None, None, 4]),
            logprobs=rng.choice([None, 0, 2]),
        )
        arguments = options.arguments | {
            "prompt": [rng.randrange(vocab) for _ in range(rng.randint(1, 6))],
            "seed": rng.randrange(10**6),
            "max_new_tokens": rng.choice([None, 3, 16]),
            "constraint": rng.choice([None, None, OddThenEven()]),
        }
        return Caller(arguments, self.expected(arguments))


@attrs.frozen
class Fault:
    """A fault that happens in a trial.

    Attributes:
        name: for people.
        refusals: texts that may be refused although they did nothing wrong, as no others were there to tell.
    """

    name: str
    refusals: int = 0


def _prepared(rng: random.Random, callers: list[Caller], injector: Injector) -> Fault:
    """Have something go wrong for one of the callers, or in the decoder's parts."""
    kind = rng.choice(["machine", "machine", "brought", "brought", "leaves"])
    if kind == "machine":
        name, stage = rng.choice(list(PARTS)), rng.choice(STAGES)
        injector.stage, injector.left, injector.failed = stage, rng.randrange(12), 0
        injector.failing, injector.times = PARTS[name], rng.choice([1, 1, 2])
        if rng.random() < 0.3:
            rng.choice(callers).leaves = "cancel later"
        return Fault(f"{stage}: {name}", refusals=injector.times)
    culprit = rng.choice(callers)
    if kind == "brought":
        name, arguments = brought(rng)
        culprit.arguments |= arguments
        culprit.expected = None
        return Fault(name)
    culprit.leaves = rng.choice(["cancel", "cancel later", "silence"])
    return Fault(f"caller: {culprit.leaves}")


def _trial(workplace: Workplace, rng: random.Random, injector: Injector) -> tuple[Fault, str | None]:
    """One fault among eight texts; what was wrong then."""
    injector.stage = None
    callers = [workplace.innocent(rng) for _ in range(TEXTS)]
    later = workplace.innocent(rng)
    fault = _prepared(rng, callers, injector)
    threads = [Thread(target=caller.run, args=(workplace.shared,), daemon=True) for caller in callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    if waiting := sum(thread.is_alive() for thread in threads):
        return fault, f"{waiting} callers wait for ever"
    happened = injector.stage is None or injector.failed > 0
    injector.stage = None
    refused = sum(caller.error is not None and caller.fits for caller in callers)
    if refused > fault.refusals:
        return fault, f"{refused} innocent texts were refused: {[c.error for c in callers if c.error]}"
    for caller in callers:
        if wrong := caller.wrong():
            return fault, wrong
    thread = Thread(target=later.run, args=(workplace.shared,), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if thread.is_alive() or later.error is not None:
        return fault, f"the next text was not written: {later.error}"
    if wrong := later.wrong():
        return fault, f"the next text: {wrong}"
    return (fault if happened else attrs.evolve(fault, name="no fault: its moment did not come")), None


def shared_faults(count: int, *, seed: int = 0, subjects: Sequence[RowSubject] = SUBJECTS) -> SoakResult:
    """At least `count` faults, for subject after subject so many as `TRIALS_A_DECODER` in one decoder."""
    result, number = SoakResult("faults in a shared decoder"), 0
    while result.done < count:
        rng = random.Random(f"{seed} {number}")
        subject = subjects[number % len(subjects)]
        workplace, injector = Workplace.of(subject), Injector()
        number += 1
        with injected(workplace.decoder, injector):
            for trial in range(TRIALS_A_DECODER):
                fault, wrong = _trial(workplace, rng, injector)
                if not fault.name.startswith("no fault"):
                    result.tried(fault.name, wrong and f"{wrong}; trial {trial} of {subject}, seed {seed}")
                if wrong is not None or result.done == count:
                    break
            workplace.shared.close()
    result.figures["decoders"] = str(number)
    return result
