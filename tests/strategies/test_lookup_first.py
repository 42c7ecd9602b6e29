"""`LookupFirst`: what a text repeats is copied, and a drafter is asked elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood import (
    InvalidInput,
    LevelPlan,
    Levels,
    Outcome,
    Request,
    SamplingParams,
    SpeculativeDecoder,
)
from draftwood.drafters import LookupFirst, ModelDrafter, PromptLookup, Several
from draftwood.policies import Chain, DySpec, FixedTree, LayeredDySpec
from draftwood.testing import ToyBackend, ToyModel, assert_lossless, parametrize_with_checks
from draftwood.trees.level_plan import GrowingLevels
from draftwood.verifiers import Block, Greedy, RecursiveRejection, Traversal

TARGET = ToyModel(4, seed=1, sharpness=2.0)
DRAFT = ToyModel(4, seed=2, near=TARGET, mix=0.7)
REPEATS = (1, 2, 3, 1, 2)


class AtOnce(ToyBackend):
    """Grows all levels of a plan in one call, and counts these calls and its other passes."""

    planned = passes = 0

    def extend(self, tokens: Any, parents: Any, counts: Any = None) -> Tensor:
        self.passes += 1
        return super().extend(tokens, parents, counts)

    def extend_levels(
        self, tokens: Tensor, parents: Tensor, plan: LevelPlan, *, temperature: float = 1.0
    ) -> Levels | None:
        widths = plan.widths(plan.width, vocab_size=self.vocab_size)
        grown = GrowingLevels(plan, len(tokens), torch.device("cpu"))
        logits, first, width = super().extend(tokens, parents)[:, -1:], tokens.shape[1] - 1, 1
        for below in widths[1:]:
            grown.take((logits / temperature).softmax(-1))
            chosen, above = grown.expand(below)
            logits = super().extend(chosen, above + first)
            first, width = first + width, below
        grown.take((logits / temperature).softmax(-1))
        self.planned += 1
        return Levels.of(grown.packed(), widths=widths, vocab_size=self.vocab_size)


def copying(drafter: Any = None, *, least: int = 2) -> LookupFirst:
    return LookupFirst(drafter or ModelDrafter(ToyBackend(DRAFT)), least=least)


def asked(token: int, parent: int = -1) -> Request:
    return Request(torch.tensor([token]), torch.tensor([parent]))


def sequential(prompt: Sequence[int], count: int) -> list[int]:
    text = list(prompt)
    for _ in range(count):
        text.append(int(TARGET.logits(text).argmax()))
    return text[len(prompt) :]


@parametrize_with_checks([copying(PromptLookup(4)), copying(), copying(least=1)])
def test_every_check_of_a_drafter(check: Any) -> None:
    check()


@pytest.mark.parametrize(
    ("policy", "verifier"),
    [
        (DySpec(2), RecursiveRejection()),
        (LayeredDySpec(3, depth=2), Traversal()),
        (FixedTree(2, (2, 1), law="with-replacement"), RecursiveRejection()),
        (FixedTree(2, (2, 1), law="top-k"), RecursiveRejection()),
        (Chain(2), Block()),
    ],
    ids=str,
)
@pytest.mark.parametrize("prompt", [REPEATS, (2, 0)], ids=str)
def test_it_is_lossless_under_every_law(policy: Any, verifier: Any, prompt: tuple[int, ...]) -> None:
    assert_lossless(policy, verifier, target=TARGET, drafter=copying(least=1), prompt=prompt, tokens=3)


def test_a_copy_goes_on_in_what_was_copied_and_ends_where_a_node_leaves_it() -> None:
    drafter = copying()
    drafter.prefill([torch.tensor([3, 0, 1, 0]), torch.tensor([0, 1])])
    # After 0 1 came 0; then the copy has come to the root, and goes on with what it has copied.
    found, request, wanted = [], asked(1), 0
    for node in range(5):
        logits = drafter.distributions([request, None])[0, 0]
        (wanted,) = logits.isfinite().nonzero().flatten().tolist()
        found.append(wanted)
        request = asked(wanted, node)
    assert found == [0, 1, 0, 1, 0]
    assert drafter.distributions([asked(2, 0), None]).isinf().all()
    # Nothing matches in the other row, whose draft answers in the same call.
    drafter.commit([Outcome((), (), 0, False, 0)] * 2)
    both = drafter.distributions([asked(1), asked(3)])
    assert both[0, 0].exp().tolist() == [1, 0, 0, 0]
    assert torch.allclose(both[1, 0].double(), DRAFT.logits([0, 1, 3]).double())


def test_the_last_place_counts_and_a_short_text_has_none() -> None:
    drafter = copying(least=3)
    drafter.prefill(
        [torch.tensor([1, 2, 3, 0, 1, 2, 3, 2, 1, 2]), torch.tensor([1]), torch.tensor([], dtype=torch.int64)]
    )
    logits = drafter.distributions([asked(3), asked(1), asked(1)])
    assert logits[0, 0].exp().tolist() == [0, 0, 1, 0]
    assert logits[1:].isfinite().all()
    # Of a row that has gone nothing is left.
    drafter.release([0])
    assert drafter.distributions([asked(1), asked(1)]).isfinite().all()


@pytest.mark.parametrize("backend", [ToyBackend, AtOnce])
@pytest.mark.parametrize("prompts", [[REPEATS], [REPEATS, (0, 3), (3, 0, 3)]], ids=["one row", "three"])
def test_texts_are_those_of_sequential_decoding(backend: type[ToyBackend], prompts: Any) -> None:
    draft = backend(DRAFT)
    policy = LayeredDySpec(4, depth=3, law="top-k")
    decoder = SpeculativeDecoder(ToyBackend(TARGET), copying(ModelDrafter(draft)), policy, Greedy())
    written: Any = decoder.generate(
        [list(prompt) for prompt in prompts],
        max_new_tokens=40,
        eos_token_id=[],
        sampling=SamplingParams(temperature=0),
        return_dict_in_generate=True,
    )
    assert written.tokens == [sequential(prompt, 40) for prompt in prompts]


def test_the_draft_is_not_asked_where_text_is_copied_and_reads_it_in_one_pass_later() -> None:
    draft = AtOnce(DRAFT)
    drafter = copying(ModelDrafter(draft))
    plan = LevelPlan(depth=4, width=2, branching=2, budget=4)
    drafter.prefill([torch.tensor([3, 1, 2])])
    assert drafter.planned_levels([0], plan) is not None  # so it is known that the draft can
    drafter.commit([Outcome((0, -1), (0, 1), extra=2, bonus=False, drafted=4)])
    draft.planned = draft.passes = 0
    levels = drafter.planned_levels([2], plan)
    assert levels is not None
    assert levels.tokens[0, :, 0].tolist() == [0, 1, 2, 0]
    assert (levels.widths, draft.planned, draft.passes) == ((), 0, 0)
    drafter.commit([Outcome((0, 1, 2), (2, 0, 1), extra=3, bonus=True, drafted=4)])
    assert drafter.planned_levels([3], plan) is not None
    assert (draft.planned, draft.passes) == (1, 1)
    assert draft.lengths == [8]


def test_rows_that_copy_and_rows_that_do_not_grow_side_by_side() -> None:
    """A row's levels are those that it would have by itself."""
    plan = LevelPlan(depth=3, width=2, branching=2, budget=4)
    texts, roots = [torch.tensor([3, 1, 2]), torch.tensor([0, 3, 2, 0])], [0, 3]
    together = copying(ModelDrafter(AtOnce(DRAFT)))
    together.prefill(texts)
    levels = together.planned_levels(roots, plan)
    assert levels is not None
    for row, (text, root) in enumerate(zip(texts, roots, strict=True)):
        drafter = copying(ModelDrafter(AtOnce(DRAFT)))
        drafter.prefill([text])
        own = drafter.planned_levels([root], plan)
        assert own is not None
        assert levels.children(row) == own.children(0)
    assert levels.children(1) == {
        (-1, 0): ([0], [2], [1.0]),
        (0, 0): ([0], [0], [1.0]),
        (1, 0): ([0], [3], [1.0]),
    }


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidInput, match="Several is several drafters"):
        copying(Several([PromptLookup(4), PromptLookup(4)]))
    with pytest.raises(InvalidInput, match="least"):
        copying(least=0)
