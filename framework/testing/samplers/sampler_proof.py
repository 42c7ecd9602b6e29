"""The proof of law V for somebody else's sampler: a function from probabilities and drafts to tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import attrs
import torch

from draftwood.base.errors import InvalidInput
from draftwood.base.one_thread import one_thread
from draftwood.distributions.sampling import SamplingParams
from draftwood.laws.proposals import (
    Deterministic,
    Proposal,
    TopThenSample,
    WithoutReplacement,
    WithReplacement,
)
from draftwood.testing.diagnosis.chi_square import SIGNIFICANCE, ChiSquareResult, chi_square_test
from draftwood.testing.diagnosis.intervals import CannotEnumerate
from draftwood.testing.diagnosis.law_broken import LawBroken
from draftwood.testing.diagnosis.tree_text import tree_as_text
from draftwood.testing.proofs.lossless import JointLaw, target_law
from draftwood.testing.samplers.continued_laws import Emitted, Text, continued, written_on
from draftwood.testing.samplers.cpu_limits import CpuLimit
from draftwood.testing.samplers.further_drafts import further_evidence
from draftwood.testing.samplers.ordinary_calls import CALLS, FEWER_CALLS
from draftwood.testing.samplers.rare_faults import name_of_rare
from draftwood.testing.samplers.rounded_models import PARTS
from draftwood.testing.samplers.sampler_cases import (
    PLAIN,
    PROMPT,
    Draft,
    Models,
    drafts,
    sampler_models,
)
from draftwood.testing.samplers.sampler_errors import name_of
from draftwood.testing.samplers.sampler_mistakes import Evidence, likely_mistake
from draftwood.testing.samplers.sampler_report import SamplerReport
from draftwood.testing.samplers.sampler_runs import CheckedSampler, Sampler, missed_pieces
from draftwood.testing.samplers.torch_randomness import RAISED

_FINE = 1e-5
"""Largest error from the steps of uniforms that a tolerance allows: above that of some float32 uniforms."""

_SINGLE = 1e-6
"""Largest error that rounding to float32 makes."""

_MISSED = 3e-3
"""Errors that missed pieces of given uniforms may explain, at most."""

_LOOKED_AT = 12
"""Drafts that are repeated, or compared with ordinary calls, before a verdict."""

LAWS = (WithReplacement, WithoutReplacement, Deterministic, TopThenSample)


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
    settings: Sequence[SamplingParams] = (PLAIN,),
    seed: int = 0,
    cpu_seconds: float = 60.0,
) -> SamplerReport:
    """Prove that `sampler` emits the target's law; takes what `measure_sampler` takes.

    Args:
        tolerance: largest difference of a sequence's probability. None: 1e-9, and 1e-6 where
            probabilities are float32 or less, or the sampler computes in float32 or less; and what the
            steps of its uniforms make, `report.resolution`, if they are float32 or finer.

    Returns:
        The report, with the error.

    Raises:
        LawBroken: it does not, or `report.fault`. The message has the worst sequence with the probability
            that it has and should have, and the draft from which it most likely comes.
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
        settings=settings,
        seed=seed,
        cpu_seconds=cpu_seconds,
    )
    name = name_of(sampler)
    if tolerance is not None:
        report = attrs.evolve(report, tolerance=tolerance)
    what = ""
    if report.fault:
        what = f"{name} {report.fault}\nIts law is off by {report.error:.2g}.{report.size}"
    elif report.verdict == "biased":
        chance = "" if report.p_value is None else f" (p = {report.p_value:.2g})"
        what = f"{name} is biased{chance}: {report.counterexample}"
        if report.p_value is None and report.error <= _SINGLE:
            what += "\nAn error so small may be rounding: if it computes in float32, give tolerance=1e-6."
        elif report.p_value is None and dtype in PARTS and report.error <= 4 * torch.finfo(dtype).eps:
            what += (
                f"\nRounding makes errors of this size if it computes in {dtype}: convert the probabilities "
                "to float32 first, or give tolerance=."
            )
    if what:
        raise LawBroken(what, error=report.error, likely=report.likely)
    return report


