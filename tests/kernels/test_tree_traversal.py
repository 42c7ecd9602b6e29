"""Traversal and class order on the device, number by number by the verification stream."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.kernels.host_rule import host_walk
from draftwood import (
    CounterRandomness,
    Deterministic,
    InvalidDistribution,
    InvalidInput,
    Outcome,
    PerChild,
    Proposal,
    SamplingParams,
    TapeRandomness,
    TokenTree,
    TreeBuilder,
    WithoutReplacement,
    WithReplacement,
)
from draftwood.kernels.configuration import Configuration
from draftwood.kernels.support import kernels_enabled
from draftwood.kernels.tree_plan.arrays import TreeArrays, TreeCase, Walk
from draftwood.kernels.tree_traversal import dispatch
from draftwood.protocols import Verifier
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.verifiers.block import Block
from draftwood.strategies.verifiers.class_ordered_rejection import ClassOrderedRejection
from draftwood.strategies.verifiers.class_ordered_traversal import ClassOrderedTraversal
from draftwood.strategies.verifiers.orders.class_order import ClassOrder
from draftwood.strategies.verifiers.residual import Residual
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.strategies.verifiers.walk import TreeWalk
from draftwood.testing.checks.strategy_checks import checks_for
from tests.framework.decoding import DRAFT, PROMPTS, TARGET, decoder
from tests.kernels import frames
from tests.kernels.judged_trees import DRAFTS, LAWS, TARGETS, grown, placed, tape_of
from tests.kernels.test_tree_rejection import Single
from tests.kernels.tree_cases import case_of, on_device
from tests.thorough import every, marks_unless, some_of

pytestmark = pytest.mark.triton

FORMS: dict[str, tuple[Verifier, dict[str, bool]]] = {
    "traversal": (Traversal(), {"leaf_first": True, "classes": False}),
    "class-ordered-traversal": (ClassOrderedTraversal(), {"leaf_first": True, "classes": True}),
    "class-ordered-rejection": (ClassOrderedRejection(), {"leaf_first": False, "classes": True}),
}
BY_NODE = ["traversal", "class-ordered-traversal"]
"""What walks in class order from the root walks like the second of these, and judges like it."""
SIBLINGS: list[list[type[Proposal]]] = [[WithoutReplacement], *([law] for law in LAWS), LAWS]


@contextmanager
def programs_of(tokens: int) -> Iterator[None]:
    """Programs that read so many tokens each in a pass, in blocks of 8."""
    small = tuple(replace(one, constants={**one.constants, "BLOCK": 8}) for one in dispatch.CONFIGURATIONS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "CONFIGURATIONS", small)
        patch.setattr(dispatch, "SPAN", tokens)
        yield


def row_of(
    nodes: int, vocab: int, *, laws: list[type[Proposal]], draft: str, target: str, seed: int
) -> tuple[TokenTree, Tensor, Tensor]:
    """A tree, its targets, and a tape that suffices."""
    tree, targets = grown(nodes, vocab, laws=laws, draft=draft, target=target, seed=seed)
    return tree, targets, tape_of(3 * nodes + 1, seed + 1)


def agree(cases: Sequence[TreeCase], form: str, device: torch.device) -> list[Walk]:
    """The kernel does what the host rule does, draw by draw."""
    verifier, options = FORMS[form]
    expected = [walk for case in cases if (walk := host_walk(verifier, case)) is not None]
    assert len(expected) == len(cases)
    assert dispatch.walk(TreeArrays.of([on_device(case, device) for case in cases]), **options) == expected
    return expected


@pytest.mark.parametrize("form", every(3, FORMS))
@settings(max_examples=6)
@given(
    sizes=st.lists(st.integers(1, 10), min_size=1, max_size=2),
    vocab=st.sampled_from([2, 3, 7, 16, 50]),
    laws=st.sampled_from(SIBLINGS),
    draft=st.sampled_from(DRAFTS),
    target=st.sampled_from(TARGETS),
    seed=st.integers(0, 2**32),
)
def test_as_the_host_rule_judges(
    form: str,
    sizes: list[int],
    vocab: int,
    laws: list[type[Proposal]],
    draft: str,
    target: str,
    seed: int,
    device: torch.device,
) -> None:
    cases = [
        case_of(*row_of(nodes, vocab, laws=laws, draft=draft, target=target, seed=seed + row))
        for row, nodes in enumerate(sizes)
    ]
    with programs_of(16):
        agree(cases, form, device)


def judged_together(
    verifier: Verifier, rows: Sequence[tuple[TokenTree, Tensor, Tensor]], device: torch.device
) -> tuple[list[Outcome], list[int]]:
    """The outcomes, and how many uniforms each took; from here on the plain verifier is a mistake."""
    rngs = [TapeRandomness(tape) for *_, tape in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TreeWalk, "verify", None)
        trees = [placed(tree, device) for tree, *_ in rows]
        outcomes = verifier.verify_rows(trees, [targets.to(device) for _, targets, _ in rows], rngs)
    return outcomes, [rng.used for rng in rngs]


@pytest.mark.parametrize(
    ("form", "seed"),
    [
        # Classes are of siblings without replacement alone, which the first two have.
        pytest.param(form, seed, marks=marks_unless(seed < 2 or form == "traversal"))
        for form in FORMS
        for seed in range(6)
    ],
)
def test_as_the_plain_verifier_judges(form: str, seed: int, device: torch.device) -> None:
    chance = random.Random(seed)
    laws = SIBLINGS[seed] if seed else LAWS
    rows = [
        row_of(
            chance.randint(1, 20),
            40,
            laws=laws,
            draft=chance.choice(DRAFTS),
            target=chance.choice(TARGETS),
            seed=seed + row,
        )
        for row in range(2)
    ]
    verifier = FORMS[form][0]
    rngs = [TapeRandomness(tape) for *_, tape in rows]
    expected = [
        verifier.verify(tree, targets, rng) for (tree, targets, _), rng in zip(rows, rngs, strict=True)
    ]
    assert judged_together(verifier, rows, device) == (expected, [rng.used for rng in rngs])


def test_a_chain_is_judged_as_a_block(device: torch.device) -> None:
    for seed in range(4):
        tree, node, vocab = TreeBuilder(0), 0, 9
        drafts = torch.randn(12, vocab, generator=torch.Generator().manual_seed(seed)).softmax(-1)
        for p in drafts:
            node = tree.add_children(node, [(int(p.argmax()) - seed) % vocab], WithReplacement(p))[0]
        targets = torch.cat([drafts, drafts[:1]]).roll(1, 1) * 0.6 + torch.cat([drafts, drafts[:1]]) * 0.4
        rows = [(tree.finish(), targets, tape_of(14, seed))]
        rng = TapeRandomness(rows[0][2])
        expected = Block().verify(rows[0][0], targets, rng)
        assert judged_together(Block(), rows, device) == ([expected], [rng.used])


@pytest.mark.parametrize("form", some_of(FORMS, BY_NODE))
def test_a_large_vocabulary(form: str, device: torch.device) -> None:
    # One that needs two programs as they are.
    rows = [row_of(9, 5000, laws=[WithoutReplacement], draft="sharp", target="near", seed=4)]
    agree([case_of(*row) for row in rows], form, device)


@pytest.mark.parametrize("form", some_of(FORMS, BY_NODE))
def test_the_ends_of_the_unit_interval(form: str, device: torch.device) -> None:
    tree, targets, _ = row_of(9, 20, laws=[WithoutReplacement], draft="sharp", target="near", seed=8)
    for u in (0.0, 1 - 2**-53):
        agree([case_of(tree, targets, torch.full((40,), u, dtype=torch.float64))], form, device)


def one_node(tokens: list[int], proposal: Proposal) -> TokenTree:
    tree = TreeBuilder(0)
    tree.add_children(0, tokens, proposal)
    return tree.finish()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("law", [WithoutReplacement, WithReplacement])
def test_what_is_left_stays_when_nothing_would_be(form: str, law: Any, device: torch.device) -> None:
    # The target is the draft, and the children are tokens that neither has: every residual vanishes.
    p = torch.tensor([0.5, 0.0, 0.25, 0.0, 0.0, 0.25])
    tape = torch.full((9,), 0.6, dtype=torch.float64)
    (walk,) = agree([case_of(one_node([1, 3, 4], law(p)), p.repeat(4, 1), tape)], form, device)
    assert (walk.path, walk.extra) == ((0,), 2)


def test_what_a_child_left_stays_when_the_next_leaves_nothing(device: torch.device) -> None:
    p = torch.tensor([0.5, 0.0, 0.5, 0.0, 0.0])
    other = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0])
    tree = one_node([1, 3, 4], PerChild((other, p, p)))
    tape = torch.tensor([0.3, 0.6]).double()
    (walk,) = agree([case_of(tree, p.repeat(4, 1), tape)], "traversal", device)
    assert walk == Walk((0,), 2, False, 2)


@pytest.mark.parametrize("form", ["class-ordered-traversal", "class-ordered-rejection"])
def test_siblings_that_change_places(form: str, device: torch.device) -> None:
    cases = list[TreeCase]()
    for seed in range(400):
        chance, rng = torch.Generator().manual_seed(seed), CounterRandomness.seeded(seed)
        p, target = torch.randn(2, 7, generator=chance).mul(2).softmax(-1)
        tokens, law = rng.without_replacement(p, 3), WithoutReplacement(p)
        # Coins that fall on both classes, and later ones that reject.
        tape = torch.cat([tape_of(2, seed) * 0.4, 0.5 + tape_of(10, seed) / 2])
        first = ClassOrder().tries(tokens, law, TapeRandomness(tape)).next(Residual.of(target))
        if (first is not None and first.index > 0) or seed < 8:
            cases.append(case_of(one_node(tokens, law), target.repeat(4, 1), tape))
        if len(cases) == 16:
            break
    assert len(cases) == 16
    agree(cases, form, device)


def test_a_sibling_that_came_without_the_coin_of_its_token(device: torch.device) -> None:
    # Neither is of the class, so that what the second one is drawn from holds nothing of tokens that came.
    p = torch.tensor([0.92, 0.03, 0.05])
    targets = torch.tensor([0.96, 0.01, 0.03]).repeat(3, 1)
    # It passes with 0.54, and with 1 by a law in which the first one came whatever its coin was.
    tape = torch.tensor([0.5, 0.5, 0.9, 0.8, 0.5]).double()
    case = case_of(one_node([1, 2], WithoutReplacement(p)), targets, tape)
    (walk,) = agree([case], "class-ordered-rejection", device)
    assert walk == Walk((0,), 0, False, 5)


@pytest.mark.thorough
@pytest.mark.parametrize("form", some_of(FORMS, BY_NODE))
def test_a_nearly_certain_draft(form: str, device: torch.device) -> None:
    orders = [[0, 1], [1, 0], [2, 1, 0], [0, 2, 1]]
    for place, rest in enumerate((1e-3, 1e-11, 1e-39)):
        p = torch.tensor([1 - rest, 0.6 * rest, 0.4 * rest], dtype=torch.float64).float()
        # Windows take long in the interpreter.
        chosen = orders if form == "traversal" else [orders[place], orders[3]]
        for seed, tokens in enumerate(chosen):
            targets = torch.tensor([0.2, 0.2, 0.6]).repeat(4, 1)
            case = case_of(one_node(tokens, WithoutReplacement(p)), targets, tape_of(12, seed))
            agree([case], form, device)


@pytest.mark.parametrize("form", some_of(FORMS, BY_NODE))
def test_rows_that_cannot_be_judged_leave_the_others_as_they_are(form: str, device: torch.device) -> None:
    verifier, kind = FORMS[form]
    cases = [
        case_of(*row_of(nodes, 33, laws=LAWS, draft="smooth", target="near", seed=seed))
        for seed, nodes in enumerate([5, 1, 12])
    ]
    expected = [host_walk(verifier, case) for case in cases]
    assert None not in expected
    bad_law = [None if law is None else law * 2 for law in cases[2].laws]
    cases += [
        replace(cases[2], uniforms=cases[2].uniforms[:1]),
        replace(cases[0], targets=torch.full_like(cases[0].targets, float("nan"))),
        replace(cases[2], laws=bad_law, draw_kinds=[max(one, 1) for one in cases[2].draw_kinds]),
    ]
    assert [host_walk(verifier, case) for case in cases[3:]] == [None] * 3
    found = dispatch.walk(TreeArrays.of([on_device(case, device) for case in cases]), **kind)
    assert found == [*expected, None, None, None]


@pytest.mark.parametrize(
    ("draft", "target", "uniforms", "error"),
    [
        ([0.5, 0.6], [0.5, 0.5], 9, "The draft distribution of WithoutReplacement sums to 1.1"),
        ([1.5, -0.5], [0.5, 0.5], 9, "holds -0.5"),
        ([0.5, float("nan")], [0.5, 0.5], 9, "sums to nan"),
        ([0.5, 0.5], [0.0, 0.0], 9, "Cannot draw from weights that sum to 0"),
        ([0.5, 0.5], [0.5, 0.5], 1, "The tape of 1 uniforms is used up at 1"),
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_errors_are_those_of_the_plain_verifier(
    form: str, draft: list[float], target: list[float], uniforms: int, error: str
) -> None:
    tree = one_node([0, 1], WithoutReplacement(torch.tensor(draft)))
    rng = TapeRandomness(torch.full((uniforms,), 0.9, dtype=torch.float64))
    with pytest.raises((InvalidDistribution, InvalidInput), match=error):
        FORMS[form][0].verify_rows([tree], [torch.tensor([target] * 3)], [rng])


@contextmanager
def counted() -> Iterator[list[str]]:
    """The kernels that are launched."""
    launched: list[str] = []
    launch = Configuration.launch

    def count(self: Configuration, grid: tuple[int, ...], **arguments: Any) -> None:
        launched.append(self.kernel.split(":")[1])
        launch(self, grid, **arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Configuration, "launch", count)
        yield launched


@pytest.mark.parametrize("form", some_of(FORMS, BY_NODE))
def test_launches_do_not_grow_with_rows(form: str, device: torch.device) -> None:
    nodes = 5
    rows = [row_of(nodes, 17, laws=[WithoutReplacement], draft="smooth", target="near", seed=3)] * 2
    counts = []
    for batch in (rows[:1], rows):
        cases = TreeArrays.of([on_device(case_of(*row), device) for row in batch])
        with programs_of(16), counted() as launched:
            dispatch.walk(cases, **FORMS[form][1])
        counts.append(len(launched))
    # What starts the rows, a child that fails, a window, the extra token; 400 for 64 nodes would be too many.
    assert counts[0] == counts[1] <= 2 * (nodes - 1) + 2
    with counted() as launched:  # a program that is alone makes all passes
        dispatch.walk(cases, **FORMS[form][1])
    assert launched == ["start", "step"]


@pytest.mark.thorough
def test_no_row_needs_more_passes_than_are_launched(device: torch.device) -> None:
    # No child is wanted, and so all fail one after another.
    tree = TreeBuilder(0)
    p = torch.tensor([0.3, 0.3, 0.2, 0.1, 0.1, *[0.0] * 4])
    for node in (0, 1):
        tree.add_children(node, [0, 1, 2], WithoutReplacement(p))
    targets = torch.tensor([*[1e-9] * 5, *[(1 - 5e-9) / 4] * 4]).repeat(len(tree), 1)
    case = case_of(tree.finish(), targets, torch.full((99,), 0.9, dtype=torch.float64))
    passes = dispatch.passes
    for form in BY_NODE:
        with programs_of(8), pytest.MonkeyPatch.context() as patch:
            agree([case], form, device)
            patch.setattr(dispatch, "passes", lambda *given, **options: passes(*given, **options) - 1)
            assert dispatch.walk(TreeArrays.of([on_device(case, device)]), **FORMS[form][1]) == [None]


@pytest.mark.parametrize("form", ["traversal", "class-ordered-traversal"])
def test_a_decoder_writes_the_same_text(form: str) -> None:
    verifier = FORMS[form][0]
    one = decoder(
        FixedTree(2, 2), draft=ModelDrafter(Single(DRAFT)), target=Single(TARGET), verifier=verifier
    )
    decode = partial(
        one.generate,
        PROMPTS,
        max_new_tokens=4,
        sampling=SamplingParams(temperature=1.0),
        seed=[5, 6, 7],
        return_dict_in_generate=True,
    )
    with kernels_enabled(False):
        expected = decode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TreeWalk, "verify", None)  # from here on the plain verifier is a mistake
        result = decode()
    assert result.tokens == expected.tokens


def test_rows_with_one_stream_are_judged_one_after_another(device: torch.device) -> None:
    tree, targets, tape = row_of(12, 20, laws=LAWS, draft="smooth", target="far", seed=3)
    trees, rows = [placed(tree, device)] * 2, [targets.to(device)] * 2
    shared, other = (TapeRandomness(torch.cat([tape, tape])) for _ in "ab")
    expected = [Traversal().verify(trees[0], rows[0], other) for _ in range(2)]
    assert Traversal().verify_rows(trees, rows, [shared] * 2) == expected
    assert shared.used == other.used


@pytest.mark.parametrize("form", FORMS)
def test_the_harness_proves_rows_judged_together(form: str) -> None:
    dict(checks_for(FORMS[form][0], models=2))["together"]()


@attrs.frozen
class RootOnly(Traversal):
    """A variant that changes a step."""

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Any) -> Outcome:
        return Outcome.of(tree, [0], extra=rng.choose(target_probs[0]), bonus=len(tree) == 1)


def test_the_plain_verifier_takes_the_rest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dispatch, "walk", None)
    tree, targets, tape = row_of(9, 12, laws=[Deterministic], draft="smooth", target="near", seed=2)
    expected = Traversal().verify(tree, targets, TapeRandomness(tape))
    reason = "tree_traversal: runs the reference, because its distributions are torch.float64"
    with frames.reference_serves(reason, caplog):
        assert Traversal().verify_rows([tree], [targets.double()], [TapeRandomness(tape)]) == [expected]
    (outcome,) = RootOnly().verify_rows([tree], [targets], [CounterRandomness.seeded(0)])
    assert outcome.path == (0,)
