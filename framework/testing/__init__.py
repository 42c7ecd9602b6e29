"""The public proof harness. Imports without pytest."""

from draftwood.testing.checks.decoding_checks import decoding_checks
from draftwood.testing.checks.strategy_checks import check_strategy, checks_for, parametrize_with_checks
from draftwood.testing.diagnosis.intervals import CannotEnumerate, split_uniforms
from draftwood.testing.diagnosis.law_broken import LawBroken
from draftwood.testing.models.drafter_with_target import DrafterWithTarget
from draftwood.testing.models.feature_toy import FeatureToyBackend
from draftwood.testing.models.toy import NextTokenModel, ToyBackend, ToyModel
from draftwood.testing.proofs.block_efficiency import (
    WeightedTree,
    drawn_trees,
    expected_tokens,
    one_round_law,
    optimal_tokens,
)
from draftwood.testing.proofs.enumerator import BudgetExceeded, EndlessRun, Enumerator, enumerate_outcomes
from draftwood.testing.proofs.lossless import (
    JointLaw,
    assert_lossless,
    joint_law,
    kept_law,
    largest_error,
    target_law,
)
from draftwood.testing.proofs.proposal_law import assert_proposal_law
from draftwood.testing.samplers.sampler_cases import SamplerCase, sampler_models
from draftwood.testing.samplers.sampler_proof import measure_sampler, prove_sampler
from draftwood.testing.samplers.sampler_report import SamplerReport
from draftwood.testing.samplers.sglang_samplers import sglang_sampler
from draftwood.testing.samplers.torch_randomness import torch_law, torch_randomness
from draftwood.testing.samplers.transformers_sampler import transformers_sampler
from draftwood.testing.samplers.vllm_samplers import vllm_runner_sampler, vllm_sampler

__all__ = [
    "BudgetExceeded",
    "CannotEnumerate",
    "DrafterWithTarget",
    "EndlessRun",
    "Enumerator",
    "FeatureToyBackend",
    "JointLaw",
    "LawBroken",
    "NextTokenModel",
    "SamplerCase",
    "SamplerReport",
    "ToyBackend",
    "ToyModel",
    "WeightedTree",
    "assert_lossless",
    "assert_proposal_law",
    "check_strategy",
    "checks_for",
    "decoding_checks",
    "drawn_trees",
    "enumerate_outcomes",
    "expected_tokens",
    "joint_law",
    "kept_law",
    "largest_error",
    "measure_sampler",
    "one_round_law",
    "optimal_tokens",
    "parametrize_with_checks",
    "prove_sampler",
    "sampler_models",
    "sglang_sampler",
    "split_uniforms",
    "target_law",
    "torch_law",
    "torch_randomness",
    "transformers_sampler",
    "vllm_runner_sampler",
    "vllm_sampler",
]
