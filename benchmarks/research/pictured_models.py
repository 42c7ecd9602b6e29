"""Prompts with images or sound for every family of transformers that reads any, built tiny.

The shapes follow from the model: an image is tried in each of the forms in which families take images, until
the model makes features of it, and the prompt then has as many placeholders as there are features.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers as hf
from torch import Tensor
from transformers.models.auto import modeling_auto

from benchmarks.research.families_models import VOCAB, WIDTH, build

Inputs = dict[str, Any]
Form = Callable[[Any, torch.Generator], Iterator[Inputs]]

IMAGE, VIDEO, SOUND, MARK = VOCAB - 6, VOCAB - 5, VOCAB - 4, VOCAB - 3
"""Tokens that stand for a part of an image, a video or sound, and one that marks where these begin or end."""

_LLAMA4_EYE = {
    "intermediate_size": 4 * WIDTH,  # four neighbouring patches are one
    **dict.fromkeys(("projector_input_dim", "projector_output_dim", "vision_output_dim"), WIDTH),
    "image_size": 56,
}
_SPEECH = {
    "encoder_config": {"more": {"hidden_dim": WIDTH, "num_heads": 4, "dim_head": 16, "context_size": 20}},
    "projector_config": {"more": {"encoder_hidden_size": WIDTH, "num_attention_heads": 4}},
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
)
GIVEN = {family: options for families, options in SMALL_IMAGES for family in families.split()}
"""Further options of a family's configuration, so that small images are read."""

PARTS = {"gemma4": ("vision_config",), "gemma4_unified": ("vision_config",)}
"""Parts that read images, which the defaults of a family's configuration leave out."""

_PLACEHOLDER = re.compile(r"(image|img|video|audio|speech|vision|sound|media)\w*_token(_id|_index)?$")
_SIZES = (28, 32, 56, 64, 112, 224)
_CHANNELS = ("in_channels", "num_channels", "in_chans", "channels")


def pictured_families() -> list[str]:
    """Every `model_type` that transformers' classes for images, videos or sound with text know."""
    return sorted(modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES)


def build_pictured(family: str, *, reach: int) -> Any:
    """A tiny model of `family`, with placeholders inside its vocabulary."""
    classes = modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES
    more, parts = GIVEN.get(family), PARTS.get(family, ())
    return with_placeholders(build(family, reach=reach, classes=classes, more=more, parts=parts))


def with_placeholders(model: Any) -> Any:
    """Returns `model`, whose configuration now has placeholders inside its vocabulary."""
    owned = [getattr(part, "config", None) for part in model.modules()]
    whole = [config for config in owned if isinstance(config, hf.PreTrainedConfig)]
    for config in {id(one): one for every in whole for one in (every, *_parts(every))}.values():
        for name in ("vision_start_token_id", "vision_end_token_id"):
            if not isinstance(getattr(config, name, None), int):
                setattr(config, name, MARK)
        for name, value in list(vars(config).items()):
            plain = value is None or (isinstance(value, int) and not isinstance(value, bool))
            if _PLACEHOLDER.search(name) and plain:
                setattr(config, name, _token(name))
    return model


def _parts(config: Any) -> list[Any]:
    return [part for part in vars(config).values() if isinstance(part, hf.PreTrainedConfig)]


def _token(name: str) -> int:
    if re.search(r"start|begin|end|boi|eoi|bos|eos|newline|break|pad", name):
        return MARK
    return VIDEO if "video" in name else SOUND if re.search("audio|speech|sound", name) else IMAGE


def _part(model: Any, *names: str) -> Any:
    """The configuration of a part of the model, which may be inside another part; its own otherwise."""
    for config in (model.config, *_parts(model.config)):
        for name in names:
            if isinstance(part := getattr(config, name, None), hf.PreTrainedConfig):
                return part
    return model.config


def _number(config: Any, *names: str, otherwise: int) -> int:
    for name in names:
        value = getattr(config, name, None)
        value = value[0] if isinstance(value, list | tuple) and value else value
        if isinstance(value, int | float) and value:
            return int(value)
    return otherwise


def _eye(model: Any) -> Any:
    return _part(
        model, "vision_config", "vision_model_config", "vq_config", "visual_config", "vision_encoder_config"
    )


def _images(model: Any, chance: torch.Generator) -> Iterator[Inputs]:
    """Images as arrays of pixels."""
    eye = _eye(model)
    channels = _number(eye, "num_channels", *_CHANNELS, otherwise=3)
    for size in dict.fromkeys((*_SIZES, _number(eye, "image_size", otherwise=28))):
        if size > 1024:
            continue
        pixels = torch.randn(2, channels, size, size, generator=chance)
        sizes = torch.tensor([[size, size]] * 2)
        yield {"pixel_values": pixels}
        yield {"pixel_values": pixels, "image_sizes": sizes}
        yield {"pixel_values": pixels, "pixel_attention_mask": torch.ones(2, size, size, dtype=torch.int64)}
        fine = torch.nn.functional.interpolate(pixels, size=1024)
        yield {"pixel_values": pixels, "high_res_pixel_values": fine}
        for crops in (1, 2, 3, 4, 5):
            several = pixels[:, None].repeat(1, crops, 1, 1, 1)
            yield {"pixel_values": several, "image_sizes": sizes}
            if crops == 1:
                yield {"pixel_values": several}
                seen = torch.ones(2, 1, size, size, dtype=torch.int64)
                yield {"pixel_values": several, "pixel_attention_mask": seen}


