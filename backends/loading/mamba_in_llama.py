"""Llamas with attention layers distilled into Mamba-2, as MambaInLlama publishes them.

Wang et al., "The Mamba in the Llama" (2024); STree's targets. A distilled layer is Mamba-2 with one group a
head (C has the heads that queries had), whose x and B have fewer heads, as values and keys had, and serve
several heads each.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from torch import Tensor

from draftwood.backends.loading.checkpoints import build_model, first_line, read_json, read_weights
from draftwood.backends.loading.mamba_ssm import MAMBA2, gate, layer_settings, positive, require, settings
from draftwood.backends.structure.forward import cache_argument
from draftwood.base.errors import InvalidInput, UnsupportedModel

FILE = "mamba_config.json"

MODEL: dict[str, Any] = {
    "d_model": 2560,
    "ssm_cfg": {},
    "rms_norm_eps": 1e-5,
    "vocab_size": None,
    "d_inner": None,
    "d_xb": 2560,
    "intermediate_size": 10240,
    "hidden_act": "silu",
    "n_layer": 32,
    "attn_layers": [],
}
"""What the file says, with MambaInLlama's own defaults."""

SAME = {
    "d_model": "hidden_size",
    "n_layer": "num_hidden_layers",
    "intermediate_size": "intermediate_size",
    "hidden_act": "hidden_act",
    "rms_norm_eps": "rms_norm_eps",
}
"""What it says again of the Llama, by the name there."""


def is_in(folder: Path) -> bool:
    """Whether a folder holds a checkpoint of this layout."""
    return (folder / FILE).is_file()


def read(folder: Path, *, dtype: torch.dtype | None) -> Any:
    """The model in a folder, as a transformers Llama in evaluation mode.

    Raises:
        InvalidInput: weights that are missing, damaged, or do not fit the configuration.
        UnsupportedModel: another base than Llama, Mamba-1 layers, a setting that our layers do not serve, or
            a pickle of more than tensors.
    """
    config = _llama(folder)
    mamba, layer = _described(read_json(folder / FILE), config, where=str(folder / FILE))
    tensors = read_weights(folder)
    if any(name.endswith(".mamba.in_proj_x.weight") for name in tensors):
        raise UnsupportedModel(
            f"{folder} has Llama layers distilled into Mamba-1, which are not supported; use layers "
            "distilled into Mamba-2."
        )

    def make() -> Any:
        model = hf.LlamaForCausalLM(config)
        for index, block in enumerate(model.model.layers):
            if index not in mamba["attn_layers"]:
                block.self_attn = Distilled(mamba, layer, index)
        return model

    weights = {name.replace(".mamba.", ".self_attn.mamba."): tensor for name, tensor in tensors.items()}
    if not layer["repeat_kv_before_conv"]:
        weights = {name: _conv(name, tensor, mamba, layer) for name, tensor in weights.items()}
    model = build_model(make, weights, source=str(folder), dtype=dtype)
    # Not among the weights: made on the meta device with the rest, it holds nothing.
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config)
    if (folder / "generation_config.json").is_file():
        model.generation_config = hf.GenerationConfig.from_pretrained(folder)
    return model


class Distilled(torch.nn.Module):
    """Stands in a Llama layer for its attention: transformers' Mamba-2 mixer with shared heads.

    The convolution is one of every channel by itself. So heads may be repeated before it, over repeated
    weights, where the layout repeats them after it.
    """

    def __init__(self, mamba: Mapping[str, Any], layer: Mapping[str, Any], index: int) -> None:
        super().__init__()
        inner = mamba["d_inner"]
        config = hf.Mamba2Config(
            hidden_size=mamba["d_model"],
            num_hidden_layers=mamba["n_layer"],
            expand=inner // mamba["d_model"],
            num_heads=layer["ngroups"],
            head_dim=layer["d_state"],
            state_size=layer["d_state"],
            n_groups=layer["ngroups"],
            conv_kernel=layer["d_conv"],
            use_bias=layer["bias"],
            use_conv_bias=layer["conv_bias"],
            time_step_limit=tuple(layer["dt_limit"]),
        )
        # Here, so that nobody else pays for importing it.
        from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

        mixer: Any = Mamba2Mixer(config, layer_idx=index)
        mixer.in_proj, mixer.norm = SharedProjection(mamba, layer), gate(layer, inner)
        self.mamba = mixer

    def forward(
        self, hidden_states: Tensor, cache: Any = None, past_key_values: Any = None, **_: Any
    ) -> tuple[Tensor, None]:
        """Outputs `[rows, n, hidden]`, and no attention weights; masks and positions do not concern it."""
        options = {cache_argument(self.mamba): past_key_values if cache is None else cache}
        out: Tensor = self.mamba(hidden_states, **options)
        return out, None


