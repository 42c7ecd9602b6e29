"""Models of the `mamba_ssm` package (`MambaLMHeadModel`): a checkpoint's folder, or a model object.

Their parameters go into transformers' structures of the same layers, and through our mixers from there on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from torch import Tensor

from draftwood.backends.loading.checkpoints import build_model, read_json, read_weights
from draftwood.backends.recurrent.gated_norm import Gate, GatedNorm
from draftwood.base.errors import InvalidInput, UnsupportedModel

MODEL: dict[str, Any] = {
    "d_model": 2560,
    "d_intermediate": 0,
    "n_layer": 64,
    "vocab_size": 50277,
    "ssm_cfg": {},
    "attn_layer_idx": [],
    "attn_cfg": {},
    "rms_norm": True,
    "residual_in_fp32": True,
    "fused_add_norm": True,
    "pad_vocab_size_multiple": 8,
    "tie_embeddings": True,
}
"""What a configuration says, with the package's own defaults."""

MAMBA1: dict[str, Any] = {
    "d_state": 16,
    "d_conv": 4,
    "expand": 2,
    "dt_rank": "auto",
    "conv_bias": True,
    "bias": False,
}
"""The same of a Mamba-1 layer (`ssm_cfg`), without what only tells how it begins or is computed."""

MAMBA2: dict[str, Any] = {
    "d_state": 128,
    "d_conv": 4,
    "expand": 2,
    "headdim": 64,
    "d_ssm": None,
    "ngroups": 1,
    "D_has_hdim": False,
    "rmsnorm": True,
    "norm_before_gate": False,
    "dt_limit": (0.0, math.inf),
    "conv_bias": True,
    "bias": False,
}
"""The same of a Mamba-2 layer."""

IGNORED = {
    *["dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor", "A_init_range", "conv_init"],
    *["use_fast_path", "use_mem_eff_path", "chunk_size", "layer_idx", "process_group", "sequence_parallel"],
}
"""Settings of a layer that change nothing in what it computes from its weights."""

EPSILON = 1e-5


def is_in(folder: Path) -> bool:
    """Whether a folder holds a checkpoint of this layout: its configuration names no transformers model."""
    try:
        config = read_json(folder / "config.json")
    except InvalidInput:
        return False
    return {"d_model", "n_layer", "ssm_cfg"} <= config.keys() and not {"model_type", "architectures"} & set(
        config
    )


def is_model(model: Any) -> bool:
    """Whether an object is the package's model, which need not be importable here."""
    return any(
        kind.__name__ == "MambaLMHeadModel" and kind.__module__.partition(".")[0] == "mamba_ssm"
        for kind in type(model).__mro__
    )


def read(folder: Path, *, dtype: torch.dtype | None) -> Any:
    """The model in a folder, as a transformers model in evaluation mode.

    Raises:
        InvalidInput: weights that are missing, damaged, or do not fit the configuration.
        UnsupportedModel: a setting that our layers do not serve, or a pickle of more than tensors.
    """
    make = _described(read_json(folder / "config.json"), str(folder))
    return build_model(make, _renamed(read_weights(folder)), source=str(folder), dtype=dtype)


def converted(model: Any) -> Any:
    """A transformers model over the very tensors of the package's `model`; errors as in `read`."""
    name = type(model).__name__
    copy = build_model(_described(vars(model.config), name), _renamed(model.state_dict()), source=name)
    return copy.train(model.training)