def _patches(model: Any, chance: torch.Generator) -> Iterator[Inputs]:
    """Images as patches in a grid."""
    eye = _eye(model)
    patch = _number(eye, "patch_size", otherwise=14)
    merge = _number(eye, "spatial_merge_size", "merge_size", "downsample_factor", otherwise=2)
    channels = _number(eye, *_CHANNELS, otherwise=3)
    for merge_by in dict.fromkeys((merge, 2, 4)):
        side = 2 * merge_by
        grid = torch.tensor([[1, side, side]] * 2)
        for frames in dict.fromkeys((_number(eye, "temporal_patch_size", otherwise=1), 1, 2)):
            flat = torch.randn(2 * side * side, channels * frames * patch * patch, generator=chance)
            for pixels in (flat, flat.view(-1, channels * frames, patch, patch)):
                yield {"pixel_values": pixels, "image_grid_thw": grid}
                yield {
                    "pixel_values": pixels,
                    "image_grid_thw": grid,
                    "image_merge_sizes": torch.tensor([merge_by] * 2),
                }
                yield {"pixel_values": pixels, "image_grid_hws": grid[:, 1:]}
                yield {"pixel_values": pixels, "image_grid_hw": grid[:, 1:]}
        rows = torch.randn(2, side * side, channels * patch * patch, generator=chance)
        yield {
            "pixel_values": rows,
            "spatial_shapes": grid[:, 1:],
            "pixel_attention_mask": torch.ones(2, side * side, dtype=torch.int64),
        }
        across, down = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="xy")
        places = torch.stack([across.flatten(), down.flatten()], -1).expand(2, -1, -1)
        yield {"pixel_values": rows, "image_position_ids": places}
        # Some take several patches as one.
        wide = patch * _number(eye, "pooling_kernel_size", otherwise=1)
        rows = torch.randn(2, side * side, channels * wide * wide, generator=chance)
        yield {"pixel_values": rows, "image_position_ids": places}


def _sound(model: Any, chance: torch.Generator) -> Iterator[Inputs]:
    """Sound as frames of a spectrum, or as samples."""
    ear = _part(
        model, "audio_config", "audio_encoder_config", "encoder_config", "acoustic_tokenizer_encoder_config"
    )
    bins = _number(
        ear, "num_mel_bins", "input_feat_per_channel", "input_dim", "feature_size", "n_mels", otherwise=80
    )
    most = 2 * _number(ear, "max_source_positions", otherwise=100)
    for frames in dict.fromkeys((min(most, 3000), 200, 64)):
        for shape in ((2, bins, frames), (2, frames, bins)):
            heard = torch.randn(shape, generator=chance)
            for mask in (torch.ones(2, frames, dtype=torch.int64), torch.ones(2, frames, dtype=torch.bool)):
                yield {"input_features": heard, "feature_attention_mask": mask}
                yield {"input_features": heard, "input_features_mask": mask}
                yield {"input_features": heard, "attention_mask": mask}
            yield {"input_features": heard}
    samples = torch.randn(2, 3200, generator=chance)
    yield {"input_values": samples}
    yield {"input_values": samples, "padding_mask": torch.ones(2, 3200, dtype=torch.int64)}


FORMS: dict[str, tuple[Form, ...]] = {"image": (_images, _patches), "audio": (_sound,)}


def pictured_prompt(model: Any, *, seed: int = 0) -> Inputs | None:
    """Inputs of `generate()` for two rows of differing length, each with an image or with sound.

    None where the model makes features of no form that is known.
    """
    for kind, token in (("image", IMAGE), ("audio", SOUND)):
        for encode in _encoders(model, kind):
            takes = inspect.signature(encode).parameters
            for form in FORMS[kind]:
                for inputs in form(model, torch.Generator().manual_seed(seed)):
                    counts = _features(encode, inputs) if inputs.keys() <= takes.keys() else []
                    if len(counts) == 2 and min(counts):
                        return _with_text(model, inputs, counts, token)
    if "pixel_values" in inspect.signature(model.forward).parameters and not _encoders(model, "image"):
        # Images that come before the text, and not in it.
        return _with_text(model, next(_images(model, torch.Generator().manual_seed(seed))), [0, 0], IMAGE)
    return None


def _features(encode: Any, inputs: Inputs) -> list[int]:
    """Returns the features of each image or sound by number; nothing in a form that is not taken."""
    more = {"return_dict": True} if "kwargs" in inspect.signature(encode).parameters else {}
    try:
        with torch.no_grad():
            return [len(features) for features in _rows_of(encode(**inputs, **more), 2)]
    except Exception:  # a form of another family fails in any way
        return []


def _encoders(model: Any, kind: str) -> list[Any]:
    owners = (model, getattr(model, "base_model", None), getattr(model, "model", None))
    found = (getattr(owner, f"get_{kind}_features", None) for owner in owners)
    return [encode for encode in found if encode is not None]


def _rows_of(value: Any, rows: int) -> list[Tensor]:
    """The features of all images, `[tokens, width]` each, of what a model returns for them."""
    if not isinstance(value, Tensor | list | tuple):
        pooled = getattr(value, "pooler_output", None)
        value = getattr(value, "last_hidden_state", None) if pooled is None else pooled
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
    texts = [
        [5, MARK, *[token] * counts[0], MARK, 7, 8, 9, 31],
        [6, MARK, *[token] * counts[1], MARK, 11],
    ]
    longest = max(map(len, texts))
    ids = torch.tensor([[0] * (longest - len(text)) + text for text in texts])
    mask = torch.tensor([[0] * (longest - len(text)) + [1] * len(text) for text in texts])
    takes = inspect.signature(model.forward).parameters
    marks = (ids == token).long()
    types = {name: marks for name in ("mm_token_type_ids", "token_type_ids") if name in takes}
    return {"input_ids": ids, "attention_mask": mask, **types, **inputs}