@one_thread()
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
    settings: Sequence[SamplingParams] = (PLAIN,),
    seed: int = 0,
    cpu_seconds: float = 60.0,
) -> SamplerReport:
    """The law of the tokens that `sampler` emits, on toy models, against the target's.

    Every draft that the law allows is made with its exact weight. What the sampler emits is continued by the
    target up to one token more than the draft is deep, and the joint law of these tokens compared.
    The sampler's own chance is dealt with in one of three ways:

    - `uniforms=k`: it takes k uniforms as `case.uniforms`, and has no other chance. Enumerated by interval
      splitting (`draftwood.testing.diagnosis.intervals` says what that can miss).
    - neither: it draws with torch, numpy or Python's `random`, and compares what it draws with numbers, or
      takes the largest as in an exponential race. Enumerated exactly
      (`draftwood.testing.samplers.torch_randomness`). Each outcome is run twice; chance that is not seen, as
      of a generator that exists already, is refused and gives no verdict.
    - `samples=N`: any chance at all. N drafts a model are drawn and judged, and a chi-square test says
      whether their law is the target's; `report.smallest_bias` says what it would have detected. Needs scipy.

    Args:
        sampler: takes a `SamplerCase`, returns the emitted tokens. Negative numbers are padding and left out,
            wherever they are.
        parents: for every drafted token the target's row that it follows: 0 is the root, i + 1 the row after
            drafted token i. `range(n)` is a chain.
        law: how siblings are drawn: `WithReplacement` and `WithoutReplacement` from `draft_probs`,
            `Deterministic` takes its most likely tokens, `TopThenSample` all but the last of them.
        uniforms: how many the sampler takes; with `samples` they are drawn.
        samples: how many to draw for each model.
        batched: the sampler judges a batch: every tensor of its case but `parents` has one dimension more
            in front, of 1, 3, 12 and 100 rows in turn. The first and the last rows of batches are tested
            apart too. Where rows share random numbers only one row of each batch counts, and
            `report.smallest_bias` grows. With `samples` only.
        vocab_size: of the models; at least 2.
        models: pairs of target and draft by name; None: `sampler_models(vocab_size)`.
        dtype: of the probabilities and uniforms that the sampler gets. For bfloat16 and float16 the models
            are rounded so that every row sums to 1; logits and uniforms are float32 then.
        settings: of requests: temperature (0 for greedy rows), top-k, top-p and min-p of the target. Each is
            proved; in a batch rows of all of them are mixed. `case.target_probs` is the distribution after
            them, `case.target_logits` the logits before.
        seed: of the samples, or of the random points at which interval splitting tests itself.
        cpu_seconds: that a verdict may take: two thirds to list outcomes, the rest to name a mistake.
            `samples` are drawn however long it takes.

    Raises:
        CannotEnumerate: chance that has no finite list of outcomes, or a list that takes too long; give
            samples.
        InvalidInput: arguments that do not go together.
    """
    if batched and samples is None:
        raise InvalidInput("batched=True needs samples=N; outcomes are enumerated one draft at a time.")
    if law not in LAWS:
        raise InvalidInput(
            f"law is {getattr(law, '__name__', law)}; give one of {[drawn.__name__ for drawn in LAWS]}."
        )
    if not settings:
        raise InvalidInput("settings is empty; give at least one SamplingParams.")
    _check_dtype(dtype, settings)
    if not cpu_seconds > 0:
        raise InvalidInput(f"cpu_seconds is {cpu_seconds}; give a number above 0.")
    limit = CpuLimit(cpu_seconds)
    checked = CheckedSampler(sampler, dtype, uniforms, seed, limit.check)
    errors, expected, worst = {}, {}, _Worst()
    tests: list[ChiSquareResult] = []
    named_models = sampler_models(vocab_size) if models is None else models
    for model, (target, draft) in named_models.items():
        groups = [
            drafts(target, draft, parents=parents, law=law, dtype=dtype, settings=one) for one in settings
        ]
        # Rows of all settings are judged together, as in an engine's batch.
        together = [drawn for group in groups for drawn in group]
        tokens = max(drawn.tree.depth for drawn in together) + 1
        counted = {} if samples is None else checked.sampled(together, samples, batched)
        begin = 0
        for one, possible in zip(settings, groups, strict=True):
            name = model if one == PLAIN else f"{model}, {_told(one)}"
            settled_target = possible[0].target
            expected_law = target_law(settled_target, prompt=PROMPT, tokens=tokens)
            if samples is None:
                emitted = [checked.enumerated(drawn) for drawn in possible]
                law_found = JointLaw(continued(possible, emitted, settled_target, tokens), 0.0, 0)
            else:
                here = slice(begin, begin + len(possible))
                begin += len(possible)
                groups_tested = len(named_models) * len(settings) * len(counted)
                for place, of_place in counted.items():
                    texts = written_on(of_place[here], settled_target, tokens, seed)
                    found = chi_square_test(texts, expected_law, models=groups_tested)
                    # How small a bias would be seen is said of all rows.
                    tests.append(attrs.evolve(found, smallest_bias=0.0) if place else found)
                    if not place:
                        law_found, emitted = _shares(texts), _shares_by_draft(of_place[here])
                    elif found.p_value < SIGNIFICANCE / groups_tested:
                        where = f"{name}, {place}"
                        law_there, emitted_there = _shares(texts), _shares_by_draft(of_place[here])
                        errors[where] = law_there.error(expected_law)
                        expected[where] = _mean_tokens(possible, emitted_there)
                        worst.see(where, law_there, expected_law, possible, emitted_there)
            errors[name] = law_found.error(expected_law)
            expected[name] = _mean_tokens(possible, emitted)
            worst.see(name, law_found, expected_law, possible, emitted)
    exact = 1e-9 if dtype == torch.float64 else _SINGLE
    if samples is None:
        told = [worst.likeliest, *worst.evidence[: _LOOKED_AT - 1]]
        against = bool(checked.fault) or max(errors.values()) > _FINE
        if against:
            checked.look_again(told)
        checked.compare_with_calls(told, CALLS if against else FEWER_CALLS)
        if exact < max(errors.values()) <= _SINGLE and checked.in_float32(worst.likeliest[0]):
            exact = _SINGLE
        if uniforms is not None and not checked.fault and exact < max(errors.values()) < _MISSED:
            raise missed_pieces()
    more = partial(
        further_evidence,
        CheckedSampler(sampler, dtype, uniforms, seed, limit.check_naming),
        max(target.vocab_size for target, _ in named_models.values()),
        parents=parents,
        law=law,
        settings=settings,
    )
    # Uniforms of bfloat16 or float16 bias a sampler: theirs is no rounding error that one may have.
    tolerance = exact + min(checked.resolution, _FINE)
    return SamplerReport(
        errors=errors,
        expected_tokens=expected,
        calls=checked.calls,
        fault=checked.fault,
        counterexample=worst.text,
        likely=_likely(checked, worst, more, tolerance) if samples is None else "",
        p_value=min(1.0, len(tests) * min(drawn.p_value for drawn in tests)) if tests else None,
        smallest_bias=max(drawn.smallest_bias for drawn in tests) if tests else None,
        resolution=checked.resolution,
        fault_chance=checked.fault_chance if samples is None and checked.fault else None,
        tolerance=tolerance,
    )


