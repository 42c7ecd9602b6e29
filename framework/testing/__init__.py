"""The public proof harness. Imports without pytest."""

from draftwood.testing.enumerator import BudgetExceeded, Enumerator, enumerate_outcomes
from draftwood.testing.lossless import JointLaw, assert_lossless, joint_law, target_law
from draftwood.testing.toy import ToyBackend, ToyModel

__all__ = [
    "BudgetExceeded",
    "Enumerator",
    "JointLaw",
    "ToyBackend",
    "ToyModel",
    "assert_lossless",
    "enumerate_outcomes",
    "joint_law",
    "target_law",
]
