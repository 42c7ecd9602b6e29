"""The four protocols. Subclass one to add a strategy; its laws are in its docstring.

Rows are independent sequences. Every backend and drafter holds them in one order: `prefill` appends
rows, `release` removes some (the later ones move up), and every other call has one entry a row.
The root of every tree is the last committed token; it is not yet in any state, so a prompt of n
tokens prefills n - 1 and its last token is the first root.

Every call that target and drafter both get, `prefill`, `commit` and `release`, is made on the target first:
when a drafter's `commit` runs, the target has committed the same tokens, and `take_features` gives theirs.
"""

from draftwood.protocols.drafter import Drafter
from draftwood.protocols.state_backend import StateBackend
from draftwood.protocols.tree_policy import ArrayPolicy, BatchPolicy, LearningPolicy, TreePolicy
from draftwood.protocols.verifier import Verifier

__all__ = [
    "ArrayPolicy",
    "BatchPolicy",
    "Drafter",
    "LearningPolicy",
    "StateBackend",
    "TreePolicy",
    "Verifier",
]
