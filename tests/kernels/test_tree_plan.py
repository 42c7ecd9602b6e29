"""The plan of a round's trees, against one that is built node by node."""

from __future__ import annotations

import random
from itertools import pairwise

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood import (
    Deterministic,
    PerChild,
    Proposal,
    TokenTree,
    TreeBatch,
    TreeBuilder,
    WithoutReplacement,
    WithReplacement,
)
from draftwood.kernels.testing import TOPOLOGIES
from draftwood.kernels.tree_plan.arrays import (
    LINE,
    TreeArrays,
    TreeCase,
    links,
    padded,
    padded_uniforms,
    row_addresses,
)
from draftwood.strategies.verifiers.batched.on_device import batch_arrays, tree_case
from tests.kernels.judged_trees import LAWS, grown, tape_of


def line_by_line(case: TreeCase, lines: int) -> list[list[int]]:
    """The plan of one row as its definition reads."""
    plan = [[0] * LINE for _ in range(lines)]
    for line in plan[len(case.tokens) :]:
        line[7] = -1
    for node, line in enumerate(plan[: len(case.tokens)]):
        children = case.children[node]
        line[0], line[3], line[7] = case.tokens[node], case.draw_kinds[node], case.parents[node]
        line[1] = children[0] if children else 0
        law = case.laws[node]
        line[4] = 0 if law is None else law.data_ptr()
        line[5] = case.targets[node].data_ptr()
        for earlier, later in pairwise(children):
            plan[earlier][2] = later
    return plan


@settings(max_examples=15)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    tapes=st.lists(st.integers(0, 50), min_size=5, max_size=5),
    seed=st.integers(0, 2**32),
)
def test_a_plan_is_that_of_its_nodes(sizes: list[int], tapes: list[int], seed: int) -> None:
    cases = []
    for row, (nodes, numbers) in enumerate(zip(sizes, tapes, strict=False)):
        tree, targets = grown(nodes, 7, laws=LAWS, draft="smooth", target="near", seed=seed + row)
        case = tree_case(tree, targets, tape_of(numbers, seed))
        assert case is not None
        cases.append(case)
    arrays = TreeArrays.of(cases)
    plan, lines = arrays.plan(), arrays.lines
    assert lines > max(len(case.tokens) for case in cases)
    for row, case in zip(plan, cases, strict=True):
        expected = torch.tensor(line_by_line(case, lines))
        inside = len(case.tokens)
        # What lies behind a row's nodes is nobody's child, so its addresses are not read.
        others = [0, 1, 2, 3, 4, 7]
        assert torch.equal(row[:, others], expected[:, others]) or row[-1, 7] == 0
        assert torch.equal(row[:inside, 5], expected[:inside, 5])
        uniforms = row[:, 6].contiguous().view(torch.float64)
        count = min(len(case.uniforms), lines)
        assert torch.equal(uniforms[:count], case.uniforms[:count])
        assert uniforms[count:].isnan().all()


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_links_of_every_topology(topology: str) -> None:
    chance = random.Random(0)
    rows = [TOPOLOGIES[topology](nodes, chance) for nodes in (1, 7, 30)]
    first, further = links(padded(rows, -1))
    for parents, firsts, furthers in zip(rows, first.tolist(), further.tolist(), strict=True):
        children = {
            node: [child for child, above in enumerate(parents) if above == node] for node in range(30)
        }
        for node in range(30):
            walked, child = [], firsts[node]
            while child:
                walked.append(child)
                child = furthers[child]
            assert walked == children[node]


@pytest.mark.parametrize("law", [Deterministic, WithReplacement, WithoutReplacement])
def test_a_batch_needs_no_look_at_its_nodes(law: type[Proposal]) -> None:
    vocab, sizes = 9, [6, 1, 4]
    drafts = torch.rand(3, 6, vocab)[..., : vocab - 2]
    drafts /= drafts.sum(-1, keepdim=True)
    targets = torch.rand(3, 7, vocab - 2)
    trees: list[TokenTree] = []
    asked = np.zeros((3, 6), dtype=np.int64)
    for row, nodes in enumerate(sizes):
        tree, chance = TreeBuilder(row), random.Random(row)
        numbers = list(range(6))
        chance.shuffle(numbers)
        asked[row] = numbers
        for node in range(nodes):
            p = drafts[row, numbers[node]]
            tokens = list(range(min(2, nodes - len(tree))))
            tree.add_children(node, tokens, law(tokens, vocab - 2) if law is Deterministic else law(p))  # type: ignore[call-arg]
        trees.append(tree.finish())
    tapes = [tape_of(number, number) for number in (7, 3, 5)]
    cases = [tree_case(tree, target, tape) for tree, target, tape in zip(trees, targets, tapes, strict=True)]
    expected = TreeArrays.of([case for case in cases if case is not None])
    batch = TreeBatch(
        tokens=expected.tokens,
        parents=expected.parents,
        depths=np.zeros_like(expected.tokens),
        counts=expected.counts,
        law=law,
        levels=(drafts[:, :2], drafts[:, 2:]),
        asked=np.stack([asked >= 2, asked - 2 * (asked >= 2)], 2).astype(np.int64),
    )
    arrays = batch_arrays(batch, targets, padded_uniforms(tapes))
    assert arrays is not None
    child = expected.parents >= 0
    assert (arrays.draw_kinds == expected.draw_kinds)[child].all()
    assert (arrays.laws == expected.laws)[child].all()
    assert (arrays.laws == 0)[~child].all()
    assert (arrays.targets == row_addresses(list(targets), 6)).all()
    assert np.array_equal(arrays.uniforms, expected.uniforms, equal_nan=True)
    assert (arrays.vocab, arrays.device) == (expected.vocab, expected.device)


def test_what_no_kernel_reads_is_left_to_a_look_at_the_nodes() -> None:
    probs = torch.rand(1, 2, 5)
    ints = np.zeros((1, 2), dtype=np.int64)
    batch = TreeBatch(
        tokens=ints,
        parents=ints - 1,
        depths=ints,
        counts=np.array([2]),
        law=WithoutReplacement,
        levels=(probs,),
        asked=np.zeros((1, 2, 2), dtype=np.int64),
    )
    uniforms = np.zeros((1, 3))
    assert batch_arrays(batch, probs, uniforms) is not None
    assert batch_arrays(attrs.evolve(batch, levels=(probs.double(),)), probs, uniforms) is None
    assert batch_arrays(batch, probs.mT.contiguous().mT, uniforms) is None
    assert batch_arrays(attrs.evolve(batch, law=PerChild), probs, uniforms) is None
