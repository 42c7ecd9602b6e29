"""`check_strategy` of drafters and backends: what is wrong is named, and what they are compared with."""

import copy
from typing import Any

import attrs
import pytest
import torch
import transformers

from draftwood import (
    InvalidInput,
    StateBackend,
    load,
)
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from draftwood.testing import LawBroken, ToyBackend, ToyModel
from draftwood.testing.checks.strategy_checks import check_strategy, checks_for
from draftwood.testing.models.oracles import PlainForward, oracle_of
from tests.backends.recurrent_models import build
from tests.framework.test_testing_checks import failing


class Absent(ModelDrafter):
    """Forgets what was accepted."""

    def commit(self, outcomes):
        super().commit([attrs.evolve(one, tokens=one.tokens[:1], path=one.path[:1]) for one in outcomes])


class OneRow(ModelDrafter):
    """Answers every row as it answers the first."""

    def distributions(self, requests):
        logits = super().distributions(requests)
        return logits[:1].expand_as(logits)


class Flattened(ModelDrafter):
    def distributions(self, requests):
        return super().distributions(requests)[0]


@pytest.mark.parametrize(
    ("drafter", "check"), [(Absent, "commit"), (OneRow, "rows"), (Flattened, "shapes")], ids=lambda v: str(v)
)
def test_every_check_of_a_drafter_can_fail(drafter, check):
    assert check in failing(drafter(ToyBackend(ToyModel(13))))


class Unnamed(StateBackend):
    vocab_size, max_length, weight_bytes = 13, None, 0

    def __init__(self):
        self.toy = ToyBackend(ToyModel(13))

    lengths = property(lambda self: self.toy.lengths)

    def prefill(self, rows):
        self.toy.prefill(rows)

    def release(self, rows=None):
        self.toy.release(rows)

    def extend(self, tokens, parents, counts=None):
        return self.toy.extend(tokens, parents, counts)

    def commit(self, paths):
        self.toy.commit(paths)


def test_a_backend_that_names_no_model_needs_an_oracle():
    with pytest.raises(InvalidInput, match="Unnamed names no model to compare it with; give oracle="):
        list(checks_for(Unnamed()))
    checks = dict(checks_for(Unnamed(), oracle=ToyModel(13).logits, models=2))
    checks["one-tree"]()
    checks["long-texts"]()
    with pytest.raises(LawBroken, match="are 0.5 times the right ones") as raised:
        dict(checks_for(Unnamed(), oracle=lambda tokens: 2 * ToyModel(13).logits(tokens)))["one-tree"]()
    assert (raised.value.error or 0) > 0.1
    assert raised.value.likely.startswith("a temperature or scale")


def test_the_oracle_of_a_module_is_its_plain_forward():
    module = zoo_model()
    backend = load(module)
    assert backend.model is module
    oracle: Any = oracle_of(backend)
    tokens = [5, 3, 8, 1]
    with torch.no_grad():
        wanted = module(torch.tensor([tokens]), use_cache=False).logits[0, -1]
    assert torch.equal(oracle(tokens), wanted)
    assert isinstance(oracle_of(ModelDrafter(backend)), PlainForward)
    dict(checks_for(backend))["rounds-of-trees"]()
    with torch.no_grad():  # the oracle has no part in what the backend does
        oracle.module = copy.deepcopy(module)
        next(oracle.module.parameters()).mul_(1.01)
    with pytest.raises(LawBroken):
        dict(checks_for(backend, oracle=PlainForward(oracle.module)))["one-tree"]()


@pytest.mark.parametrize("name", ["bamba", "mamba2"])
def test_steps_beyond_their_limits_are_clamped_in_prompts_alone(name):
    """So the plain forward over a whole text is not what a model decodes, and no oracle for it."""
    module = build(name)
    for part in module.modules():
        if hasattr(part, "time_step_limit"):
            part.time_step_limit = (0.0, 0.05)
    backend = load(module)
    check_strategy(backend, models=5)
    check_strategy(ModelDrafter(backend), models=5)
    for wrong in (lambda tokens: PlainForward(module)(list(tokens)), PlainForward(build(name))):
        with pytest.raises(LawBroken):
            check_strategy(backend, models=5, oracle=wrong)


def zoo_model():
    config = transformers.LlamaConfig(
        vocab_size=23, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).eval()


def test_a_drafter_is_held_to_an_oracle_where_one_is_given():
    checks = dict(checks_for(PromptLookup(13), oracle=ToyModel(13).logits))
    with pytest.raises(LawBroken, match="are not the model's"):
        checks["tree"]()
