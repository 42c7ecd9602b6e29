"""Checks of decoding with any strategies: sampling parameters, rounds, rows and streams.

for name, check in decoding_checks():
    check()
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood.decoding.decoder import SpeculativeDecoder
from draftwood.decoding.generation import Generation
from draftwood.distributions.constraints import Constraint
from draftwood.distributions.sampling import SamplingParams
from draftwood.laws.randomness import Streams, UniformRandomness, row_seeds
from draftwood.protocols import registry
from draftwood.testing.diagnosis.law_broken import LawBroken
from draftwood.testing.diagnosis.tolerances import EXACT
from draftwood.testing.models.toy import ConstantModel, NextTokenModel, ToyBackend, ToyModel
from draftwood.testing.proofs.decoder_law import NextToken, Texts, product_law, sequential_law, written_law

VOCAB = 3
TARGET, DRAFT = ToyModel(VOCAB, seed=1), ToyModel(VOCAB, seed=7)
_BINARY = ToyModel(2, seed=1), ToyModel(2, seed=5)
PROMPT = (0, 1)

Options = dict[str, Any]
STRATEGIES: tuple[tuple[tuple[str, Options], tuple[str, Options]], ...] = (
    (("chain", {"length": 2}), ("recursive-rejection", {})),
    (("fixed-tree", {"depth": 1, "branching": 2}), ("recursive-rejection", {})),
    (("dyspec", {"budget": 2}), ("traversal", {})),
    (("chain", {"length": 1}), ("recursive-rejection", {})),
    (("fixed-tree", {"depth": 1, "branching": 2}), ("sample-and-match", {})),
)
_CHAIN, _PAIR, _ADAPTIVE, _ONE, _MATCH = range(len(STRATEGIES))


def decoding_checks() -> Iterator[tuple[str, Callable[[], None]]]:
    """The checks of decoding, by name; each raises `LawBroken` where a law does not hold.

    Laws are exact: every random outcome of a call of `generate` is visited. Streams are judged by many seeds.
    """
    checks = (
        check_rounds,
        check_greedy,
        check_temperature,
        check_filters,
        check_processors,
        check_constraint,
        check_length,
        check_end_of_text,
        check_rows,
        check_row_alone,
        check_seeds,
        check_streams,
    )
    for check in checks:
        name = check.__name__.removeprefix("check_").replace("_", "-")
        yield name, partial(_judged, check)


def _judged(check: Callable[[], None]) -> None:
    """Run a check; an error of decoding itself is a failure too."""
    try:
        check()
    except LawBroken:
        raise
    except Exception as error:
        raise LawBroken(f"Decoding raises {type(error).__name__}: {error}") from error


def check_rounds() -> None:
    """A text of several rounds has the target's law: each goes on from where the one before ended."""
    for strategy in (_PAIR, _ADAPTIVE, _ONE):
        _prove(strategy, SamplingParams(1.0), tokens=3, models=_BINARY)


def check_greedy() -> None:
    """At temperature 0 the most likely token comes, the first one of those that tie."""
    ties = ConstantModel(4, p=torch.tensor([0.1, 0.4, 0.4, 0.1], dtype=torch.float64))
    for target, draft in ((TARGET, DRAFT), (ties, ToyModel(4, seed=3))):
        for strategy in (_CHAIN, _PAIR, _ADAPTIVE, _MATCH):
            _prove(strategy, SamplingParams(0.0), tokens=4, probs=_first_best, models=(target, draft))


def check_temperature() -> None:
    """The target's temperature decides, whatever the draft's is."""
    for strategy, (target, draft) in enumerate([(0.5, 1.0), (1.7, 0.6), (0.8, 0.8)]):
        _prove(strategy, SamplingParams(target), draft=SamplingParams(draft))


def check_filters() -> None:
    """The target's top-k, top-p and min-p decide at every node, whatever the draft's filters keep."""
    cases = (
        (SamplingParams(1.0, top_k=2), SamplingParams(1.0, top_k=1)),
        (SamplingParams(0.8, top_p=0.7), SamplingParams(1.3, min_p=0.2)),
        (SamplingParams(1.2, min_p=0.3), SamplingParams(1.0)),
        (SamplingParams(1.0), SamplingParams(1.0, top_p=0.6)),
    )
    for (target, draft), strategy in zip(cases, (_CHAIN, _PAIR, _ADAPTIVE, _CHAIN), strict=True):
        _prove(strategy, target, draft=draft)


def check_processors() -> None:
    """A processor that reads the text sees, at every node, that node's own."""
    for strategy in (_CHAIN, _PAIR):
        for processors in ((_less_of_the_last,), (_less_of_all, _less_of_the_last)):
            _prove(strategy, SamplingParams(1.0, processors=processors), draft=SamplingParams(1.0))


def check_constraint() -> None:
    """A constraint forbids what it forbids at every node, and changes nothing else."""
    for strategy in (_CHAIN, _PAIR):
        _prove(strategy, SamplingParams(1.0), options={"constraint": _NeverTwice()}, probs=_never_twice)


