"""Files of EAGLE-3 heads: round trips, and what is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwood import InvalidInput
from draftwood.strategies.heads.config import Eagle3Config, Latent
from draftwood.strategies.heads.eagle3 import Eagle3Head
from draftwood.strategies.heads.formats import Format, is_head, load_head, save_head
from draftwood.strategies.heads.unrolled import unrolled
from tests.strategies.feature_heads import WIDTH, config, random_head

FORMATS: tuple[Format, ...] = ("safeailab", "speculators")
SWITCHES: list[dict[str, Any]] = [
    {},
    {"norm_before_residual": True, "norm_output": True},
    {"norm_before_fc": True, "own_embedding": True, "draft_vocab_size": 23},
    {"fc_norm": True, "taps": (1, 3), "key_value_heads": 4},
    {"hidden_size": 12, "own_embedding": True},
    {"rope": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}},
    {
        "rope": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
            "rope_theta": 5e5,
        }
    },
    {"taps": None, "max_positions": None},
]


def outputs(head: Eagle3Head) -> list[torch.Tensor]:
    """Logits of a text at three depths, by a table of words that is the head's or random."""
    made = head.config
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(2, 9, made.tap_count * made.target_hidden_size, generator=generator)
    words = torch.randint(made.vocab_size, (2, 9), generator=generator)
    table = torch.randn(made.vocab_size, made.hidden_size, generator=generator)
    dtype = head.fc.weight.dtype
    embeddings = table[words].to(dtype) if head.embed_tokens is None else head.embed_tokens(words)
    with torch.no_grad():
        states = head.project(features.to(dtype))
        return [head.target_logits(out) for out in unrolled(head, embeddings, states, depths=3)]


