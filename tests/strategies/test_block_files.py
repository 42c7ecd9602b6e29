"""Files of block drafters: round trips, rules by layer, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwood import InvalidInput
from draftwood.strategies.blocks import speculators, zlab
from draftwood.strategies.blocks.config import BlockConfig
from draftwood.strategies.blocks.files import Format, is_block, load_block, save_block
from draftwood.strategies.heads.formats import is_head
from tests.strategies.block_heads import KINDS, config, random_head

ZLAB = ("dflash", "biases", "jetspec", "sliding", "dspark", "gated", "rnn")
SPECULATORS = ("rnn behind the root", "map", "free")
BOTH = ("dflash", "dspark", "gated", "biases")


@pytest.mark.parametrize(
    ("kind", "form"),
    [*((kind, "zlab") for kind in ZLAB), *((kind, "speculators") for kind in (*SPECULATORS, *BOTH))],
)
def test_what_was_written_is_read(kind: str, form: Format, tmp_path: Path) -> None:
    head = random_head(KINDS[kind]).bfloat16()
    save_block(head, tmp_path, target="big", format=form)
    again = load_block(tmp_path)
    told = head.config if form == "zlab" else attrs.evolve(head.config, target_layers=None)
    assert again.config == told
    assert torch.equal(again.target_ids, head.target_ids)
    stored = again.state_dict()
    assert stored.keys() == head.state_dict().keys()
    for name, weight in head.state_dict().items():
        assert stored[name].dtype == torch.bfloat16
        assert torch.equal(stored[name], weight)
    assert is_block(tmp_path)
    assert not is_head(tmp_path)


@pytest.mark.parametrize("kind", [*SPECULATORS, "jetspec", "sliding"])
def test_what_a_format_cannot_hold_is_not_written(kind: str, tmp_path: Path) -> None:
    form: Format = "zlab" if kind in SPECULATORS else "speculators"
    with pytest.raises(InvalidInput, match=r"files hold no .*; write (z-lab's|speculators') instead\."):
        save_block(random_head(KINDS[kind]), tmp_path, format=form)
    with pytest.raises(InvalidInput, match="format is 'onnx'; give zlab or speculators"):
        save_block(random_head(config()), tmp_path, format="onnx")  # type: ignore[arg-type]
    some = random_head(config(attention_bias=True))
    with pytest.raises(InvalidInput, match="files hold no drafters of which only some projections"):
        save_block(some, tmp_path, format=form)


def test_names_and_layers_are_those_of_the_formats(tmp_path: Path) -> None:
    save_block(random_head(KINDS["gated"]), tmp_path / "z")
    save_block(random_head(KINDS["map"]), tmp_path / "s", target="big", format="speculators")
    ours = load_file(tmp_path / "z" / "model.safetensors")
    assert {"markov_head.markov_w1.weight", "markov_head.gate_proj.bias", "fc.weight"} <= ours.keys()
    assert not {"embed_tokens.weight", "lm_head.weight"} & ours.keys()
    theirs = load_file(tmp_path / "s" / "model.safetensors")
    assert (theirs["d2t"] + torch.arange(19)).tolist() == theirs["t2d"].nonzero().flatten().tolist()
    # There a layer is named by its output, and in speculators' files by its input.
    told = json.loads((tmp_path / "z" / "config.json").read_text())
    assert told["dflash_config"]["target_layer_ids"] == [0, 2]
    told = json.loads((tmp_path / "s" / "config.json").read_text())
    assert told["aux_hidden_state_layer_ids"] == [0, 4]


def described(**changes: Any) -> dict[str, Any]:
    return {**zlab.description_of(config()), **changes}


def changed(inner: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return described(dflash_config={**zlab.description_of(config())["dflash_config"], **inner}, **changes)


MIXED = ["full_attention", "sliding_attention"]


@pytest.mark.parametrize(
    ("description", "causal", "windows"),
    [
        (described(), (False, False), (None, None)),
        (described(is_causal=True), (True, True), (None, None)),
        (changed({"causal": True}, is_causal=False), (False, False), (None, None)),
        (changed({"causal": True}), (True, True), (None, None)),
        (changed({"causal_head": True}), (True, True), (None, None)),
        (described(layer_types=MIXED, sliding_window=7), (False, True), (None, 7)),
        (changed({"causal": False}, layer_types=MIXED, sliding_window=7), (False, False), (None, 7)),
        (changed({"use_swa": True, "swa_window_size": 9}), (False, False), (9, 9)),
        (described(sliding_window=7), (False, False), (None, None)),
    ],
)
def test_what_a_slot_sees_by_layer(description: dict[str, Any], causal: Any, windows: Any) -> None:
    made = zlab.described(description, (), "here")
    assert (made.causal, made.windows) == (causal, windows)


def test_defaults_of_the_taps_and_keys_at_the_top() -> None:
    told = described(num_target_layers=36, num_hidden_layers=5, mask_token_id=4)
    del told["dflash_config"]
    assert zlab.described(told, (), "here").taps == (2, 10, 18, 26, 34)
    told["num_hidden_layers"] = 1
    assert zlab.described(told, (), "here").taps == (19,)


@pytest.mark.parametrize(
    ("description", "message"),
    [
        (described(projector="new"), "has the key 'projector', which is not known here"),
        (changed({"refine": 2}), "dflash_config of here has the key 'refine'"),
        (described(attention_bias="yes"), "attention_bias is 'yes' in here; give true or false"),
        (described(markov_rank=3, markov_head_type="lstm"), "markov_head_type is 'lstm'"),
        (described(markov_rank=-1), "markov_rank is -1"),
        (described(enable_confidence_head=1), "enable_confidence_head is 1 in here; give true or false"),
        (changed({"projector_type": "xpress"}), "projector_type is 'xpress'"),
        (changed({"projector_type": "domino"}), "gru_hidden_dim is None"),
        (changed({"emb_dim": 4}), "the key 'emb_dim', which is one of Domino drafters"),
        (described(target_hidden_size=8), "width is 16 and its target's 8, so it needs a table of words"),
        (described(draft_vocab_size=20), "proposes 20 of 23 tokens and has no separate"),
        (described(block_size=1), "block_size is 1, so that nothing is guessed"),
        (described(num_key_value_heads=3), "4 query heads and 3 of keys"),
        (described(dflash_config=[]), r"dflash_config is \[\]"),
        (described(dflash_config=3), "dflash_config is 3"),
        (described(block_size=None), "block_size is None in here"),
        (described(hidden_size=True), "hidden_size is True in here"),
        (
            changed({"mask_token_id": 23}),
            "mask_token_id is 23 in here; a block drafter needs .*, below 23: write it in",
        ),
        (
            changed({"target_layer_ids": [5]}),
            r"ids is \[5\] in here; of 5 layers it names -1 to 4",
        ),
        (changed({"target_layer_ids": "1"}), "give a list of layers"),
        (described(layer_types=["full_attention"]), "layer_types is"),
        (described(layer_types=MIXED), "The window is None"),
        (described(rope_parameters={"rope_type": "longrope"}), "rotation is 'longrope'"),
    ],
)
def test_a_description_that_is_not_served_is_refused_by_name(
    description: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        zlab.described(description, (), "here")


def test_tensors_that_are_missing_left_over_or_of_another_shape_are_named(tmp_path: Path) -> None:
    save_block(random_head(config()), tmp_path)
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    norm = stored.pop("norm.weight")
    save_file(stored, file)
    with pytest.raises(InvalidInput, match=r"lacks norm\.weight; its description says otherwise"):
        load_block(tmp_path)
    save_file({**stored, "norm.weight": norm, "extra": norm.clone()}, file)
    with pytest.raises(InvalidInput, match=r"also holds extra; its description"):
        load_block(tmp_path)
    save_file({**stored, "norm.weight": norm[:3].clone()}, file)
    with pytest.raises(InvalidInput, match=r"norm\.weight in .* has the shape \[3\] and should have \[16\]"):
        load_block(tmp_path)
    save_file({**stored, "norm.weight": norm.long()}, file)
    with pytest.raises(InvalidInput, match=r"norm\.weight in .* is torch\.int64; give floating-point"):
        load_block(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps([]))
    with pytest.raises(InvalidInput, match=r"config\.json in .* is no JSON object"):
        load_block(tmp_path)


def test_dspark_is_known_by_its_correction_its_class_or_its_projector() -> None:
    """Its root's slot guesses, with or without a correction."""
    assert not zlab.described(described(), (), "here").root_guesses
    for description in (
        described(markov_rank=3),
        described(architectures=["Qwen3DSparkModel"]),
        changed({"projector_type": "dspark", "markov_rank": 3, "markov_head_type": "gated"}),
    ):
        made = zlab.described(description, (), "here")
        assert (made.root_guesses, made.depths) == (True, made.block_size)
        assert zlab.described(zlab.description_of(made), (), "here") == made


