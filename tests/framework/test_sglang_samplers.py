"""SGLang's adapter, by signatures of several versions: right functions pass, wrong ones are caught."""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs
import pytest
import torch

from draftwood import Deterministic, InvalidInput, SamplingParams, WithoutReplacement, WithReplacement
from draftwood.testing import LawBroken, SamplerCase, prove_sampler, sampler_models, sglang_sampler
from tests.framework import foreign_samplers as foreign
from tests.framework import sglang_functions as functions

PLAIN = {"plain": sampler_models()["plain"]}
TREE: dict[str, Any] = {"parents": (0, 0, 1), "law": Deterministic, "models": PLAIN}
BATCH: dict[str, Any] = {"samples": 3000, "batched": True, "dtype": torch.float32, "models": PLAIN}


def drawing(sampler: Any) -> Any:
    """`sampler` with uniforms that are drawn, which takes fewer calls than splitting given ones."""

    def sample(case: SamplerCase) -> Any:
        uniforms = torch.rand(len(case.draft_tokens) + 2, dtype=torch.float64)
        return sampler(attrs.evolve(case, uniforms=uniforms))

    return sample


@pytest.mark.parametrize("name", functions.TREES)
def test_a_right_function_of_trees_passes_whatever_its_version(name: str) -> None:
    assert prove_sampler(drawing(sglang_sampler(functions.TREES[name])), **TREE).error < 1e-11


@pytest.mark.parametrize(
    "wrong",
    [
        functions.last_coin_used_again,
        partial(foreign.sglang, mistake="target for residual"),
        partial(foreign.sglang, mistake="siblings not summed"),
    ],
    ids=["the last coin used again", "target for residual", "siblings not summed"],
)
def test_a_wrong_function_of_trees_is_caught(wrong: Any) -> None:
    with pytest.raises(LawBroken):
        prove_sampler(drawing(sglang_sampler(wrong)), **TREE)


def test_rejection_sampling_gets_the_drafts_probabilities() -> None:
    options: dict[str, Any] = {"law": WithReplacement, "models": PLAIN}
    assert prove_sampler(drawing(sglang_sampler(functions.chain)), **options).error < 1e-11
    wrong = partial(functions.chain, mistake="target for residual")
    with pytest.raises(LawBroken) as caught:
        prove_sampler(drawing(sglang_sampler(wrong)), **options)
    assert "draws from the target" in (caught.value.likely or "")
    # Without them it takes every token for one that was never drawn.
    unread = prove_sampler(drawing(sglang_sampler(functions.chain, reads_draft=False)), **options)
    assert unread.expected_tokens["plain"] == pytest.approx(1)


def test_rejection_sampling_judges_drawn_chains() -> None:
    sampler = drawing(sglang_sampler(functions.chain))
    with pytest.raises(InvalidInput, match="law=Deterministic draws none; give law=WithReplacement"):
        prove_sampler(sampler, law=Deterministic, models=PLAIN)
    with pytest.raises(InvalidInput, match=r"for chains only; give parents=\(0, 1\)"):
        prove_sampler(sampler, parents=(0, 0), models=PLAIN)


def test_rows_are_judged_together() -> None:
    trees: dict[str, Any] = {"parents": (0, 0, 1), "uniforms": 5, "law": WithoutReplacement, **BATCH}
    report: Any = prove_sampler(sglang_sampler(functions.with_a_last_coin), **trees)
    assert report.p_value > 1e-6
    with pytest.raises(LawBroken):
        prove_sampler(sglang_sampler(partial(foreign.sglang, mistake="target for residual")), **trees)
    settings = (SamplingParams(0.7), SamplingParams(0.0), SamplingParams(1.3, top_k=2))
    report = prove_sampler(sglang_sampler(functions.chain), uniforms=4, settings=settings, **BATCH)
    assert report.p_value > 1e-6


def test_rows_with_seeds() -> None:
    report: Any = prove_sampler(sglang_sampler(functions.seeded_chain, seeded=True), **BATCH)
    assert report.p_value > 1e-6
    wrong = partial(functions.seeded_chain, mistake="coin used again")
    with pytest.raises(LawBroken):
        # Off by 0.02: 3,000 drafts would not always show it.
        prove_sampler(sglang_sampler(wrong, seeded=True), **BATCH | {"samples": 20_000})
    with pytest.raises(InvalidInput, match="takes no sampling_seed; leave it out"):
        sglang_sampler(functions.chain, seeded=True)


def test_greedy_trees() -> None:
    greedy: dict[str, Any] = {**TREE, "settings": (SamplingParams(0.0),)}
    assert prove_sampler(sglang_sampler(functions.greedy), **greedy).error == 0
    with pytest.raises(LawBroken):
        prove_sampler(sglang_sampler(partial(functions.greedy, mistake="first child")), **greedy)


def test_an_operator_of_torch_is_read_by_its_schema() -> None:
    with torch.library._scoped_library("draftwood_test", "DEF") as library:
        library.define(
            "verify(Tensor(a!) predicts, Tensor(b!) accept_index, Tensor(c!) accept_token_num, "
            "Tensor candidates, Tensor retrive_index, Tensor retrive_next_token, "
            "Tensor retrive_next_sibling, Tensor uniform_samples, "
            "Tensor uniform_samples_for_final_sampling, Tensor target_probs, Tensor(d!) draft_probs, "
            "float threshold_single, float threshold_acc, bool deterministic) -> ()"
        )
        library.impl("verify", lambda *given: functions.with_a_last_coin(*given), "CPU")
        operator: Any = torch.ops.draftwood_test.verify
        for function in (operator, operator.default):
            report = prove_sampler(sglang_sampler(function), uniforms=4, law=Deterministic, **BATCH)
            assert report.fault == ""


def asks_for_more(predicts, accept_index, accept_token_num, candidates, target_probs, watermark):
    raise AssertionError("never called")


def takes_less(predicts, candidates, target_probs):
    raise AssertionError("never called")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (asks_for_more, r"does not take the arguments .* \(asks for \['watermark'\]\): its signature is"),
        (takes_less, r"\(does not take \['accept_index', 'accept_token_num'\]\)"),
    ],
)
def test_a_call_that_cannot_be_understood_is_no_verdict(function: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        prove_sampler(sglang_sampler(function), parents=(0,), uniforms=3, models=PLAIN)


def test_an_option_that_the_function_does_not_take_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"threshold_acc=0.9 is given, .* takes no threshold_acc"):
        sglang_sampler(functions.last_coin_used_again, threshold_acc=0.9)


def test_probabilities_of_another_precision_are_no_verdict() -> None:
    def in_float32(**given: Any) -> None:
        assert given["target_probs"].dtype == torch.float32
        functions.with_a_last_coin(**given)

    options: dict[str, Any] = {"parents": (0,), "uniforms": 3, "law": Deterministic, "models": PLAIN}
    message = r"fails on probabilities of torch.float64 \(AssertionError.*; give dtype=torch.float32"
    with pytest.raises(InvalidInput, match=message):
        prove_sampler(sglang_sampler(in_float32), **options)
    assert prove_sampler(sglang_sampler(in_float32), dtype=torch.float32, **options).error < 1e-6


def test_a_place_that_is_never_written_is_a_fault_in_batches_too() -> None:
    def forgets(**given: Any) -> None:
        functions.with_a_last_coin(**given)
        given["predicts"][given["retrive_index"][:, 0]] = -1

    with pytest.raises(LawBroken, match="token 3 does not exist"):
        prove_sampler(sglang_sampler(forgets), uniforms=4, law=Deterministic, **BATCH)
