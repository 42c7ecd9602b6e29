"""The proof of law V by enumeration: the joint law of the emitted tokens against the target's."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import attrs
import torch

from draftwood.loop import RoundLoop, Row
from draftwood.protocols import Drafter, TreePolicy, Verifier
from draftwood.randomness import Streams
from draftwood.sampling import SamplingParams
from draftwood.stopping import StopConditions
from draftwood.testing.enumerator import Enumerator, enumerate_outcomes
from draftwood.testing.toy import ToyBackend, ToyModel


@attrs.frozen
class JointLaw:
    """Exact law of the first emitted tokens.

    Attributes:
        probabilities: for every sequence of tokens, its probability.
        expected_tokens: mean number of tokens that the first round emits (block efficiency).
        runs: random outcomes visited.
    """

    probabilities: dict[tuple[int, ...], float]
    expected_tokens: float
    runs: int


def joint_law(
    policy: TreePolicy,
    verifier: Verifier,
    *,
    target: ToyModel,
    drafter: Drafter,
    prompt: Sequence[int] = (0,),
    tokens: int = 3,
    temperature: float = 1.0,
    budget: int = 100_000,
) -> JointLaw:
    """The exact joint law of the first `tokens` emitted tokens, over as many rounds as they take.

    The production loop, policy, drafter and verifier run unchanged, once for every random outcome of a
    round, and the rounds are chained over the texts they leave.
    """

    law: dict[tuple[int, ...], float] = {}
    expected, runs = 0.0, 0
    # A round's law depends on the text before it alone, so every text is enumerated once.
    unfinished: dict[tuple[int, ...], float] = {(): 1.0}
    while unfinished:
        text, chance = unfinished.popitem()
        outcomes = list(
            enumerate_outcomes(
                lambda rng, text=text: _one_round(  # type: ignore[misc]
                    [*prompt, *text], policy, verifier, target, drafter, temperature, rng
                ),
                budget=budget,
            )
        )
        runs += len(outcomes)
        if not text:
            expected = sum(weight * len(new) for weight, new in outcomes)
        for weight, new in outcomes:
            longer = (*text, *new)[:tokens]
            goes_to = law if len(longer) == tokens else unfinished
            goes_to[longer] = goes_to.get(longer, 0.0) + chance * weight
    return JointLaw(law, expected, runs)


def _one_round(
    text: list[int],
    policy: TreePolicy,
    verifier: Verifier,
    target: ToyModel,
    drafter: Drafter,
    temperature: float,
    rng: Enumerator,
) -> tuple[int, ...]:
    """One round of the production loop after `text`; checks that commit left the state of the new text."""
    row = Row(0, list(text), policy, Streams(rng, rng))
    backend = ToyBackend(target)
    sampling = SamplingParams(temperature=temperature)
    loop = RoundLoop(
        target=backend,
        drafter=drafter,
        verifier=verifier,
        sampling=sampling,
        draft_sampling=sampling,
        # Beyond what any tree reaches, so that the limit cuts no tree.
        stops=StopConditions(frozenset(), [10**9], [False]),
        rows=[row],
    )
    state = torch.tensor(text[:-1], dtype=torch.int64)
    backend.prefill([state])
    drafter.prefill([state])
    try:
        new = loop.run().rows[0].tokens
    finally:
        drafter.release()
    assert backend.committed == [row.text[:-1]], (
        f"After {text} the round emitted {new}, but the committed state is {backend.committed[0]}."
    )
    return new


def target_law(
    target: ToyModel, *, prompt: Sequence[int] = (0,), tokens: int = 3, temperature: float = 1.0
) -> dict[tuple[int, ...], float]:
    """The joint law of `tokens` tokens under sequential sampling from the target."""
    law = {}
    for text in itertools.product(range(target.vocab_size), repeat=tokens):
        chance, context = 1.0, list(prompt)
        for token in text:
            chance *= float(target.probs(context, temperature)[token])
            context.append(token)
        law[text] = chance
    return law


def assert_lossless(
    policy: TreePolicy,
    verifier: Verifier,
    *,
    target: ToyModel,
    drafter: Drafter,
    prompt: Sequence[int] = (0,),
    tokens: int = 3,
    temperature: float = 1.0,
    budget: int = 100_000,
    tolerance: float = 1e-12,
) -> JointLaw:
    """Prove that the pair emits the target's law, or fail naming the worst sequence.

    Returns:
        The joint law found, with its expected tokens a round.
    """
    found = joint_law(
        policy,
        verifier,
        target=target,
        drafter=drafter,
        prompt=prompt,
        tokens=tokens,
        temperature=temperature,
        budget=budget,
    )
    wanted = target_law(target, prompt=prompt, tokens=tokens, temperature=temperature)
    worst = max(wanted, key=lambda text: abs(found.probabilities.get(text, 0.0) - wanted[text]))
    error = abs(found.probabilities.get(worst, 0.0) - wanted[worst])
    assert error <= tolerance, (
        f"{policy} with {verifier} is biased: tokens {worst} after {tuple(prompt)} have probability "
        f"{found.probabilities.get(worst, 0.0):.12g} and should have {wanted[worst]:.12g} "
        f"(off by {error:.2g} over {found.runs} outcomes)."
    )
    return found