def check_length() -> None:
    """A text of any length has the target's law, also where the limit cuts a tree."""
    for tokens in (1, 2):
        _prove(_CHAIN, SamplingParams(1.0), tokens=tokens)
    _prove(_ADAPTIVE, SamplingParams(1.0), tokens=1)


def check_end_of_text() -> None:
    """A text ends at the first token that ends texts, also inside an accepted path."""
    for strategy in (_CHAIN, _PAIR):
        _prove(strategy, SamplingParams(1.0), tokens=3, ends=(1,), models=_BINARY)


def check_rows() -> None:
    """Rows that are written together have the law of single rows, and are independent."""
    target, draft = _BINARY
    prompts = ((0, 1), (1,))
    for strategy, processors in ((_ONE, (_less_of_the_last,)), (_PAIR, ())):
        sampling = SamplingParams(1.0, processors=processors)
        options = {"max_new_tokens": 2, "sampling": sampling, "eos_token_id": [1]}
        actual = written_law(_decoder(strategy, target, draft), prompts, options=options)
        alone = [sequential_law(target, prompt, _by(sampling), tokens=2, ends=(1,)) for prompt in prompts]
        _compare(actual, product_law(alone), f"two rows, {_named(strategy)}")


def check_row_alone() -> None:
    """Law D: a row's text depends only on its own seed, not on the other rows."""
    prompts, seeds = [[0, 1], [1], [2, 2, 1], [0]], [5, 9, 2**40, 5]
    for strategy in (_CHAIN, _ADAPTIVE):
        decoder = _decoder(strategy)
        together = _written(decoder, prompts, seeds)
        for row, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
            (separate,) = _written(decoder, [prompt], [seed])
            if together[row] != separate:
                raise LawBroken(
                    f"Row {row} of {len(prompts)} is {together[row]} with {_named(strategy)} but {separate} "
                    f"by itself with the same seed {seed}.",
                    likely="rows share a stream, or a row's state is another row's.",
                )


def check_seeds() -> None:
    """Whatever the seeds, no two streams have a number in common."""
    seeds = [*range(64), *row_seeds(0, 32)[1:], *row_seeds(1, 32)[1:]]
    owners: dict[float, str] = {}
    for seed in seeds:
        streams = Streams.seeded(seed)
        for name, rng in (("draft", streams.draft), ("verification", streams.verify)):
            if not isinstance(rng, UniformRandomness):
                continue
            for u in rng.uniforms(32).tolist():
                owner = f"the {name} stream of seed {seed}"
                if owners.setdefault(u, owner) != owner:
                    raise LawBroken(
                        f"{owners[u]} and {owner} both hold {u!r}.",
                        likely="two streams are seeded alike; spawn them from one seed.",
                    )


def check_streams() -> None:
    """Rows, calls with consecutive seeds, and draft and verification have streams that are independent."""
    rows, calls = 16, 60
    # Here a draft that is judged by the number that drew it is always accepted.
    target = ConstantModel(2, p=torch.tensor([0.25, 0.75], dtype=torch.float64))
    decoder = _decoder(_ONE, target, ConstantModel(2, p=torch.tensor([0.5, 0.5], dtype=torch.float64)))
    texts = [_written(decoder, [list(PROMPT)] * rows, seed, tokens=2) for seed in range(1000, 1000 + calls)]
    law = sequential_law(target, PROMPT, _by(SamplingParams(1.0)), tokens=2)
    alike = sum(p * p for p in law.values())
    calls_in_turn = list(itertools.pairwise(texts))
    pairs = {
        "neighbouring rows": [pair for call in texts for pair in itertools.pairwise(call)],
        "the first rows of calls with consecutive seeds": [(a[0], b[0]) for a, b in calls_in_turn],
        "a row and the one before it in the next call": [
            pair for a, b in calls_in_turn for pair in zip(a[1:], b[:-1], strict=True)
        ],
    }
    for what, both in pairs.items():
        same = sum(text == neighbour for text, neighbour in both)
        _count(f"equal texts in {what}", same, alike, len(both), "they draw from one seed.")
    flat = [text for call in texts for text in call]
    for text, p in law.items():
        _count(f"the text {text}", flat.count(text), p, len(flat), _SAME_NOISE)


_SAME_NOISE = "the noise that chose a draft token is seen again by its verification."


def _prove(
    strategy: int,
    sampling: SamplingParams,
    *,
    draft: SamplingParams | None = None,
    tokens: int = 2,
    ends: Sequence[int] = (),
    options: Options | None = None,
    probs: NextToken | None = None,
    models: tuple[NextTokenModel, NextTokenModel] = (TARGET, DRAFT),
) -> None:
    """Compare the law of what is written after `PROMPT` with sequential sampling."""
    chosen = {
        "max_new_tokens": tokens,
        "sampling": sampling,
        "draft_sampling": draft or sampling,
        "eos_token_id": list(ends),
        **(options or {}),
    }
    actual = written_law(_decoder(strategy, *models), [PROMPT], options=chosen)
    expected = sequential_law(models[0], PROMPT, probs or _by(sampling), tokens=tokens, ends=ends)
    drafting = _parameters_as_text(draft or sampling)
    what = f"{_parameters_as_text(sampling)}, the draft with {drafting}, {_named(strategy)}"
    _compare(actual, product_law([expected]), what)


