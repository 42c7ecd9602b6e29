"""Every key of a published description altered, and every known key added: none is ignored in silence.

A description that is read after such a change must be that of another head, or the key must be one that is
known to change nothing. So a key that a reader accepts and drops fails here.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from draftwood import DraftwoodError
from draftwood.strategies.blocks import keys as of_blocks
from draftwood.strategies.blocks.files import load_block
from draftwood.strategies.heads.decoder_layer import LATENT_KEYS, LAYER_KEYS
from draftwood.strategies.heads.formats import load_head
from draftwood.strategies.heads.keys import ELSEWHERE, ONLY, has_no_effect
from draftwood.strategies.heads.peagle import load_peagle
from draftwood.strategies.heads.unrolled import unrolled
from tests.strategies.published import CONFIGS, Tensors, pair_tensors, write
from tests.strategies.test_published_heads import BLOCKS, PAIRS, is_block, tensors_of
from tests.thorough import marks_unless

TEXT, WIDTH = 5, 64
# Of these the head itself computes nothing: they choose what the target or the caller hands it.
OUTSIDE = {"taps", "vocab_size", "max_positions", "target_layers", "mask_token_id", "block_size", "depths"}
IDLE: dict[str, str] = {
    "algorithm": "a name",
    "causal": "is_causal says it",
    "dflash_config": "it repeats the keys at the top",
    "dspark_config": "the same",
    "sample_from_anchor": "on by default where there is a correction",
    "default_proposal_method": "a setting of other programs",
    "proposal_methods": "settings of other programs, but for P-EAGLE",
    "verifier": "a name",
    "max_window_layers": "counts layers of a window, and there is none",
    "sliding_window": "a width that no layer uses",
    "use_sliding_window": "there is no width, or layer_types says which layers",
    "tie_word_embeddings": "both tables are stored, or neither",
    "num_target_layers": "of EAGLE-3 heads, which name their taps",
    "parallel_draft_heads_num_layers": "heads that there are not",
    "num_hidden_layers": "makers of midlayer build one",
    "attention_bias": "flat files' tensors show biases",
    "qkv_bias": "the same",
    "num_key_value_heads": "latent attention has its own sizes",
    "attention_head_dim": "the same",
    "head_dim": "the same, or the same number as by default",
    "sliding_window_non_causal": "no layer has a window",
    "swa_window_size": "no layer has a window",
    "enable_confidence_head": "use_confidence_head says it",
    "use_confidence_head": "enable_confidence_head says it",
    "num_aux_hidden_states": "as many as there are",
    "confidence_head_with_markov": "the confidence head is kept and not used",
    "original_max_position_embeddings": "a rotation that is not stretched",
    "rope_scaling": "empty",
    "beta_fast": "numbers of turns between which no pair of these small heads lies",
    "beta_slow": "the same",
    "low_freq_factor": "the same",
    "mrope_section": "axes of images; a text's are equal",
    "mrope_interleaved": "the same",
    "layer_types": "all of them see the whole text",
    "rope_parameters": "empty, and its base is the usual one",
    "shift_label": "on by default",
    "rope_interleave": "on by default",
    "use_swa": "off by default",
    "speculators_config": "names and settings of other programs",
    "swiglu_alpha": "of a target whose description the head's is",
    "swiglu_limit": "the same",
    "qk_head_dim": "the same",
}
"""Keys that may change nothing where their value says so, each with why."""


def altered(value: Any) -> Iterator[Any]:
    """Other values of the same kind, and null."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value * 2)
    elif isinstance(value, float):
        yield value * 3
    elif isinstance(value, str):
        yield f"other-{value}"
    elif isinstance(value, list):
        yield from (value[:-1], [*value, *value[:1]])
    elif isinstance(value, dict):
        yield {}
    yield None if value is not None else 3


NAMES = ("auto_map", "id2label", "label2id", "verifier")
"""Tables of names, which describe nothing of a head."""
ADDED: tuple[Any, ...] = (True, 3, 0.25, "other", [1, 2], {"factor": 2.0})
OF_ONE_KIND = {
    "causal", "causal_head", "is_causal", "num_aux_hidden_states", "projector_type",
    "sliding_window_non_causal",
    "swa_window_size", "target_layer_ids", "target_num_hidden_layers", "use_swa",
}  # fmt: skip
KNOWN = sorted(
    LAYER_KEYS
    | LATENT_KEYS
    | of_blocks.MARKOV_KEYS
    | of_blocks.GRU_KEYS
    | ONLY.keys()
    | ELSEWHERE.keys()
    | OF_ONE_KIND
)


