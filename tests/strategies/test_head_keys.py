"""Keys of descriptions at every depth: read, refused with what to do, or known to change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwood import Generation, InvalidInput, SpeculativeDecoder, create
from draftwood.strategies.blocks.files import load_block
from draftwood.strategies.heads.formats import load_head, save_head
from draftwood.strategies.heads.keys import has_no_effect
from draftwood.strategies.heads.rope import frequencies, rope_parameters
from draftwood.strategies.heads.unrolled import unrolled
from tests.strategies import feature_heads
from tests.strategies.published import (
    CONFIGS,
    angles_of,
    block_tensors,
    layer_of,
    maps,
    pair_logits,
    pair_tensors,
    write,
)

BASE = CONFIGS["safeailab-eagle3"]
WITHOUT_BASE = {key: value for key, value in BASE.items() if key != "rope_theta"}


def read(folder: Path, described: dict[str, Any], **more: torch.Tensor) -> Any:
    write(folder, described, {**pair_tensors(described, own_table=False), **more})
    return load_head(folder)


@pytest.mark.parametrize(
    "more",
    [
        {"auto_map": {"AutoModel": "a.B"}},
        {
            "return_dict": True,
            "is_decoder": False,
            "id2label": {"0": "A"},
            "chunk_size_feed_forward": 0,
        },
        {"quantization_config": None, "pruned_heads": {}, "add_cross_attention": False},
        {"num_aux_hidden_states": 3},
        {"pretraining_tp": 2, "temperature": 1.0, "bad_words_ids": None},
        {"num_experts": 128, "decoder_sparse_step": 1, "router_aux_loss_coef": 0.001},
        {"sliding_window": 4096},
        {"model_type": "glm4_moe", "architectures": ["LlamaForCausalLMEagle3"]},
        {"hidden_act": "swish"},
        {"tie_word_embeddings": True},
        {"eagle_config": {"use_last_layernorm": True, "parallel_draft_step": 1, "next_layer_regular": True}},
    ],
    ids=str,
)
def test_keys_that_change_nothing(more: dict[str, Any], tmp_path: Path) -> None:
    assert read(tmp_path, {**BASE, **more}).config == read(tmp_path, BASE).config


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder is True"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"num_aux_hidden_states": 4}, "num_aux_hidden_states is 4 .* which taps 3 layers"),
        ({"markov_rank": 4}, "'markov_rank', which belongs to DSpark drafters"),
        ({"kv_lora_rank": 4}, "'kv_lora_rank', which belongs to layers with latent attention"),
        (
            {"embedding_scale": 2.0},
            "'embedding_scale', which is not known here .* keys docs/head-formats.md lists",
        ),
        ({"eagle_config": {"use_last_layernorm": False}}, "use_last_layernorm is False in eagle_config of"),
        ({"eagle_config": {"depth": 2}}, "eagle_config of .* has the key 'depth'"),
        (
            {"eagle_config": {"norm_output": False}, "norm_output": True},
            "norm_output is True and False",
        ),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}, "some makers name layers by their input and some"),
        ({"layer_types": ["sliding_attention"], "sliding_window": 8}, "attends in a window"),
        ({"rope_parameters": {"rope_theta": 2.0}}, "rope_theta is 2.0 and 10000.0 in"),
    ],
    ids=str,
)
def test_keys_that_are_refused(more: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=sentence) as error:
        read(tmp_path, {**BASE, "rope_theta": 10000.0, **more})
    assert "take it out" not in str(error.value)
    assert "\n" not in str(error.value)


TOP = "eagle_aux_hidden_state_layer_ids"


def test_taps_at_the_top_of_a_flat_file_are_read_where_they_are_clear(tmp_path: Path) -> None:
    """Beside the same layers by output, or where the caller names them."""
    nested = {"eagle_config": {TOP: [1, 2, 3]}}
    for top in ([1, 2, 3], [2, 3, 4]):
        assert read(tmp_path, {**BASE, **nested, TOP: top}).config.taps == (2, 3, 4)
    with pytest.raises(InvalidInput, match="at the top .* names other layers than its other keys"):
        read(tmp_path, {**BASE, **nested, TOP: [0, 1, 2]})
    with pytest.raises(InvalidInput, match="give the layers by input as -o taps="):
        read(tmp_path, {**BASE, TOP: [1, 2, 3]})
    assert load_head(tmp_path, taps=(1, 2, 3)).config.taps == (1, 2, 3)
    with pytest.raises(InvalidInput, match="taps names 2 layers, but the head in .* reads 3; give that many"):
        load_head(tmp_path, taps=(1, 2))


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e4}
ROTATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "old spelling": ({"rope_theta": 5.0, "rope_scaling": None}, {"rope_theta": 5.0}),
    "type": ({"rope_scaling": {**YARN, "rope_type": None, "type": "yarn"}}, YARN),
    "partial": ({"rope_parameters": {"partial_rotary_factor": 0.25}}, {"partial_rotary_factor": 0.25}),
    "partial at the top": ({"partial_rotary_factor": 0.25}, {"partial_rotary_factor": 0.25}),
    "partial and yarn": (
        {"rope_parameters": {**YARN, "partial_rotary_factor": 0.5}},
        {**YARN, "partial_rotary_factor": 0.5},
    ),
    "by layer type": (
        {"rope_parameters": {"full_attention": YARN, "sliding_attention": {"rope_theta": 7.0}}},
        YARN,
    ),
    "images": ({"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}, {}),
    "both ways alike": ({"rope_parameters": YARN, "rope_scaling": YARN}, YARN),
    "length of yarn": (
        {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 2048},
    ),
}


@pytest.mark.parametrize("case", ROTATIONS)
def test_rotations_in_every_spelling(case: str) -> None:
    described, told = ROTATIONS[case]
    found = rope_parameters(described, where="here", longest=2048)
    expected = {"rope_type": "default", "rope_theta": 10000.0, **told}
    assert found == expected
    angles, scale = frequencies(found, head_dim=16, longest=2048)
    same, factor = angles_of({"head_dim": 16, "rope_parameters": expected})
    torch.testing.assert_close(angles, torch.tensor(same))
    assert scale == pytest.approx(factor)


@pytest.mark.parametrize(
    ("described", "sentence"),
    [
        (
            {"rope_parameters": {"banana": 3}},
            "the key 'banana', which is not known of the rotation",
        ),
        ({"rope_parameters": {"factor": 2.0}}, "the key 'factor', which is not known of the rotation 'def"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor is None .* needs a number above 0"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rotation is 'dynamic'"),
        ({"rope_scaling": YARN, "rope_parameters": {"rope_theta": 1e4}}, "rope_scaling, which differ"),
        ({"rope_parameters": {"partial_rotary_factor": 2}}, "is 2.0 .* give a fraction of 1 at most"),
        (
            {"rope_parameters": {"chunked_attention": {"rope_theta": 3.0}}},
            "a rotation of 'chunked_att",
        ),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 3.0}}}, "no rotation of full_attention"),
        ({"rope_theta": "big"}, "rope_theta is 'big'"),
    ],
)
def test_rotations_that_are_refused(described: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        rope_parameters(described, where="here")
    with pytest.raises(InvalidInput, match="layers that rotate differently"):
        rope_parameters(
            {"rope_parameters": {"full_attention": {}, "sliding_attention": {"rope_theta": 3.0}}},
            where="here",
            types=("full_attention", "sliding_attention"),
        )


@torch.no_grad()
def test_biases_are_those_of_the_tensors(tmp_path: Path) -> None:
    described = {**BASE, "attention_bias": True}
    sizes = {"q": 64, "k": 32, "v": 32}
    more = {
        f"midlayer.self_attn.{name}_proj.bias": torch.linspace(-1, 1, size).double()
        for name, size in sizes.items()
    }
    head = read(tmp_path, described, **more)
    stored = {**pair_tensors(described, own_table=False), **more}
    features = torch.randn(1, 3 * 64, dtype=torch.float64)
    embeddings = torch.randn(1, 64, dtype=torch.float64)
    (expected,) = pair_logits(described, stored, prefix="midlayer.", embeddings=embeddings, features=features)
    (out,) = unrolled(head, embeddings.unsqueeze(0), head.project(features).unsqueeze(0), depths=1)
    torch.testing.assert_close(head.logits(out)[0, 0], expected, rtol=1e-5, atol=1e-5)
    # SpecForge's class has none whatever its description says, and none may be there where it says so.
    assert not read(tmp_path, described).config.attention_bias
    with pytest.raises(InvalidInput, match="hold biases of attention, and its description says"):
        read(tmp_path, BASE, **more)


def test_a_head_of_all_tokens_borrows_the_output_head(tmp_path: Path) -> None:
    made = feature_heads.config(draft_vocab_size=23)
    whole = feature_heads.random_head(made)
    feature_heads_target = feature_heads.target()
    assert whole.lm_head is not None
    with torch.no_grad():
        whole.lm_head.weight.copy_(feature_heads_target.lm_head.weight)
    save_head(whole, tmp_path, target="big")
    stored = load_file(tmp_path / "model.safetensors")
    del stored["lm_head.weight"]
    save_file(stored, tmp_path / "model.safetensors")
    policy = create("policies", "chain", {"length": 3, "law": "top-k"})
    prompt = torch.tensor([[3, 5, 7, 2]])
    accepted = []
    for head in (whole, load_head(tmp_path)):
        decoder = SpeculativeDecoder(feature_heads_target, head, policy, create("verifiers", "greedy"))
        written = decoder.generate(prompt, max_new_tokens=12, return_dict_in_generate=True)
        assert isinstance(written, Generation)
        accepted.append((written.sequences.tolist(), written.statistics.sums["accepted"]))
    assert accepted[0] == accepted[1]
    with pytest.raises(InvalidInput, match="has no output head yet; call borrow"):
        load_head(tmp_path).logits(torch.zeros(1, 1, 16, dtype=torch.float64))
    fewer = {name: tensor for name, tensor in stored.items() if name != "lm_head.weight"}
    save_file({**fewer, **maps(19, 23)}, tmp_path / "model.safetensors")
    file = tmp_path / "config.json"
    described = file.read_text()
    file.write_text(described.replace('"draft_vocab_size": 23', '"draft_vocab_size": 19'))
    with pytest.raises(InvalidInput, match="proposes 19 tokens, so it needs a separate output head"):
        load_head(tmp_path)


def test_names_of_other_makers(tmp_path: Path) -> None:
    """All names after `model.`, buffers of a rotation, and copies that training alone reads."""
    stored = pair_tensors(BASE, own_table=False)
    nested = {f"model.{name}": tensor for name, tensor in stored.items()}
    nested["model.midlayer.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    nested["verifier_norm.weight"] = torch.ones(64)
    write(tmp_path / "nested", BASE, nested)
    write(tmp_path / "usual", BASE, stored)
    first, second = (load_head(tmp_path / name) for name in ("nested", "usual"))
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, second.state_dict()[name])
    write(tmp_path / "nested", BASE, {**nested, "fc.weight": stored["fc.weight"].clone()})
    with pytest.raises(InvalidInput, match="holds fc.weight under two names"):
        load_head(tmp_path / "nested")
    assert layer_of(BASE)["head_dim"] == 16


@pytest.mark.parametrize(
    ("name", "key", "words"),
    [
        ("modelopt-swa-dflash", "causal_head", r"\(causal False and causal_head True\)"),
        ("nemo-qwen3-8b-dflash", "causal_head", r"\(is_causal False and causal_head True\)"),
    ],
)
def test_two_keys_of_causal_layers_that_differ_are_refused(
    name: str, key: str, words: str, tmp_path: Path
) -> None:
    described = CONFIGS[name]
    inner = {**described["dflash_config"], key: True}
    write(tmp_path, {**described, "dflash_config": inner}, block_tensors(described))
    with pytest.raises(InvalidInput, match=f"a slot sees later ones is told in two ways by .*{words}; copy"):
        load_block(tmp_path)


def test_a_switch_in_the_place_of_a_number_is_refused_although_it_equals_one(tmp_path: Path) -> None:
    described = CONFIGS["nemo-phi4-eagle3"]
    assert described["rope_parameters"]["partial_rotary_factor"] == 1
    write(tmp_path, {**described, "partial_rotary_factor": True}, pair_tensors(described))
    with pytest.raises(
        InvalidInput, match="partial_rotary_factor is True in .*; the rotation needs a number"
    ):
        load_head(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dspark_noise_token_id", 5),
        ("dspark_target_layer_ids", [1, 4, 7]),
        ("eagle_aux_hidden_state_layer_ids", [1, 4, 6]),
    ],
)
def test_keys_that_repeat_others_must_agree(key: str, value: Any, tmp_path: Path) -> None:
    described = CONFIGS["converted-qwen3-dspark"]
    write(tmp_path, {**described, key: value}, block_tensors(described))
    with pytest.raises(InvalidInput, match=f"{key} is .*, whose other keys make it .*; copy its description"):
        load_block(tmp_path)


@pytest.mark.parametrize(
    ("key", "changes_nothing"),
    [
        *(
            (key, True)
            for key in ("vision_start_token_id", "eod_token_id", "learning_rate", "num_train_epochs")
        ),
        *((key, True) for key in ("warmup_ratio", "dataset_name", "train_batch_size", "hidden_dropout_prob")),
        *((key, True) for key in ("save_dtype", "modelopt_version", "license", "wandb_project", "init_std")),
        *((key, False) for key in ("mask_token_id", "dspark_noise_token_id", "ptd_token_id", "block_size")),
        *((key, False) for key in ("embedding_scale", "final_logit_softcapping", "residual_multiplier")),
        *((key, False) for key in ("mtp_trained_depths", "target_layer_ids", "norm_output", "lora_rank")),
        *((key, False) for key in ("train_rope_theta", "loss_head_scale", "seed_mask", "rope_version")),
        *((key, False) for key in ("training_norm", "checkpoint_layers", "train_window", "lr_vocab_size")),
        *((key, True) for key in ("loss_scale", "seed", "lr_scheduler_type", "format_version")),
    ],
)
def test_keys_that_makers_choose_freely_are_known_by_their_form(key: str, changes_nothing: bool) -> None:
    assert has_no_effect(key) == changes_nothing
