"""The search for layers that a target leaves out when it drafts for itself, and its refusals."""

from typing import Any

import pytest
import torch
import transformers as hf

from draftwood import InvalidInput
from draftwood.backends.loading.loader import load
from draftwood.strategies.drafters.layer_skip import LayerSkip, choose_layers
from tests.backends.attention_models import randomised
from tests.backends.test_architectures import build


def test_the_search_finds_layers_that_do_nothing():
    model = build_deep()
    with torch.no_grad():
        for layer in (1, 3):
            model.model.layers[layer].self_attn.o_proj.weight.zero_()
            model.model.layers[layer].mlp.down_proj.weight.zero_()
    target = load(model)
    target.prefill([torch.arange(4)])
    text = [(7 * i + 3) % 61 for i in range(70)]
    assert choose_layers(target, text, count=2) == (1, 3)
    assert choose_layers(target, text, count=1) in [(1,), (3,)]
    assert target.lengths == [4]


def test_the_search_for_one_layer_finds_the_best():
    model = build_deep()
    target = load(model)
    text = torch.tensor([(7 * i + 3) % 61 for i in range(70)])

    @torch.no_grad()
    def probs(one: Any) -> torch.Tensor:
        return one(text[None], use_cache=False).logits[0].softmax(-1)

    shared = [
        float(torch.minimum(probs(model), probs(target.without_layers([layer]).model)).sum(-1).mean())
        for layer in range(5)
    ]
    assert choose_layers(target, text.tolist(), count=1) == (shared.index(max(shared)),)


def build_deep() -> Any:
    torch.manual_seed(1)
    config = hf.LlamaConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=5,
        num_attention_heads=4,
        max_position_embeddings=128,
    )
    return randomised(hf.LlamaForCausalLM(config), 0.15)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0, "text": [1, 2]}, "count is 0; give a number of layers to skip from 1 to 1"),
        ({"count": 2, "text": [1, 2]}, "count is 2"),
        ({"count": 1, "text": [1]}, r"1 token\(s\)"),
    ],
)
def test_the_search_refuses(options, message):
    with pytest.raises(InvalidInput, match=message):
        choose_layers(load(build("llama")), **options)


@pytest.mark.parametrize(
    ("skip", "message"),
    [
        ("2,x", "skip is '2,x'; give layers separated by commas"),
        ("", "skip is ''"),
        ((), "skip is empty"),
        ("2", "no layer 2"),
        ("0,0", "name one twice"),
        ("0,1", "All 2 layers"),
    ],
)
def test_layers_that_cannot_be_skipped(skip, message):
    with pytest.raises(InvalidInput, match=message):
        LayerSkip(load(build("llama")), skip)
