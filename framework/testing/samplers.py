"""The proof of law V for somebody else's sampler: a function from probabilities and drafts to tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import attrs
import torch
from torch import Tensor

from draftwood.errors import InvalidInput
from draftwood.proposals import (
    Deterministic,
    Proposal,
    TopThenSample,
    WithoutReplacement,
    WithReplacement,
)
from draftwood.randomness import Randomness
from draftwood.testing.broken import LawBroken
from draftwood.testing.enumerator import enumerate_outcomes
from draftwood.testing.goodness import SIGNIFICANCE, Sampled, judge
from draftwood.testing.intervals import CannotEnumerate, split_uniforms
from draftwood.testing.lossless import JointLaw, target_law
from draftwood.testing.sampler_cases import (
    PROMPT,
    Draft,
    Models,
    SamplerCase,
    drafts,
    likely_breaks,
    sampler_models,
)
from draftwood.testing.toy import ToyModel
from draftwood.testing.torch_chance import torch_chance
from draftwood.testing.watched import drawn_as_text

Sampler = Callable[[SamplerCase], "Sequence[int] | Tensor"]
"""Takes a draft and returns the tokens that it emits: those accepted, and one more.

In a batch: `[rows, most]`, rows filled up with negative numbers.
"""

Text = tuple[int, ...]

Emitted = dict[Text, float]
"""The law of what comes of one draft."""

RAISED = (-1,)
"""What stands for the tokens of a call that raised."""

LAWS = (WithReplacement, WithoutReplacement, Deterministic, TopThenSample)


@attrs.frozen
class SamplerReport:
    """What a sampler's law was found to be.

    Attributes:
        errors: by model, the largest difference of a sequence's probability from the target's; where
            samples were drawn, of its share.
        expected_tokens: by model, the mean number of tokens a call emits.
        calls: of the sampler; rows, in a batch.
        fault: what the sampler did that none may, however rarely: raise, emit a token that the target
            forbids or that does not exist; empty if nothing.
        counterexample: the sequence that is furthest off, and the draft from which it most likely comes.
        p_value: where samples were drawn: how likely a lossless sampler is to be off as much as this one in
            any of the models (a chi-square test each); None where all was enumerated.
        smallest_bias: where samples were drawn: every law further from the target's than this, in total
            variation, fails in a model with probability 99 %; None where all was enumerated.
    """

    errors: dict[str, float]
    expected_tokens: dict[str, float]
    calls: int
    fault: str
    counterexample: str
    p_value: float | None = None
    smallest_bias: float | None = None

    @property
    def error(self) -> float:
        """The largest of `errors`."""
        return max(self.errors.values())


def prove_sampler(
    sampler: Sampler,
    *,
    parents: Sequence[int] = (0, 1),
    law: type[Proposal] = WithReplacement,
    uniforms: int | None = None,
    samples: int | None = None,
    batched: bool = False,
    vocab_size: int = 3,
    models: Models | None = None,
    dtype: torch.dtype = torch.float64,
    tolerance: float | None = None,
    seed: int = 0,
) -> SamplerReport:
    """Prove that `sampler` emits the target's law; takes what `measure_sampler` takes.

    Args:
        tolerance: largest difference of a sequence's probability. None: 1e-9, and 1e-6 where
            probabilities are float32 or less.

    Returns:
        The report, with the error found.

    Raises:
        LawBroken: it does not, or `report.fault`. The message has the worst sequence with the probability
            found and wanted, and the draft from which it most likely comes.
    """
    report = measure_sampler(
        sampler,
        parents=parents,
        law=law,
        uniforms=uniforms,
        samples=samples,
        batched=batched,
        vocab_size=vocab_size,
        models=models,
        dtype=dtype,
        seed=seed,
    )
    name = getattr(sampler, "__name__", None) or repr(sampler)
    if report.fault:
        raise LawBroken(f"{name} {report.fault}", error=report.error)
    if report.p_value is not None:
        if report.p_value < SIGNIFICANCE:
            raise LawBroken(
                f"{name} is biased (p = {report.p_value:.2g}): {report.counterexample}", error=report.error
            )
    elif not report.error <= (tolerance or (1e-9 if dtype == torch.float64 else 1e-6)):
        raise LawBroken(f"{name} is biased: {report.counterexample}", error=report.error)
    return report


def measure_sampler(
    sampler: Sampler,
    *,
    parents: Sequence[int] = (0, 1),
    law: type[Proposal] = WithReplacement,
    uniforms: int | None = None,
    samples: int | None = None,
    batched: bool = False,
    vocab_size: int = 3,
    models: Models | None = None,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> SamplerReport:
    """The law of the tokens that `sampler` emits, on toy models, against the target's.

    Every draft that the law allows is made with its exact weight. What the sampler emits is continued by the
    target up to one token more than the draft is deep, and the joint law of these tokens compared.
    The sampler's own chance is dealt with in one of three ways:

    - `uniforms=k`: it takes k uniforms as `case.uniforms`, and has no other chance. Enumerated by interval
      splitting (`draftwood.testing.intervals` says what that can miss).
    - neither: it draws with `torch.rand`, `torch.rand_like` and `torch.multinomial`, and does nothing with
      the uniforms but compare them. Enumerated exactly (`draftwood.testing.torch_chance`).
    - `samples=N`: any chance at all. N drafts a model are drawn and judged, and a chi-square test says
      whether their law is the target's; `report.smallest_bias` says what it would have found. Needs scipy.

    Args:
        sampler: takes a `SamplerCase`, returns the emitted tokens.
        parents: for every drafted token the target's row behind which it stands: 0 is the root, i + 1 the
            row behind drafted token i. `range(n)` is a chain.
        law: how siblings are drawn: `WithReplacement` and `WithoutReplacement` from `draft_probs`,
            `Deterministic` takes its most likely tokens, `TopThenSample` all but the last of them.
        uniforms: how many the sampler takes; with `samples` they are drawn.
        samples: how many to draw for each model.
        batched: the sampler judges a batch: every tensor of its case but `parents` has one dimension more
            in front. With `samples` only.
        vocab_size: of the models; at least 2.
        models: pairs of target and draft by name; None: `sampler_models(vocab_size)`.
        dtype: of the probabilities and uniforms that the sampler gets.
        seed: of the samples, or of the random points at which interval splitting tests itself.

    Raises:
        CannotEnumerate: chance that has no finite list of outcomes; give samples.
        InvalidInput: arguments that do not go together.
    """
    if batched and samples is None:
        raise InvalidInput("batched=True needs samples=N; outcomes are enumerated one draft at a time.")
    if law not in LAWS:
        raise InvalidInput(
            f"law is {getattr(law, '__name__', law)}; give one of {[one.__name__ for one in LAWS]}."
        )
    watched = _Watched(sampler, dtype, uniforms, seed)
    errors, expected, worst = {}, {}, _Worst()
    judged: list[Sampled] = []
    known = sampler_models(vocab_size) if models is None else models
    for name, (target, draft) in known.items():
        possible = drafts(target, draft, parents=parents, law=law, dtype=dtype)
        tokens = max(one.tree.depth for one in possible) + 1
        wanted = target_law(target, prompt=PROMPT, tokens=tokens)
        if samples is None:
            emitted = [watched.enumerated(one, target) for one in possible]
            found = JointLaw(_continued(possible, emitted, target, tokens), 0.0, 0)
        else:
            counts = watched.sampled(possible, target, samples, batched)
            texts = _written_on(counts, target, tokens, seed)
            judged.append(judge(texts, wanted, models=len(known)))
            found = JointLaw({text: count / samples for text, count in texts.items()}, 0.0, 0)
            emitted = [
                {text: count / sum(one.values()) for text, count in one.items()} for one in counts
            ]
        errors[name] = found.error(wanted)
        expected[name] = sum(
            one.weight * chance * len(text)
            for one, law_of_one in zip(possible, emitted, strict=True)
            for text, chance in law_of_one.items()
            if text != RAISED
        )
        worst.see(name, found, wanted, possible, emitted)
    return SamplerReport(
        errors=errors,
        expected_tokens=expected,
        calls=watched.calls,
        fault=watched.fault,
        counterexample=worst.text,
        p_value=min(1.0, len(judged) * min(one.p_value for one in judged)) if judged else None,
        smallest_bias=max(one.smallest_bias for one in judged) if judged else None,
    )


@attrs.define(eq=False)
class _Watched:
    """Calls the sampler, counts, and remembers the first thing that none may do."""

    sampler: Sampler
    dtype: torch.dtype
    uniforms: int | None
    seed: int
    calls: int = 0
    fault: str = ""

    def enumerated(self, draft: Draft, target: ToyModel) -> Emitted:
        law: Emitted = {}

        def with_uniforms(u: Sequence[float]) -> Text:
            case = attrs.evolve(draft.case, uniforms=torch.tensor(u, dtype=self.dtype))
            return self._call(draft, case, target)

        def with_chance(rng: Randomness) -> Text:
            with torch_chance(rng):
                return self._call(draft, draft.case, target)

        outcomes: Iterable[tuple[float, Text]]
        if self.uniforms is None:
            outcomes = enumerate_outcomes(with_chance)
        else:
            outcomes = split_uniforms(
                with_uniforms,
                count=self.uniforms,
                guesses=likely_breaks(draft),
                bits=53 if self.dtype == torch.float64 else 24,
                seed=self.seed,
            )
        for weight, text in outcomes:
            law[text] = law.get(text, 0.0) + weight
        return law

    def sampled(
        self, possible: Sequence[Draft], target: ToyModel, samples: int, batched: bool
    ) -> list[dict[Text, int]]:
        """For every draft, how often what came of it."""
        counts: list[dict[Text, int]] = [{} for _ in possible]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            weights = torch.tensor([one.weight for one in possible], dtype=torch.float64)
            rows = torch.multinomial(weights, samples, replacement=True)
            judged = self._together(possible, target, rows) if batched else self._alone(possible, target, rows)
            for place, text in judged:
                counts[place][text] = counts[place].get(text, 0) + 1
        return counts

    def _alone(
        self, possible: Sequence[Draft], target: ToyModel, rows: Tensor
    ) -> Iterator[tuple[int, Text]]:
        for place in rows.tolist():
            u = torch.rand(self.uniforms or 0, dtype=self.dtype)
            draft = possible[place]
            yield place, self._call(draft, attrs.evolve(draft.case, uniforms=u), target)

    def _together(
        self, possible: Sequence[Draft], target: ToyModel, rows: Tensor
    ) -> Iterator[tuple[int, Text]]:
        shapes: dict[tuple[int, ...], list[int]] = {}
        for place, draft in enumerate(possible):
            shapes.setdefault(tuple(draft.case.parents.tolist()), []).append(place)
        for places in shapes.values():
            cases = [possible[place].case for place in places]
            mine = rows[torch.isin(rows, torch.tensor(places))]
            at = torch.searchsorted(torch.tensor(places), mine)
            batch = attrs.evolve(
                cases[0],
                draft_tokens=torch.stack([one.draft_tokens for one in cases])[at],
                target_probs=torch.stack([one.target_probs for one in cases])[at],
                draft_probs=torch.stack([one.draft_probs for one in cases])[at],
                uniforms=torch.rand(len(at), self.uniforms or 0, dtype=self.dtype),
            )
            self.calls += len(at)
            found = torch.as_tensor(self.sampler(batch)).tolist()
            for place, row in zip(mine.tolist(), found, strict=True):
                text = tuple(token for token in row if token >= 0)
                self._judge(possible[place], text, target)
                yield place, text

    def _call(self, draft: Draft, case: SamplerCase, target: ToyModel) -> Text:
        self.calls += 1
        # A sampler may write to what it is given, as engines' kernels do.
        given = attrs.evolve(
            case, target_probs=case.target_probs.clone(), draft_probs=case.draft_probs.clone()
        )
        try:
            found = self.sampler(given)
        except CannotEnumerate:
            raise
        except Exception as error:
            self._blame(draft, f"raises ({type(error).__name__}: {error})", case)
            return RAISED
        text = tuple(found.flatten().tolist() if isinstance(found, Tensor) else (int(one) for one in found))
        self._judge(draft, text, target, case)
        return text

    def _judge(
        self, draft: Draft, text: Text, target: ToyModel, case: SamplerCase | None = None
    ) -> None:
        if self.fault:
            return
        most = draft.tree.depth + 1
        if not 1 <= len(text) <= most:
            self._blame(draft, f"emits {text}; a draft of depth {most - 1} gives 1 to {most} tokens", case)
        for place, token in enumerate(text):
            if not 0 <= token < target.vocab_size:
                self._blame(draft, f"emits {text}; token {token} does not exist", case)
                return
            if not float(target.probs([*PROMPT, *text[:place]])[token]) > 0:
                wrong = f"emits {text}, though the target gives token {token} probability 0 after {text[:place]}"
                self._blame(draft, wrong, case)
                return

    def _blame(self, draft: Draft, what: str, case: SamplerCase | None) -> None:
        if not self.fault:
            given = case is not None and len(case.uniforms)
            at = f" at the uniforms {case.uniforms.tolist()}" if given and case is not None else ""
            self.fault = f"{what}{at}, on the draft\n{drawn_as_text(draft.tree, draft.target_rows)}"


def _continued(
    possible: Sequence[Draft], emitted: Sequence[Emitted], target: ToyModel, tokens: int
) -> dict[Text, float]:
    """The law of the first `tokens` tokens, where the target writes what was not emitted."""
    law: Emitted = {}
    rests: dict[Text, Emitted] = {}
    for one, law_of_one in zip(possible, emitted, strict=True):
        for text, chance in law_of_one.items():
            if text not in rests:
                rests[text] = _rests(text, target, tokens)
            for rest, weight in rests[text].items():
                whole = (*text, *rest)[:tokens]
                law[whole] = law.get(whole, 0.0) + one.weight * chance * weight
    return law


def _written_on(
    counts: Sequence[dict[Text, int]], target: ToyModel, tokens: int, seed: int
) -> dict[Text, int]:
    """As `_continued`, drawn: what the target writes behind every single sample."""
    generator = torch.Generator().manual_seed(seed + 1)
    texts: dict[Text, int] = {}
    together: dict[Text, int] = {}
    for one in counts:
        for text, count in one.items():
            together[text] = together.get(text, 0) + count
    for text, count in sorted(together.items()):
        rests = _rests(text, target, tokens)
        weights = torch.tensor(list(rests.values()), dtype=torch.float64)
        drawn = torch.multinomial(weights, count, replacement=True, generator=generator)
        for rest, many in zip(rests, torch.bincount(drawn, minlength=len(rests)).tolist(), strict=True):
            whole = (*text, *rest)[:tokens]
            texts[whole] = texts.get(whole, 0) + many
    return texts


def _rests(text: Text, target: ToyModel, tokens: int) -> Emitted:
    """What the target writes behind `text`, up to `tokens` in all; nothing where there is no such text."""
    if any(not 0 <= token < target.vocab_size for token in text):
        return {(): 1.0}
    return target_law(target, prompt=(*PROMPT, *text), tokens=max(tokens - len(text), 0))


@attrs.define(eq=False)
class _Worst:
    """The sequence that is furthest off in all models, in words."""

    error: float = -1.0
    text: str = ""

    def see(
        self,
        model: str,
        found: JointLaw,
        wanted: dict[Text, float],
        possible: Sequence[Draft],
        emitted: Sequence[Emitted],
    ) -> None:
        error = found.error(wanted)
        if not error > self.error:
            return
        self.error, tokens = error, found.worst(wanted)
        place = max(range(len(possible)), key=partial(_chance, possible, emitted, tokens))
        likely = ", ".join(f"{text}: {chance:.6g}" for text, chance in sorted(emitted[place].items()))
        self.text = (
            f"tokens {tokens} have probability {found.probabilities.get(tokens, 0.0):.12g} and should have "
            f"{wanted.get(tokens, 0.0):.12g} (off by {error:.2g}) with the models {model!r}.\n"
            f"They most likely come of this draft (their way is marked), of which comes {{{likely}}}:\n"
            f"{drawn_as_text(possible[place].tree, possible[place].target_rows, tokens)}"
        )


def _chance(
    possible: Sequence[Draft], emitted: Sequence[Emitted], tokens: Text, place: int
) -> float:
    begun = sum(chance for text, chance in emitted[place].items() if tokens[: len(text)] == text)
    return possible[place].weight * begun
