"""The forms in which families of transformers take images and sound, as inputs of two rows each.

Sizes follow from the configuration; which of the forms a model takes shows when it makes features of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers as hf

Inputs = dict[str, Any]
Form = Callable[[Any, torch.Generator], Iterator[Inputs]]

SIZES = (28, 32, 56, 64, 112, 224)
CHANNELS = ("in_channels", "num_channels", "in_chans", "channels")


def parts_of(config: Any) -> list[Any]:
    """Returns the configurations that are parts of `config`."""
    return [part for part in vars(config).values() if isinstance(part, hf.PreTrainedConfig)]


def _part(model: Any, *names: str) -> Any:
    """The configuration of a part of the model, which may be inside another part; its own otherwise."""
    for config in (model.config, *parts_of(model.config)):
        for name in names:
            if isinstance(part := getattr(config, name, None), hf.PreTrainedConfig):
                return part
    return model.config


def number_of(config: Any, *names: str, otherwise: int) -> int:
    """Returns the first of these numbers that a configuration has."""
    for name in names:
        value = getattr(config, name, None)
        value = value[0] if isinstance(value, list | tuple) and value else value
        if isinstance(value, int | float) and value:
            return int(value)
    return otherwise


def eye_of(model: Any) -> Any:
    """Returns the configuration of the part that sees."""
    return _part(
        model, "vision_config", "vision_model_config", "vq_config", "visual_config", "vision_encoder_config"
    )


def images(model: Any, chance: torch.Generator) -> Iterator[Inputs]:
    """Images as arrays of pixels."""
    eye = eye_of(model)
    channels = number_of(eye, "num_channels", *CHANNELS, otherwise=3)
    for size in dict.fromkeys((*SIZES, number_of(eye, "image_size", otherwise=28))):
        if size > 1024:
            continue
        pixels = torch.randn(2, channels, size, size, generator=chance)
        sizes = torch.tensor([[size, size]] * 2)
        yield {"pixel_values": pixels}
        tiles = torch.ones(2, 1, dtype=torch.bool)
        yield {"pixel_values": pixels[:, None], "pixel_attention_mask": tiles}
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
    eye = eye_of(model)
    patch = number_of(eye, "patch_size", otherwise=14)
    merge = number_of(eye, "spatial_merge_size", "merge_size", "downsample_factor", otherwise=2)
    channels = number_of(eye, *CHANNELS, otherwise=3)
    for merge_by in dict.fromkeys((merge, 2, 4)):
        side = 2 * merge_by
        grid = torch.tensor([[1, side, side]] * 2)
        for frames in dict.fromkeys((number_of(eye, "temporal_patch_size", otherwise=1), 1, 2)):
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
        wide = patch * number_of(eye, "pooling_kernel_size", otherwise=1)
        rows = torch.randn(2, side * side, channels * wide * wide, generator=chance)
        yield {"pixel_values": rows, "image_position_ids": places}


def _sound(model: Any, chance: torch.Generator) -> Iterator[Inputs]:
    """Sound as frames of a spectrum, or as samples."""
    ear = _part(
        model, "audio_config", "audio_encoder_config", "encoder_config", "acoustic_tokenizer_encoder_config"
    )
    ear = getattr(ear, "asr_config", ear)
    bins = number_of(
        ear, "num_mel_bins", "input_feat_per_channel", "input_dim", "feature_size", "n_mels", otherwise=80
    )
    bins *= number_of(ear, "num_stacked_frames", otherwise=1)
    most = 2 * number_of(ear, "max_source_positions", otherwise=100)
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


def _packed(model: Any, chance: torch.Generator) -> Iterator[Inputs]:
    """Images as patches that follow each other, with their places, sizes or pools."""
    eye = eye_of(model)
    patch, channels = number_of(eye, "patch_size", otherwise=16), number_of(eye, *CHANNELS, otherwise=3)
    merge = number_of(eye, "spatial_merge_size", "merge_size", otherwise=2)
    side = 4
    grid, wide = torch.tensor([[1, 2, 2]] * 2), patch * merge
    yield {"pixel_values": torch.randn(8, wide, wide, channels, generator=chance), "image_grid_thw": grid}
    frames = number_of(eye, "temporal_patch_size", otherwise=2)
    yield {"pixel_values": torch.randn(2, frames, patch, patch, channels, generator=chance)}
    row = torch.randn(1, channels, patch, 2 * side * side * patch, generator=chance)
    yield {"pixel_values": row, "target_sizes": torch.tensor([[side, side]] * 2)}
    flat = torch.randn(2, side * side, 2 + channels * patch * patch, generator=chance)
    flat[..., 0], flat[..., 1] = torch.arange(16) // side + 1, torch.arange(16) % side + 1
    yield {"flattened_patches": flat}
    across = number_of(eye, "image_size", otherwise=patch) // patch
    pools = torch.arange(2 * across * across).view(-1, 1)[:, [0, 0]]
    yield {
        "pixel_values": torch.randn(2, across * across, channels * patch * patch, generator=chance),
        "image_token_pooling": pools,
        "image_grids": torch.tensor([[across, across, 0, 0]] * 2),
    }


def _heard(model: Any, chance: torch.Generator) -> Iterator[Inputs]:
    """Sound as numbers of sounds, as samples of one channel, or in pieces."""
    bins = number_of(_part(model, "audio_config"), "n_mel_bins", "num_mel_bins", otherwise=80)
    yield {"audio_input_ids": torch.randint(0, 8, (2, 5, bins), generator=chance)}
    samples = torch.randn(2, 1, 3200, generator=chance)
    yield {"input_values": samples, "padding_mask": torch.ones(2, 3200, dtype=torch.int64)}
    for length in (3200, 25600):
        samples = torch.randn(2, length, generator=chance)
        yield {"input_values": samples, "input_values_mask": torch.ones(2, length, dtype=torch.int64)}
        whole = torch.ones(2, length, dtype=torch.int64)
        for shape in (samples, samples[:, None]):
            yield {"input_values": shape, "padding_mask": whole, "sample": False}
    frames = begun_sound(model, chance, "input_features_mask")
    yield frames | {"padding_mask": torch.ones(2, 64 * 160, dtype=torch.int64)}


def begun_sound(model: Any, chance: torch.Generator, masked: str) -> Inputs:
    """Returns sound that fills the first 64 frames of its window, as the mask of this name says."""
    bins = number_of(_part(model, "audio_config"), "num_mel_bins", otherwise=80)
    mask = torch.zeros(2, 3000, dtype=torch.int64)
    mask[:, :64] = 1
    return {"input_features": torch.randn(2, bins, 3000, generator=chance), masked: mask}


FORMS: dict[str, tuple[Form, ...]] = {"image": (images, _patches, _packed), "audio": (_sound, _heard)}
"""The forms in which encoders take images and sound."""