def of_speculators(**changes: Any) -> dict[str, Any]:
    return {**speculators.description_of(KINDS["map"], target="big"), **changes}


def of_layers(**changes: Any) -> dict[str, Any]:
    told = of_speculators()
    return {**told, "transformer_layer_config": {**told["transformer_layer_config"], **changes}}


def read(description: dict[str, Any]) -> BlockConfig:
    return speculators.described(description, ("lm_head.weight",), "here")


def test_what_speculators_files_leave_out() -> None:
    """Their classes' defaults: a slot of the root that guesses, by kind, and layers without windows."""
    told = of_speculators()
    for key in ("sample_from_anchor", "sliding_window_non_causal", "target_hidden_size"):
        del told[key]
    for key in ("layer_types", "use_sliding_window", "sliding_window", "attention_bias", "rms_norm_eps"):
        del told["transformer_layer_config"][key]
    made = read(told)
    assert (made.root_guesses, made.causal, made.windows) == (False, (False, False), (None, None))
    assert made.norm_eps == 1e-6
    made = read({**told, "speculators_model_type": "dspark"})
    assert (made.root_guesses, made.markov_rank, made.confidence) == (True, 256, 16 + 256)
    layers = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
    told["transformer_layer_config"] |= layers
    assert read(told).windows == (None, 7)
    assert read(told).causal == (False, True)
    assert read({**told, "sliding_window_non_causal": True}).causal == (False, False)


