"""How many experts of a mixture a pass touches: counted over a text, or expected."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from draftwood.decoding.experts_touched import experts_touched

SIZES: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
EXPECTED = {1: 2, 2: 3.5, 8: 8 * (1 - 0.75**8)}
"""By tokens, of two of eight experts that are chosen evenly."""


def test_experts_are_counted_over_a_text_or_expected() -> None:
    torch.manual_seed(0)
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**SIZES)).eval()
    assert dict(experts_touched(model, [1, 2, 8])) == pytest.approx(EXPECTED)
    # A text of one token routes all of it alike, and only a count knows.
    assert dict(experts_touched(model, [1, 2, 8], tokens=[3] * 8))[1] == 2
    counted = dict(experts_touched(model, [1, 2, 8], tokens=list(range(8))))
    assert counted[1] == 2
    assert 2 <= counted[2] <= 4
    assert counted[2] <= counted[8] <= 8
    assert counted != pytest.approx(EXPECTED)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_bias_of_the_choice_counts(groups: int) -> None:
    """The largest logits would touch other experts than the two that a bias chooses for every token."""
    config = transformers.DeepseekV3Config(
        **SIZES | {"num_attention_heads": 1, "num_key_value_heads": 1},
        moe_intermediate_size=16,
        first_k_dense_replace=1,
        n_group=groups,
        topk_group=1,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
    )
    torch.manual_seed(0)
    model = transformers.DeepseekV3ForCausalLM(config).eval()
    router = model.model.layers[1].mlp.gate
    torch.nn.init.normal_(router.weight)
    with torch.no_grad():
        router.e_score_correction_bias[4:6] = 9.0
    assert experts_touched(model, [1, 2, 8], tokens=list(range(8))) == ((1, 2), (2, 2), (8, 2))


def test_experts_whose_modules_are_not_told_are_expected() -> None:
    config = transformers.Llama4TextConfig(
        **SIZES, head_dim=8, intermediate_size_mlp=16, interleave_moe_layer_step=1
    )
    model = transformers.Llama4ForCausalLM(config).eval()
    assert dict(experts_touched(model, [1, 2, 8], tokens=list(range(8)))) == pytest.approx(EXPECTED)


def test_a_part_of_the_configuration_may_tell_how_many() -> None:
    config = transformers.DbrxConfig(
        vocab_size=32,
        d_model=16,
        n_heads=2,
        n_layers=2,
        attn_config={"kv_n_heads": 2, "rope_theta": 10000.0},
        ffn_config={"ffn_hidden_size": 16, "moe_num_experts": 8, "moe_top_k": 2},
    )
    assert dict(experts_touched(transformers.DbrxForCausalLM(config), [1, 2, 8])) == pytest.approx(EXPECTED)


def test_a_model_without_experts_touches_none() -> None:
    sizes = {name: size for name, size in SIZES.items() if "experts" not in name}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
    assert experts_touched(model, [1, 2, 8], tokens=list(range(8))) == ()
    assert experts_touched(None, [1]) == ()
