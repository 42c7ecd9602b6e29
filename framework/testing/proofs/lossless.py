"""The proof of law V by enumeration: the joint law of the emitted tokens against the target's."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Required, TypedDict, Unpack

import attrs
import torch

from draftwood.base.errors import InvalidInput
from draftwood.base.validators import as_ints
from draftwood.decoding.batch_row import BatchRow
from draftwood.decoding.loop import RoundLoop
from draftwood.decoding.row_settings import RowSettings
from draftwood.decoding.stopping import RowStops
from draftwood.distributions.sampling import SamplingParams
from draftwood.laws.randomness import Streams
from draftwood.protocols import Drafter, TreePolicy, Verifier, policy_states
from draftwood.testing.diagnosis.law_broken import LawBroken
from draftwood.testing.diagnosis.tolerances import rounding
from draftwood.testing.diagnosis.tree_text import tree_as_text
from draftwood.testing.models.row_views import TOY_COSTS
from draftwood.testing.models.toy import NextTokenModel, ToyBackend
from draftwood.testing.proofs.block_efficiency import (
    WeightedTree,
    drawn_trees,
    one_round_law,
    target_distributions,
)
from draftwood.testing.proofs.checked_verifier import CheckedVerifier
from draftwood.testing.proofs.enumerator import Enumerator, enumerate_outcomes
from draftwood.testing.proofs.kept_law import kept_model

Law = Mapping[tuple[int, ...], float]
"""For every sequence of tokens, its probability."""


@attrs.frozen
class JointLaw:
    """Exact law of the first emitted tokens.

    Attributes:
        probabilities: for every sequence of tokens, its probability.
        expected_tokens: mean number of tokens that the first round emits (block efficiency).
        runs: random outcomes visited; 0 where they were not counted (one round).
        fault: a forbidden act of the verifier, however rare, with the tree; empty if there was none.
    """

    probabilities: dict[tuple[int, ...], float]
    expected_tokens: float
    runs: int
    fault: str = ""

    def worst(self, expected: Law) -> tuple[int, ...]:
        """The sequence whose probability is furthest from that in `expected`."""
        return max({**expected, **self.probabilities}, key=lambda text: self._off(expected, text))

    def error(self, expected: Law) -> float:
        """The largest difference from `expected` in any sequence's probability."""
        return self._off(expected, self.worst(expected))

    def _off(self, expected: Law, text: tuple[int, ...]) -> float:
        off = abs(self.probabilities.get(text, 0.0) - expected.get(text, 0.0))
        return off if off == off else float("inf")  # NaN compares with nothing, and is the worst


class ProofOptions(TypedDict, total=False):
    """Keyword arguments of `joint_law`, `largest_error` and `assert_lossless`.

    Attributes:
        target: whose law should come out. Required.
        drafter: supplies the draft distributions, such as a `ModelDrafter` over a `ToyBackend`. Required.
        prompt: the text before, at least one token. Default: `(0,)`.
        tokens: length of the sequences. Default: 3.
        temperature: of target and draft. Default: 1.
        rounds: None, the default, runs the production loop for as many rounds as the tokens take, so that
            commit and the next root are part of the proof. 1 enumerates one round, and lets the target itself
            write what is missing: cheaper, since equal trees are verified once.
        budget: random outcomes that one enumeration may visit. Default: 100,000.
        trees: what `drawn_trees` gave for the policy, drafter, prompt and temperature, so that several
            verifiers can be judged on trees drawn once; for one round. None, the default, draws them.
    """

    target: Required[NextTokenModel]
    drafter: Required[Drafter]
    prompt: Sequence[int]
    tokens: int
    temperature: float
    rounds: int | None
    budget: int
    trees: Sequence[WeightedTree] | None


def joint_law(policy: TreePolicy, verifier: Verifier, **options: Unpack[ProofOptions]) -> JointLaw:
    """The exact joint law of the first emitted tokens.

    Args:
        policy: grows the trees.
        verifier: judges them.
        options: see `ProofOptions`.

    Raises:
        AssertionError: the verifier raises or does not end; the message draws the tree.
        BudgetExceeded: a round has more outcomes than `budget`.
    """
    return _Case(policy, verifier, **options).law()


