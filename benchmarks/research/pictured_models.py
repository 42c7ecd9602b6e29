"""Prompts with images or sound for every family of transformers that reads any, built tiny.

The shapes follow from the model: an image is tried in each of the forms in which families take images, until
the model makes features of it, and the prompt then has as many placeholders as there are features.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch
import transformers as hf
from torch import Tensor
from transformers.models.auto import modeling_auto

from benchmarks.research.families_models import GIVEN as GIVEN_OF_TEXT
from benchmarks.research.families_models import VOCAB, WIDTH, _turns, build
from benchmarks.research.pictured_forms import FORMS, Inputs, begun_sound, parts_of

IMAGE, VIDEO, SOUND, MARK, SOUND_MARK = range(VOCAB - 6, VOCAB - 1)
"""Tokens that stand for a part of an image, a video or sound, and marks of where they begin or end."""
VIDEO_MARKS = {"video_start_token_id": VOCAB - 8, "video_end_token_id": VOCAB - 7}
"""Marks of where a video begins and ends, in families that tell images and videos apart by them."""

_LLAMA4_EYE = {
    "intermediate_size": 4 * WIDTH,  # four neighbouring patches are one
    **dict.fromkeys(("projector_input_dim", "projector_output_dim", "vision_output_dim"), WIDTH),
    "image_size": 56,
}
_SPEECH = {
    "encoder_config": {"more": {"hidden_dim": WIDTH, "num_heads": 4, "dim_head": 16, "context_size": 20}},
    "projector_config": {"more": {"encoder_hidden_size": WIDTH, "num_attention_heads": 4}},
}
_OCR_EYE = {"downsample_channels": [32, WIDTH], "output_channels": 32}
_CODES = range(16)
"""Numbers of the patches of a family whose images are tokens."""

_WRITTEN = {"<image>": IMAGE} | {
    f"IMGIMG{''.join(chr(65 + int(digit)) for digit in str(code))}Z": 60 + code for code in _CODES
}
_SHOWN = {"<image>": IMAGE, "<|extra_200|>": 59} | {
    f"<|visual token {code:06d}|>": 60 + code for code in _CODES
}
_SMALL_CODES = {
    "base_channels": 32,
    "channel_multiplier": [1, 1],
    "latent_channels": 8,
    "attn_resolutions": [],
    "num_res_blocks": 1,
}
_DOTS = {
    "vision_config": {"more": {"adapter_in_dim": WIDTH, "adapter_out_dim": WIDTH}},
    "audio_config": {"more": {"adapter_input_size": WIDTH, "adapter_out_dim": WIDTH}},
}
_GRANITE = {
    "downsample_rate": "2/7",
    "image_grid_pinpoints": [[224, 448]],
    "deepstack_layer_map": [[-1, 1]],
    "spatial_target_layers": [],
}
_APERTUS = {
    "more": {"image_token_offset": 40, "audio_token_offset": 56},
    "vision_config": {"more": {**_SMALL_CODES, "codebook_size": 16, "embed_dim": 8}},
    "audio_config": {"more": {"codebook_size": 16}},
}
_MOLMO = {
    "more": {"image_patch_id": IMAGE},
    "adapter_config": {
        "more": {
            "vision_feature_layer": [-1, -2],
            "text_hidden_size": WIDTH,
            "hidden_size": WIDTH,
            "head_dim": 16,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "intermediate_size": 96,
        }
    },
    "vision_config": {"more": {"image_size": [56, 56]}},
}
_TIMM = {
    "architecture": "vit_pe_core_large_patch14_336",
    "model_args": {
        "embed_dim": WIDTH,
        "img_size": (28, 28),
        "depth": 2,
        "global_pool": "",
        "use_post_transformer_norm": False,
        "init_values": 0.1,
        "ref_feat_shape": (2, 2),
    },
}
_GEMMA3N = {
    "more": {"vision_soft_tokens_per_image": 4},
    "text_config": GIVEN_OF_TEXT["gemma3n_text"],
    # A small one of timm, of whose features there are 512.
    "vision_config": {"more": {"architecture": "resnet10t", "hidden_size": 512, "model_args": {}}},
}
_NEMOTRON = {
    "more": {
        "vision_hidden_size": WIDTH,
        "projector_hidden_size": WIDTH,
        **{"image_token_id": IMAGE, "video_token_id": VIDEO, "audio_token_id": SOUND},
    },
    "vision_config": {"more": {"video_temporal_patch_size": 2}},
}
SMALL_IMAGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gemma3 shieldgemma2", {"mm_tokens_per_image": 4}),
    ("aria", {"projector_patch_to_query_dict": {49: 8}}),
    (
        "llava_next llava_next_video llava_onevision",
        {"image_grid_pinpoints": [[224, 448]], "vision_aspect_ratio": "anyres"},
    ),
    ("vipllava", {"vision_feature_layers": [-1, -2]}),
    ("kimi_k25", {"projection_hidden_size": WIDTH}),
    ("granite_speech granite_speech_plus", _SPEECH),
    ("llama4", {"vision_config": {"more": _LLAMA4_EYE}}),
    ("muse_glimmer", {"more": {"out_hidden_size": 4 * WIDTH, "projector_hidden_size": WIDTH}}),
    ("muse_spark", {"more": {"out_hidden_size": 4 * WIDTH, "projector_hidden_size": WIDTH}}),
    ("deepseek_vl_hybrid", {"high_res_vision_config": {"more": {"global_attn_indexes": [1]}}}),
    ("deepseek_ocr2 unlimited_ocr", {"vision_config": {"sam_config": {"more": _OCR_EYE}}}),
    ("fun_asr_nano", {"adaptor_config": {"more": {"hidden_size": WIDTH, "intermediate_size": WIDTH // 4}}}),
    ("granite4_vision", {"more": _GRANITE}),
    ("granite_docling", {"vision_config": {"more": {"image_size": 64}}}),
    ("hy_v4_vl", {"text_config": _turns(2, 1, 1)}),
    (
        "chameleon",
        {
            "more": {"vocabulary_map": _WRITTEN},
            "vq_config": {"more": _SMALL_CODES | {"num_embeddings": len(_CODES), "embed_dim": 8}},
        },
    ),
    (
        "emu3",
        {
            "more": {"vocabulary_map": _SHOWN},
            "vq_config": {"more": _SMALL_CODES | {"codebook_size": len(_CODES), "hidden_size": 32}},
        },
    ),
    ("dots3_note", _DOTS),
    ("apertus1p5", _APERTUS),
    ("molmo2", _MOLMO),
    ("nemotron_h_omni", _NEMOTRON),
    ("gemma3n", _GEMMA3N),
    ("glmasr", {"audio_config": {"more": {"intermediate_size": 4 * WIDTH}}}),
    ("perception_lm", {"vision_config": {"more": _TIMM}}),
    ("qwen2_5_omni", _turns(4, 2, 2)),
    ("qwen3_omni_moe", {"more": {"enable_audio_output": False}}),
    ("kyutai_speech_to_text", {"more": {"codebook_vocab_size": 2049, "audio_pad_token_id": 65664}}),
)
GIVEN = {family: options for families, options in SMALL_IMAGES for family in families.split()}
"""Further options of a family's configuration, so that small images are read."""

