"""The public proof harness. Imports without pytest."""

from draftwood.testing.block_efficiency import (
    WeightedTree,
    drawn_trees,
    expected_tokens,
    one_round_law,
    optimal_tokens,
)
from draftwood.testing.checks import check_strategy, checks_for, parametrize_with_checks
from draftwood.testing.decoding_checks import decoding_checks
from draftwood.testing.engine_samplers import sglang_sampler, transformers_sampler, vllm_sampler
from draftwood.testing.enumerator import BudgetExceeded, EndlessRun, Enumerator, enumerate_outcomes
from draftwood.testing.intervals import CannotEnumerate, split_uniforms
from draftwood.testing.law_broken import LawBroken
from draftwood.testing.lossless import JointLaw, assert_lossless, joint_law, largest_error, target_law
from draftwood.testing.proposal_law import assert_proposal_law
from draftwood.testing.sampler_cases import SamplerCase, sampler_models
from draftwood.testing.samplers import SamplerReport, measure_sampler, prove_sampler
from draftwood.testing.torch_randomness import torch_law, torch_randomness
from draftwood.testing.toy import NextTokenModel, ToyBackend, ToyModel

__all__ = [
    "BudgetExceeded",
    "CannotEnumerate",
    "EndlessRun",
    "Enumerator",
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
    "vllm_sampler",
]
