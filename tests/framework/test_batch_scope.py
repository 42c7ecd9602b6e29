"""Trees of several rows that grow together: one budget, the joint law, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from torch import Tensor

from draftwood import (
    WAIT,
    BatchPolicy,
    CounterRandomness,
    Deterministic,
    Growing,
    InvalidInput,
    InvalidTree,
    Randomness,
    SamplingParams,
    SpeculativeDecoder,
    TokenTree,
    TreeBuilder,
    TreePolicy,
    WithoutReplacement,
)
from draftwood.drafters import ModelDrafter
from draftwood.policies import BatchDySpec, DynamicDepth, LayeredDySpec, Mixture
from draftwood.testing import LawBroken
from draftwood.testing.checks.strategy_checks import checks_for
from draftwood.testing.models.proof_models import PROOF_MODELS, WIDE_MODELS
from draftwood.testing.models.toy import ToyBackend
from draftwood.testing.proofs.grown_rows import grown
from draftwood.testing.proofs.joint_rows import assert_rows_lossless, joint_rows_law
from draftwood.verifiers import RecursiveRejection, Traversal

VERIFIERS = (RecursiveRejection(), Traversal())


@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("rows", [2, 3])
@pytest.mark.parametrize("budget", [1, 2, 3])
def test_rows_under_one_budget_write_the_product_of_their_laws(
    rows: int, budget: int, verifier: RecursiveRejection | Traversal
) -> None:
    found = joint_rows_law(BatchDySpec(budget), verifier, PROOF_MODELS[:rows])
    assert found.error < 1e-12
    assert sum(found.probabilities.values()) == pytest.approx(1, abs=1e-12)
    assert found.runs > 1


@attrs.frozen
class _Stolen(BatchPolicy[list[int]]):
    """One child a row, but a later row loses it where the first row drew token 0."""

    laws = frozenset({WithoutReplacement})
    adaptive = True
    own: bool = False  # whether the first row loses its own child too

    def share(self, states: Sequence[Any]) -> Sequence[list[int]]:
        tokens: list[int] = []
        return [tokens] * len(states)

    def grow(self, root: int, rng: Randomness, share: list[int] | None = None) -> Growing:
        share = share if share is not None else []
        tree = TreeBuilder(root)
        (siblings,) = yield tree.open([0], WithoutReplacement, ahead=1)
        place = len(share)
        siblings.draw()
        share.append(siblings.tokens[0])
        yield WAIT
        lost = share[0] == 0 and (place > 0 or self.own)
        if not lost:
            tree.add_last(0, siblings)
        return tree.finish()


def test_another_rows_token_may_decide_and_a_nodes_own_may_not() -> None:
    """Law P for all rows jointly: only a node's own token, and draws below it, must not decide."""
    assert assert_rows_lossless(_Stolen(), RecursiveRejection(), PROOF_MODELS[:3]).error < 1e-12
    with pytest.raises(LawBroken, match="3 rows grow together"):
        assert_rows_lossless(_Stolen(own=True), RecursiveRejection(), PROOF_MODELS[:3])


@attrs.frozen
class _Exchanged(BatchPolicy[list[int]]):
    """Two rows, each of which loses its child by the token of the other, which lost its own by ours."""

    laws = frozenset({WithoutReplacement})
    adaptive = True

    def share(self, states: Sequence[Any]) -> Sequence[list[int]]:
        tokens: list[int] = []
        return [tokens] * len(states)

    def grow(self, root: int, rng: Randomness, share: list[int] | None = None) -> Growing:
        share = share if share is not None else []
        tree = TreeBuilder(root)
        (siblings,) = yield tree.open([0], WithoutReplacement, ahead=1)
        siblings.draw()
        share.append(siblings.tokens[0])
        yield WAIT
        if sum(share) % 2 == 0:
            tree.add_last(0, siblings)
        return tree.finish()


def test_rows_that_betray_each_others_tokens_are_told_by_check() -> None:
    with pytest.raises(LawBroken, match="rows grow together"):
        dict(checks_for(_Exchanged(), models=0))["rows-jointly"]()


@attrs.frozen
class _Undeclared(TreePolicy):
    """Chains of four under a budget that all rows share, which no declaration tells of."""

    in_all: int = 64
    spent: list[int] = attrs.field(factory=lambda: [0, 0], eq=False, repr=False)
    laws = frozenset({WithoutReplacement})
    adaptive = True
    branches = False

    def grow(self, root: int, rng: Randomness) -> Growing:
        self.spent[1] += 1
        tree, node = TreeBuilder(root), 0
        try:
            for _ in range(4):
                (siblings,) = yield tree.open([node], WithoutReplacement, ahead=1)
                if self.spent[0] >= self.in_all or not siblings.draw():
                    break
                self.spent[0] += 1
                node = tree.add_last(node, siblings)
        finally:
            self.spent[1] -= 1
            if not self.spent[1]:
                self.spent[0] = 0
        return tree.finish()