PARTS = {"gemma4": ("vision_config",), "gemma4_unified": ("vision_config",)}
"""Parts that read images, which the defaults of a family's configuration leave out."""

_PLACEHOLDER = re.compile(r"(image|img|video|audio|speech|vision|sound|media)\w*_token(_id|_index)?$")


def pictured_families() -> list[str]:
    """Every `model_type` that transformers' classes for images, videos or sound with text know."""
    return sorted(classes_of_pictured())


def classes_of_pictured() -> dict[str, Any]:
    """Returns the names of these classes by `model_type`."""
    # Two families of sound are in the list of text models.
    texts = modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    heard = {family: texts[family] for family in ("audioflamingo3", "musicflamingo") if family in texts}
    return {**modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES, **heard}


def build_pictured(family: str, *, reach: int) -> Any:
    """A tiny model of `family`, with placeholders inside its vocabulary."""
    classes = classes_of_pictured()
    more, parts = GIVEN.get(family), PARTS.get(family, ())
    model = with_placeholders(build(family, reach=reach, classes=classes, more=more, parts=parts))
    if hasattr(model, "codec_model"):
        model.generation_config.bos_token_id = 1  # with which it begins every text
    if hasattr(model, "speaker_map"):
        model.speaker_map = {"Chelsie": {}}  # generate() looks it up, and reads it for speech only
    return model


def writer_of(model: Any) -> Any:
    """Returns the part of a model that writes text: Omni models have a thinker, others write themselves."""
    return getattr(model, "thinker", model)


def with_placeholders(model: Any) -> Any:
    """Returns `model`, whose configuration now has placeholders inside its vocabulary."""
    owned = [getattr(part, "config", None) for part in model.modules()]
    whole = [config for config in owned if isinstance(config, hf.PreTrainedConfig)]
    for config in {id(one): one for every in whole for one in (every, *parts_of(every))}.values():
        for name in ("vision_start_token_id", "vision_end_token_id"):
            if not isinstance(getattr(config, name, None), int):
                setattr(config, name, MARK)
        named = {name: getattr(config, name, None) for name in type(config).attribute_map} | vars(config)
        # If images and videos have the same number, images come last and keep it.
        for name, value in sorted(named.items(), key=lambda one: one[0], reverse=True):
            plain = value is None or (isinstance(value, int) and not isinstance(value, bool))
            if _PLACEHOLDER.search(name) and plain:
                setattr(config, name, _token(name))
    return model


