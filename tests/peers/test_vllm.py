"""vLLM's own rejection samplers, from its wheel, run by Triton's interpreter and proved by samples."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from draftwood import Deterministic, SamplingParams
from draftwood.testing import LawBroken, prove_sampler, sampler_models, vllm_runner_sampler, vllm_sampler
from draftwood.testing.samplers.vllm_samplers import VllmMetadata

pytestmark = pytest.mark.vllm

MIXED = (
    SamplingParams(1.0),
    SamplingParams(0.0),
    SamplingParams(0.6, top_k=2),
    SamplingParams(1.5, top_p=0.8),
)
# The interpreter needs some 10 ms a row for the first runner's sampler and 40 ms for the newer one's.
OLD: dict[str, Any] = {"samples": 3000}
NEW: dict[str, Any] = {"samples": 1000}


def prove(sampler: Any, **options: Any) -> None:
    models = {"plain": sampler_models()["plain"]}
    report = prove_sampler(sampler, models=models, batched=True, dtype=torch.float32, **options)
    print(f"{sampler.__name__}: error {report.error:.3f}, p {report.p_value:.2g}, {report.smallest_bias:.3f}")


@pytest.fixture(autouse=True, scope="module")
def interpreter() -> None:
    if not torch.cuda.is_available():
        from tests.peers.interpreted_triton import interpret_triton

        interpret_triton()


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> Any:
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.sample.ops import topk_topp_sampler

    # vLLM's filters in PyTorch, which it takes on a CPU: the interpreter cannot run those in Triton.
    monkeypatch.setattr(topk_topp_sampler, "HAS_TRITON", False)
    return rejection_sampler


@pytest.fixture
def newer() -> Any:
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample

    return rejection_sample


def test_the_functions_are_vllms(older: Any, newer: Any) -> None:
    import vllm
    from triton.runtime.interpreter import InterpretedFunction

    assert vllm.__version__ == "0.33.0"
    assert isinstance(older.rejection_random_sample_kernel, InterpretedFunction)
    assert newer.__module__.startswith("vllm.")


def test_the_first_runners_sampler(older: Any) -> None:
    prove(vllm_sampler(older.rejection_sample), **OLD)


def test_the_first_runners_sampler_of_drafts_without_probabilities(older: Any) -> None:
    prove(vllm_sampler(older.rejection_sample, drafted=True), law=Deterministic, **OLD)


def test_the_first_runners_sampler_with_settings_seeds_and_greedy_rows(older: Any) -> None:
    sampler = vllm_sampler(older.rejection_sample, constraints=older.apply_sampling_constraints, seeded=True)
    prove(sampler, settings=MIXED, **OLD)


def test_the_first_runners_greedy_sampler(older: Any) -> None:
    prove(vllm_sampler(older.rejection_sample), settings=(SamplingParams(0.0),), samples=300)


@pytest.mark.parametrize("block", [False, True], ids=["token", "block"])
@pytest.mark.parametrize("padded", [False, True], ids=["ragged", "padded"])
def test_the_newer_runners_sampler(newer: Any, block: bool, padded: bool) -> None:
    prove(vllm_runner_sampler(newer, block=block, padded=padded), **NEW)


@pytest.mark.parametrize("block", [False, True], ids=["token", "block"])
def test_the_newer_runners_sampler_with_settings_and_greedy_rows(newer: Any, block: bool) -> None:
    prove(vllm_runner_sampler(newer, block=block), settings=MIXED, **NEW)


def test_the_newer_runners_sampler_of_drafts_without_probabilities(newer: Any) -> None:
    prove(vllm_runner_sampler(newer, drafted=True), law=Deterministic, **NEW)


def test_a_uniform_of_exactly_zero_accepts_a_forbidden_token(
    older: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It tests `target / draft >= uniform`. Its uniforms are float64, so that this happens once in 2^53.
    monkeypatch.setattr(
        older, "generate_uniform_probs", lambda tokens, *_: torch.zeros(tokens, dtype=torch.float64)
    )
    emitted = older.rejection_sample(
        torch.tensor([1]),
        [1],
        1,
        torch.tensor([1], dtype=torch.int32),
        torch.full((1, 3), 1 / 3),
        torch.tensor([[0.0, -torch.inf, 0.0]]),
        torch.tensor([[0]]),
        VllmMetadata(torch.ones(1)),
    )
    assert int(emitted[0, 0]) == 1


def test_a_target_that_is_not_the_rows_own_is_caught(older: Any, newer: Any) -> None:
    def of_another(function: Any, at: int, *given: Any, **more: Any) -> Any:
        arguments = list(given)
        arguments[at] = arguments[at].roll(1, -1)
        return function(*arguments, **more)

    with pytest.raises(LawBroken):
        prove(vllm_sampler(partial(of_another, older.rejection_sample, 5), target="logits"), **OLD)
    with pytest.raises(LawBroken):
        prove(vllm_runner_sampler(partial(of_another, newer, 0)), samples=300)
