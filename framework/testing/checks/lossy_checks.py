"""The check of a verifier that declares a loss: the error of its texts' law, and the tokens that it gains."""

from __future__ import annotations

from typing import Any

from draftwood.laws.proposals import Proposal
from draftwood.protocols import Verifier, registry
from draftwood.testing.checks.check_runs import served_models
from draftwood.testing.models.proof_models import PROOF_MODELS
from draftwood.testing.models.small_strategies import fits, toy_drafter
from draftwood.testing.models.tree_shapes import CHAINS, ShapedPolicy
from draftwood.testing.proofs.lossless import joint_law, target_law

_TOKENS = 3


def check_lossiness(verifier: Verifier, law: type[Proposal], models: int) -> str:
    """Returns the largest error of a sequence's probability, and the tokens a round won by that."""
    policy = ShapedPolicy(CHAINS["chain of 2"], law)
    exact = registry.create("verifiers", "recursive-rejection")
    compared = fits(policy, exact)
    error, tokens, without = 0.0, 0.0, 0.0
    toys = served_models(verifier, PROOF_MODELS)
    for chosen in toys:
        drafter = toy_drafter(policy, *chosen.drafts)
        options: dict[str, Any] = {"target": chosen.target, "drafter": drafter, "tokens": _TOKENS}
        lossy = joint_law(policy, verifier, **options)
        error = max(error, lossy.error(target_law(chosen.target, tokens=_TOKENS)))
        tokens += lossy.expected_tokens / len(toys)
        if compared:
            without += joint_law(policy, exact, rounds=1, **options).expected_tokens / len(toys)
    compared_with = f", where recursive rejection gives {without:.2f}" if compared else ""
    return (
        f"lossy, as declared: the probability of {_TOKENS} tokens is off by up to {error:.2g}; {tokens:.2f} "
        f"tokens per round over chains of 2{compared_with} (mean of {len(toys)} toy models)"
    )
