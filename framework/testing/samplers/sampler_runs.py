"""Calls a foreign sampler: enumerates its outcomes, or samples them, and records forbidden acts."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import attrs
import torch
from torch import Tensor

from draftwood.base.errors import DraftwoodError, InvalidInput
from draftwood.laws.randomness import Randomness
from draftwood.testing.diagnosis.intervals import TRIALS, CannotEnumerate, UnseenChance, split_uniforms
from draftwood.testing.diagnosis.law_broken import LawBroken
from draftwood.testing.diagnosis.tree_text import tree_as_text
from draftwood.testing.proofs.enumerator import BudgetExceeded, EndlessRun, Enumerator, enumerate_outcomes
from draftwood.testing.proofs.hidden_randomness import drawn_from, kept_states, process_states
from draftwood.testing.samplers.batched_runs import PLACES, judged_together
from draftwood.testing.samplers.continued_laws import Emitted, Text
from draftwood.testing.samplers.forbidden_texts import forbidden
from draftwood.testing.samplers.ordinary_calls import REPEATED, compare_with_calls, differs_from_one_seed
from draftwood.testing.samplers.rare_faults import Fault
from draftwood.testing.samplers.returned_tokens import as_tokens
from draftwood.testing.samplers.rounded_models import wide
from draftwood.testing.samplers.sampler_cases import Draft, SamplerCase, copied, likely_breaks
from draftwood.testing.samplers.sampler_errors import (
    comes_of_enumeration,
    in_plain_words,
    may_come_of_enumeration,
    raise_where_it_is_no_fault,
    without_exits,
)
from draftwood.testing.samplers.single_precision import computes_in_float32
from draftwood.testing.samplers.torch_randomness import RAISED, followed_generators, torch_randomness
from draftwood.testing.samplers.unseen_sources import source_of
from draftwood.testing.samplers.used_generators import UsedGenerators

T = TypeVar("T")

Sampler = Callable[[SamplerCase], "Sequence[int] | Tensor"]
"""Takes a draft and returns the tokens that it emits: those accepted, and one more.

In a batch: rows of tokens. Negative numbers are padding, before, between or after tokens, and are left out.
"""

_Judged = tuple[int, Text, int, tuple[str, ...]]
"""The number of a draft, a text, how often it came, and the groups in which it counts."""

_MOST_OUTCOMES = 10_000
"""Outcomes of one draft, at most: a tree of a few nodes over a few tokens has some hundreds."""

_MOST_CHOICES = 200
"""Choices by chance in one call, at most: a sampler that draws until a draw fits makes ever more."""

_REPEATS = 12
"""Runs of a draft's first outcome before a verdict against a sampler."""

_EVERY = 4
"""Where uniforms are given, the first and every fourth call on a draft is repeated."""

_ALL_TWICE = 64
"""Outcomes of a draft that are all run twice; of further ones every fourth is."""

_MORE_TRIALS = 8000
"""Points that the enumeration of a draft must foretell before a verdict against, where uniforms are given."""

_TRIALS = 100
"""Calls with ordinary random numbers that tell whether an error is the sampler's own."""


