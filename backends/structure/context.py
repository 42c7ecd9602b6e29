"""The longest text of a model: the end of its positions, and where its rotation switches.

`generate()` goes on as long as a model runs. So the length that a configuration names is an end only where
positions are read from a table of that size, or where that cannot be told.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from transformers import PreTrainedModel

from draftwood.backends.structure.forward import word_embedding

ORIGINAL_LENGTH = "original_max_position_embeddings"

RECOMPUTE_NAMES = {ORIGINAL_LENGTH, "next_sequence_length"}
"""Names in the code of a family that forgets its cache there and then takes the whole text for new."""

_POSITIONS = ("max_position_embeddings", "max_target_positions", "max_decoder_position_embeddings")
"""Names of the number of a text's positions in configurations."""

OFFSET = 8
"""Rows that a table of positions may have beyond the length that its configuration names."""


def end_of_context(model: Any) -> int | None:
    """Tokens that one backend of `model` can hold at most; None where there is no end.

    The end is that of its positions, or where its rotation switches, or where `generate()` loses the text.
    """
    lost = (
        vars(model.config.get_text_config(decoder=True)).get(ORIGINAL_LENGTH) if _loses_text(model) else None
    )
    ends = [end_of_positions(model), longrope_switch(model.config), lost]
    return min((int(end) for end in ends if end), default=None)


def end_of_positions(model: Any) -> int | None:
    """Tokens for which `model` has positions; None where it computes them, however many there are.

    Learned positions, tables of sines and masks of a fixed size are found by their size: that which the
    configuration names. Code that is not transformers' own may make such tables as it runs; there the named
    length counts, as it does for what scales its rotation by the length of the text ("dynamic"), so that
    cached keys depend on when they were rotated.
    """
    config = model.config.get_text_config(decoder=True)
    named = (getattr(config, name, None) for name in _POSITIONS)
    positions = next((length for length in named if length), None)
    # Where this is the only name, a table of distances is made of it in every pass (MPT).
    length = positions or getattr(config, "max_seq_len", None)
    if not length or length < 0:  # some name -1 for none
        return None
    inner = getattr(model, "_orig_mod", model)  # of what torch.compile() returns
    trusted = type(inner).__module__.startswith(("transformers.", "draftwood."))
    computed = (
        trusted and positions and not _has_dynamic_rope(config) and not _has_position_table(inner, length)
    )
    return None if computed else int(length)


def longrope_switch(config: Any) -> int | None:
    """Tokens beyond which all keys of a text are rotated otherwise (longrope), cached ones too; or None."""
    config = config.get_text_config(decoder=True)
    long = next((r for r in _rope_parameters(config) if r.get("rope_type") == "longrope"), None)
    if long is None:
        return None
    lengths = (
        long.get(ORIGINAL_LENGTH),
        vars(config).get(ORIGINAL_LENGTH),
        getattr(config, "max_position_embeddings", None),
    )
    return next((int(length) for length in lengths if length), None)


def rope_depends_on_length(model: Any) -> bool:
    """Whether the length of a text decides how all of its keys are rotated (longrope, dynamic)."""
    config = model.config.get_text_config(decoder=True)
    return longrope_switch(config) is not None or _has_dynamic_rope(config)


def recomputes_at_switch(model: Any) -> bool:
    """Whether `generate()` of `model` reads the whole text again where the rotation switches.

    Other families keep the keys that were rotated before, each as it was at its time.
    """
    config = model.config.get_text_config(decoder=True)
    switch = longrope_switch(config)
    return (
        switch is not None
        and vars(config).get(ORIGINAL_LENGTH) == switch
        and _names_in_prepare_inputs(model) >= RECOMPUTE_NAMES
    )


def _loses_text(model: Any) -> bool:
    """Returns whether `generate()` forgets its cache at the switch and goes on with only the last token.

    Phi-4-multimodal of transformers 5.23 does, whatever its rotation.
    """
    return (
        ORIGINAL_LENGTH in _names_in_prepare_inputs(model)
        and not _names_in_prepare_inputs(model) >= RECOMPUTE_NAMES
    )


def _names_in_prepare_inputs(model: Any) -> set[str]:
    """Returns the names in the code that prepares a step of `generate()`."""
    inner = getattr(model, "_orig_mod", model)
    prepare: Any = getattr(type(inner), "prepare_inputs_for_generation", None)
    code = getattr(inspect.unwrap(prepare), "__code__", None)
    return set() if code is None else {*code.co_names, *map(str, code.co_consts)}


def _rope_parameters(config: Any) -> list[dict[str, Any]]:
    """The RoPE parameters of a model, or of each kind of its layers."""
    rope = getattr(config, "rope_parameters", None) or {}
    return [parameters for parameters in (rope, *rope.values()) if isinstance(parameters, dict)]


def _has_dynamic_rope(config: Any) -> bool:
    """Whether the rotation is scaled by the length of the text."""
    return any("dynamic" in str(rope.get("rope_type")) for rope in _rope_parameters(config))


def _has_position_table(model: Any, length: int) -> bool:
    """Returns whether a module holds an embedding, buffer or other tensor (no weight) of this length."""
    words = word_embedding(model)
    sizes: list[int] = []
    for module in _text_modules(model, model.config):
        if hasattr(module, "make_weights"):  # it makes a longer table when one is needed
            continue
        sizes += [
            child.num_embeddings
            for name, child in module.named_children()
            if isinstance(child, torch.nn.Embedding) and child is not words and "token" not in name
        ]
        values = [*module.buffers(recurse=False), *vars(module).values()]
        sizes += [size for tensor in values if isinstance(tensor, torch.Tensor) for size in tensor.shape]
    return any(length <= size <= length + OFFSET for size in sizes)


def _text_modules(module: torch.nn.Module, config: Any) -> Iterator[torch.nn.Module]:
    """`module` and what is in it, but for the parts of a composite model that see and hear."""
    yield module
    kinds = {type(config), type(config.get_text_config(decoder=True))}
    for child in module.children():
        part = getattr(child, "config", None) if isinstance(child, PreTrainedModel) else None
        if part is None or type(part) in kinds or part.sub_configs:
            yield from _text_modules(child, config)