def test_a_budget_of_the_batch_without_a_declaration_is_told_at_default_settings() -> None:
    check = dict(checks_for(_Undeclared(), models=0, used=_Undeclared()))["rows-at-once"]
    with pytest.raises(LawBroken) as broken:
        check()
    assert "BatchPolicy" in broken.value.likely


class _ByWeights(Randomness):
    """Draws that depend on a seed and on the weights only, so that their order does not matter."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def choose(self, weights: Tensor) -> int:
        heights = weights.double().cumsum(0)
        key = (self.seed, *(round(weight, 12) for weight in weights.tolist()))
        return int((heights <= random.Random(str(key)).random() * float(heights[-1])).sum())


def test_the_budget_goes_to_the_slots_worth_most_in_any_row() -> None:
    """Against large trees of each row by itself, of which the slots worth most are taken."""
    (toys,) = WIDE_MODELS
    draft = toys.draft
    for seed, rows, budget in ((0, 1, 10), (1, 3, 10), (2, 7, 25), (3, 8, 40)):
        roots = [row % draft.vocab_size for row in range(rows)]
        rng = _ByWeights(seed)  # type: ignore[abstract]
        trees = grown(BatchDySpec(budget), roots, [rng] * rows, [draft.probs] * rows)
        assert sum(len(tree) - 1 for tree in trees) == budget
        large = [grown(LayeredDySpec(60), [root], [rng], [draft.probs])[0] for root in roots]
        slots = sorted(
            ((value, row, path) for row, tree in enumerate(large) for path, value in _slots(tree)),
            key=lambda slot: -slot[0],
        )
        best = {(row, path) for _, row, path in slots[:budget]}
        assert {(row, path) for row, tree in enumerate(trees) for path, _ in _slots(tree)} == best


def _slots(tree: TokenTree) -> list[tuple[tuple[int, ...], float]]:
    """Every drafted node's path, and the value of its slot by the definition of DySpec."""
    worth, found = {0: 1.0}, []
    tokens = tree.tokens.tolist()
    for node in range(len(tree)):
        left = 1.0
        for child in tree.children(node):
            p = float(tree.proposals[node].conditional(0, [])[tokens[child]])
            found.append((tuple(tokens[above] for above in tree.path(child)[1:]), worth[node] * left))
            worth[child] = worth[node] * p
            left -= p
    return found


@pytest.mark.parametrize("law", [WithoutReplacement, Deterministic])
def test_decoding_keeps_the_budget_in_every_round_and_greedy_texts(law: type) -> None:
    (toys,) = WIDE_MODELS
    prompts = [[row % 8, 1, row // 3] for row in range(6)]
    decoder = SpeculativeDecoder(
        ToyBackend(toys.target),
        ModelDrafter(ToyBackend(toys.draft)),
        BatchDySpec(9, law=law),
        RecursiveRejection(),
    )
    sampling = SamplingParams(temperature=0.0)
    rounds = list(decoder.stream(prompts, max_new_tokens=24, sampling=sampling, eos_token_id=[]))
    drafted = [sum(row.outcome.drafted for row in one.rows) for one in rounds if not one.prefill]
    assert max(drafted) == 9
    written: list[list[int]] = [[] for _ in prompts]
    for one in rounds:
        for row in one.rows:
            written[row.row] += row.tokens
    for prompt, tokens in zip(prompts, written, strict=True):
        text = list(prompt)
        for _ in range(24):
            text.append(int(toys.target.logits(text).argmax()))
        assert tokens == text[len(prompt) :]


@attrs.frozen
class _Endless(BatchPolicy[None]):
    laws = frozenset({Deterministic})

    def share(self, states: Sequence[Any]) -> Sequence[None]:
        return [None] * len(states)

    def grow(self, root: int, rng: Randomness, share: None = None) -> Growing:
        while True:
            yield WAIT


def test_waiting_for_nobody_is_refused() -> None:
    rngs = [CounterRandomness.seeded(row) for row in range(2)]
    with pytest.raises(InvalidTree, match="waits again when all of them wait"):
        grown(_Endless(), [0, 1], rngs, [PROOF_MODELS[0].draft.probs] * 2)


def test_no_policy_wraps_one_that_sees_other_rows() -> None:
    with pytest.raises(InvalidInput, match="BatchDySpec grows the trees of all rows together"):
        DynamicDepth(policy=BatchDySpec())
    with pytest.raises(InvalidInput, match="BatchDySpec grows the trees of all rows together"):
        Mixture(policy=BatchDySpec())