@attrs.frozen(eq=False)
class _Case:
    """A pair, and how its law is worked out; see `ProofOptions`."""

    policy: TreePolicy
    verifier: Verifier
    target: NextTokenModel
    drafter: Drafter
    prompt: tuple[int, ...] = attrs.field(default=(0,), converter=as_ints)
    tokens: int = 3
    temperature: float = 1.0
    rounds: int | None = None
    budget: int = 100_000
    trees: Sequence[WeightedTree] | None = None

    def law(self) -> JointLaw:
        """The joint law of the pair, and what its verifier may not do."""
        checked = CheckedVerifier(self.verifier)
        if self.rounds not in (None, 1):
            raise InvalidInput(f"rounds is {self.rounds}; give 1, or None for as many as the tokens take.")
        case = attrs.evolve(self, verifier=checked)
        if self.rounds:
            law, expected, runs = case.one_round(self.prompt, self.tokens, self.trees)
        elif self.trees is None:
            law, expected, runs = case.all_rounds(self.prompt, self.tokens)
        else:
            raise InvalidInput("Given trees are trees of one round; give rounds=1 with them.")
        return JointLaw(law, expected, runs, checked.fault)

    def kept_law(self) -> dict[tuple[int, ...], float]:
        """The law that the pair should have."""
        model = kept_model(self.verifier, self.target, self.drafter)
        return target_law(model, prompt=self.prompt, tokens=self.tokens, temperature=self.temperature)

    def one_round(
        self, prompt: tuple[int, ...], tokens: int, trees: Sequence[WeightedTree] | None = None
    ) -> tuple[dict[tuple[int, ...], float], float, int]:
        if trees is None:
            trees = drawn_trees(
                self.policy, self.drafter, prompt=prompt, temperature=self.temperature, budget=self.budget
            )
        emitted = one_round_law(
            trees,
            self.verifier,
            target=self.target,
            prompt=prompt,
            temperature=self.temperature,
            budget=self.budget,
        )
        law: dict[tuple[int, ...], float] = {}
        kept = kept_model(self.verifier, self.target, self.drafter)
        for new, chance in emitted.items():
            rest = target_law(
                kept,
                prompt=(*prompt, *new),
                tokens=max(tokens - len(new), 0),
                temperature=self.temperature,
            )
            for later, weight in rest.items():
                text = (*new, *later)[:tokens]
                law[text] = law.get(text, 0.0) + chance * weight
        return law, sum(chance * len(new) for new, chance in emitted.items()), 0

    def all_rounds(
        self, prompt: tuple[int, ...], tokens: int
    ) -> tuple[dict[tuple[int, ...], float], float, int]:
        law: dict[tuple[int, ...], float] = {}
        expected, runs = 0.0, 0
        # A round's law depends only on the text before it, the policy's state, and the row's history if the
        # policy reads rows. So each of their combinations is enumerated once.
        unfinished: dict[tuple[tuple[int, ...], Hashable], float] = {
            ((), (policy_states.first_state(self.policy), ())): 1.0
        }
        while unfinished:
            start = min(unfinished, key=lambda pair: len(pair[0]))  # nothing is added to it any more
            (text, state), chance = start, unfinished.pop(start)
            outcomes = list(
                enumerate_outcomes(
                    lambda rng, text=text, state=state: self._round([*prompt, *text], state, rng),  # type: ignore[misc]
                    budget=self.budget,
                )
            )
            runs += len(outcomes)
            if not text:
                expected = sum(weight * len(new) for weight, (new, _) in outcomes)
            for weight, (new, learnt) in outcomes:
                longer = (*text, *new)[:tokens]
                if len(longer) == tokens:
                    law[longer] = law.get(longer, 0.0) + chance * weight
                else:
                    pair = longer, learnt
                    unfinished[pair] = unfinished.get(pair, 0.0) + chance * weight
        return law, expected, runs

    def _round(
        self, text: list[int], known: tuple[Any, tuple[tuple[int, int], ...]], rng: Enumerator
    ) -> tuple[tuple[int, ...], Hashable]:
        """A round of the production loop after `text`: what it emits, and the policy's state and row history.

        Checks that the commit left the state of the new text.
        """
        # Beyond what any tree reaches, so that the limit cuts no tree.
        stops = RowStops(0, frozenset(), limit=10**9, before=len(text))
        sampling = SamplingParams(temperature=self.temperature)
        settings = RowSettings(sampling, sampling)
        state, history = known
        row = BatchRow(0, text[-1], self.policy, Streams(rng, rng), stops, settings, policy_state=state)
        row.history = history
        backend = ToyBackend(self.target)
        loop = RoundLoop(
            target=backend, drafter=self.drafter, verifier=self.verifier, held=[row], costs=TOY_COSTS
        )
        read = torch.tensor(text[:-1], dtype=torch.int64)
        backend.prefill([read])
        self.drafter.prefill([read])
        try:
            new = loop.run().rows[0].tokens
        finally:
            self.drafter.release()
        assert backend.committed == [[*text, *new][:-1]], (
            f"After {text} a round emitted {new}, but the committed state is {backend.committed[0]}."
        )
        return new, (row.policy_state, row.history)