@pytest.mark.parametrize(
    ("description", "message"),
    [
        (of_speculators(speculators_model_type="dflash2"), "describes a 'dflash2' head"),
        (of_speculators(conv_kernel_size=2), "the key 'conv_kernel_size', which is not known here"),
        (of_speculators(markov_rank=4), "the key 'markov_rank', which belongs to DSpark drafters"),
        (of_layers(query_scale=2), "the key 'query_scale', which is not known here"),
        (of_layers(attention_bias=3), "attention_bias is 3 in here; give true or false"),
        (of_layers(model_type="llama"), "model_type is 'llama' in here; layers of qwen3"),
        (of_layers(layer_types=["full_attention"]), "layer_types is"),
        (of_layers(sliding_window=None), "sliding_window is None in here; give its number of tokens"),
        (of_speculators(transformer_layer_config=None), "transformer_layer_config is None"),
        (of_speculators(aux_hidden_state_layer_ids=None), "aux_hidden_state_layer_ids is None"),
        (of_speculators(aux_hidden_state_layer_ids=[-1]), r"is \[-1\] in here; give a list of layers"),
        (of_speculators(target_hidden_size=32), "target_hidden_size is 32 in here, and the head's width is"),
        (of_speculators(mask_token_id=None), "mask_token_id is None"),
        (of_speculators(draft_vocab_size=24), "proposes 24 tokens and its target has 23"),
        (of_speculators(sample_from_anchor="no"), "sample_from_anchor is 'no'"),
    ],
)
def test_a_description_of_speculators_that_is_not_served_is_refused(
    description: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message) as error:
        read(description)
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)


def test_maps_and_tables_are_checked(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"19 of 23 tokens and has no separate output head, lm_head"):
        speculators.described(of_speculators(), (), "here")
    save_block(random_head(KINDS["map"]), tmp_path, target="big", format="speculators")
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    save_file({name: one for name, one in stored.items() if name != "d2t"}, file)
    with pytest.raises(InvalidInput, match=r"proposes 19 of 23 tokens and has no map of them \(d2t\)"):
        load_block(tmp_path)
    save_file({**stored, "t2d": ~stored["t2d"]}, file)
    with pytest.raises(InvalidInput, match="name different tokens"):
        load_block(tmp_path)
