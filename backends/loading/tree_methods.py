"""The way in which a model's trees run: under masks, or path by path, as a check of the model says."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from draftwood.backends.kinds.longrope import with_longrope
from draftwood.backends.kinds.ssm import HybridBackend, SSMBackend
from draftwood.backends.kinds.transformer import TransformerBackend
from draftwood.backends.kinds.unrolled import UnrolledBackend
from draftwood.backends.loading.self_check import self_check
from draftwood.backends.model.model_backend import ModelBackend
from draftwood.backends.model.probe import RaisedReason
from draftwood.backends.recurrent.rebuild import clamps_steps, held_forward, recurrent_layers, reference
from draftwood.backends.structure.context import rope_depends_on_length
from draftwood.backends.structure.masks import Reach, reaches
from draftwood.backends.weights.quantized import rounds_activations
from draftwood.base.errors import UnsupportedModel
from draftwood.base.model_key import ModelKey
from draftwood.protocols import StateBackend

log = logging.getLogger(__name__)

Verdicts = dict[str, str | UnsupportedModel | None]
"""The self-check's verdicts on the methods of running trees: None if one supports a model, else why not."""

# Of every model seen, with a hash of the structure that it had; the structure itself may hold the model.
_known: WeakKeyDictionary[Any, tuple[int, Verdicts]] = WeakKeyDictionary()


def _verdicts_on(model: Any) -> Verdicts:
    """The verdicts on `model` as it is now."""
    structure = hash(ModelKey.of(model).structure)
    known = _known.get(model)
    if known is None or known[0] != structure:
        known = _known[model] = structure, {}
    return known[1]


def checked(model: Any, *, by_mask: bool) -> StateBackend:
    """The mask backend where the self-check allows it, else paths; the reason is logged once a model."""
    name, verdicts = type(model).__name__, _verdicts_on(model)
    if by_mask and _verdict(model, "mask", masked) is None:
        return masked(model)
    reason = verdicts.get("mask")
    # Its windows may be the cache's only.
    compared = by_mask and type(reason) is str and not is_recurrent(model)
    windows = compared and any(reach != Reach() for reach in reaches(model.config).values())
    if windows and _verdict(model, "whole prompts", _with_whole_prompts) is None:
        return _with_whole_prompts(model)
    first = "paths" not in verdicts
    if (worse := _verdict(model, "paths", _by_paths)) is not None:
        del _known[model]
        recurrent = is_recurrent(model)
        if isinstance(reason, UnsupportedModel) and recurrent:
            raise reason
        if isinstance(worse, UnsupportedModel):
            raise worse
        if isinstance(reason, RaisedReason) and recurrent:
            raise UnsupportedModel(
                f"{name} fails when mixers replace its recurrent layers ({reason}), so nothing was "
                "compared; correct the mixer if the error is its own. A model that needs its own class of "
                "cache cannot be decoded here."
            )
        if reason is not None and recurrent:
            raise UnsupportedModel(
                f"The mixers of {name} do not compute what its recurrent layers do "
                f"({reason}); correct the mixer that is registered for them under draftwood.mixers."
            )
        if recurrent:
            raise UnsupportedModel(
                f"UnrolledBackend does not decode as {name} itself does ({worse}); load it with "
                'attention="auto".'
            )
        # The model's own forward may read text in both directions, which a loop lets it do.
        sees = {*getattr(model, "input_modalities", ())} & {"image", "video", "audio"}
        remedy = "use a causal language model with a KV cache"
        if sees:
            remedy = "give prompts to its generate(custom_generate=...), which reads them by its own forward"
        raise UnsupportedModel(
            f"{name} cannot continue from its own cache as draftwood needs ({worse}); {remedy}."
        )
    if reason is not None and first:
        log.warning(
            "%s takes no tree mask (%s); each path of a tree runs as its own batch row, which is slower.",
            name,
            str(reason).partition("; supported are")[0].rstrip("."),
        )
    return _by_paths(model)


def _verdict(model: Any, method: str, make: Callable[[Any], StateBackend]) -> str | UnsupportedModel | None:
    """Why trees cannot run by this method, found out once a model."""
    verdicts = _verdicts_on(model)
    if method not in verdicts:
        try:
            verdicts[method] = self_check(make, model)
        except UnsupportedModel as error:
            verdicts[method] = error.with_traceback(None)
        if method == "mask" and isinstance(verdicts[method], str) and (held := held_forward(model)):
            verdicts[method] = UnsupportedModel(held)
        if (
            verdicts[method] is None
            and rope_depends_on_length(model)
            and (end := make(model).max_length) is not None
        ):
            log.info(
                "%s is supported up to %d tokens: later keys are rotated by the length of the text.",
                type(model).__name__,
                end,
            )
        if verdicts[method] is None and rounds_activations(model):
            log.warning(
                "%s rounds its activations by the other tokens of a pass, so its greedy text may differ "
                "from generate()'s where two tokens are nearly equally likely.",
                type(model).__name__,
            )
    return verdicts[method]


def masked(model: Any) -> StateBackend:
    """Returns the backend that runs trees under masks, for the layers that `model` has."""
    return with_longrope(model, _plain)


def _with_whole_prompts(model: Any) -> StateBackend:
    return with_longrope(model, partial(TransformerBackend, whole_prompts=True))


def _plain(model: Any) -> ModelBackend:
    if not is_recurrent(model):
        return TransformerBackend(model)
    return HybridBackend(model) if reaches(model.config, recurrent=True) else SSMBackend(model)


def _by_paths(model: Any) -> StateBackend:
    if clamps_steps(model):
        raise UnsupportedModel(
            f"{type(model).__name__} clamps the step of its scans where it reads several tokens at once, so "
            'its paths cannot be rows; load it with attention="auto".'
        )
    return with_longrope(reference(model), UnrolledBackend)


def is_recurrent(model: Any) -> bool:
    """Whether any layer of `model` keeps a recurrent state."""
    text = model.config.get_text_config(decoder=True)
    # Models that bring a cache class, such as RWKV, only say that they are stateful.
    unlisted = getattr(model, "_is_stateful", False) and getattr(text, "layer_types", None) is None
    return bool(recurrent_layers(model.config)) or unlisted
