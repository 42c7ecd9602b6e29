"""`Named`: policies that ask one of several drafters by its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import torch

from draftwood import (
    Deterministic,
    Drafter,
    Growing,
    IncompatibleModels,
    IncompatibleStrategy,
    InvalidInput,
    Outcome,
    Randomness,
    Request,
    SamplingParams,
    SpeculativeDecoder,
    TreeBuilder,
    TreePolicy,
    WithoutReplacement,
)
from draftwood.drafters import ModelDrafter, Named, PromptLookup, Several
from draftwood.testing import ToyBackend, ToyModel, assert_lossless
from draftwood.testing.checks.strategy_checks import checks_for
from draftwood.verifiers import RecursiveRejection, Traversal

TARGET = ToyModel(4, seed=1, sharpness=2.0)
DRAFT = ToyModel(4, seed=2, near=TARGET, mix=0.7)


@attrs.frozen
class Cascade(TreePolicy):
    """A chain of n-grams where they match, and of the model's tokens elsewhere."""

    length: int = 3
    laws = frozenset({Deterministic, WithoutReplacement})
    adaptive = True
    branches = False
    asks = frozenset({"lookup", "model"})

    def grow(self, root: int, rng: Randomness) -> Growing:
        tree, node = TreeBuilder(root), 0
        for _ in range(self.length):
            (siblings,) = yield tree.open([node], Deterministic, 1, drafter="lookup")
            if not siblings.tokens:
                (siblings,) = yield tree.open([node], WithoutReplacement, 1, drafter="model")
            if not siblings.tokens:
                break
            (node,) = tree.add_siblings(node, siblings)
        return tree.finish()


class Noted(ModelDrafter):
    """Counts the nodes that it is asked for."""

    nodes = 0

    def distributions(self, requests: Sequence[Request | None]) -> torch.Tensor:
        self.nodes += sum(len(request) for request in requests if request is not None)
        return super().distributions(requests)


def named() -> Named:
    return Named({"lookup": PromptLookup(4, longest=2), "model": Noted(ToyBackend(DRAFT))})


def test_a_cascade_passes_every_check() -> None:
    for name, check in checks_for(Cascade(2), models=1):
        if name != "as-used":
            check()


@pytest.mark.parametrize("verifier", [RecursiveRejection(), Traversal()], ids=lambda one: type(one).__name__)
def test_a_cascade_of_n_grams_and_a_model_has_the_targets_law(verifier) -> None:
    for prompt in ((1, 2, 3, 1, 2), (0,)):
        assert_lossless(
            Cascade(2), verifier, target=TARGET, drafter=named(), prompt=prompt, tokens=3, temperature=1.0
        )


def test_the_model_is_asked_only_where_no_n_gram_matches() -> None:
    """In a text that repeats itself n-grams take over; texts are those of sequential decoding."""
    drafter = named()
    decoder = SpeculativeDecoder(ToyBackend(TARGET), drafter, Cascade(), RecursiveRejection())
    prompts = [[1, 2, 3, 1, 2, 3, 1, 2], [0]]
    rounds = list(decoder.stream(prompts, max_new_tokens=40, eos_token_id=[]))
    written: list[list[int]] = [list(prompt) for prompt in prompts]
    for one in rounds:
        for row in one.rows:
            written[row.row] += row.tokens
    for prompt, text in zip(prompts, written, strict=True):
        expected = list(prompt)
        while len(expected) < len(text):
            expected.append(int(TARGET.logits(expected).argmax()))
        assert text == expected
    model: Any = drafter.members["model"]
    drafted = sum(row.outcome.drafted for one in rounds for row in one.rows)
    assert 0 < model.nodes < drafted


def test_a_member_reads_the_nodes_that_only_others_were_asked_for() -> None:
    """Its distributions are those after each node's own path, whoever proposed the nodes above."""
    drafter = named()
    drafter.prefill([torch.tensor([3, 1]), torch.tensor([2])])
    root = Request(torch.tensor([0]), torch.tensor([-1]), "lookup")
    drafter.distributions([root, None])
    below = Request(torch.tensor([2, 1]), torch.tensor([0, 0]), "lookup")
    drafter.distributions([below, None])
    deep = Request(torch.tensor([3, 0]), torch.tensor([1, 2]), "model")
    other = Request(torch.tensor([1]), torch.tensor([-1]), "model")
    logits = drafter.distributions([deep, other])
    for column, path in enumerate(([0, 2, 3], [0, 1, 0])):
        assert torch.allclose(logits[0, column].double(), DRAFT.logits([3, 1, *path]).double())
    assert torch.allclose(logits[1, 0].double(), DRAFT.logits([2, 1]).double())
    drafter.commit([Outcome((0,), (0,), extra=2, bonus=False, drafted=2), Outcome((), (), 0, False, 0)])
    again = drafter.distributions([Request(torch.tensor([2]), torch.tensor([-1]), "model"), None])
    assert torch.allclose(again[0, 0].double(), DRAFT.logits([3, 1, 0, 2]).double())


def test_what_does_not_fit_is_refused() -> None:
    model: Drafter = ModelDrafter(ToyBackend(DRAFT))
    with pytest.raises(IncompatibleStrategy, match=r"has no 'lookup'; give draftwood.drafters.Named"):
        SpeculativeDecoder(ToyBackend(TARGET), model, Cascade(), RecursiveRejection())
    with pytest.raises(IncompatibleModels, match=r"have \[4, 5\] tokens"):
        Named({"lookup": PromptLookup(5), "model": model})
    with pytest.raises(InvalidInput, match="members is empty"):
        Named({})
    with pytest.raises(InvalidInput, match="'both' gives a node several distributions"):
        Named({"both": Several([model, model])})
    drafter = named()
    drafter.prefill([torch.tensor([1])])
    with pytest.raises(InvalidInput, match="'nobody'"):
        drafter.distributions([Request(torch.tensor([1]), torch.tensor([-1]), "nobody")])


def test_settings_of_the_text_reach_both() -> None:
    sampling = SamplingParams(temperature=0.7, top_k=2)
    decoder = SpeculativeDecoder(ToyBackend(TARGET), named(), Cascade(), RecursiveRejection())
    first, again = (
        decoder.generate(torch.tensor([[1, 2, 1]]), max_new_tokens=12, sampling=sampling, seed=4)
        for _ in "ab"
    )
    assert first.tolist() == again.tolist()  # type: ignore[union-attr]