class SharedProjection(torch.nn.Linear):
    """Gate, x, B, C and step of Mamba-2, with each head of x and B repeated for those that share it."""

    def __init__(self, mamba: Mapping[str, Any], layer: Mapping[str, Any]) -> None:
        inner, shared = mamba["d_inner"], mamba["d_xb"]
        self._sizes = [inner, shared, shared, inner, layer["ngroups"]]
        self._head, self._repeats = layer["d_state"], inner // shared
        super().__init__(mamba["d_model"], sum(self._sizes), bias=layer["bias"])

    def forward(self, hidden_states: Tensor) -> Tensor:
        """`[rows, n, 4 * inner + heads]`."""
        z, x, b, c, step = super().forward(hidden_states).split(self._sizes, dim=-1)
        return torch.cat([z, self._repeated(x), self._repeated(b), c, step], -1)

    def _repeated(self, shared: Tensor) -> Tensor:
        heads: Tensor = shared.unflatten(-1, (-1, 1, self._head))
        return heads.expand(*heads.shape[:-2], self._repeats, -1).flatten(-3)


def _llama(folder: Path) -> Any:
    config = read_json(folder / "config.json")
    if config.get("model_type") != "llama":
        raise UnsupportedModel(
            f"{folder} has Mamba layers in a model of type {config.get('model_type')!r}, which is not "
            "supported; use layers in a Llama."
        )
    try:
        return hf.LlamaConfig.from_dict(config)
    except Exception as error:  # transformers' checks raise several kinds of errors
        raise InvalidInput(
            f"The config.json in {folder} could not be read ({first_line(error)}); download the model again."
        ) from error


def _described(file: Mapping[str, Any], llama: Any, *, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of the model and of its Mamba-2 layers; `llama` learns which layers are which."""
    mamba = settings(file, MODEL, where)
    for ours, theirs in SAME.items():
        if mamba[ours] != getattr(llama, theirs):
            raise InvalidInput(
                f"{where} has {ours} = {mamba[ours]!r}, but config.json next to it has {theirs} = "
                f"{getattr(llama, theirs)!r}; download the model again."
            )
    layer = layer_settings(mamba["ssm_cfg"], MAMBA2 | {"repeat_kv_before_conv": False}, f"ssm_cfg of {where}")
    if mamba["d_inner"] is None:
        mamba["d_inner"] = layer["expand"] * mamba["d_model"]
    inner, shared = positive(mamba["d_inner"], "d_inner"), positive(mamba["d_xb"], "d_xb")
    require(f"ssm_cfg of {where}", layer, {"D_has_hdim": False, "d_ssm": inner if layer["d_ssm"] else None})
    if inner != layer["ngroups"] * layer["d_state"] or inner % shared or shared % layer["d_state"]:
        raise InvalidInput(
            f"{where} has d_inner = {inner} and d_xb = {shared}, which do not divide into heads of d_state = "
            f"{layer['d_state']} in ngroups = {layer['ngroups']} groups; download the model again."
        )
    if inner % mamba["d_model"]:
        raise UnsupportedModel(
            f"{where} has d_inner = {inner}, which is not supported; use a multiple of its d_model."
        )
    layers = range(mamba["n_layer"])
    if not isinstance(mamba["attn_layers"], list) or any(v not in layers for v in mamba["attn_layers"]):
        raise InvalidInput(
            f"{where} has attn_layers = {mamba['attn_layers']!r}, which are not all below {len(layers)}, the "
            "number of layers; download the model again."
        )
    llama.layer_types = [
        "full_attention" if index in mamba["attn_layers"] else "linear_attention" for index in layers
    ]
    return mamba, layer


def _conv(name: str, tensor: Tensor, mamba: Mapping[str, Any], layer: Mapping[str, Any]) -> Tensor:
    """Weights and biases of a convolution over shared heads, repeated for those that share one."""
    inner, shared = mamba["d_inner"], mamba["d_xb"]
    if ".mamba.conv1d." not in name or len(tensor) != inner + 2 * shared:
        return tensor
    x, b, c = tensor.split([shared, shared, inner])
    repeats = inner // shared
    heads = [part.unflatten(0, (-1, layer["d_state"])).repeat_interleave(repeats, 0) for part in (x, b)]
    return torch.cat([part.flatten(0, 1) for part in heads] + [c])