def _parameters_as_text(sampling: SamplingParams) -> str:
    """The parameters that are set, in short."""
    parameters = {
        name: value
        for name in ("temperature", "top_k", "top_p", "min_p")
        if (value := getattr(sampling, name)) is not None
    }
    processors = [
        getattr(processor, "__name__", type(processor).__name__).strip("_")
        for processor in sampling.processors
    ]
    return ", ".join([*(f"{name} {value}" for name, value in parameters.items()), *processors])


def _compare(actual: dict[Texts, float], expected: dict[Texts, float], what: str) -> None:
    def off(texts: Texts) -> float:
        return abs(actual.get(texts, 0.0) - expected.get(texts, 0.0))

    worst = max({**actual, **expected}, key=off)
    if not off(worst) <= EXACT:
        raise LawBroken(
            f"With {what}, the texts {worst} have probability {actual.get(worst, 0.0):.12g} and should have "
            f"{expected.get(worst, 0.0):.12g} (off by {off(worst):.2g}).",
            error=off(worst),
        )


def _decoder(
    strategy: int, target: NextTokenModel = TARGET, draft: NextTokenModel = DRAFT
) -> SpeculativeDecoder:
    policy, verifier = STRATEGIES[strategy]
    return SpeculativeDecoder(
        ToyBackend(target),
        registry.create("drafters", "model", {"backend": ToyBackend(draft)}),
        registry.create("policies", *policy),
        registry.create("verifiers", *verifier),
    )


def _named(strategy: int) -> str:
    (policy, options), (verifier, _) = STRATEGIES[strategy]
    return f"{policy} {options} and {verifier}"


def _written(
    decoder: SpeculativeDecoder, prompts: list[list[int]], seed: int | list[int], tokens: int = 6
) -> list[tuple[int, ...]]:
    generation = decoder.generate(
        prompts,
        max_new_tokens=tokens,
        sampling=SamplingParams(1.0),
        seed=seed,
        return_dict_in_generate=True,
    )
    assert isinstance(generation, Generation)
    return [tuple(text) for text in generation.tokens]


def _by(sampling: SamplingParams) -> NextToken:
    """Temperature, then top-k, top-p and min-p, written out once more for small vocabularies."""

    def probs(text: list[int], logits: Tensor) -> Tensor:
        scores = logits.clone()
        for processor in sampling.processors:
            scores = processor(torch.tensor([text]), scores.unsqueeze(0))[0]
        p = (scores / sampling.temperature).softmax(-1)
        order = p.argsort(descending=True)
        if sampling.top_k is not None:
            p = _without(p, order[sampling.top_k :])
        if sampling.top_p is not None:
            before = p[order].cumsum(0) - p[order]
            p = _without(p, order[before >= sampling.top_p])
        if sampling.min_p is not None:
            p = _without(p, (p < sampling.min_p * p.max()).nonzero().flatten())
        return p

    return probs


def _first_best(text: list[int], logits: Tensor) -> Tensor:
    return torch.zeros_like(logits).index_fill_(0, logits.argmax(), 1)


def _without(p: Tensor, dropped: Tensor) -> Tensor:
    p = p.index_fill(0, dropped, 0)
    return p / p.sum()


def _less_of_the_last(input_ids: Tensor, scores: Tensor) -> Tensor:
    return scores.scatter_add(1, input_ids[:, -1:], torch.full_like(scores[:, :1], -2.0))


def _less_of_all(input_ids: Tensor, scores: Tensor) -> Tensor:
    counts = torch.zeros_like(scores).scatter_add(
        1, input_ids, torch.ones(input_ids.shape, dtype=scores.dtype)
    )
    return scores - 0.7 * counts


@attrs.frozen
class _NeverTwice(Constraint):
    """No token twice in a row."""

    def start(self, prompt: Sequence[int]) -> int:
        return -1

    def advance(self, state: Any, token: int) -> Any:
        return token

    def masks(self, states: Sequence[Any], vocab_size: int) -> Tensor:
        return torch.arange(vocab_size) != torch.tensor(states).unsqueeze(1)


def _never_twice(text: list[int], logits: Tensor) -> Tensor:
    p = logits.softmax(-1)
    return _without(p, torch.tensor([text[-1]])) if len(text) > len(PROMPT) else p


def _count(what: str, count: int, p: float, trials: int, likely: str) -> None:
    # A count this far off comes by chance once in half a billion.
    allowed = 6 * math.sqrt(trials * p * (1 - p))
    if abs(count - trials * p) > allowed:
        raise LawBroken(
            f"Of {trials}, {what} came {count} times and should come {trials * p:.0f} times.",
            error=abs(count / trials - p),
            likely=likely,
        )
