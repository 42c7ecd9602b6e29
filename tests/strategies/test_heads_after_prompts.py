"""Heads after prompts that the target reads by its own forward."""

import pytest
import torch

from draftwood import ModelPrompt, SamplingParams, SpeculativeDecoder, load
from draftwood.strategies.drafters.eagle3 import Eagle3
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from tests.strategies.feature_heads import WIDTH, random_head, target

NEW = 20


def written(prompt, mask=None):
    backend = load(target())
    decoder = SpeculativeDecoder(backend, Eagle3(backend, random_head()), Chain(3), RecursiveRejection())
    return decoder.generate(
        prompt,
        mask,
        max_new_tokens=NEW,
        draft_sampling=SamplingParams(temperature=0),
        eos_token_id=[],
        return_dict_in_generate=True,
    )


def drafted(generation):
    """The paths of every round, in which a head that reads other features drafts other tokens."""
    return [[record.outcome for record in one.rows] for one in generation.statistics.history]


def test_features_of_a_prompt_are_those_of_its_tokens():
    ids = torch.tensor([[0, 0, 3, 4, 9, 8], [4, 8, 4, 11, 2, 7]])
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    plain = written(ids, mask)
    ours = written(ModelPrompt.of(target(), ids, attention_mask=mask))
    assert ours.tokens == plain.tokens
    assert drafted(ours) == drafted(plain)


@pytest.mark.parametrize("rows", [1, 2])
def test_texts_after_embeddings_are_those_of_generate(rows):
    embeddings = torch.randn(rows, 5, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    plain = target().generate(
        inputs_embeds=embeddings, max_new_tokens=NEW, do_sample=False, eos_token_id=None
    )
    ours = written(ModelPrompt.of(target(), inputs_embeds=embeddings))
    assert torch.equal(ours.sequences, plain)
