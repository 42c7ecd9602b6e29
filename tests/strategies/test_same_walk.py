"""The proof harness calls the functions that decoding calls, for every registered verifier.

On the host both run the same functions, which this test sees. Loops that are compiled for the CPU are called
by those functions, so they are the same too. Kernels of a GPU are held against the host rule draw by draw
(`tests/kernels`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import attrs
import pytest
import torch

from draftwood import (
    CounterRandomness,
    InvalidInput,
    Outcome,
    Randomness,
    SamplingParams,
    SpeculativeDecoder,
    TokenTree,
    TreePolicy,
    Verifier,
)
from draftwood.kernels.support import kernels_enabled
from draftwood.protocols.registry import create, names
from draftwood.strategies import verifiers
from draftwood.strategies.path_chances import path_chances
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.independent_paths import IndependentPaths
from draftwood.strategies.verifiers import walk
from draftwood.strategies.verifiers.batched import on_device
from draftwood.strategies.verifiers.orders.race_order import RaceOrder
from draftwood.strategies.verifiers.orders.sibling_order import DrawnOrder, Tries
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.strategies.verifiers.walk import TreeWalk
from draftwood.testing import ToyBackend, ToyModel, assert_lossless, joint_law
from draftwood.testing.models.small_strategies import fits, toy_drafter
from tests.strategies.profiled import profiled

FOLDER = str(Path(verifiers.__path__[0]).resolve())
TARGET, DRAFT = ToyModel(3, seed=1), ToyModel(3, seed=7)
POLICIES: list[TreePolicy] = [
    FixedTree(2, (2, 1), 4),
    IndependentPaths(2, 2),
    FixedTree(1, 2, law="top-and-sample"),
    Chain(2),
]
CHOOSES = {"device_forms", "on_device", "host_rows", "targets"}
"""Files that choose who judges a row, or bring its distributions where it is judged."""


@attrs.define
class Entered:
    """Functions of `strategies/verifiers` that were entered.

    Attributes:
        judging: below the verifier's `verify`.
        around: elsewhere.
        calls: of `verify`.
    """

    judging: set[CodeType] = attrs.field(factory=set)
    around: set[CodeType] = attrs.field(factory=set)
    calls: int = 0


def entered(verifier: Verifier, run: Callable[[], object]) -> Entered:
    """Functions that `run` enters."""
    found, verify, depth = Entered(), type(verifier).verify.__code__, 0

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal depth
        code = frame.f_code
        if event == "call" and code is verify:
            depth += 1
            found.calls += 1
        if event == "call" and code.co_filename.startswith(FOLDER):
            (found.judging if depth else found.around).add(code)
        if event == "return" and code is verify:
            depth -= 1

    profiled(run, profile)
    return found


def called(codes: set[CodeType]) -> list[str]:
    return sorted(f"{Path(code.co_filename).stem}.{code.co_qualname}" for code in codes)


@pytest.mark.parametrize("name", names("verifiers"))
def test_the_harness_enters_what_decoding_enters(name: str) -> None:
    verifier: Verifier = create("verifiers", name)
    policy = next(policy for policy in POLICIES if fits(policy, verifier))
    temperature = 0.0 if verifier.greedy else 1.0
    rounds = 0

    def decode() -> None:
        nonlocal rounds
        decoder = SpeculativeDecoder(ToyBackend(TARGET), toy_drafter(policy, DRAFT), policy, verifier)
        result: Any = decoder.generate(
            [[0], [1, 2]],
            max_new_tokens=12,
            sampling=SamplingParams(temperature=temperature),
            seed=[5, 6],
            return_dict_in_generate=True,
        )
        rounds = sum(len(one.rows) for one in result.statistics.rounds)

    def prove() -> None:
        proof = assert_lossless if verifier.lossless else joint_law
        drafter = toy_drafter(policy, DRAFT)
        proof(policy, verifier, target=TARGET, drafter=drafter, temperature=temperature, tokens=1)

    with kernels_enabled(False):
        decoded, proved = entered(verifier, decode), entered(verifier, prove)
    # Every row of every round is judged by the method that is proved.
    assert decoded.calls == rounds > 0
    assert proved.calls > 0
    assert called(decoded.judging - proved.judging) == []
    aside = {
        code.co_name
        for code in decoded.around
        if Path(code.co_filename).stem not in CHOOSES and not code.co_name.startswith("<")
    }
    assert aside <= {"verify_rows", "laws", "adaptive"}


def test_the_walk_that_has_no_name_is_lossless_too() -> None:
    policy, verifier = FixedTree(2, (2, 1), 4), TreeWalk(RaceOrder(), leaf_first=False)
    assert_lossless(policy, verifier, target=TARGET, drafter=toy_drafter(policy, DRAFT), tokens=2)


@attrs.frozen
class RootOnly(Traversal):
    """A variant that changes a step."""

    def verify(self, tree: TokenTree, target_probs: object, rng: Randomness) -> Outcome:
        return super().verify(tree, target_probs, rng)  # type: ignore[arg-type]


@attrs.frozen
class OwnOrder(DrawnOrder):
    """An order of somebody's own."""

    def tries(self, tokens: object, proposal: object, rng: Randomness) -> Tries:
        return super().tries(tokens, proposal, rng)  # type: ignore[arg-type]