def same(head: Eagle3Head, other: Eagle3Head) -> bool:
    # In memory of their own: a mapped file's weights begin anywhere, and products may round by where.
    pair = (copy.deepcopy(head), copy.deepcopy(other))
    return all(torch.equal(a, b) for a, b in zip(*map(outputs, pair), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("switches", SWITCHES, ids=lambda switches: "-".join(switches) or "plain")
@pytest.mark.parametrize("kind", FORMATS)
def test_what_was_written_gives_identical_logits(
    kind: Format, switches: dict[str, Any], dtype: torch.dtype, tmp_path: Path
) -> None:
    head = random_head(config(**switches)).to(dtype)
    save_head(head, tmp_path, target="big", format=kind)
    read = load_head(tmp_path)
    told = head.config if head.config.max_positions else attrs.evolve(head.config, max_positions=None)
    assert attrs.evolve(read.config, max_positions=told.max_positions) == told
    assert same(head, read)
    assert next(read.parameters()).dtype == dtype
    assert is_head(tmp_path)


def test_both_formats_hold_the_same_head(tmp_path: Path) -> None:
    head = random_head()
    for kind in FORMATS:
        save_head(head, tmp_path / kind, target="big", format=kind)
    first, second = (load_file(tmp_path / kind / "model.safetensors") for kind in FORMATS)
    assert "midlayer.self_attn.q_proj.weight" in first
    assert "layers.0.self_attn.q_proj.weight" in second
    assert first["midlayer.self_attn.q_proj.weight"].shape == (24, 2 * WIDTH)
    assert (first["d2t"] + torch.arange(19)).tolist() == first["t2d"].nonzero().flatten().tolist()
    assert same(*(load_head(tmp_path / kind) for kind in FORMATS))
    described = json.loads((tmp_path / "safeailab" / "config.json").read_text())
    # There a layer is named by its output, and in speculators' files by its input.
    assert described["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 1, 2]
    described = json.loads((tmp_path / "speculators" / "config.json").read_text())
    assert described["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3]


def test_norms_of_queries_and_keys_are_those_of_qwen3(tmp_path: Path) -> None:
    head = random_head(config(query_key_norm=True))
    save_head(head, tmp_path, target="big", format="speculators")
    assert "layers.0.self_attn.q_norm.weight" in load_file(tmp_path / "model.safetensors")
    assert same(head, load_head(tmp_path))
    with pytest.raises(InvalidInput, match="hold no norms of queries and keys"):
        save_head(head, tmp_path, target="big")
    with pytest.raises(InvalidInput, match=r"cannot tap the embedding \(layer 0\)"):
        save_head(random_head(config(taps=(0, 1, 2))), tmp_path, target="big")


def test_a_file_as_others_write_it(tmp_path: Path) -> None:
    """Old names of the rotation, keys without effect, no table, the usual taps, two files with an index."""
    head = random_head(config(taps=None)).float()
    save_head(head, tmp_path, target="big")
    described = json.loads((tmp_path / "config.json").read_text())
    described |= {"bos_token_id": 1, "use_cache": True, "transformers_version": "4.28.1"}
    described |= {"rope_scaling": {"type": "linear", "factor": 2.0}, "pretraining_tp": 1}
    del described["rope_theta"]
    (tmp_path / "config.json").write_text(json.dumps(described))
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    half = len(tensors) // 2
    files = {"a.safetensors": list(tensors)[:half], "b.safetensors": list(tensors)[half:]}
    for file, names in files.items():
        save_file({name: tensors[name] for name in names}, tmp_path / file)
    places = {name: file for file, names in files.items() for name in names}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    read = load_head(tmp_path)
    assert read.config.rope == {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    assert read.config.taps_in(32) == (2, 16, 29)
    assert read.config.norm_eps == 1e-5


def test_a_description_of_speculators_leaves_out_its_classs_defaults(tmp_path: Path) -> None:
    head = random_head(config(norm_eps=1e-6)).float()
    save_head(head, tmp_path, target="big", format="speculators")
    described = json.loads((tmp_path / "config.json").read_text())
    del described["transformer_layer_config"]["rms_norm_eps"]
    (tmp_path / "config.json").write_text(json.dumps(described))
    assert same(head, load_head(tmp_path))


Edit = Callable[[dict[str, Any]], Any]


def key(name: str, value: Any) -> Edit:
    return lambda described: described.update({name: value})


def inner(name: str, value: Any) -> Edit:
    return lambda described: described["transformer_layer_config"].update({name: value})


BAD_KEYS: list[tuple[Format, Edit, str]] = [
    ("safeailab", key("rotate_states", 1), "the key 'rotate_states', which is not known here"),
    (
        "safeailab",
        lambda d: d.update({"sliding_window": 512, "use_sliding_window": True}),
        r"attends in a window \(512\)",
    ),
    ("safeailab", key("layer_types", ["sliding_attention"]), "attends in a window"),
    ("speculators", inner("attention_bias", True), r"lacks layers\.0\.self_attn\.k_proj\.bias"),
    ("safeailab", key("hidden_act", "gelu"), "hidden_act is 'gelu'"),
    ("safeailab", key("tie_word_embeddings", 1), "tie_word_embeddings is 1"),
    ("safeailab", key("reuse_target_lm_head", True), "reuse_target_lm_head is True"),
    (
        "safeailab",
        lambda d: d.update({"model_type": "deepseek_v3", "architectures": ["LlamaForCausalLM"]}),
        "model_type is 'deepseek_v3' .*; layers like Llama's are read",
    ),
    ("safeailab", key("hidden_size", None), "hidden_size is None"),
    ("safeailab", key("hidden_size", "16"), "hidden_size is '16'"),
    ("safeailab", key("rms_norm_eps", None), "rms_norm_eps is None"),
    ("safeailab", key("fc_norm", "yes"), "fc_norm is 'yes'; give true or false|fc_norm is 'yes'"),
    ("safeailab", key("rope_scaling", {"type": "dynamic", "factor": 2.0}), "rotation is 'dynamic'"),
    ("safeailab", key("rope_scaling", 3), "rope_scaling is 3"),
    (
        "safeailab",
        key("eagle_config", {"parallel_draft_step": 4}),
        "parallel_draft_step is 4 in eagle_config",
    ),
    ("safeailab", key("eagle_config", {"use_aux_hidden_state": False}), "use_aux_hidden_state is False"),
    ("safeailab", key("draft_vocab_size", 18), r"d2t .* of the shape \(19,\); a head of 18"),
    ("safeailab", key("draft_vocab_size", 24), "proposes 24 tokens and its target has 23"),
    ("safeailab", key("hidden_size", 17), r"needs a table of words|has the shape .* description says"),
    ("safeailab", key("intermediate_size", 21), r"has the shape \(2\d, 1\d\)|has the shape"),
    ("safeailab", key("norm_before_fc", True), r"lacks input_norm.weight, which its description"),
    ("safeailab", key("num_key_value_heads", 3), "4 query heads and 3 of keys"),
    ("speculators", key("speculators_model_type", "peagle"), "describes a 'peagle' head"),
    ("speculators", key("mask_token_id", 3), "the key 'mask_token_id'"),
    ("speculators", lambda d: d.pop("norm_before_residual"), "does not say norm_before_residual"),
    ("speculators", inner("model_type", "mistral"), "model_type is 'mistral'"),
    ("speculators", inner("num_hidden_layers", 3), "num_hidden_layers is 3 .* of 1 layer"),
    (
        "speculators",
        lambda d: d["transformer_layer_config"].update({"sliding_window": 8, "use_sliding_window": True}),
        r"window \(8\), since use_sliding_window is on",
    ),
    ("speculators", key("transformer_layer_config", None), "transformer_layer_config is None"),
    ("speculators", key("eagle_aux_hidden_state_layer_ids", [1, "2"]), r"is \[1, '2'\]"),
    ("speculators", key("eagle_aux_hidden_state_layer_ids", [1, 2]), r"fc.weight .* has the shape"),
    ("speculators", key("eagle_aux_hidden_state_layer_ids", []), "names no layer"),
]


@pytest.mark.parametrize(("kind", "edit", "sentence"), BAD_KEYS, ids=[one[2][:30] for one in BAD_KEYS])
def test_a_description_that_is_refused(kind: Format, edit: Edit, sentence: str, tmp_path: Path) -> None:
    save_head(random_head().float(), tmp_path, target="big", format=kind)
    described = json.loads((tmp_path / "config.json").read_text())
    edit(described)
    (tmp_path / "config.json").write_text(json.dumps(described))
    with pytest.raises(InvalidInput, match=sentence) as error:
        load_head(tmp_path)
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)


BAD_TENSORS: list[tuple[Edit, str]] = [
    (lambda t: t.pop("norm.weight"), "lacks norm.weight"),
    (lambda t: t.pop("midlayer.mlp.up_proj.weight"), "lacks midlayer.mlp.up_proj.weight"),
    (lambda t: t.update({"input_norm.weight": torch.ones(48)}), "does not mention: input_norm.weight"),
    (lambda t: t.update({"fc.bias": torch.ones(16)}), "does not mention: fc.bias"),
    (lambda t: t.update({"fc.weight": torch.ones(16, 32)}), r"fc.weight .* shape \(16, 32\), .* \(16, 48\)"),
    (lambda t: t.update({"lm_head.weight": torch.ones(18, 16)}), r"lm_head.weight .* shape \(18, 16\)"),
    (lambda t: t.update({"norm.weight": torch.ones(16, dtype=torch.int8)}), "norm.weight .* is int8"),
    (lambda t: t.pop("d2t"), "proposes 19 of 23 tokens and has no map"),
    (
        lambda t: t.update({"d2t": t["d2t"] + 20}),
        "names the token .*, and its target has 23|different tokens",
    ),
    (lambda t: t["d2t"].__setitem__(1, t["d2t"][0] - 1), "a token of its target twice|name different tokens"),
    (lambda t: t["t2d"].logical_not_(), "maps d2t and t2d .* name different tokens"),
    (lambda t: t.update({"d2t": t["d2t"].float()}), "d2t .* is float32"),
]


@pytest.mark.parametrize(("edit", "sentence"), BAD_TENSORS, ids=[one[1][:30] for one in BAD_TENSORS])
def test_tensors_that_are_refused(edit: Edit, sentence: str, tmp_path: Path) -> None:
    save_head(random_head().float(), tmp_path, target="big")
    tensors = load_file(tmp_path / "model.safetensors")
    edit(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InvalidInput, match=sentence) as error:
        load_head(tmp_path)
    assert "\n" not in str(error.value)


def test_maps_alone_are_checked_too() -> None:
    for ids, sentence in (([0, 1, 23], "names the token 23"), ([4, 4, 5], "twice"), ([1, 2], "shape")):
        with pytest.raises(InvalidInput, match=sentence):
            Eagle3Head(config(draft_vocab_size=3), target_ids=torch.tensor(ids))


def test_pickles_and_folders_without_a_head(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no config.json that can be read .*name a folder"):
        load_head(tmp_path)
    assert not is_head(tmp_path)
    save_head(random_head(), tmp_path, target="big")
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(InvalidInput, match=r"pytorch_model.bin .* is a pickle.*`draftwood convert-head"):
        load_head(tmp_path)
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(InvalidInput, match=r"no model.safetensors"):
        load_head(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(InvalidInput, match=r"model.safetensors .* cannot be read"):
        load_head(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(InvalidInput, match="no JSON object"):
        load_head(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InvalidInput, match="not valid JSON"):
        load_head(tmp_path)
    with pytest.raises(InvalidInput, match="format is 'onnx'"):
        save_head(random_head(), tmp_path, target="big", format="onnx")  # type: ignore[arg-type]


def test_an_index_names_files_of_its_folder_alone(tmp_path: Path) -> None:
    save_head(random_head(), tmp_path / "head", target="big")
    (tmp_path / "head" / "model.safetensors").rename(tmp_path / "other.safetensors")
    index = tmp_path / "head" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"fc.weight": "../other.safetensors"}}))
    with pytest.raises(InvalidInput, match="outside its folder"):
        load_head(tmp_path / "head")
    index.write_text(json.dumps({"weight_map": 3}))
    with pytest.raises(InvalidInput, match="no weight_map"):
        load_head(tmp_path / "head")


def test_sizes_that_cannot_be() -> None:
    for changes, sentence in (
        ({"norm_before_fc": True, "fc_norm": True}, "exclude each other"),
        ({"head_dim": 5}, "needs an even one"),
        ({"rope": {"rope_type": "longrope"}}, "rotation is 'longrope'"),
        ({"taps": ()}, "names no layer"),
    ):
        with pytest.raises(InvalidInput, match=sentence):
            config(**changes)
    assert isinstance(config(), Eagle3Config)


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": 3},
        {"latent": Latent(query_rank=8, rank=6, plain_dim=4, rope_dim=6, value_dim=5)},
        {"latent": Latent(rank=6, plain_dim=0, rope_dim=6, value_dim=5, interleaved=False), "layers": 2},
    ],
    ids=str,
)
def test_heads_of_several_layers_and_latent_attention_come_back(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    head = random_head(config(**changes))
    formats: tuple[Format, ...] = ("safeailab",) if head.config.latent else ("safeailab", "speculators")
    for format in formats:
        save_head(head, tmp_path / format, target="big", format=format)
        again = load_head(tmp_path / format)
        assert (again.config.layers, again.config.latent) == (head.config.layers, head.config.latent)
        for name, weight in head.state_dict().items():
            assert torch.equal(weight, again.state_dict()[name]), name
    if head.config.latent:
        with pytest.raises(InvalidInput, match="speculators' files hold no latent attention"):
            save_head(head, tmp_path / "other", target="big", format="speculators")