def _check_dtype(dtype: torch.dtype, settings: Sequence[SamplingParams]) -> None:
    """Raise `InvalidInput` where no law is right for probabilities of this dtype."""
    if dtype not in (torch.float64, torch.float32, *PARTS):
        raise InvalidInput(f"dtype is {dtype}; give torch.float64, float32, bfloat16 or float16.")
    if dtype in PARTS and any(one != PLAIN and one.temperature != 0 for one in settings):
        raise InvalidInput(
            f"dtype={dtype} goes only with temperature 1 without filters and with temperature 0, since "
            "rounded probabilities do not belong to the logits; give dtype=torch.float32 for other settings."
        )


def _shares(texts: dict[Text, int]) -> JointLaw:
    rows = sum(texts.values())
    return JointLaw({text: count / max(rows, 1) for text, count in texts.items()}, 0.0, 0)


def _mean_tokens(possible: Sequence[Draft], emitted: Sequence[Emitted]) -> float:
    return sum(
        drawn.weight * chance * len(text)
        for drawn, law_of_one in zip(possible, emitted, strict=True)
        for text, chance in law_of_one.items()
        if text != RAISED
    )


def _shares_by_draft(counts: Sequence[dict[Text, int]]) -> list[Emitted]:
    return [{text: count / sum(drawn.values()) for text, count in drawn.items()} for drawn in counts]


