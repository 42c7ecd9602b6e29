"""Runs checks of policies and verifiers over the chosen toy models, then over random ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from draftwood.laws.proposals import Proposal
from draftwood.protocols import TreePolicy, Verifier
from draftwood.testing.models.generators import toy_models
from draftwood.testing.models.proof_models import PROOF_MODELS, VOCAB, ProofModels
from draftwood.testing.models.toy import NextTokenModel, ToyModel

MANY_ROWS = 24
"""Rows among which a shared budget binds."""


def assert_declared(strategy: TreePolicy | Verifier, *flags: str) -> None:
    """Check that its laws are classes of proposals, `flags` are true or false, and its source is in words."""
    laws = strategy.laws
    assert isinstance(laws, frozenset), f"laws is {laws!r}; give a frozenset of proposal laws."
    assert laws, "laws is empty; name the proposal laws of the trees that it grows, or can judge."
    strange = [law for law in laws if not (isinstance(law, type) and issubclass(law, Proposal))]
    assert not strange, f"laws holds {strange}; give classes of proposals."
    for name in flags:
        assert isinstance(getattr(strategy, name), bool), f"{name} is no bool."
    assert isinstance(strategy.source, str), f"source is {strategy.source!r}; name a paper or an author."


def for_models(
    prove: Callable[[NextTokenModel, NextTokenModel, NextTokenModel], None],
    verifier: Verifier | None,
    models: int,
    *,
    toys: Sequence[ProofModels] = PROOF_MODELS,
) -> None:
    """Call `prove` with the models of `toys`, then with `models` random ones.

    These have two drafts each: one near the target or anywhere, and one anywhere.
    """
    for chosen in toys if verifier is None else served_models(verifier, toys):
        prove(chosen.target, *chosen.drafts)
    if not models:
        return

    @given(data=st.data())
    @check_settings(models)
    def prove_one(data: st.DataObject) -> None:
        if verifier is not None and verifier.greedy:
            # One-hot in every context: what temperature 0 makes of any target.
            target = ToyModel(VOCAB, seed=data.draw(st.integers(0, 2**32 - 1), "seed"), sparsity=1.0)
        else:
            target = data.draw(toy_models(VOCAB), "target")
        draft = data.draw(st.one_of(toy_models(VOCAB), toy_models(near=target)), "draft")
        prove(target, draft, data.draw(toy_models(VOCAB), "second draft"))

    prove_one()


def served_models(verifier: Verifier, toys: Sequence[ProofModels]) -> list[ProofModels]:
    """Returns the toys, with one-hot targets for a verifier that only supports temperature 0."""
    return [chosen.at_zero for chosen in toys] if verifier.greedy else list(toys)


def check_settings(examples: int) -> settings:
    """Hypothesis settings for a check inside a test: no deadline, no files, no complaints about slowness."""
    return settings(
        max_examples=max(examples, 1),
        deadline=None,
        database=None,
        # Finding the values that do not matter costs a thousand more runs, and the message names those that
        # do.
        phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
