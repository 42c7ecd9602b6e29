"""The proof for foreign samplers: right ones pass exactly, each mistake is caught, and faults are named."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from draftwood import (
    Deterministic,
    InvalidInput,
    PerChild,
    SamplingParams,
    WithoutReplacement,
    WithReplacement,
)
from draftwood.testing import (
    LawBroken,
    ToyModel,
    measure_sampler,
    prove_sampler,
    sampler_models,
    sglang_sampler,
    vllm_runner_sampler,
    vllm_sampler,
)
from draftwood.testing.diagnosis.chi_square import SIGNIFICANCE, chi_square_test
from tests.framework import foreign_samplers as foreign

ALL = sampler_models()
PLAIN = {"plain": ALL["plain"]}
EQUAL = {"equal": ALL["draft and target equal"]}
FEW = {name: ALL[name] for name in ("plain", "a target that forbids tokens")}


def test_a_right_sampler_of_chains_is_proved():
    report = prove_sampler(foreign.chain, uniforms=3)
    assert report.error < 1e-15
    assert set(report.errors) == set(ALL)
    assert report.likely == report.fault == ""
    assert 1e-10 < prove_sampler(foreign.chain, uniforms=3, models=FEW, dtype=torch.float32).error < 1e-7


@pytest.mark.parametrize(
    ("mistake", "error", "likely"),
    [
        ("target for residual", 0.1056, "after a rejection it draws from the target;"),
        ("draft ignored", 0.0807, "it accepts with the target's probability T"),
        ("noise reused", 0.0155, "the coin that rejected a token also chooses"),
        ("not renormalised", 0.0164, "without dividing by their sum"),
        ("bonus of the wrong row", 0.0138, "comes from the row before the last"),
    ],
)
def test_a_mistake_is_caught_with_its_size_and_name(mistake, error, likely):
    with pytest.raises(LawBroken, match=r"is biased: tokens \(\d, \d, \d\) have probability") as caught:
        prove_sampler(partial(foreign.chain, mistake=mistake), uniforms=3, models=PLAIN)
    assert caught.value.error == pytest.approx(error, abs=1e-4)
    assert likely in caught.value.likely
    assert bool(likely) == bool(caught.value.likely)
    assert "(their path is marked), which gives {(" in str(caught.value)


def test_a_coin_of_zero_is_caught_though_its_weight_is_none():
    wrong = partial(foreign.chain, mistake="coin of zero")
    message = r"though the target gives token \d probability 0 after .* at the uniforms \[.*0\.0"
    with pytest.raises(LawBroken, match=message) as caught:
        prove_sampler(wrong, uniforms=3, models=FEW)
    assert (caught.value.error or 0) < 1e-15
    assert "test coin < p" in caught.value.likely
    assert "a user sees no bias" in str(caught.value)
    # Of uniforms with 24 bits one in 2^24 is 0.
    assert 2**-25 < measure_sampler(wrong, uniforms=3, models=FEW, dtype=torch.float32).error < 2**-23


def test_the_figures_are_those_of_the_formulas():
    target, draft = (model.probs([0]) for model in PLAIN["plain"])
    kept = target.minimum(draft)
    right = measure_sampler(foreign.chain, parents=(0,), uniforms=2, models=PLAIN)
    assert right.expected_tokens["plain"] == pytest.approx(1 + float(kept.sum()), abs=1e-12)
    wrong = measure_sampler(
        partial(foreign.chain, mistake="target for residual"), parents=(0,), uniforms=2, models=PLAIN
    )
    first = kept + (1 - kept.sum()) * target  # of the first token; the second is spread by the target
    off = (first - target).abs()
    assert off.max() >= wrong.error > off.max() / 3


def test_draws_of_torch_are_enumerated_where_no_uniforms_are_asked_for():
    def drawing(case, mistake=""):
        coins = torch.rand(len(case.draft_tokens), dtype=torch.float64)
        for index, token in enumerate(case.draft_tokens.tolist()):
            target, draft = case.target_probs[index], case.draft_probs[index]
            if not coins[index] < target[token] / draft[token]:
                left = target if mistake else foreign.residual(target, draft)
                return [*case.draft_tokens[:index].tolist(), int(torch.multinomial(left, 1))]
        return [*case.draft_tokens.tolist(), int(torch.multinomial(case.target_probs[-1], 1))]

    report = prove_sampler(drawing)
    assert report.error < 1e-15
    assert report.calls < 500
    wrong = measure_sampler(partial(drawing, mistake="target"), models=PLAIN).error
    split = partial(foreign.chain, mistake="target for residual")
    assert wrong == pytest.approx(measure_sampler(split, uniforms=3, models=PLAIN).error, abs=1e-15)


@pytest.mark.parametrize(
    ("mistake", "error"), [("", 0), ("pruned", 0.0745), ("sibling left in", 0.0035)], ids=str
)
def test_siblings_without_replacement(mistake, error):
    # Over three tokens the residual behind a sibling is often one token, and what its law was shows nowhere.
    models = {"flat": ALL["flat"]} if mistake == "sibling left in" else PLAIN
    report = measure_sampler(
        partial(foreign.tree, mistake=mistake),
        parents=(0, 0, 1),
        law=WithoutReplacement,
        uniforms=4,
        models=models,
    )
    assert report.error == pytest.approx(error, abs=1e-4 if error else 1e-15)


def test_a_draft_that_runs_out_of_tokens_has_fewer():
    sizes = set()

    def sampler(case):
        sizes.add(tuple(case.parents.tolist()))
        return foreign.tree(case)

    models = {"narrow": (ToyModel(3, seed=1), ToyModel(3, seed=2, sparsity=1.0))}
    options: dict[str, Any] = {"parents": (0, 0, 1), "uniforms": 4, "models": models}
    assert prove_sampler(sampler, law=WithoutReplacement, **options).error < 1e-15
    assert sizes == {(0, 1)}


SGLANG: dict[str, Any] = {"parents": (0, 0, 1), "uniforms": 5, "models": FEW}


def test_sglangs_rule_is_lossless_whatever_the_law_without_equal_siblings():
    sampler = sglang_sampler(foreign.sglang)
    assert prove_sampler(sampler, law=Deterministic, **SGLANG).error < 1e-15
    assert prove_sampler(sampler, law=Deterministic, dtype=torch.float32, **SGLANG).error < 1e-6
    two: dict[str, Any] = {"parents": (0, 0), "uniforms": 4, "models": PLAIN}
    assert prove_sampler(sampler, law=WithoutReplacement, **two).error < 1e-15
    assert measure_sampler(sampler, law=WithReplacement, **two).error > 0.02


@pytest.mark.parametrize(
    ("options", "error"), [({"threshold_single": 0.5}, 0.26), ({"threshold_acc": 0.9}, 0.149)]
)
def test_sglangs_thresholds_below_1_are_lossy(options, error):
    sampler = sglang_sampler(foreign.sglang, **options)
    with pytest.raises(LawBroken) as caught:
        prove_sampler(sampler, law=Deterministic, **SGLANG | {"models": EQUAL})
    assert caught.value.error == pytest.approx(error, abs=2e-3)


@pytest.mark.parametrize("mistake", ["siblings not summed", "target for residual"])
def test_mistakes_behind_sglangs_signature_are_caught(mistake):
    with pytest.raises(LawBroken) as caught:
        prove_sampler(
            sglang_sampler(partial(foreign.sglang, mistake=mistake)),
            law=Deterministic,
            **SGLANG | {"models": PLAIN},
        )
    assert (caught.value.error or 0) > 0.02


VLLM: dict[str, Any] = {"samples": 50_000, "batched": True, "dtype": torch.float32, "models": FEW}


def test_vllms_signature_is_proved_by_samples():
    report: Any = prove_sampler(vllm_sampler(foreign.vllm), **VLLM)
    assert report.p_value > 0.001
    assert 0.01 < report.smallest_bias < 0.03
    assert report.calls == 2 * VLLM["samples"]
    report = prove_sampler(vllm_sampler(foreign.vllm, drafted=True), law=Deterministic, **VLLM)
    assert report.p_value > 0.001


@pytest.mark.parametrize(
    ("options", "mistake"), [({"padded": True}, "padding judged"), ({"seeded": True}, "seed used twice")]
)
def test_vllms_padded_drafts_and_rows_with_seeds(options, mistake):
    report: Any = prove_sampler(vllm_sampler(foreign.vllm, **options), **VLLM)
    assert report.p_value > 1e-6
    # One row in three has a seed, so that more samples are needed to see what only these rows do.
    wrong = vllm_sampler(partial(foreign.vllm, mistake=mistake), **options)
    with pytest.raises(LawBroken):
        prove_sampler(wrong, **VLLM | {"samples": 200_000})


RUNNER: dict[str, Any] = {"samples": 2500, "batched": True, "dtype": torch.float32, "models": PLAIN}


@pytest.mark.parametrize("padded", [False, True])
def test_vllms_newer_runner_passes_whether_rows_are_ragged_or_padded(padded):
    report: Any = prove_sampler(vllm_runner_sampler(foreign.vllm_runner, padded=padded), **RUNNER)
    assert report.p_value > 1e-6
    drafted = vllm_runner_sampler(foreign.vllm_runner, padded=padded, drafted=True)
    mixed = (SamplingParams(1.0), SamplingParams(0.0))
    report = prove_sampler(drafted, law=Deterministic, settings=mixed, **RUNNER)
    assert report.p_value > 1e-6


@pytest.mark.parametrize(
    ("mistake", "padded"),
    [("padding judged", True), ("position of the row", False), ("position of the row", True)],
)
def test_mistakes_behind_the_newer_runners_signature_are_caught(mistake, padded):
    wrong = vllm_runner_sampler(partial(foreign.vllm_runner, mistake=mistake), padded=padded)
    with pytest.raises(LawBroken):
        prove_sampler(wrong, **RUNNER)


def test_the_newer_runner_pads_only_rows_that_are_cut():
    with pytest.raises(InvalidInput, match="padded=True fills the rows that ragged=True cuts"):
        vllm_runner_sampler(foreign.vllm_runner, ragged=False, padded=True)


@pytest.mark.parametrize("mistake", ["noise reused", "target for residual"])
def test_mistakes_behind_vllms_signature_are_caught(mistake):
    with pytest.raises(LawBroken, match=r"is biased \(p = \S+\): tokens"):
        prove_sampler(vllm_sampler(partial(foreign.vllm, mistake=mistake)), **VLLM)


def test_a_deterministic_draft_verified_as_if_drawn_is_caught():
    with pytest.raises(LawBroken):
        prove_sampler(vllm_sampler(foreign.vllm), law=Deterministic, **VLLM)


def test_samples_one_by_one_and_in_batches_of_uniforms_agree():
    def rows(case):
        emitted = torch.full((len(case.draft_tokens), 3), -1)
        for row in range(len(emitted)):
            one = type(case)(
                draft_tokens=case.draft_tokens[row],
                parents=case.parents,
                target_probs=case.target_probs[row],
                draft_probs=case.draft_probs[row],
                law=case.law,
                uniforms=case.uniforms[row],
            )
            tokens = foreign.chain(one)
            emitted[row, : len(tokens)] = torch.tensor(tokens)
        return emitted

    options: dict[str, Any] = {"uniforms": 3, "samples": 4000, "models": PLAIN}
    exact = measure_sampler(foreign.chain, uniforms=3, models=PLAIN).expected_tokens["plain"]
    reports: list[Any] = [
        prove_sampler(foreign.chain, **options),
        prove_sampler(rows, batched=True, **options),
    ]
    for report in reports:
        assert report.expected_tokens["plain"] == pytest.approx(exact, abs=0.1)
        assert report.p_value > 0.001


def test_the_bias_that_is_stated_is_detected():
    even_law: dict[tuple[int, ...], float] = {
        (token,): chance for token, chance in enumerate([0.3, 0.2, 0.15, 0.15, 0.1, 0.1])
    }
    p = np.array(list(even_law.values()))
    size = chi_square_test(
        {text: round(1e5 * chance) for text, chance in even_law.items()}, even_law
    ).smallest_bias
    # The law at this distance that is hardest to find: every probability off by the same factor.
    worst = p * (1 + 2 * size * np.array([1, 1, -1, -1, -1, -1]))
    assert abs(worst - p).sum() / 2 == pytest.approx(size)
    rng = np.random.default_rng(0)

    def power(law):
        draws = rng.multinomial(100_000, law, size=200)
        results = [chi_square_test(dict(zip(even_law, row, strict=True)), even_law) for row in draws]
        return np.mean([result.p_value < SIGNIFICANCE for result in results])

    assert power(worst) > 0.95
    assert power(p + (worst - p) / 4) < 0.5
    assert power(p) == 0


def test_a_sequence_that_cannot_come_is_found_once():
    assert chi_square_test({(0,): 999, (1,): 1}, {(0,): 1.0, (1,): 0.0}).p_value == 0


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (lambda case: [][0], r"raises \(IndexError: list index out of range\)"),
        (lambda case: [], r"emits \(\); a draft of depth 2 gives 1 to 3 tokens"),
        (lambda case: [0] * 4, r"emits \(0, 0, 0, 0\); a draft of depth 2"),
        (lambda case: [3], r"emits \(3,\); token 3 does not exist"),
        (lambda case: torch.tensor([-1, 3]), r"emits \(3,\); token 3 does not exist"),
        (lambda case: torch.tensor([-1, -1]), r"emits \(\); a draft of depth 2"),  # nothing but padding
    ],
)
def test_what_no_sampler_may_do_is_shown_with_its_draft(sampler, message):
    with pytest.raises(LawBroken, match=message + r"[\s\S]*on the draft\n  0: token 0\n     target "):
        prove_sampler(sampler, models=PLAIN)


def test_what_the_sampler_writes_to_its_input_stays_its_own():
    def scribbles(case):
        tokens = foreign.chain(case)
        case.target_probs.zero_()
        case.draft_probs.zero_()
        return tokens

    assert prove_sampler(scribbles, uniforms=3, models=PLAIN).error < 1e-15


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batched": True}, "batched=True needs samples=N"),
        ({"law": PerChild}, "law is PerChild; give one of"),
        ({"parents": (0, 2)}, "Drafted token 1 has the parent row 2; give 0 for the root"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(options, message):
    with pytest.raises(InvalidInput, match=message):
        prove_sampler(foreign.chain, **options)


def test_vllms_sampler_is_asked_whether_it_takes_logits():
    def of_logits(*given: Any) -> Any:
        calls: Any = foreign.vllm
        return calls(*given[:5], given[5].softmax(-1), *given[6:])

    report: Any = prove_sampler(vllm_sampler(of_logits), **VLLM)
    assert report.p_value > 1e-6
    with pytest.raises(LawBroken):
        prove_sampler(vllm_sampler(of_logits, target="probs"), **VLLM)


def test_sglangs_arguments_are_spelled_as_the_function_spells_them():
    def newer(*, retrieve_index, retrieve_next_token, retrieve_next_sibling, **given):
        found = given | {
            "retrive_index": retrieve_index,
            "retrive_next_token": retrieve_next_token,
            "retrive_next_sibling": retrieve_next_sibling,
        }
        return foreign.sglang(**found)

    options: Any = {"parents": (0, 0, 1), "uniforms": 5, "law": WithoutReplacement, "models": PLAIN}
    report = measure_sampler(sglang_sampler(newer), **options)
    assert report.error == measure_sampler(sglang_sampler(foreign.sglang), **options).error


def test_a_signature_that_an_adapter_does_not_know_is_no_verdict():
    with pytest.raises(InvalidInput, match="does not take the arguments that the adapter gives it"):
        vllm_sampler(lambda tokens, counts: tokens)
    with pytest.raises(InvalidInput, match="does not take the arguments that the adapter gives it"):
        prove_sampler(sglang_sampler(lambda *, predicts: None), parents=(0, 0, 1), uniforms=5)


def test_adapters_say_what_they_need():
    with pytest.raises(InvalidInput, match="give samples=N and batched=True"):
        prove_sampler(vllm_sampler(foreign.vllm))
    with pytest.raises(InvalidInput, match="2 uniforms are too few for 2 drafted tokens; give uniforms=4"):
        prove_sampler(sglang_sampler(foreign.sglang), uniforms=2)
    with pytest.raises(InvalidInput, match="padded=True fills the rows that ragged=True cuts"):
        vllm_sampler(foreign.vllm, ragged=False, padded=True)
    with pytest.raises(InvalidInput, match="target is 'odds'; give 'probs' or 'logits'"):
        vllm_sampler(foreign.vllm, target="odds")  # type: ignore[arg-type]