@attrs.define(eq=False)
class CheckedSampler:
    """Calls the sampler, counts, and remembers the first thing that none may do.

    Attributes:
        sampler: the sampler under test.
        dtype: of probabilities; uniforms are float32 at least.
        uniforms: how many it takes; None: it draws its own.
        seed: of random points or samples.
        check_time: raises `CannotEnumerate` where the enumeration takes too long.
        calls: of the sampler so far.
        fault: the first thing that none may do, in words.
        resolution: how far an outcome's probability may be off, since uniforms have few bits.
        fault_at: where that was; None in a batch.
        fault_chance: probability of outcomes that none may have, of all drafts that were enumerated.
    """

    sampler: Sampler
    dtype: torch.dtype
    uniforms: int | None
    seed: int
    check_time: Callable[[], None] = lambda: None
    calls: int = 0
    fault: str = ""
    resolution: float = 0.0
    fault_at: Fault | None = None
    fault_chance: float = 0.0
    _used: UsedGenerators = attrs.field(factory=UsedGenerators, init=False)
    _error: Exception | None = attrs.field(default=None, init=False)
    _raises: set[type] = attrs.field(factory=set, init=False)
    _possible: set[tuple[Draft, Text]] = attrs.field(factory=set, init=False)

    def enumerated(self, draft: Draft, *, repeated: bool = False, trials: int = TRIALS) -> Emitted:
        """The law of what comes of one draft.

        Args:
            draft: the draft.
            repeated: whether every call is made twice where uniforms are given, not only some.
            trials: points of given uniforms that the enumeration must foretell.

        Raises:
            CannotEnumerate: chance that is not seen, or that has no finite list of outcomes.
        """
        law: Emitted = {}
        self._let_numba_compile(draft)
        before = process_states()
        points = itertools.count()

        def with_uniforms(u: Sequence[float]) -> Text:
            case = attrs.evolve(draft.case, uniforms=torch.tensor(u, dtype=wide(self.dtype)))
            run = partial(self.call, draft, case)
            self.check_time()
            again = repeated or next(points) % _EVERY == 0
            return self._twice(run) if again else run()

        def with_chance(rng: Enumerator) -> Text:
            first = [rng]

            def run() -> tuple[Text, list[tuple[int, int]]]:
                own = first.pop() if first else Enumerator([outcome for outcome, _ in rng.taken])
                with torch_randomness(own, used=self._used) as chance:
                    text = self.call(draft, draft.case)
                    self.resolution = max(self.resolution, chance.resolution)
                if text == RAISED:
                    self._check_raises(draft)
                if len(own.taken) > _MOST_CHOICES:
                    raise CannotEnumerate(
                        f"The sampler makes more than {_MOST_CHOICES} choices by chance in one call, as one "
                        "that draws until a draw fits, so its outcomes cannot be listed; give samples=."
                    )
                return text, own.taken

            self.check_time()
            number = next(points)
            return self._twice(run, once=number > _ALL_TWICE and number % _EVERY > 0)[0]

        outcomes: Iterable[tuple[float, Text]]
        if self.uniforms is None:
            outcomes = enumerate_outcomes(with_chance, budget=_MOST_OUTCOMES)
        else:
            outcomes = split_uniforms(
                with_uniforms,
                count=self.uniforms,
                guesses=likely_breaks(draft),
                bits=53 if self.dtype == torch.float64 else 24,
                seed=self.seed,
                trials=trials,
            )
        try:
            for weight, text in outcomes:
                law[text] = law.get(text, 0.0) + weight
                if text == RAISED or forbidden(draft, text):
                    self.fault_chance = max(self.fault_chance, draft.weight * weight)
        except BudgetExceeded as error:
            raise CannotEnumerate(
                f"The sampler has more than {_MOST_OUTCOMES} outcomes for one draft; take fewer drafted "
                "tokens or a smaller vocabulary, or give samples=."
            ) from error
        if hidden := drawn_from(before):
            raise _unseen(", ".join(hidden))
        return law

    def _let_numba_compile(self, draft: Draft) -> None:
        """Call the sampler, if numba is there, which compiles functions at their first call.

        It would find numpy's random functions replaced then, and never compile that function again.
        """
        if self.uniforms is None and "numba" in sys.modules and not self.calls:
            for _ in range(_REPEATS):
                # An error comes again where the sampler is judged.
                with followed_generators(), kept_states(), contextlib.suppress(Exception):
                    self._emitted(draft.case)

    def look_again(self, evidence: Sequence[tuple[Draft, Emitted]]) -> None:
        """Raise `CannotEnumerate` if a draft comes out otherwise when it is looked at more closely.

        An unseen coin often falls alike twice, so a verdict against a sampler needs more than two runs: the
        first outcome is repeated often. Where uniforms are given, every call on the first draft is repeated
        once, and pieces that were missed are looked for at many more points.
        """
        calls = self.calls
        if self.uniforms is not None:
            self.enumerated(evidence[0][0], repeated=True)
            for draft, law in evidence:
                again = self.enumerated(draft, trials=_MORE_TRIALS)
                if any(abs(again.get(text, 0.0) - law.get(text, 0.0)) > 1e-9 for text in {*again, *law}):
                    raise missed_pieces()
            self.calls = calls
            return
        held: list[list[object]] = []  # else every run may find the same free address
        for draft, _ in evidence:
            self.check_time()
            run = partial(self.outcome, draft)
            texts = set()
            for _ in range(_REPEATS):
                texts.add(run())
                held.append([object() for _ in range(7)])
            if len(texts) > 1:
                raise _unseen(source_of(run) or "chance that is not seen here")
        self.calls = calls

    def outcome(self, draft: Draft, rng: Randomness | None = None) -> Text:
        """Returns the tokens that it emits with `rng` as its chance; without it, in its first outcome."""
        with torch_randomness(Enumerator([]) if rng is None else rng, used=self._used):
            return self.call(draft, draft.case)

    def compare_with_calls(self, evidence: Sequence[tuple[Draft, Emitted]], calls: int) -> None:
        """Raise `CannotEnumerate` where the enumerated laws differ from the laws of ordinary calls.

        It is `UnseenChance` where ordinary calls from one seed differ too, and a source is found.
        """
        if self.uniforms is not None:
            return
        before = self.calls

        def call(draft: Draft) -> Text:
            self.check_time()
            return self.call(draft, draft.case)

        try:
            compare_with_calls(call, evidence, calls=calls, seed=self.seed)
        except CannotEnumerate:
            self.check_time()
            for draft, _ in evidence:
                run = partial(call, draft)
                if not differs_from_one_seed(run, calls=REPEATED // len(evidence), seed=self.seed):
                    continue
                if found := source_of(partial(self.outcome, draft)):
                    raise _unseen(found) from None
            raise
        self.calls = before

    def in_float32(self, draft: Draft) -> bool:
        """Returns whether the sampler computes in float32 in one of several ordinary calls on a draft."""
        before = self.calls, self.fault
        with kept_states():
            found = any(
                computes_in_float32(partial(self.call, draft, self._with_uniforms(draft)))
                for _ in range(_REPEATS)
            )
        self.calls, self.fault = before
        return found

    def _with_uniforms(self, draft: Draft) -> SamplerCase:
        return attrs.evolve(draft.case, uniforms=torch.rand(self.uniforms or 0, dtype=wide(self.dtype)))

    def _twice(self, run: Callable[[], T], *, once: bool = False) -> T:
        """Returns what `run` gives; raises `UnseenChance` unless it gives it again and draws nothing else.

        With `once` it is not asked to give it again, which takes half of the time.
        """
        if once:
            try:
                return run()
            except UnseenChance:
                raise _unseen(source_of(run) or "chance that is not seen here") from None
        before = process_states()
        given: list[T] = []
        with contextlib.suppress(UnseenChance):
            given.append(run())
            # Objects that are made and gone lie at the same addresses again, unless others take these.
            _held = [object() for _ in range(64)]
            given.append(run())
        self.calls -= 1  # the second one is ours
        hidden = drawn_from(before)
        if len(given) == 2 and given[0] == given[1] and not hidden:
            return given[0]
        raise _unseen(source_of(run) or ", ".join(hidden) or "chance that is not seen here")

    def _check_raises(self, draft: Draft) -> None:
        """Raise `CannotEnumerate` if the sampler's error may come of numbers that are not drawn yet."""
        error = self._error
        if error is None or type(error) in self._raises or not may_come_of_enumeration(error):
            return
        with kept_states():
            for _ in range(_TRIALS):
                try:
                    self._emitted(draft.case)
                except type(error):
                    self._raises.add(type(error))
                    return
                except Exception:  # another one will be met by itself
                    continue
        raise CannotEnumerate(
            f"It raises an error ({in_plain_words(error)}) where its random numbers are not drawn yet, and "
            f"not in {_TRIALS} calls with ordinary ones, so these numbers may be the reason; give samples=."
        ) from error

    def sampled(
        self, possible: Sequence[Draft], samples: int, batched: bool
    ) -> dict[str, list[dict[Text, int]]]:
        """Returns the counts of outcomes of every draft: of all rows (""), and by `PLACES` in a batch."""
        counts: dict[str, list[dict[Text, int]]] = {
            place: [{} for _ in possible] for place in ("", *PLACES[: 2 * batched])
        }
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            weights = torch.tensor([draft.weight for draft in possible], dtype=torch.float64)
            rows = torch.multinomial(weights, samples, replacement=True)
            judged = self._together(possible, rows) if batched else self._alone(possible, rows)
            for index, text, count, groups in judged:
                for group in groups:
                    counted = counts[group][index]
                    counted[text] = counted.get(text, 0) + count
        return counts

    def _alone(self, possible: Sequence[Draft], rows: Tensor) -> Iterator[_Judged]:
        for index in rows.tolist():
            draft = possible[index]
            yield index, self.call(draft, self._with_uniforms(draft)), 1, ("",)

    def _together(self, possible: Sequence[Draft], rows: Tensor) -> Iterator[_Judged]:
        together = judged_together(
            self._batch, possible, rows, uniforms=self.uniforms or 0, dtype=wide(self.dtype)
        )
        for index, text, count, groups in together:
            self._judge(possible[index], text)
            yield index, text, count, groups

    def _batch(self, batch: SamplerCase) -> Any:
        self.calls += len(batch.draft_tokens)
        try:
            with without_exits():
                return self.sampler(copied(batch))
        except DraftwoodError:
            raise
        except Exception as error:
            raise_where_it_is_no_fault(error)
            raise LawBroken(
                f"The sampler raises ({in_plain_words(error)}) on a batch of "
                f"{len(batch.draft_tokens)} drafts."
            ) from error

    def call(self, draft: Draft, case: SamplerCase) -> Text:
        """Returns the tokens that it emits on the case of a draft, and judges them."""
        self.calls += 1
        try:
            emitted = self._emitted(case)
        except (CannotEnumerate, InvalidInput):
            raise
        except EndlessRun as error:
            raise CannotEnumerate(
                f"{error} It may draw until a draw fits, or never end; give samples= to tell these apart."
            ) from error
        except Exception as error:
            raise_where_it_is_no_fault(error)
            if comes_of_enumeration(error):
                raise CannotEnumerate(
                    f"Its random numbers cannot be followed ({in_plain_words(error)}); give samples=."
                ) from error
            self._error = error
            self._blame(draft, RAISED, f"raises ({in_plain_words(error)})", case)
            return RAISED
        text = as_tokens(emitted)
        self._judge(draft, text, case)
        return text

    def _emitted(self, case: SamplerCase) -> Any:
        """Returns what the sampler returns; a generator draws while it is read."""
        with without_exits():
            emitted = self.sampler(copied(case))
            return list(emitted) if isinstance(emitted, Iterator) else emitted

    def _judge(self, draft: Draft, text: Text, case: SamplerCase | None = None) -> None:
        if not self.fault and (draft, text) not in self._possible:
            if wrong := forbidden(draft, text):
                self._blame(draft, text, wrong, case)
            else:
                self._possible.add((draft, text))

    def _blame(self, draft: Draft, text: Text, what: str, case: SamplerCase | None) -> None:
        if not self.fault:
            self.fault_at = Fault(draft, case, text) if case is not None else None
            has_uniforms = case is not None and len(case.uniforms)
            at = f" at the uniforms {case.uniforms.tolist()}" if has_uniforms and case is not None else ""
            self.fault = f"{what}{at}, on the draft\n{tree_as_text(draft.tree, draft.target_probs)}"


def missed_pieces() -> CannotEnumerate:
    """Returns the error of a sampler whose uniforms fall into pieces that may have been missed."""
    return CannotEnumerate(
        "The sampler splits the uniforms that it is given into pieces that are not all found; let it draw "
        "them itself, leave uniforms= out, or give samples=."
    )


def _unseen(source: str) -> UnseenChance:
    return UnseenChance(
        f"The sampler draws from {source}, so its outcomes cannot be listed; give samples=, or look up "
        "torch.rand, random.random and their kin when it draws."
    )
