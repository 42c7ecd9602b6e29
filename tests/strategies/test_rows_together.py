"""Forms that judge all rows at once against the form for one row, outcome by outcome and draw by draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftwood import InvalidDistribution, Outcome, Randomness, TapeRandomness, TokenTree, TreeBuilder
from draftwood.laws.proposals import Deterministic, Proposal
from draftwood.protocols import Verifier
from draftwood.strategies.verifiers import greedy, sample_and_match, typical
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.sample_and_match import SampleAndMatch
from draftwood.strategies.verifiers.typical import Typical
from tests.kernels.judged_trees import DRAFTS, LAWS, TARGETS, grown, tape_of

TOGETHER = [Greedy(), Typical(), Typical(epsilon=0.01, delta=0.9), SampleAndMatch()]


def judged_together(
    verifier: Verifier, trees: Sequence[TokenTree], targets: Any, rngs: Sequence[Randomness]
) -> list[Outcome]:
    """The form for all rows, which other devices than the CPU have."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (greedy, typical, sample_and_match):
            patch.setattr(module, "on_the_host", lambda targets: False)
        return verifier.verify_rows(trees, targets, rngs)


def rows_of(
    sizes: Sequence[int], vocab: int, *, law: type[Proposal], draft: str, target: str, seed: int
) -> tuple[list[TokenTree], list[Tensor]]:
    rows = [
        grown(nodes, vocab, laws=[law], draft=draft, target=target, seed=seed + row)
        for row, nodes in enumerate(sizes)
    ]
    return [tree for tree, _ in rows], [targets for _, targets in rows]


def one_tensor(targets: Sequence[Tensor]) -> Tensor:
    """All rows in one tensor; entries after a row's nodes must not be read."""
    return torch.nn.utils.rnn.pad_sequence(list(targets), batch_first=True, padding_value=torch.nan)


def agree(verifier: Verifier, trees: Sequence[TokenTree], targets: Sequence[Tensor], seed: int) -> None:
    def tapes() -> list[TapeRandomness]:
        return [TapeRandomness(tape_of(200, seed + row)) for row in range(len(trees))]

    alone, *together = tapes(), tapes(), tapes()
    expected = [verifier.verify(*row) for row in zip(trees, targets, alone, strict=True)]
    for target_rows, rngs in zip((targets, one_tensor(targets)), together, strict=True):
        assert judged_together(verifier, trees, target_rows, rngs) == expected
        assert [rng.used for rng in rngs] == [rng.used for rng in alone]


@pytest.mark.parametrize("verifier", TOGETHER, ids=str)
@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 24), min_size=1, max_size=4),
    vocab=st.sampled_from([2, 3, 7, 50]),
    law=st.sampled_from(LAWS),
    draft=st.sampled_from(DRAFTS),
    target=st.sampled_from(TARGETS),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 2**32),
)
def test_rows_together_come_out_as_each_alone(
    verifier: Verifier,
    sizes: list[int],
    vocab: int,
    law: type[Proposal],
    draft: str,
    target: str,
    dtype: torch.dtype,
    seed: int,
) -> None:
    trees, targets = rows_of(sizes, vocab, law=law, draft=draft, target=target, seed=seed)
    agree(verifier, trees, [row.to(dtype) for row in targets], seed)


@pytest.mark.parametrize("verifier", TOGETHER, ids=str)
def test_children_that_the_target_wants(verifier: Verifier) -> None:
    """Long paths, equal siblings, and a target without any other token."""
    tree = TreeBuilder(0)
    node = 0
    for _ in range(6):
        node = tree.add_children(node, [4, 4, 2], Deterministic([4, 4, 2], 5))[0]
    rows = torch.tensor([0.0, 0.0, 0.2, 0.0, 0.8]).repeat(len(tree), 1)
    for seed in range(20):
        agree(verifier, [tree.finish()] * 2, [rows, rows.flip(-1)], seed)


def test_the_ends_of_the_unit_interval() -> None:
    trees, targets = rows_of([9, 5, 1], 12, law=Deterministic, draft="sharp", target="near", seed=5)
    for u in (0.0, 1 - 2**-53):
        tapes = [[TapeRandomness(torch.full((99,), u, dtype=torch.float64)) for _ in trees] for _ in "ab"]
        expected = [SampleAndMatch().verify(*row) for row in zip(trees, targets, tapes[0], strict=True)]
        assert judged_together(SampleAndMatch(), trees, targets, tapes[1]) == expected


def test_a_row_that_cannot_be_judged_is_complained_of() -> None:
    trees, targets = rows_of([9, 5], 12, law=Deterministic, draft="smooth", target="near", seed=5)
    targets[1] = torch.full_like(targets[1], torch.nan)
    with pytest.raises(InvalidDistribution):
        judged_together(SampleAndMatch(), trees, targets, [TapeRandomness(tape_of(99, 1)) for _ in "ab"])


def test_rows_with_one_stream_take_its_numbers_in_turn() -> None:
    trees, targets = rows_of([9, 9], 12, law=Deterministic, draft="smooth", target="near", seed=5)
    alone, shared = TapeRandomness(tape_of(99, 1)), TapeRandomness(tape_of(99, 1))
    expected = [SampleAndMatch().verify(*row, alone) for row in zip(trees, targets, strict=True)]
    assert judged_together(SampleAndMatch(), trees, targets, [shared] * 2) == expected
    assert shared.used == alone.used


@attrs.frozen
class Reluctant(Greedy):
    """A variant that changes the rule for one row."""

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        return Outcome.of(tree, [0], extra=int(target_probs[0].argmax()), bonus=len(tree) == 1)


def test_somebodys_variant_keeps_its_rule() -> None:
    trees, targets = rows_of([9, 5], 3, law=Deterministic, draft="sharp", target="the draft", seed=5)
    rngs = [TapeRandomness(tape_of(9, 1)) for _ in "ab"]
    assert all(outcome.path == (0,) for outcome in judged_together(Reluctant(), trees, targets, rngs))
    assert any(len(outcome.path) > 1 for outcome in judged_together(Greedy(), trees, targets, rngs))
