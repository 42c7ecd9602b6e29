"""Every published description at hand: read with its forward's logits, or refused for its true reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood import InvalidInput
from draftwood.drafters import BlockDrafter, Eagle3, Mtp, PEagle
from draftwood.strategies.blocks.files import load_block
from draftwood.strategies.heads.formats import load_head
from draftwood.strategies.heads.peagle import load_peagle
from draftwood.strategies.heads.unrolled import unrolled
from tests.strategies.published import (
    CONFIGS,
    block_states,
    block_tensors,
    layer_of,
    pair_logits,
    pair_tensors,
    write,
)

# Each for what it has that is not supported.
REFUSED = {
    "deepseek-v4-dflash2": "'DFlash2DraftModel' in .*, which has the layers of DFlash 2",
    "angelslim-hunyuan-1.8b-eagle3": "rotation is 'dynamic' in .*, which changes as a text grows",
    "angelslim-qwen3-dflare": "'QwenDFlareDraftModel' in .*, which has projections of the context",
    "poolside-laguna-dflash": "model_type is 'laguna' in .*; layers like Qwen3's are read",
    "torchspec-dflash": "block_size is None in .*give it as -o block_size=NUMBER",
    "gemma4-text-dspark": "has the key 'global_head_dim', which is not known here",
    "specforge-dflash-linear": "'DFlashLinearDraftModel' in .*, which has a recurrent memory of the text",
    "specforge-dspark-mla": "has the key 'kv_lora_rank', which belongs to layers with latent attention",
    "zlab-glm-5.3-dflash2": "'DFlash2DraftModel' in .*, which has the layers of DFlash 2",
    "deepseek-v4-hc-dflash": "has the key 'hc_mult', which is not known here",
    "gpt-oss-120b-eagle3-export": "where some makers name layers by their input .* give the layers by input",
    "sglang-dflash-softcapping": "has the key 'final_logit_softcapping', which is not known here",
    "sglang-laguna-dflash": "has the key 'gating', which is not known here",
    "sglang-qwen4-dspark-stream": "has the key 'aux_hidden_stream', which is not known here",
    "nemo-gemma4-12b-dspark": "'Gemma4DSparkModel' in .*, which has Gemma's norms and scales",
    "nemo-gemma4-31b-eagle3": "hidden_act is 'gelu_pytorch_tanh' in .*; heads are read where it is",
    "nemo-glm-5.2-dspark": "model_type is 'glm_moe_dsa' in .*; layers like Qwen3's are read",
    "nemo-llama-eagle1": "EAGLE-1 or EAGLE-2, which reads the target's last layer only",
    "nemo-qwen2.5-vl-vispec": "a head of ViSpec, which reads the target's last layer only",
    "nemo-qwen3-8b-dflash2": "'Qwen3DFlash2DraftModel' in .*, which has the layers of DFlash 2",
    "speculators-0.9-dflash2": "'dflash2' .*are read",
    "speculators-0.9-xpress": "'xpress' .*are read",
    "fork-deepseek-v4-flash-dspark": "model_type is 'deepseek_v4' in .*; layers like Qwen3's are read",
    "fork-minimax-m2.7-dflash-without-mask": "mask_token_id is None in .*root, below 160: write it in",
    "fork-qwen3-4b-dspark-all-mask": "has the key 'dspark_anchor_token_input', which is not known here",
    "fork-qwen3-4b-dspark-context-only": "has the key 'dspark_block_attention', which is not known here",
    "fork-qwen3-4b-dspark-mla-window": "has the key 'draft_attention_type', which is not known here",
    "fork-qwen3-4b-pspr": "'PSPRDraftModel' in .*, which has layers that choose among the tokens",
    "fork-qwen3-8b-dconv": "'DConvDraftModel' in .*, which has convolutions over the tokens before a slot",
    "torchspec-gpt-oss-20b-dflash": "block_size is None in .*give it as -o block_size=NUMBER",
    "torchspec-qwen3-8b-eagle3-gated": "model_type is 'llama_gated' in .*; layers like Llama's are read",
    "torchspec-qwen3-8b-flowspec": "'FlowSpecDraftModel' in .*, which has slots that a flow refines",
    "torchspec-qwen3-dspark-of-type-qwen3-dspark": "block_size is None in .*give it as -o block_size=NUMBER",
    "torchspec-qwen3.6-35b-dflash": "block_size is None in .*give it as -o block_size=NUMBER",
    "specforge-qwen3-8b-p-eagle": "needs the token there .* give it as -o mask_token_id=NUMBER",
}


def is_block(described: dict[str, Any]) -> bool:
    named = any(
        kind in name for name in described["architectures"] for kind in ("DFlash", "DSpark", "FlowSpec")
    )
    return named or "block_size" in described or "dflash_config" in described


def is_nemo(described: dict[str, Any]) -> bool:
    """Whether the description is the target's and a few keys, as NeMo AutoModel's are."""
    return described["architectures"] == ["LlamaEagle3DraftModel"]


def is_layered(described: dict[str, Any]) -> bool:
    """Whether the first layer is called `layers.0`, as speculators, DeepSpec, ModelOpt and NeMo call it."""
    if "next_layer_regular" in described.get("eagle_config", {}):
        return True
    names = described["architectures"] + [described.get("speculators_model_type")]
    known = ("Qwen3Eagle3Model", "PEagleDraftModel", "LlamaEagle3DraftModel", "eagle3", "peagle")
    return any(name in known for name in names)


def tensors_of(described: dict[str, Any]) -> dict[str, torch.Tensor]:
    if is_block(described):
        return block_tensors(described)
    tables = described
    if is_nemo(described) and not described["parallel_drafting"]:
        tables = {**described, "num_hidden_layers": 1}
    return pair_tensors(
        tables,
        prefix="layers.0." if is_layered(described) else "midlayer.",
        normed=described["architectures"] == ["Qwen3Eagle3Model"],
        own_table=is_layered(described),
    )


def written(name: str, folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    described = CONFIGS[name]
    tensors = tensors_of(described)
    inside = is_nemo(described)
    outside = ("lm_head.weight", "d2t", "t2d", "mask_hidden")
    write(
        folder,
        described,
        {f"model.{name}" if inside and name not in outside else name: one for name, one in tensors.items()},
    )
    return described, tensors


READ = sorted(CONFIGS.keys() - REFUSED.keys())
PARALLEL = [name for name in READ if CONFIGS[name].get("parallel_drafting")]
PAIRS = [name for name in READ if not is_block(CONFIGS[name]) and name not in PARALLEL]
BLOCKS = [name for name in READ if is_block(CONFIGS[name])]
TEXT = 9
DRAFTERS = (Eagle3, PEagle, BlockDrafter, Mtp)


def test_all_of_them_are_here() -> None:
    assert (len(CONFIGS), len(PAIRS), len(PARALLEL), len(BLOCKS)) == (170, 83, 2, 50)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_head_is_refused_for_its_true_reason(name: str, tmp_path: Path) -> None:
    described, _ = written(name, tmp_path)
    assert len([one for one in DRAFTERS if one.reads(tmp_path)]) == 1  # by its name too it is a head
    load = load_block if is_block(described) else load_peagle if PEagle.reads(tmp_path) else load_head
    with pytest.raises(InvalidInput, match=REFUSED[name]) as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", PAIRS)
@torch.no_grad()
def test_an_eagle_3_head_has_the_logits_of_its_forward(name: str, tmp_path: Path) -> None:
    """After a text of true pairs, and after each of two drafted tokens."""
    described, tensors = written(name, tmp_path)
    assert [one for one in DRAFTERS if one.reads(tmp_path)] == [Eagle3]
    head = load_head(tmp_path)
    layer = layer_of(described)
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(TEXT, tensors["fc.weight"].shape[1], generator=generator, dtype=torch.float64)
    embeddings = torch.randn(TEXT + 2, layer["hidden_size"], generator=generator, dtype=torch.float64)
    expected = pair_logits(
        described,
        tensors,
        prefix="layers.0." if is_layered(described) else "midlayer.",
        embeddings=embeddings,
        features=features,
    )
    for depth in range(3):
        text = embeddings[: TEXT + depth].unsqueeze(0)
        # The last `depth` states are recycled, so their features count for nothing.
        states = head.project(torch.cat([features, features[:depth]])).unsqueeze(0)
        *_, out = unrolled(head, text, states, depths=depth + 1)
        torch.testing.assert_close(head.logits(out)[0, -1], expected[TEXT + depth - 1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", PARALLEL)
@torch.no_grad()
def test_a_p_eagle_head_has_the_logits_of_its_forward(name: str, tmp_path: Path) -> None:
    """After a text of true pairs, and of masks that see each other and the text."""
    described, tensors = written(name, tmp_path)
    assert [one for one in DRAFTERS if one.reads(tmp_path)] == [PEagle]
    head = load_peagle(tmp_path)
    depths, width = described["num_depths"], described["hidden_size"]
    assert (head.config.depths, head.config.mask_token_id) == (depths, described["mask_token_id"])
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(TEXT, tensors["fc.weight"].shape[1], generator=generator, dtype=torch.float64)
    embeddings = torch.randn(TEXT, width, generator=generator, dtype=torch.float64)
    mask = tensors["embed_tokens.weight"][described["mask_token_id"]]
    embeddings = torch.cat([embeddings, mask.expand(depths - 1, width)])
    masked = tensors["mask_hidden"].flatten().expand(depths - 1, -1)
    expected = pair_logits(
        described,
        tensors,
        prefix="layers.0.",
        embeddings=embeddings,
        features=torch.cat([features, masked]),
    )
    states = torch.cat([head.head.project(features), head.masked().expand(depths - 1, width)])
    out, _ = head.read(embeddings.unsqueeze(0), states.unsqueeze(0), [[]], [len(embeddings)])
    torch.testing.assert_close(head.head.logits(out)[0], torch.stack(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", BLOCKS)
@torch.no_grad()
def test_a_block_drafter_has_the_states_of_its_forward(name: str, tmp_path: Path) -> None:
    described, tensors = written(name, tmp_path)
    assert [one for one in DRAFTERS if one.reads(tmp_path)] == [BlockDrafter]
    head = load_block(tmp_path)
    layer = layer_of(described)
    generator = torch.Generator().manual_seed(3)
    size = head.config.block_size
    inside = {**described, **described.get("dflash_config", {})}
    assert size == inside["block_size"]
    assert head.config.root_guesses == (
        "dspark" in str(described).lower() or inside.get("shift_label", False)
    )
    features = torch.randn(TEXT, tensors["fc.weight"].shape[1], generator=generator, dtype=torch.float64)
    slots = torch.randn(size, layer["hidden_size"], generator=generator, dtype=torch.float64)
    kinds = layer.get("layer_types") or ["full_attention"] * layer["num_hidden_layers"]
    expected = block_states(
        described,
        tensors,
        slots=slots,
        features=features,
        causal=[kind == "sliding_attention" for kind in kinds],
    )
    known = [
        (keys.unsqueeze(0), values.unsqueeze(0)) for keys, values in head.context(head.project(features))
    ]
    found = head(slots.unsqueeze(0), known, torch.tensor([TEXT]))
    torch.testing.assert_close(found[0], expected, rtol=1e-5, atol=1e-5)


def test_a_block_drafter_of_torchspec_is_told_its_block_size(tmp_path: Path) -> None:
    described, tensors = written("torchspec-gpt-oss-20b-dflash", tmp_path)
    assert load_block(tmp_path, block_size=8).config.block_size == 8
    for told in ({"block_size": 8}, {"dflash_config": {"block_size": 8}}):
        write(tmp_path, {**described, **told}, tensors)
        assert load_block(tmp_path, block_size=8).config.block_size == 8
        with pytest.raises(InvalidInput, match="block_size=16 is not that of .*, 8; leave it out"):
            load_block(tmp_path, block_size=16)


def test_a_p_eagle_head_of_specforge_needs_its_mask(tmp_path: Path) -> None:
    written("specforge-qwen3-8b-p-eagle", tmp_path)
    described, tensors = (
        CONFIGS["specforge-qwen3-8b-p-eagle"],
        tensors_of(CONFIGS["specforge-qwen3-8b-p-eagle"]),
    )
    tensors["mask_hidden"] = torch.ones(1, 1, tensors["fc.weight"].shape[1], dtype=torch.float64)
    write(tmp_path, described, tensors)
    assert [one for one in DRAFTERS if one.reads(tmp_path)] == [PEagle]
    head = load_peagle(tmp_path, mask_token_id=7)
    assert (head.config.head.layers, head.config.mask_token_id, head.config.depths) == (4, 7, 8)
    write(tmp_path, {**described, "mask_token_id": 5}, tensors)
    assert load_peagle(tmp_path).config.mask_token_id == 5
    with pytest.raises(InvalidInput, match="mask_token_id=7 is not that of"):
        load_peagle(tmp_path, mask_token_id=7)