def settings(config: Any, defaults: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The `defaults` with what `config` sets in their place; an unknown setting is refused."""
    if not isinstance(config, Mapping):
        raise InvalidInput(f"{where} is {config!r:.80}, no table of settings; download the model again.")
    unknown = sorted(map(str, config.keys() - defaults.keys()))
    if unknown:
        raise UnsupportedModel(
            f"{where} has the setting {unknown[0]!r}, which is not known; those known are "
            f"{', '.join(defaults)}."
        )
    return {**defaults, **{name: value for name, value in config.items() if value is not None}}


def layer_settings(config: Any, defaults: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`settings` of a layer; what changes nothing in its outputs is left out."""
    if isinstance(config, Mapping):
        config = {name: value for name, value in config.items() if name not in IGNORED}
    layer = settings(config, defaults, where)
    for name in ("d_state", "d_conv", "expand", "headdim", "ngroups"):
        if name in layer:
            positive(layer[name], f"{name} in {where}")
    return layer


def positive(value: Any, name: str) -> int:
    """A whole number above 0, or `InvalidInput`."""
    if isinstance(value, int) and value > 0:
        return value
    raise InvalidInput(f"{name} is {value!r}; it must be a whole number above 0.")


def require(where: str, config: Mapping[str, Any], served: Mapping[str, Any]) -> None:
    """`UnsupportedModel` unless `config` has the values of `served`."""
    for name, value in served.items():
        if config[name] != value:
            raise UnsupportedModel(
                f"{where} has {name} = {config[name]!r}, which is not supported; use {value!r}."
            )


def gate(layer: Mapping[str, Any], channels: int) -> torch.nn.Module:
    """Returns the gate of a Mamba-2 layer's outputs for these settings."""
    if not layer["rmsnorm"]:
        return Gate()
    return GatedNorm(
        channels, groups=layer["ngroups"], before_gate=layer["norm_before_gate"], epsilon=EPSILON
    )


def _described(file: Mapping[str, Any], where: str) -> Callable[[], Any]:
    """Returns a function that builds the transformers model of a configuration."""
    config = settings(file, MODEL, where)
    for name in ("d_model", "n_layer", "vocab_size", "pad_vocab_size_multiple"):
        positive(config[name], f"{name} in {where}")
    require(where, config, {"attn_layer_idx": [], "d_intermediate": 0, "rms_norm": True})
    ssm, where = config["ssm_cfg"], f"ssm_cfg of {where}"
    kind = ssm.get("layer", "Mamba1") if isinstance(ssm, Mapping) else "Mamba1"
    if isinstance(ssm, Mapping):
        ssm = {name: value for name, value in ssm.items() if name != "layer"}
    if kind == "Mamba1":
        return _mamba1(config, layer_settings(ssm, MAMBA1, where))
    if kind == "Mamba2":
        return _mamba2(config, layer_settings(ssm, MAMBA2, where), where)
    raise UnsupportedModel(f"{where} has layer = {kind!r}, which is not supported; use Mamba1 or Mamba2.")


def _common(config: Mapping[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    multiple = config["pad_vocab_size_multiple"]
    return {
        "vocab_size": math.ceil(config["vocab_size"] / multiple) * multiple,
        "hidden_size": config["d_model"],
        "num_hidden_layers": config["n_layer"],
        "layer_norm_epsilon": EPSILON,
        "residual_in_fp32": config["residual_in_fp32"],
        "tie_word_embeddings": config["tie_embeddings"],
        "state_size": layer["d_state"],
        "conv_kernel": layer["d_conv"],
        "expand": layer["expand"],
        "use_bias": layer["bias"],
        "use_conv_bias": layer["conv_bias"],
        # The layout names no special tokens.
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def _mamba1(config: Mapping[str, Any], layer: Mapping[str, Any]) -> Callable[[], Any]:
    def make() -> Any:
        hf_config = hf.MambaConfig(**_common(config, layer), time_step_rank=layer["dt_rank"])
        return hf.MambaForCausalLM(hf_config)

    return make


def _mamba2(config: Mapping[str, Any], layer: Mapping[str, Any], where: str) -> Callable[[], Any]:
    inner, dim = layer["expand"] * config["d_model"], layer["headdim"]
    require(where, layer, {"D_has_hdim": False})
    require(where, layer, {"d_ssm": inner if layer["d_ssm"] else None})
    if inner % dim or inner // dim % layer["ngroups"]:
        raise InvalidInput(
            f"{where} has {inner} channels, which are not heads of {dim} in {layer['ngroups']} groups; "
            "download it again."
        )

    def make() -> Any:
        hf_config = hf.Mamba2Config(
            **_common(config, layer),
            num_heads=inner // dim,
            head_dim=dim,
            n_groups=layer["ngroups"],
            time_step_limit=tuple(layer["dt_limit"]),
        )
        model: Any = hf.Mamba2ForCausalLM(hf_config)
        for block in model.backbone.layers:
            block.mixer.norm = gate(layer, inner)
        return model

    return make


def _renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    ours = {"backbone.embedding.weight": "backbone.embeddings.weight"}
    return {ours.get(name, name): tensor for name, tensor in tensors.items()}
