"""Rows of a batch that share random numbers: each has the right law, and they are no independent samples."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

from draftwood.laws.proposals import WithReplacement
from draftwood.testing import LawBroken, SamplerCase, measure_sampler, prove_sampler, sampler_models
from draftwood.testing.samplers.batched_runs import PLACES, judged_together
from draftwood.testing.samplers.sampler_cases import drafts
from tests.framework.other_samplers import padded_batch

ALL = sampler_models()
BATCH: dict[str, Any] = {"samples": 60_000, "batched": True, "dtype": torch.float32}


def one_coin_for_all(case: SamplerCase) -> torch.Tensor:
    return padded_batch(case, shared=True)


def one_noise_for_all(case: SamplerCase) -> torch.Tensor:
    """Draws the tokens by an exponential race whose noise all rows share."""
    n = case.draft_tokens.shape[1]
    noise = torch.empty_like(case.target_probs[:1]).exponential_()
    drawn = (case.target_probs / noise).argmax(-1)
    kept = (drawn[:, :n] == case.draft_tokens).long().cumprod(-1).sum(-1, keepdim=True)
    return drawn.masked_fill(torch.arange(n + 1) > kept, -1)


@pytest.mark.parametrize("sampler", [one_coin_for_all, one_noise_for_all])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_random_numbers_that_rows_share_are_no_bias(sampler: Any, seed: int) -> None:
    models = {name: ALL[name] for name in ("sharp", "plain", "a target that forbids tokens")}
    report = prove_sampler(sampler, models=models, seed=seed, **BATCH)
    assert report.verdict == "no bias found"


def test_so_few_independent_samples_show_only_a_larger_bias() -> None:
    models = {"plain": ALL["plain"]}
    alone, shared = (
        measure_sampler(sampler, models=models, **BATCH).smallest_bias or 0.0
        for sampler in (padded_batch, one_coin_for_all)
    )
    assert 3 * alone < shared < 8 * alone


def test_a_bias_of_rows_that_share_random_numbers_is_caught() -> None:
    def lenient(case: SamplerCase) -> torch.Tensor:
        return one_coin_for_all(attrs.evolve(case, draft_probs=case.draft_probs / 2))

    with pytest.raises(LawBroken):
        prove_sampler(lenient, models={"plain": ALL["plain"]}, **BATCH)


def lenient_after_the_middle(case: SamplerCase) -> torch.Tensor:
    """Accepts too often in rows of large batches only, each row for itself."""
    wrong = (torch.arange(len(case.draft_probs)) >= 50) & (len(case.draft_probs) > 50)
    return padded_batch(attrs.evolve(case, draft_probs=case.draft_probs / (1 + wrong[:, None, None])))


@pytest.mark.parametrize("sampler", [padded_batch, one_coin_for_all, lenient_after_the_middle])
def test_one_row_of_each_batch_counts_where_they_depend_on_each_other(sampler: Any) -> None:
    possible = drafts(*ALL["plain"], parents=(0, 1), law=WithReplacement, dtype=torch.float32)
    torch.manual_seed(0)
    rows = torch.randint(len(possible), (50 * (1 + 3 + 12 + 100),))
    counted = dict.fromkeys(("", *PLACES), 0)
    for _, _, count, groups in judged_together(sampler, possible, rows, uniforms=0, dtype=torch.float32):
        for group in groups:
            counted[group] += count
    # A batch of one row has no first row that differs from its last.
    assert counted == {"": 200 if sampler is one_coin_for_all else 5800, PLACES[0]: 150, PLACES[1]: 150}