@attrs.frozen
class Renamed(Traversal):
    """A variant that changes nothing."""


WITH_KERNELS = ("traversal", "class-ordered-traversal", "race-traversal")


@pytest.mark.parametrize(
    ("verifier", "kernel"),
    [
        *((create("verifiers", name), True) for name in WITH_KERNELS),
        (TreeWalk(DrawnOrder(), leaf_first=False), True),
        (Renamed(), True),
        (RootOnly(), False),
        (TreeWalk(OwnOrder(), leaf_first=True), False),
        (TreeWalk(RaceOrder(), leaf_first=False), False),
    ],
    ids=str,
)
def test_a_variant_meets_no_kernel(verifier: TreeWalk, kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[object] = []

    def judged(trees: object, *args: object, form: object) -> list[None]:
        met.append(form)
        return [None] * len(trees)  # type: ignore[arg-type]

    monkeypatch.setattr(walk, "judged_on_device", judged)
    policy = FixedTree(1, 2)
    joint_law(policy, verifier, target=TARGET, drafter=toy_drafter(policy, DRAFT), tokens=1)
    assert bool(met) is kernel
    assert all(isinstance(one, on_device.DeviceForm) for one in met)


@pytest.mark.parametrize("name", ["judge", "sibling_order", "node_streams"])
def test_a_method_that_the_walk_does_not_call_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=rf"Mine defines {name}\(\), which no TreeWalk calls; "):
        type("Mine", (Traversal,), {name: lambda self: None})


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"order": "drawn", "leaf_first": True}, "order is 'drawn'; give a SiblingOrder"),
        ({"order": DrawnOrder, "leaf_first": True}, "order is <class .*give a SiblingOrder"),
        ({"order": DrawnOrder(), "leaf_first": 1}, "leaf_first is 1; give True or False"),
    ],
)
def test_choices_are_checked(choices: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        TreeWalk(**choices)


@pytest.mark.parametrize(("name", "value"), [("order", RaceOrder()), ("leaf_first", False)])
def test_a_choice_that_a_class_attribute_cannot_fix_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=f"Mine has the class attribute {name} = "):
        type("Mine", (Traversal,), {name: value})()


def test_chances_of_paths_are_those_of_leaf_first_walks() -> None:
    tree, rng = TokenTree(torch.tensor([0]), torch.tensor([-1]), {}), CounterRandomness.seeded(0)
    with pytest.raises(InvalidInput, match=r"RecursiveRejection\(\) walks from the root down; give"):
        path_chances(RecursiveRejection(), tree, torch.tensor([[0.5, 0.5]]), rng)