def changes(described: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each key of a description and of its tables, with another value."""
    for key, value in described.items():
        for other in altered(value):
            yield (*path, key), other
        if isinstance(value, dict) and key not in NAMES:
            yield from changes(value, (*path, key))


def additions(described: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each known key that a table does not have, with values of several kinds."""
    for key in KNOWN:
        if key not in described:
            yield from (((*path, key), value) for value in ADDED)
    for key, value in described.items():
        if isinstance(value, dict) and key not in NAMES:
            yield from additions(value, (*path, key))


def with_change(described: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    other = copy.deepcopy(described)
    table = other
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value
    return other


P_EAGLE = {
    **CONFIGS["speculators-0.4-qwen3-8b-eagle3"],
    "speculators_model_type": "peagle",
    "mask_token_id": 5,
}
KINDS: dict[str, dict[str, Any]] = {
    "peagle": P_EAGLE,
    **{name: CONFIGS[name] for name in (*PAIRS, *BLOCKS)},
}
# One of every kind in `make test`, all of them in `make thorough`.
SOME = (
    "modelopt-kimi-k2-eagle3",
    "modelopt-llama-two-layers-eagle3",
    "modelopt-swa-dflash",
    "peagle",
    "specforge-qwen3-8b-domino",
    "speculators-0.5-mistral-large-3-eagle3",
)


FEW = ("specforge-gpt-oss-20B-eagle3",)
"""Additions take longer."""


def made_for(name: str, described: dict[str, Any]) -> Tensors:
    if name != "peagle":
        return tensors_of(described)
    tensors = pair_tensors(described, prefix="layers.0.", normed=False)
    return {**tensors, "mask_hidden": torch.ones(1, 1, tensors["fc.weight"].shape[1], dtype=torch.float64)}


def loaded(name: str, folder: Path) -> Any:
    if name == "peagle":
        return load_peagle(folder)
    return load_block(folder) if is_block(CONFIGS[name]) else load_head(folder)


@torch.no_grad()
def result_of(head: Any) -> list[torch.Tensor]:
    """The result of a head for fixed inputs."""
    generator = torch.Generator().manual_seed(3)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    parts = getattr(head, "head", head)
    features = drawn(TEXT, parts.fc.weight.shape[1])
    if hasattr(head, "context"):
        slots = drawn(3, WIDTH)
        known = [(keys[None], values[None]) for keys, values in head.context(head.project(features))]
        out = [head(slots[None], known, torch.tensor([TEXT]))]
        if head.corrects:
            out += [
                head.correction(torch.tensor([3]), drawn(1, WIDTH), slots[:1], None, depth=depth)[0]
                for depth in range(2)
            ]
        return [head.config.root_guesses * one if one.dim() == 3 else one for one in out] + out
    texts = unrolled(parts, drawn(1, TEXT, WIDTH), parts.project(features)[None], depths=2)
    return [parts.target_logits(out) for out in texts]


def differences(head: Any, other: Any) -> set[str]:
    """The fields of two heads' configurations that differ."""
    found = set()
    for one, two in ((head.config, other.config), *_inner(head, other)):
        for field in attrs.fields(type(one)):
            if field.name != "head" and getattr(one, field.name) != getattr(two, field.name):
                found.add(field.name)
    return found


def _inner(head: Any, other: Any) -> Iterator[tuple[Any, Any]]:
    if hasattr(head, "head"):
        yield head.head.config, other.head.config


@pytest.mark.parametrize(
    ("name", "how"),
    [
        pytest.param(name, how, marks=marks_unless(name in some))
        for how, some in (("changed", SOME), ("added", FEW))
        for name in sorted(KINDS)
    ],
)
def test_no_key_is_ignored_in_silence(name: str, how: str, tmp_path: Path) -> None:
    described = KINDS[name]
    tensors = made_for(name, described)
    write(tmp_path, described, tensors)
    head = loaded(name, tmp_path)
    usual = result_of(head)
    ignored, torn, read = [], [False], 0
    for path, value in (changes if how == "changed" else additions)(described):
        other = with_change(described, path, value)
        (tmp_path / "config.json").write_text(json.dumps(other), encoding="utf-8")
        try:
            made = loaded(name, tmp_path)
        except DraftwoodError as error:
            torn += ["\n" in str(error)]
            continue
        read += 1
        apart = differences(head, made)
        known = path[-1] in IDLE
        if not apart:
            known = known or has_no_effect(path[-1]) or path[-1] in ONLY or value is None
        elif not apart <= OUTSIDE:
            both = zip(usual, result_of(made), strict=False)
            known = known or not all(one.shape == two.shape and torch.equal(one, two) for one, two in both)
        else:
            known = True
        if not known:
            ignored.append((path, value, apart))
    assert not ignored
    assert not any(torn)
    assert read > 3
