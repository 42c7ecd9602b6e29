"""Prompts with images, sound or videos, and the sources of encoder-decoders, from texts and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftwood import ModelPrompt
from draftwood.apps.models.by_name import Loaded
from draftwood.apps.terminal.cli_errors import first_line
from draftwood.base.errors import DraftwoodError, InvalidInput


def model_prompt(
    loaded: Loaded,
    name: str,
    texts: Sequence[str],
    *,
    images: Sequence[Path] = (),
    sounds: Sequence[Path] = (),
    videos: Sequence[Path] = (),
    chat: bool = False,
    trust_remote_code: bool = False,
) -> ModelPrompt | None:
    """Returns the prompts of a target that reads more than tokens; None for a text of any other target.

    With one text, it gets all files; with several, each gets one of each kind.

    Args:
        loaded: the target and its tokenizer.
        name: folder or hub name of the target, whose processor prepares the files.
        texts: of the prompts.
        images: files.
        sounds: files.
        videos: files.
        chat: whether each text is a user's message, for the processor's chat template.
        trust_remote_code: whether the processor may run its own code.

    Raises:
        InvalidInput: files that the target or its processor does not read, or packages that reading needs.
    """
    kinds = {"image": images, "audio": sounds, "video": videos}
    by_text = [
        {kind: _share(kind, files, row, of=len(texts)) for kind, files in kinds.items() if files}
        for row in range(len(texts))
    ]
    inputs = media_inputs(
        loaded, name, texts, by_text, chat=chat, trust_remote_code=trust_remote_code, option="--{}"
    )
    return None if inputs is None else ModelPrompt.of(loaded.target.model, **inputs)


def media_inputs(
    loaded: Loaded,
    name: str,
    texts: Sequence[str],
    files: Sequence[Mapping[str, Sequence[Path]]],
    *,
    chat: bool = False,
    trust_remote_code: bool = False,
    option: str = "{}",
) -> dict[str, Any] | None:
    """Returns the arguments of `generate()` for prompts that are more than tokens; None for other texts.

    Args:
        loaded: the target and its tokenizer.
        name: folder or hub name of the target, whose processor prepares the files.
        texts: of the prompts.
        files: of every text, by kind: `image`, `audio` and `video`.
        chat: whether each text is a user's message, for the processor's chat template.
        trust_remote_code: whether the processor may run its own code.
        option: what messages call a kind of files.

    Raises:
        InvalidInput: files that the target or its processor does not read, or packages that reading needs.
    """
    model, given = loaded.target.model, sorted({kind for one in files for kind in one})
    modalities = getattr(model, "input_modalities", ("text",))
    for kind in given:
        if kind not in ((modalities,) if isinstance(modalities, str) else modalities):
            left_out = option.format(kind)
            raise InvalidInput(f"The target {type(model).__name__} reads no {kind}; leave {left_out} out.")
    if not given:
        if not reads_source(loaded):
            return None
        if chat:
            raise InvalidInput(f"{type(model).__name__} is an encoder-decoder; leave --chat out.")
        return dict(loaded.tokenizer(list(texts), return_tensors="pt", padding=len(texts) > 1))
    try:
        processor = _processor(name, trust_remote_code)
        if not model.config.is_encoder_decoder and hasattr(processor, "tokenizer"):
            processor.tokenizer.padding_side = "left"  # texts go on after their last tokens
        inputs = _inputs(processor, texts, files, chat=chat)
    except DraftwoodError:
        raise
    except ImportError as error:
        options = " and ".join(map(option.format, given))
        raise InvalidInput(
            f"Reading files of {options} needs packages that are not installed "
            f"({first_line(error).rstrip('.')}); install draftwood[media] for images and sound, and for "
            "videos what is named."
        ) from error
    except Exception as error:  # files and processors fail in any way
        raise InvalidInput(
            f"The processor of {name} does not prepare this prompt ({first_line(error)}); check files and "
            "text, or give --chat if the target is a chat model."
        ) from error
    return {key: value for key, value in inputs.items() if value is not None}


def reads_source(loaded: Loaded) -> bool:
    """Returns whether the target is an encoder-decoder, so that every prompt is more than tokens."""
    config = getattr(getattr(loaded.target, "model", None), "config", None)
    return bool(getattr(config, "is_encoder_decoder", False))


def _share(kind: str, files: Sequence[Path], row: int, *, of: int) -> list[Path]:
    if of == 1:
        return list(files)
    if len(files) != of:
        raise InvalidInput(
            f"{len(files)} times --{kind} was given with {of} prompts; give one prompt, or one --{kind} for "
            "each."
        )
    return [files[row]]


def _processor(name: str, trust_remote_code: bool) -> Any:
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(name, trust_remote_code=trust_remote_code)


def _inputs(
    processor: Any, texts: Sequence[str], by_text: Sequence[Mapping[str, Sequence[Path]]], *, chat: bool
) -> dict[str, Any]:
    """Returns the inputs that a processor makes of texts with their files."""
    from transformers.audio_utils import load_audio
    from transformers.image_utils import load_image

    extractor = getattr(processor, "feature_extractor", None)
    rate = getattr(extractor, "sampling_rate", 16000)
    read: dict[str, Any] = {
        "image": load_image,
        "audio": lambda file: load_audio(file, rate),
        "video": str,  # the processor chooses the frames
    }
    loaded = [
        {kind: [read[kind](str(file)) for file in files] for kind, files in one.items()} for one in by_text
    ]
    form: dict[str, Any] = {"return_tensors": "pt"} | ({"padding": True} if len(texts) > 1 else {})
    if chat:
        messages = [
            [
                {
                    "role": "user",
                    "content": [
                        *({"type": kind, kind: one} for kind, files in files_of.items() for one in files),
                        {"type": "text", "text": text},
                    ],
                }
            ]
            for text, files_of in zip(texts, loaded, strict=True)
        ]
        options = {"add_generation_prompt": True, "tokenize": True, "return_dict": True}
        return dict(processor.apply_chat_template(messages, **options, **form))
    more: dict[str, Any] = {}
    if "image" in loaded[0]:
        more["images"] = [one["image"] for one in loaded]
    if "audio" in loaded[0]:
        more |= {"audio": [sound for one in loaded for sound in one["audio"]], "sampling_rate": rate}
    if "video" in loaded[0]:
        more["videos"] = [video for one in loaded for video in one["video"]]
    if any(texts):
        more["text"] = [
            _with_places(processor, text, {kind: len(files) for kind, files in one.items()})
            for text, one in zip(texts, loaded, strict=True)
        ]
    return dict(processor(**more, **form))


def _with_places(processor: Any, text: str, counts: dict[str, int]) -> str:
    """The text with a place for every file before it, unless it names places itself."""
    for kind, count in counts.items():
        place = getattr(processor, f"{kind}_token", None)
        if isinstance(place, str) and place not in text:
            text = place * count + text
    return text