@attrs.define(eq=False)
class _Worst:
    """The sequence that is furthest off in all models, in words; and what came of every draft."""

    error: float = -1.0
    text: str = ""
    evidence: list[tuple[Draft, Emitted]] = attrs.field(factory=list)
    _at: int = 0

    @property
    def likeliest(self) -> tuple[Draft, Emitted]:
        """Returns the draft from which the sequence most likely comes, with the law of its emitted tokens."""
        return self.evidence[self._at]

    def see(
        self,
        model: str,
        law: JointLaw,
        expected_law: dict[Text, float],
        possible: Sequence[Draft],
        emitted: Sequence[Emitted],
    ) -> None:
        begin = len(self.evidence)
        self.evidence += zip(possible, emitted, strict=True)
        error = law.error(expected_law)
        if not error > self.error:
            return
        self.error = error
        tokens = law.worst(expected_law)
        likeliest = max(range(len(possible)), key=partial(_chance, possible, emitted, tokens))
        self._at = begin + likeliest
        likely = ", ".join(f"{text}: {chance:.6g}" for text, chance in sorted(emitted[likeliest].items()))
        self.text = (
            f"tokens {tokens} have probability {law.probabilities.get(tokens, 0.0):.12g} and should have "
            f"{expected_law.get(tokens, 0.0):.12g} (off by {error:.2g}) with the models {model!r}.\n"
            f"They most likely come from this draft (their path is marked), which gives {{{likely}}}:\n"
            f"{tree_as_text(possible[likeliest].tree, possible[likeliest].target_probs, tokens)}"
        )


def _told(settings: SamplingParams) -> str:
    given = {name: getattr(settings, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    return ", ".join(f"{name}={value:g}" for name, value in given.items() if value is not None)


def _likely(
    checked: CheckedSampler, worst: _Worst, more: Callable[[range], Evidence], tolerance: float
) -> str:
    if checked.fault_at is not None and worst.error < 1e-6:
        at, words = checked.fault_at, checked.fault
        return name_of_rare(at, words, worst.evidence, checked.outcome, checked.call)
    # Where it raises, another mistake came before: a wrong test, which finds a residual empty.
    returned = [(draft, law) for draft, law in worst.evidence if RAISED not in law]
    if worst.error <= (1e-9 if checked.fault else tolerance) or not returned:
        return ""
    try:
        return likely_mistake(returned, more, 1e-6)
    except CannotEnumerate:  # it takes too long, and the verdict is known without it
        return ""


def _chance(possible: Sequence[Draft], emitted: Sequence[Emitted], tokens: Text, index: int) -> float:
    begun = sum(chance for text, chance in emitted[index].items() if tokens[: len(text)] == text)
    return possible[index].weight * begun