def _token(name: str) -> int:
    if name in VIDEO_MARKS:
        return VIDEO_MARKS[name]
    sound = re.search("audio|speech|sound", name)
    if re.search(r"start|begin|end|boi|eoi|bos|eos|newline|break|pad", name):
        return SOUND_MARK if sound else MARK
    return VIDEO if "video" in name else SOUND if sound else IMAGE


def pictured_prompt(model: Any, *, seed: int = 0) -> Inputs | None:
    """Inputs of `generate()` for two rows of differing length, each with an image or with sound.

    None where the model makes features of no form that is known.
    """
    if hasattr(model.config, "audio_length_per_tok"):
        # Every token is written while a piece of the sound is read.
        chance, bins = torch.Generator().manual_seed(seed), model.config.audio_config.num_mel_bins
        ids = torch.tensor([[5, 7, 8, 9], [6, 7, 11, 8]])
        return {"input_ids": ids, "input_features": torch.randn(2, bins, 320, generator=chance)}
    for kind, token in (("image", IMAGE), ("audio", SOUND)):
        for encode in encoders_of(model, kind):
            takes = inspect.signature(encode).parameters
            for form in FORMS[kind]:
                for inputs in form(model, torch.Generator().manual_seed(seed)):
                    counts = features_of(encode, inputs) if inputs.keys() <= takes.keys() else []
                    if len(counts) == 2 and min(counts):
                        return _with_text(model, inputs, counts, token)
    eye = getattr(model.config, "vision_config", None)
    takes = inspect.signature(model.forward).parameters
    before = eye is not None and "pixel_values" in takes and not encoders_of(model, "image")
    if before and not model.config.is_encoder_decoder:
        # Images that come before the text, and not in it.
        chance, size = torch.Generator().manual_seed(seed), model.config.vision_config.image_size
        return _with_text(
            model, {"pixel_values": torch.randn(2, 3, size, size, generator=chance)}, [0, 0], IMAGE
        )
    for masked in {"input_features_mask", "feature_attention_mask"} & takes.keys():
        # Of 64 frames two convolutions and a pool leave 16.
        return _with_text(
            model, begun_sound(model, torch.Generator().manual_seed(seed), masked), [16, 16], SOUND
        )
    if hasattr(model, "codec_model"):
        samples = torch.randn(
            2, 1, 40 * model.config.frame_size, generator=torch.Generator().manual_seed(seed)
        )
        return {"input_values": samples, "padding_mask": torch.ones(2, samples.shape[-1], dtype=torch.int64)}
    return None


def features_of(encode: Any, inputs: Inputs, *, rows: int = 2) -> list[int]:
    """Returns the number of features of each row; nothing in a form that is not taken."""
    more = {"return_dict": True} if "kwargs" in inspect.signature(encode).parameters else {}
    try:
        with torch.no_grad():
            return [len(features) for features in _rows_of(encode(**inputs, **more), rows)]
    except Exception:  # a form of another family fails in any way
        return []


def encoders_of(model: Any, kind: str) -> list[Any]:
    """Returns the methods that make features of images, sound or videos."""
    owners = (model, getattr(model, "base_model", None), getattr(model, "model", None))
    found = (getattr(owner, f"get_{kind}_features", None) for owner in owners)
    # A method that hands on any arguments does not say which it takes.
    return [one for one in found if one is not None and "args" not in inspect.signature(one).parameters]


def _rows_of(value: Any, rows: int) -> list[Tensor]:
    """The features of all images, `[tokens, width]` each, of what a model returns for them."""
    if not isinstance(value, Tensor | list | tuple):
        pooled = getattr(value, "pooler_output", None)
        layers = getattr(value, "deepstack_features", None) or [(0, None)]
        whole = getattr(value, "last_hidden_state", None)
        value = next((one for one in (pooled, whole, layers[0][1]) if one is not None), None)
    if isinstance(value, Tensor):
        if value.dim() == 2:
            return list(value.chunk(rows))
        return list(value.flatten(1, -2) if value.dim() > 3 else value)
    found = [one for each in value for one in ([each] if each.dim() == 2 else [*each])]
    if len(found) % rows:
        return []
    together = len(found) // rows
    return [torch.cat(found[row * together : (row + 1) * together]) for row in range(rows)]


def _with_text(model: Any, inputs: Inputs, counts: list[int], token: int) -> Inputs:
    mark = SOUND_MARK if token == SOUND else MARK
    texts = [
        [5, mark, *[token] * counts[0], mark, 7, 8, 9, 31],
        [6, mark, *[token] * counts[1], mark, 11],
    ]
    longest = max(map(len, texts))
    ids = torch.tensor([[0] * (longest - len(text)) + text for text in texts])
    mask = torch.tensor([[0] * (longest - len(text)) + [1] * len(text) for text in texts])
    takes = inspect.signature(model.forward).parameters
    marks = (ids == token).long()
    named = ("mm_token_type_ids", "token_type_ids", "image_embeds_position_mask")
    types = {name: marks for name in named if name in takes}
    return {"input_ids": ids, "attention_mask": mask, **types, **inputs}
