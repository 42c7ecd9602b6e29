"""The proof harness calls the functions of a strategy that decoding calls."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

import pytest

from draftwood import SamplingParams, SpeculativeDecoder
from draftwood.strategies import paying_nodes
from draftwood.testing import ToyBackend, ToyModel
from draftwood.testing.models.proof_models import PROOF_MODELS
from draftwood.testing.models.row_views import TOY_COSTS
from draftwood.testing.models.small_strategies import fits, small_policies, small_verifiers, toy_drafter
from draftwood.testing.proofs.enumerator import enumerate_outcomes
from draftwood.testing.proofs.joint_rows import joint_rows_law
from draftwood.testing.proofs.proposal_law import grow_tree
from tests.strategies.profiled import profiled

GROWING = (
    ("/strategies/policies/", ""),
    ("/strategies/likely_paths.py", ""),
    ("/strategies/layer_choice.py", ""),
    ("/strategies/paying_nodes.py", ""),
    ("/framework/trees/growth.py", ""),
    ("/framework/trees/array_growth.py", ""),
    ("/framework/trees/row_trees.py", ""),
    ("/framework/trees/tree.py", "TreeBuilder."),
)
"""Files, and what the names of functions in them begin with, that trees grow by."""
AFTERWARDS = ("observe", "_tuned", "_moved", "Growth.plan")
"""Parts of names: what learns from a grown tree, and what asks whether a draft may grow all levels itself."""


def entered(call: Callable[[], Any]) -> set[CodeType]:
    """The functions of policies, and of what drives them, that a call enters."""
    codes: set[CodeType] = set()
    # Else the second call would not enter what the first has worked out.
    paying_nodes.seconds.cache_clear()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    profiled(call, note)
    return {code for code in codes if grows(code)}


def grows(code: CodeType) -> bool:
    name = code.co_qualname
    if any(part in name for part in AFTERWARDS):
        return False
    return any(file in code.co_filename and name.startswith(start) for file, start in GROWING)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("policy", small_policies(), ids=str)
def test_a_policy_grows_by_the_same_functions_where_it_is_proved_and_where_it_runs(policy, rows):
    policy = policy.strategy
    toys = PROOF_MODELS[0]
    drafter = toy_drafter(policy, *toys.drafts)

    def proved() -> None:
        for _ in enumerate_outcomes(lambda rng: grow_tree(policy, drafter, prompt=(2, 0, 2), rng=rng)):
            pass
        if policy.scope == "batch":
            joint_rows_law(policy, verifier, PROOF_MODELS[:3])

    verifier = next(one.strategy for one in small_verifiers() if fits(policy, one.strategy))
    target = ToyBackend(ToyModel(vocab_size=3, seed=1))
    decoder = SpeculativeDecoder(
        target, toy_drafter(policy, *toys.drafts), policy, verifier, pass_costs=TOY_COSTS
    )

    def run() -> None:
        decoder.generate(
            [[2, 0, 2]] * rows, max_new_tokens=6, sampling=SamplingParams(temperature=1.0), seed=range(rows)
        )

    run()  # machine code is made on a first call, in a thread where nothing is seen
    in_proof, running = entered(proved), entered(run)
    assert {code.co_qualname for code in running - in_proof} == set()
    assert any("/policies/" in code.co_filename for code in running)
