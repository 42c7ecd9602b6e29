"""The public proof harness. Imports without pytest."""

from draftwood.testing.block_efficiency import (
    WeightedTree,
    drawn_trees,
    expected_tokens,
    one_round,
    optimal_tokens,
)
from draftwood.testing.broken import LawBroken
from draftwood.testing.checks import check_strategy, checks_for, parametrize_with_checks
from draftwood.testing.enumerator import BudgetExceeded, Endless, Enumerator, enumerate_outcomes
from draftwood.testing.lossless import JointLaw, assert_lossless, joint_law, largest_error, target_law
from draftwood.testing.proposal_law import assert_proposal_law
from draftwood.testing.toy import ToyBackend, ToyModel

__all__ = [
    "BudgetExceeded",
    "Endless",
    "Enumerator",
    "JointLaw",
    "LawBroken",
    "ToyBackend",
    "ToyModel",
    "WeightedTree",
    "assert_lossless",
    "assert_proposal_law",
    "check_strategy",
    "checks_for",
    "drawn_trees",
    "enumerate_outcomes",
    "expected_tokens",
    "joint_law",
    "largest_error",
    "one_round",
    "optimal_tokens",
    "parametrize_with_checks",
    "target_law",
]
