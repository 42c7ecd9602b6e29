"""The forms in which samplers take a case and return tokens: none of them is a mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from torch import Tensor

from draftwood import InvalidInput
from draftwood.testing import LawBroken, SamplerCase, prove_sampler, sampler_models
from tests.framework.foreign_samplers import chain, tree
from tests.framework.other_samplers import padded_batch
from tests.framework.test_odd_samplers import leviathan

PLAIN = {"plain": sampler_models()["plain"]}
FIELDS = [one.name for one in attrs.fields(SamplerCase) if "Tensor" in str(one.type)]

WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "its own chance": (leviathan, {}),
    "uniforms": (chain, {"uniforms": 3}),
    "uniforms of a tree": (tree, {"uniforms": 3, "parents": (0, 0)}),
    "samples": (leviathan, {"samples": 500}),
    "a batch": (padded_batch, {"samples": 1000, "batched": True, "dtype": torch.float32}),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("field", FIELDS)
def test_a_sampler_may_write_to_every_tensor_of_its_case(field: str, way: str) -> None:
    sampler, options = WAYS[way]

    def scribbles(case: SamplerCase) -> Any:
        tokens = sampler(case)
        getattr(case, field).zero_()
        return tokens

    assert prove_sampler(scribbles, models=PLAIN, **options).verdict in ("lossless", "no bias found")


def after(row: list[int], most: int) -> list[int]:
    return [*row, *[-1] * (most - len(row))]


def before(row: list[int], most: int) -> list[int]:
    return [*[-100] * (most - len(row)), *row]


def between(row: list[int], most: int) -> list[int]:
    return [*row[:-1], *[-1] * (most - len(row)), row[-1]]


def one_by_one(case: SamplerCase, sampler: Callable[[SamplerCase], list[int]]) -> list[list[int]]:
    """Returns the tokens of every row of a batch."""
    rows = {"draft_tokens", "target_probs", "draft_probs", "target_logits"}
    return [
        sampler(attrs.evolve(case, **{name: getattr(case, name)[row] for name in rows}))
        for row in range(len(case.draft_tokens))
    ]


def goes_on(case: SamplerCase) -> list[int]:
    """Leaves a hole where it rejects a token, and goes on with the next one."""
    tokens = case.draft_tokens.tolist()
    ratios = [case.target_probs[at, token] / case.draft_probs[at, token] for at, token in enumerate(tokens)]
    coins = torch.rand(len(tokens), dtype=torch.float64)
    kept = [token if coins[at] < ratios[at] else -1 for at, token in enumerate(tokens)]
    return [*kept, int(torch.multinomial(case.target_probs[-1], 1))]


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("filled", [after, before, between])
def test_negative_numbers_are_padding_wherever_they_are(filled: Any, batched: bool) -> None:
    def single(case: SamplerCase) -> Any:
        return torch.tensor(filled(leviathan(case), 3))

    def rows(case: SamplerCase) -> Any:
        return torch.tensor([filled(row, 3) for row in one_by_one(case, leviathan)])

    options: Any = {"samples": 3000, "batched": True} if batched else {}
    prove_sampler(rows if batched else single, models=PLAIN, **options)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("made", [torch.tensor, np.array, list], ids=["torch", "numpy", "list"])
def test_numbers_between_tokens_are_refused(made: Any, batched: bool) -> None:
    def single(case: SamplerCase) -> Any:
        return made([token + 0.3 for token in leviathan(case)])

    def rows(case: SamplerCase) -> Any:
        return [made([token + 0.3 for token in row]) for row in one_by_one(case, leviathan)]

    options: Any = {"samples": 300, "batched": True} if batched else {}
    with pytest.raises(InvalidInput, match="tokens"):
        prove_sampler(rows if batched else single, models=PLAIN, **options)


@pytest.mark.parametrize("batched", [False, True])
def test_a_hole_after_a_rejection_that_other_tokens_follow_is_no_padding(batched: bool) -> None:
    options: Any = {"samples": 3000, "batched": True} if batched else {}
    sampler: Any = (lambda case: one_by_one(case, goes_on)) if batched else goes_on
    with pytest.raises(LawBroken):
        prove_sampler(sampler, models=PLAIN, **options)


def with_lengths(rows: Tensor) -> Any:
    return rows, (rows >= 0).sum(1)


FORMS: dict[str, Callable[[Tensor], Any]] = {
    "tokens and lengths": with_lengths,
    "a dictionary": lambda rows: {"tokens": rows},
    "nothing": lambda rows: None,
    "words": lambda rows: [["one"] for _ in rows],
    "columns": lambda rows: rows.T,
    "one dimension more": lambda rows: rows[None],
    "one dimension less": lambda rows: rows.reshape(-1),
    "nan": lambda rows: rows.double() * torch.nan,
    "a mask": lambda rows: rows >= 0,
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_another_form_are_refused_and_not_judged(form: str) -> None:
    with pytest.raises(InvalidInput, match="return one row of tokens for each draft"):
        prove_sampler(
            lambda case: FORMS[form](padded_batch(case)),
            models=PLAIN,
            samples=500,
            batched=True,
            dtype=torch.float32,
        )


@pytest.mark.parametrize(
    "form",
    [
        set,
        frozenset,
        dict.fromkeys,
        lambda tokens: torch.tensor(tokens) >= 0,
        lambda tokens: np.array(tokens) >= 0,
        lambda tokens: [token >= 0 for token in tokens],
    ],
    ids=["set", "frozenset", "dict", "a mask of torch", "a mask of numpy", "a mask"],
)
def test_tokens_without_an_order_and_masks_are_refused_and_not_judged(form: Any) -> None:
    with pytest.raises(InvalidInput, match="that it emits"):
        prove_sampler(lambda case: form(leviathan(case)), models=PLAIN)


def test_a_row_that_is_lost_in_some_batches_is_a_mistake() -> None:
    with pytest.raises(LawBroken, match="for a batch of 12 drafts"):
        prove_sampler(
            lambda case: padded_batch(case)[:11], models=PLAIN, samples=500, batched=True, dtype=torch.float32
        )


@pytest.mark.parametrize(
    "form",
    [
        lambda rows: [row[row >= 0] for row in rows],
        lambda rows: [row[None] for row in rows],
        lambda rows: np.array([row[row >= 0].tolist() for row in rows] + [None], object)[:-1],
        lambda rows: rows.numpy(),
        lambda rows: rows.double(),
    ],
)
def test_rows_are_read_in_every_form(form: Any) -> None:
    options: Any = {"samples": 500, "batched": True, "dtype": torch.float32}
    prove_sampler(lambda case: form(padded_batch(case)), models=PLAIN, **options)
