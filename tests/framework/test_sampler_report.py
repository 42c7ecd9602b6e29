"""A printed report of a sampler: its verdict, error, models and worst sequence on one screen."""

import attrs
import pytest
import torch

from draftwood.testing import SamplerReport, measure_sampler, prove_sampler
from draftwood.testing.diagnosis.law_broken import LawBroken


def sampler(case, *, mistake=False):
    for i, token in enumerate(case.draft_tokens.tolist()):
        target, draft = case.target_probs[i], case.draft_probs[i]
        if torch.rand((), dtype=torch.float64) >= target[token] / draft[token]:
            left = target if mistake else (target - draft).clamp(min=0)
            return [*case.draft_tokens[:i], torch.multinomial(left, 1)]
    return [*case.draft_tokens, torch.multinomial(case.target_probs[-1], 1)]


def wrong(case):
    return sampler(case, mistake=True)


@pytest.fixture(scope="module")
def proved() -> SamplerReport:
    return prove_sampler(sampler)


def fits_a_screen(text: str) -> bool:
    return len(text.splitlines()) <= 24


def test_a_proof_prints_verdict_error_models_and_where(proved):
    shown = str(proved)
    assert shown.startswith("lossless: largest error ")
    assert f"{proved.error:.2g} of a sequence's probability, {len(proved.errors)} models" in shown
    assert all(name in shown for name in proved.errors)
    assert "largest error: tokens (" in shown
    assert fits_a_screen(shown)
    assert repr(proved).startswith("SamplerReport(lossless, error=")
    assert "\n" not in repr(proved)


def test_a_biased_sampler_prints_its_counterexample_and_its_mistake():
    report = measure_sampler(wrong)
    shown = str(report)
    assert shown.startswith("biased: largest error ")
    assert report.counterexample.splitlines()[0] in shown
    assert f"most likely: {report.likely}" in shown
    assert fits_a_screen(shown)


@pytest.mark.parametrize(
    ("changes", "begin"),
    [
        ({"p_value": 0.5, "smallest_bias": 0.02}, "no bias found (p = 0.5): "),
        ({"p_value": 1e-12, "smallest_bias": 0.02}, "biased (p = 1e-12): "),
        ({"fault": "raises on a draft\n" + "line\n" * 100}, "broken: "),
        ({"errors": {f"model {i}": i / 1e3 for i in range(50)}}, "biased: "),
    ],
)
def test_every_verdict_fits_a_screen(proved, changes, begin):
    expected = dict.fromkeys(changes.get("errors", proved.errors), 1.0)
    shown = str(attrs.evolve(proved, **changes, expected_tokens=expected))
    assert shown.startswith(begin)
    assert fits_a_screen(shown)
    assert "40 more models" in shown or "errors" not in changes


def test_the_tolerance_decides():
    with pytest.raises(LawBroken):
        prove_sampler(sampler, tolerance=0.0)
    assert prove_sampler(wrong, tolerance=1.0).verdict == "lossless"