def target_law(
    target: NextTokenModel, *, prompt: Sequence[int] = (0,), tokens: int = 3, temperature: float = 1.0
) -> dict[tuple[int, ...], float]:
    """The joint law of `tokens` tokens under sequential sampling from the target."""
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(tokens):
        law = {
            (*text, token): chance * p
            for text, chance in law.items()
            for token, p in enumerate(target.probs([*prompt, *text], temperature).tolist())
        }
    return law


def kept_law(
    verifier: Verifier,
    *,
    target: NextTokenModel,
    drafter: Drafter,
    prompt: Sequence[int] = (0,),
    tokens: int = 3,
    temperature: float = 1.0,
) -> dict[tuple[int, ...], float]:
    """The joint law of `tokens` tokens that texts of `verifier` should have.

    This is the target's law, or the one that the verifier declares for this target and the draft of
    `drafter`, which holds no rows.
    """
    model = kept_model(verifier, target, drafter)
    return target_law(model, prompt=prompt, tokens=tokens, temperature=temperature)


def largest_error(policy: TreePolicy, verifier: Verifier, **options: Unpack[ProofOptions]) -> float:
    """Returns the largest deviation of the pair's joint law from `kept_law`, over all sequences.

    Takes what `joint_law` takes and raises what it raises.
    """
    case = _Case(policy, verifier, **options)
    return case.law().error(case.kept_law())


def assert_lossless(
    policy: TreePolicy,
    verifier: Verifier,
    *,
    tolerance: float | None = None,
    **options: Unpack[ProofOptions],
) -> JointLaw:
    """Prove that the pair emits the target's law, or the one that the verifier declares.

    Takes what `joint_law` takes.

    Args:
        policy: grows the trees.
        verifier: judges them.
        tolerance: largest difference of a probability; None is what the models' dtype allows.
        options: see `ProofOptions`.

    Returns:
        The joint law, with its expected tokens a round.

    Raises:
        AssertionError: it does not. The message names the worst sequence with its probability and
            the expected one, and draws the tree from which it most likely comes.
    """
    case = _Case(policy, verifier, **options)
    joint = case.law()
    if joint.fault:
        raise LawBroken(joint.fault)
    expected = case.kept_law()
    worst, error = joint.worst(expected), joint.error(expected)
    if tolerance is None:
        tolerance = rounding(case.target.dtype)
    if not error <= tolerance:
        raise LawBroken(
            f"{policy} with {verifier} is biased: tokens {worst} after {case.prompt} have probability "
            f"{joint.probabilities.get(worst, 0.0):.12g} and should have {expected.get(worst, 0.0):.12g} "
            f"(off by {error:.2g}).\n{_where(case, worst, tolerance)}",
            error=error,
        )
    return joint


def _where(case: _Case, worst: tuple[int, ...], tolerance: float) -> str:
    """The round in which the bias arises, and the tree of that round that most likely gave `worst`."""
    for done in range(len(worst)):
        text, rest = (*case.prompt, *worst[:done]), worst[done:]
        law, _, _ = case.one_round(text, len(rest))
        kept = kept_model(case.verifier, case.target, case.drafter)
        expected = target_law(kept, prompt=text, tokens=len(rest), temperature=case.temperature)
        # A later prefix of the worst sequence may do better than the worst of its round.
        if JointLaw(law, 0.0, 0).error(expected) > tolerance:
            return f"The round after {text} is biased. {_likely_tree(case, text, rest)}"
    return "Every single round is exact: the bias comes from the state that one round leaves to the next."


def _likely_tree(case: _Case, prompt: tuple[int, ...], rest: tuple[int, ...]) -> str:
    trees = drawn_trees(
        case.policy, case.drafter, prompt=prompt, temperature=case.temperature, budget=case.budget
    )

    def chance(index: int) -> float:
        emitted = one_round_law(
            [trees[index]],
            case.verifier,
            target=case.target,
            prompt=prompt,
            temperature=case.temperature,
            budget=case.budget,
        )
        return sum(p for new, p in emitted.items() if rest[: len(new)] == new[: len(rest)])

    likely = trees[max(range(len(trees)), key=chance)].tree
    rows = target_distributions(likely, case.target, prompt, case.temperature)
    return (
        f"Of {len(trees)} trees, tokens {rest} most likely come from this one (their path is marked):\n"
        f"{tree_as_text(likely, rows, rest)}"
    )
