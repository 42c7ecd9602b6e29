"""Processors and constraints are asked about no prefix that decoding token by token would not come to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf

from draftwood import Constraint, SamplingParams, SpeculativeDecoder
from draftwood.errors import InvalidInput
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.testing import ToyBackend
from draftwood.testing.models.row_views import TOY_COSTS
from draftwood.testing.models.small_strategies import fits, small_policies, toy_drafter
from tests.framework.decoding import DRAFT, TARGET

END, NEW = 3, 5
PROMPTS = [[1, 2], [0, 4, 4]]


class Strict(hf.LogitsProcessor):
    """Raises where a text has ended or is as long as it may get."""

    def __init__(self, prompt: list[int]) -> None:
        self.prompt = prompt

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        assert input_ids[0, : len(self.prompt)].tolist() == self.prompt
        new = input_ids[:, len(self.prompt) :]
        assert new.shape[1] < NEW, "asked beyond the limit"
        assert not (new == END).any(), "asked after the end"
        return scores + torch.linspace(0, 1, NEW)[new.shape[1]] * torch.arange(scores.shape[1])


class Words(Constraint):
    """A strict trie: a state without children may not be asked about."""

    TRIE: dict[int, Any] = {1: {1: {END: {}}, 2: {4: {4: {END: {}}}}}, 0: {END: {}}}  # noqa: RUF012

    def start(self, prompt: Any) -> Any:
        return self.TRIE

    def advance(self, state: Any, token: int) -> Any:
        return state.get(token)

    def masks(self, states: Any, vocab_size: int) -> torch.Tensor:
        assert all(states), "asked after the end"
        return torch.tensor([[token in state for token in range(vocab_size)] for state in states])


@pytest.mark.parametrize("kind", ["processor", "constraint"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_no_policy_asks_beyond_the_end_or_the_limit(kind, temperature):
    tried = 0
    for policy in small_policies():
        if not fits(policy.strategy, RecursiveRejection()):
            continue
        drafter = toy_drafter(policy.strategy, DRAFT, TARGET)
        try:
            decoder = SpeculativeDecoder(
                ToyBackend(TARGET), drafter, policy.strategy, RecursiveRejection(), pass_costs=TOY_COSTS
            )
        except InvalidInput:  # it needs several drafters
            continue
        with decoder.session(max_new_tokens=NEW, eos_token_id=END) as session:
            for row, prompt in enumerate(PROMPTS):
                processors = [Strict(prompt)] if kind == "processor" else []
                session.add(
                    prompt,
                    sampling=SamplingParams(temperature=temperature, processors=processors),
                    constraint=Words() if kind == "constraint" else None,
                    seed=row,
                )
            while session.unfinished:
                for record in session.run().rows:
                    assert record.error is None, f"{policy}: {record.error}"
        tried += 1
    assert tried > 30
