"""Prompts with videos for every family of transformers that takes any, for two rows that differ in videos.

The forms of a prompt are tried in turn, as for images. Whether `generate()` takes one shows which token is
put in the place of a part of a video, and whether text parts its frames.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import transformers as hf
from torch import Tensor

from benchmarks.research.pictured_forms import CHANNELS, SIZES, Inputs, eye_of, number_of
from benchmarks.research.pictured_models import (
    IMAGE,
    MARK,
    VIDEO,
    VIDEO_MARKS,
    classes_of_pictured,
    encoders_of,
    features_of,
    pictured_families,
)

FRAMES = (2, 1)
"""Frames of the video of each row, where rows may differ in them; otherwise both have two."""

_FRAMES_ARE_IMAGES = {"internvl": "flat", "smolvlm": "by row"}
"""Families whose processor gives the frames of a video as the images of a row."""


def video_families() -> list[str]:
    """Returns every `model_type` whose class takes videos and text."""
    return [family for family in pictured_families() if family in _FRAMES_ARE_IMAGES or _takes_videos(family)]


def _takes_videos(family: str) -> bool:
    kind = getattr(hf, classes_of_pictured()[family])
    return "pixel_values_videos" in inspect.signature(getattr(kind, "forward", len)).parameters


def video_prompt(model: Any, *, seed: int = 0) -> Inputs | None:
    """Inputs of `generate()` for two rows of differing length, each with a video.

    None where the model takes no form that is known.
    """
    for inputs, total, frames in _read(model, seed):
        for prompt in _prompts(model, inputs, total, frames):
            try:
                model.generate(**prompt, max_new_tokens=1, do_sample=False)
            except Exception:  # another way to write the frames
                continue
            return prompt
    return None


def _read(model: Any, seed: int) -> Iterator[tuple[Inputs, int, Sequence[int]]]:
    """Yields the forms of videos that the model makes features of, their number, and the frames by row."""
    kind = model.config.model_type
    forms = _as_images(model, kind, seed) if kind in _FRAMES_ARE_IMAGES else _forms(model, seed)
    takes = inspect.signature(model.forward).parameters
    for inputs, frames in forms:
        for encode, named in _readers(model, inputs) if inputs.keys() <= takes.keys() else ():
            if total := sum(features_of(encode, named, rows=1)):
                yield inputs, total, frames
                break


def _readers(model: Any, inputs: Inputs) -> Iterator[tuple[Any, Inputs]]:
    for encode in encoders_of(model, "video"):
        if inputs.keys() <= inspect.signature(encode).parameters.keys():
            yield encode, inputs
    # Some read the frames as they read images.
    as_images = {name.replace("_videos", ""): value for name, value in inputs.items()}
    for encode in encoders_of(model, "image"):
        if as_images.keys() <= inspect.signature(encode).parameters.keys():
            yield encode, as_images


def _as_images(model: Any, kind: str, seed: int) -> Iterator[tuple[Inputs, Sequence[int]]]:
    chance, eye = torch.Generator().manual_seed(seed), eye_of(model)
    for size in dict.fromkeys((*SIZES, number_of(eye, "image_size", otherwise=28))):
        channels = number_of(eye, "num_channels", *CHANNELS, otherwise=3)
        if _FRAMES_ARE_IMAGES[kind] == "flat":
            yield {"pixel_values": torch.randn(sum(FRAMES), channels, size, size, generator=chance)}, FRAMES
        yield {"pixel_values": torch.randn(2, 2, channels, size, size, generator=chance)}, (2, 2)


def _forms(model: Any, seed: int) -> Iterator[tuple[Inputs, Sequence[int]]]:
    for form in (_grids, _whole_frames, _packed):
        yield from form(model, torch.Generator().manual_seed(seed))


def _grids(model: Any, chance: torch.Generator) -> Iterator[tuple[Inputs, Sequence[int]]]:
    """Videos as patches in a grid of time, height and width."""
    eye = eye_of(model)
    patch = number_of(eye, "patch_size", otherwise=14)
    merge = number_of(eye, "spatial_merge_size", "merge_size", "downsample_factor", otherwise=2)
    channels = number_of(eye, *CHANNELS, otherwise=3)
    for merge_by in dict.fromkeys((merge, 2, 4)):
        side, joined = 2 * merge_by, number_of(eye, "temporal_merge_size", otherwise=1)
        grid = torch.tensor([[joined * frames, side, side] for frames in FRAMES])
        count = int(grid.prod(1).sum())
        for depth in dict.fromkeys((number_of(eye, "temporal_patch_size", otherwise=1), 1, 2)):
            flat = torch.randn(count, channels * depth * patch * patch, generator=chance)
            for pixels in (flat, flat.view(count, channels * depth, patch, patch)):
                yield {"pixel_values_videos": pixels, "video_grid_thw": grid}, FRAMES
                merges = torch.tensor([merge_by] * 2)
                yield (
                    {"pixel_values_videos": pixels, "video_grid_thw": grid, "video_merge_sizes": merges},
                    FRAMES,
                )
    grid, wide = torch.tensor([[frames, 2, 2] for frames in FRAMES]), patch * merge
    cut = torch.randn(4 * sum(FRAMES), wide, wide, channels, generator=chance)
    yield {"pixel_values_videos": cut, "video_grid_thw": grid}, FRAMES


def _whole_frames(model: Any, chance: torch.Generator) -> Iterator[tuple[Inputs, Sequence[int]]]:
    """Videos as arrays of pixels, of as many frames for every row."""
    eye = eye_of(model)
    channels = number_of(eye, "num_channels", *CHANNELS, otherwise=3)
    for size in dict.fromkeys((*SIZES, number_of(eye, "image_size", otherwise=28))):
        for depth in dict.fromkeys((1, number_of(eye, "video_temporal_patch_size", otherwise=1))):
            for frames in (2, 4, 8):
                pixels = torch.randn(2, frames, channels * depth, size, size, generator=chance)
                yield {"pixel_values_videos": pixels}, (frames, frames)


def _packed(model: Any, chance: torch.Generator) -> Iterator[tuple[Inputs, Sequence[int]]]:
    """Videos as patches that follow each other, with their places, sizes or pools."""
    eye = eye_of(model)
    patch, channels = number_of(eye, "patch_size", otherwise=16), number_of(eye, *CHANNELS, otherwise=3)
    count, side = sum(FRAMES), 4
    row = torch.randn(1, channels, patch, count * side * side * patch, generator=chance)
    sizes = torch.tensor([[side, side]] * count)
    yield {"pixel_values_videos": row, "target_sizes_videos": sizes}, FRAMES
    across = number_of(eye, "image_size", otherwise=patch) // patch
    patches = torch.randn(count, across * across, channels * patch * patch, generator=chance)
    yield (
        {
            "pixel_values_videos": patches,
            "video_token_pooling": torch.arange(count * across * across).view(-1, 1)[:, [0, 0]],
            "video_grids": torch.tensor([[frames, across, across] for frames in FRAMES]),
        },
        FRAMES,
    )
    merge = number_of(eye, "spatial_merge_size", "merge_size", "pooling_kernel_size", otherwise=2)
    for wide in dict.fromkeys((patch, patch * number_of(eye, "pooling_kernel_size", otherwise=1))):
        edge = 2 * merge
        at = torch.stack(torch.meshgrid(torch.arange(edge), torch.arange(edge), indexing="xy"), -1)
        frames = torch.randn(count, edge * edge, channels * wide * wide, generator=chance)
        yield (
            {
                "pixel_values_videos": frames,
                "video_position_ids": at.view(1, -1, 2).expand(count, -1, -1),
                "num_frames_per_video": torch.tensor(FRAMES),
            },
            FRAMES,
        )


def _prompts(model: Any, inputs: Inputs, total: int, frames: Sequence[int]) -> Iterator[Inputs]:
    """Yields the ways to write the placeholders of `total` features, which the videos of the rows share."""
    takes = inspect.signature(model.forward).parameters
    more = {"video_second_per_grid": torch.ones(2)} if "video_second_per_grid" in takes else {}
    # By frames, or as many for each video, where a model makes one frame of all.
    for shares in dict.fromkeys((tuple(frames), (1, 1))):
        each, left = divmod(total, sum(shares))
        for token in (VIDEO, IMAGE):
            for parted in (False, True):
                for after in (0, 1):  # some put a line's end after a video
                    if not left:
                        counts = [share * each for share in shares]
                        parts = frames if parted else (1, 1)
                        yield {**_texts(model, token, counts, parts, after=after), **inputs, **more}


def _texts(
    model: Any, token: int, counts: Sequence[int], parts: Sequence[int], *, after: int
) -> dict[str, Tensor]:
    first, last = (getattr(model.config, name, MARK) for name in VIDEO_MARKS)
    texts = []
    for begin, count, frames, words in zip((5, 6), counts, parts, ([7, 8, 9, 31], [11]), strict=True):
        # Text between frames says when they were.
        frame = [*[token] * (count // frames), *([20] if frames > 1 else [])]
        texts.append([begin, first, *frame * frames, *[token] * after, last, *words])
    longest = max(map(len, texts))
    ids = torch.tensor([[0] * (longest - len(text)) + text for text in texts])
    mask = torch.tensor([[0] * (longest - len(text)) + [1] * len(text) for text in texts])
    takes = inspect.signature(model.forward).parameters
    marks = (ids == token).long()
    types = {"mm_token_type_ids": 2 * marks, "token_type_ids": marks}
    return {"input_ids": ids, "attention_mask": mask, **{k: v for k, v in types.items() if k in takes}}
