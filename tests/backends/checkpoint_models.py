"""Tiny checkpoints in the layouts of other packages, and what they mean, token by token in plain PyTorch.

The oracles follow the published equations (Mamba, section 3; Mamba-2, sections 5 to 7; "The Mamba in the
Llama", section 2) and share nothing with the library, not even transformers.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import silu, softplus

VOCAB = 61
"""Padded to a multiple of 8, the models have 64 tokens."""

SSM: dict[str, Any] = {
    "d_model": 16,
    "n_layer": 2,
    "vocab_size": VOCAB,
    "rms_norm": True,
    "residual_in_fp32": True,
    "fused_add_norm": True,
    "pad_vocab_size_multiple": 8,
}
MAMBA2 = {"layer": "Mamba2", "d_state": 8, "headdim": 8}

CONFIGS: dict[str, dict[str, Any]] = {
    # As the first checkpoints were published: no kind of layer, no word on ties.
    "mamba": SSM | {"ssm_cfg": {"d_state": 8}},
    "mamba_options": SSM
    | {
        "ssm_cfg": {
            **{"layer": "Mamba1", "d_state": 4, "d_conv": 3, "expand": 3, "dt_rank": 5},
            **{"bias": True, "conv_bias": False, "dt_min": 0.01},
        },
        "tie_embeddings": False,
    },
    # As the second were.
    "mamba2": SSM
    | {"d_intermediate": 0, "ssm_cfg": MAMBA2, "attn_layer_idx": [], "attn_cfg": {}, "tie_embeddings": True},
    "mamba2_groups": SSM
    | {"ssm_cfg": {**MAMBA2, "ngroups": 2, "d_ssm": 32, "chunk_size": 8}, "tie_embeddings": False},
    "mamba2_norm_first": SSM | {"ssm_cfg": {**MAMBA2, "ngroups": 2, "norm_before_gate": True, "bias": True}},
    "mamba2_no_norm": SSM | {"ssm_cfg": {**MAMBA2, "rmsnorm": False, "conv_bias": False, "d_conv": 2}},
}
"""Configurations of `mamba_ssm`."""

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
IN_LLAMA: dict[str, Any] = {
    "d_model": 32,
    "ssm_cfg": {"expand": 1, "ngroups": 4, "d_state": 8},
    "rms_norm_eps": 1e-6,
    "vocab_size": None,
    "d_inner": 32,
    "d_xb": 16,
    "intermediate_size": 48,
    "hidden_act": "silu",
    "n_layer": 3,
    "attn_layers": [1],
}
DISTILLED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "half": (LLAMA, IN_LLAMA),
    "tied": (LLAMA | {"tie_word_embeddings": True}, IN_LLAMA | {"attn_layers": [0, 2], "d_inner": None}),
    "before_conv": (
        LLAMA,
        IN_LLAMA | {"ssm_cfg": {"expand": 1, "ngroups": 4, "d_state": 8, "repeat_kv_before_conv": True}},
    ),
    "all": (LLAMA, IN_LLAMA | {"attn_layers": []}),
}
"""A Llama's configuration and MambaInLlama's beside it."""


def random_tensors(shapes: dict[str, tuple[int, ...]], *, size: float) -> dict[str, Tensor]:
    """Random weights of this standard deviation, large enough that logits differ from token to token."""
    torch.manual_seed(5)
    tensors = {}
    for name, shape in shapes.items():
        if name.endswith("A_log"):
            tensors[name] = torch.empty(shape).uniform_(-2.0, 1.0)
        elif "norm" in name:
            tensors[name] = torch.empty(shape).uniform_(0.5, 1.5)
        elif name.endswith((".D", "dt_bias", "dt_proj.bias")):
            tensors[name] = torch.empty(shape).normal_()
        else:
            tensors[name] = torch.empty(shape).normal_(0.0, size)
    return tensors


def ssm_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a `MambaLMHeadModel`'s weights."""
    ssm = {"layer": "Mamba1", "expand": 2, "d_conv": 4, "conv_bias": True, "bias": False} | config["ssm_cfg"]
    width, vocab = config["d_model"], -(-config["vocab_size"] // config["pad_vocab_size_multiple"])
    vocab *= config["pad_vocab_size_multiple"]
    inner, size = ssm["expand"] * width, ssm["d_state"]
    one: dict[str, tuple[int, ...]] = {"norm.weight": (width,), "mixer.out_proj.weight": (width, inner)}
    if ssm["layer"] == "Mamba1":
        rank, channels, rows = ssm.get("dt_rank", math.ceil(width / 16)), inner, 2 * inner
        one |= {"mixer.A_log": (inner, size), "mixer.D": (inner,), "mixer.dt_proj.weight": (inner, rank)}
        one |= {"mixer.dt_proj.bias": (inner,), "mixer.x_proj.weight": (rank + 2 * size, inner)}
    else:
        heads, groups = inner // ssm["headdim"], ssm.get("ngroups", 1)
        channels = inner + 2 * groups * size
        rows = inner + channels + heads
        one |= {"mixer.A_log": (heads,), "mixer.D": (heads,), "mixer.dt_bias": (heads,)}
        if ssm.get("rmsnorm", True):
            one["mixer.norm.weight"] = (inner,)
    one |= {"mixer.in_proj.weight": (rows, width), "mixer.conv1d.weight": (channels, 1, ssm["d_conv"])}
    if ssm["conv_bias"]:
        one["mixer.conv1d.bias"] = (channels,)
    if ssm["bias"]:
        one |= {"mixer.in_proj.bias": (rows,), "mixer.out_proj.bias": (width,)}
    shapes: dict[str, tuple[int, ...]] = {"backbone.embedding.weight": (vocab, width)}
    for index in range(config["n_layer"]):
        shapes |= {f"backbone.layers.{index}.{name}": shape for name, shape in one.items()}
    return shapes | {"backbone.norm_f.weight": (width,), "lm_head.weight": (vocab, width)}


def ssm_tensors(config: dict[str, Any]) -> dict[str, Tensor]:
    """Random weights of a `MambaLMHeadModel`; tied ones are one tensor."""
    tensors = random_tensors(ssm_shapes(config), size=0.3)
    if config.get("tie_embeddings", True):
        tensors["lm_head.weight"] = tensors["backbone.embedding.weight"]
    return tensors


def llama_shapes(llama: dict[str, Any], mamba: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a distilled Llama's weights."""
    width, wide = llama["hidden_size"], llama["intermediate_size"]
    inner, shared = mamba["d_inner"] or width, mamba["d_xb"]
    heads, before = mamba["ssm_cfg"]["ngroups"], mamba["ssm_cfg"].get("repeat_kv_before_conv", False)
    channels, keys = 3 * inner if before else inner + 2 * shared, width // 2
    attention: dict[str, tuple[int, ...]] = {"q_proj": (width, width), "k_proj": (keys, width)}
    attention |= {"v_proj": (keys, width), "o_proj": (width, width)}
    distilled: dict[str, tuple[int, ...]] = {
        "mamba.in_proj.weight": (2 * inner + 2 * shared + heads, width),
        "mamba.conv1d.weight": (channels, 1, 4),
        "mamba.conv1d.bias": (channels,),
        "mamba.out_proj.weight": (width, inner),
        "mamba.norm.weight": (inner,),
    }
    distilled |= {f"mamba.{name}": (heads,) for name in ("A_log", "D", "dt_bias")}
    every: dict[str, tuple[int, ...]] = {
        "mlp.gate_proj.weight": (wide, width),
        "mlp.up_proj.weight": (wide, width),
        "mlp.down_proj.weight": (width, wide),
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, width)}
    for index in range(llama["num_hidden_layers"]):
        own = distilled
        if index in mamba["attn_layers"]:
            own = {f"self_attn.{name}.weight": shape for name, shape in attention.items()}
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in (own | every).items()}
    shapes["model.norm.weight"] = (width,)
    return shapes if llama["tie_word_embeddings"] else shapes | {"lm_head.weight": (VOCAB, width)}


def llama_tensors(llama: dict[str, Any], mamba: dict[str, Any]) -> dict[str, Tensor]:
    """Random weights of a distilled Llama."""
    return random_tensors(llama_shapes(llama, mamba), size=0.18)


def write(folder: Path, tensors: dict[str, Tensor], *, form: str = "bin", **files: dict[str, Any]) -> Path:
    """A checkpoint: its weights, and JSON files by name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    if form == "bin":
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        # Files of safetensors hold a shared tensor once.
        seen: set[int] = set()
        once = {
            name: tensor
            for name, tensor in tensors.items()
            if tensor.data_ptr() not in seen and not seen.add(tensor.data_ptr())  # type: ignore[func-returns-value]
        }
        save_file(once, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


class Sequential:
    """Abstract: next-token logits of a model that reads one token at a time.

    The states after all prefixes seen are kept, so that another token costs one step.
    """

    def __init__(self, tensors: dict[str, Tensor], dtype: torch.dtype) -> None:
        self.tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
        self._after: dict[tuple[int, ...], tuple[Tensor, Any]] = {}

    def __call__(self, tokens: list[int]) -> Tensor:
        return self._behind(tuple(tokens))[0]

    def step(self, token: int, state: dict[Any, Any]) -> tuple[Tensor, dict[Any, Any]]:
        """Returns the logits and the state after one more token; `state` is not changed."""
        raise NotImplementedError

    def _behind(self, tokens: tuple[int, ...]) -> tuple[Tensor, Any]:
        if tokens not in self._after:
            state = self._behind(tokens[:-1])[1] if len(tokens) > 1 else {}
            self._after[tokens] = self.step(tokens[-1], state)
        return self._after[tokens]


def rms(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x / (x.square().mean() + epsilon).sqrt() * weight


class Layer:
    """One Mamba layer's weights, and its steps."""

    def __init__(self, tensors: dict[str, Tensor], prefix: str) -> None:
        self._tensors, self._prefix = tensors, prefix

    def __getitem__(self, name: str) -> Any:
        return self._tensors.get(self._prefix + name)

    def project(self, name: str, x: Tensor) -> Tensor:
        bias = self[f"{name}.bias"]
        return self[f"{name}.weight"] @ x + (0 if bias is None else bias)

    def convolve(self, x: Tensor, state: dict[Any, Any], key: Any) -> Tensor:
        """silu of a causal convolution of every channel; the last inputs are kept under `key`."""
        weight = self["conv1d.weight"][:, 0]
        window = state.get(key, torch.zeros_like(weight))
        state[key] = window = torch.cat([window[:, 1:], x[:, None]], 1)
        bias = self["conv1d.bias"]
        return silu((window * weight).sum(1) + (0 if bias is None else bias))

    def gated_norm(self, y: Tensor, z: Tensor, groups: int, before_gate: bool = False) -> Tensor:
        weight = self["norm.weight"]
        parts = zip(y.chunk(groups), z.chunk(groups), weight.chunk(groups), strict=True)
        if before_gate:
            return torch.cat([rms(a, w, 1e-5) * silu(b) for a, b, w in parts])
        return torch.cat([rms(a * silu(b), w, 1e-5) for a, b, w in parts])


def recurrence(*, x: Tensor, b: Tensor, c: Tensor, step: Tensor, rate: Tensor, h: Tensor) -> tuple[Any, Any]:
    """h' = exp(step * rate) h + step * x b, y = h' c, for one head: x `[p]`, b and c `[n]`, h `[p, n]`."""
    h = torch.exp(step * rate) * h + step * torch.outer(x, b)
    return h, h @ c


class MambaSsm(Sequential):
    """A model that computes what a `MambaLMHeadModel` does."""

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor], dtype: torch.dtype) -> None:
        super().__init__(tensors, dtype)
        self.config = config
        self.ssm = {"layer": "Mamba1", "expand": 2, "d_conv": 4} | config["ssm_cfg"]

    def step(self, token: int, state: dict[Any, Any]) -> tuple[Tensor, dict[Any, Any]]:
        state, tensors = dict(state), self.tensors
        x = tensors["backbone.embedding.weight"][token]
        mix = self._mamba1 if self.ssm["layer"] == "Mamba1" else self._mamba2
        for index in range(self.config["n_layer"]):
            norm = tensors[f"backbone.layers.{index}.norm.weight"]
            layer = Layer(tensors, f"backbone.layers.{index}.mixer.")
            x = x + mix(layer, rms(x, norm, 1e-5), state, index)
        return tensors["lm_head.weight"] @ rms(x, tensors["backbone.norm_f.weight"], 1e-5), state

    def _mamba1(self, layer: Layer, u: Tensor, state: dict[Any, Any], index: int) -> Tensor:
        x, z = layer.project("in_proj", u).chunk(2)
        x = layer.convolve(x, state, (index, "conv"))
        size = self.ssm["d_state"]
        low, b, c = layer.project("x_proj", x).split([layer["dt_proj.weight"].shape[1], size, size])
        step = softplus(layer.project("dt_proj", low))
        h = state.get((index, "h"), x.new_zeros(len(x), size))
        h = torch.exp(step[:, None] * -layer["A_log"].exp()) * h + (step * x)[:, None] * b
        state[index, "h"] = h
        return layer.project("out_proj", (h @ c + layer["D"] * x) * silu(z))

    def _mamba2(self, layer: Layer, u: Tensor, state: dict[Any, Any], index: int) -> Tensor:
        ssm, inner = {"ngroups": 1} | self.ssm, self.ssm["expand"] * self.config["d_model"]
        heads, flat = inner // ssm["headdim"], ssm["ngroups"] * ssm["d_state"]
        z, mixed, dt = layer.project("in_proj", u).split([inner, inner + 2 * flat, heads])
        mixed = layer.convolve(mixed, state, (index, "conv"))
        x, b, c = mixed.split([inner, flat, flat])
        step = softplus(dt + layer["dt_bias"])
        outs = []
        for head in range(heads):
            group = head // (heads // ssm["ngroups"])
            mine, key = x.view(heads, -1)[head], (index, head)
            b_here, c_here = (vector.view(ssm["ngroups"], -1)[group] for vector in (b, c))
            h = state.get(key, x.new_zeros(ssm["headdim"], ssm["d_state"]))
            rate = -layer["A_log"][head].exp()
            state[key], y = recurrence(x=mine, b=b_here, c=c_here, step=step[head], rate=rate, h=h)
            outs.append(y + layer["D"][head] * mine)
        y = torch.cat(outs)
        if not ssm.get("rmsnorm", True):
            return layer.project("out_proj", y * silu(z))
        gated = layer.gated_norm(y, z, ssm["ngroups"], ssm.get("norm_before_gate", False))
        return layer.project("out_proj", gated)


class MambaInLlama(Sequential):
    """A model that computes what a distilled Llama does."""

    def __init__(
        self, llama: dict[str, Any], mamba: dict[str, Any], tensors: dict[str, Tensor], dtype: torch.dtype
    ) -> None:
        super().__init__(tensors, dtype)
        self.llama, self.mamba = llama, mamba

    def step(self, token: int, state: dict[Any, Any]) -> tuple[Tensor, dict[Any, Any]]:
        tensors, epsilon = self.tensors, self.llama["rms_norm_eps"]
        state = dict(state) | {"position": state.get("position", -1) + 1}
        x = tensors["model.embed_tokens.weight"][token]
        for index in range(self.llama["num_hidden_layers"]):
            prefix = f"model.layers.{index}."
            mix = self._attention if index in self.mamba["attn_layers"] else self._distilled
            x = x + mix(prefix, rms(x, tensors[prefix + "input_layernorm.weight"], epsilon), state)
            y = rms(x, tensors[prefix + "post_attention_layernorm.weight"], epsilon)
            up, gate = (tensors[f"{prefix}mlp.{name}_proj.weight"] @ y for name in ("up", "gate"))
            x = x + tensors[prefix + "mlp.down_proj.weight"] @ (silu(gate) * up)
        head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
        return head @ rms(x, tensors["model.norm.weight"], epsilon), state

    def _rotated(self, x: Tensor, position: int) -> Tensor:
        half = x.shape[-1] // 2
        speeds = self.llama["rope_theta"] ** (-torch.arange(half, dtype=x.dtype) / half)
        cos, sin = (position * speeds).cos(), (position * speeds).sin()
        return torch.cat([x[:, :half] * cos - x[:, half:] * sin, x[:, half:] * cos + x[:, :half] * sin], 1)

    def _attention(self, prefix: str, u: Tensor, state: dict[Any, Any]) -> Tensor:
        heads, kv_heads = self.llama["num_attention_heads"], self.llama["num_key_value_heads"]
        q, k, v = (self.tensors[f"{prefix}self_attn.{name}_proj.weight"] @ u for name in "qkv")
        dim = len(q) // heads
        q, k = (self._rotated(vector.view(-1, dim), state["position"]) for vector in (q, k))
        keys, values = state.get(prefix, ((), ()))
        keys, values = (*keys, k), (*values, v.view(-1, dim))
        state[prefix] = keys, values
        outs = []
        for head in range(heads):
            shared = head // (heads // kv_heads)
            seen = torch.stack([key[shared] for key in keys])
            weights = torch.softmax(seen @ q[head] / math.sqrt(dim), 0)
            outs.append(weights @ torch.stack([value[shared] for value in values]))
        return self.tensors[f"{prefix}self_attn.o_proj.weight"] @ torch.cat(outs)

    def _distilled(self, prefix: str, u: Tensor, state: dict[Any, Any]) -> Tensor:
        layer, ssm = Layer(self.tensors, f"{prefix}mamba."), self.mamba["ssm_cfg"]
        inner, shared = self.mamba["d_inner"] or self.mamba["d_model"], self.mamba["d_xb"]
        heads, dim, sharing = ssm["ngroups"], ssm["d_state"], inner // shared

        def repeated(vector: Tensor) -> Tensor:
            return torch.cat([part for part in vector.split(dim) for _ in range(sharing)])

        z, x, b, c, dt = layer.project("in_proj", u).split([inner, shared, shared, inner, heads])
        if ssm.get("repeat_kv_before_conv"):
            x, b = repeated(x), repeated(b)
        sizes = [len(x), len(b), inner]
        x, b, c = layer.convolve(torch.cat([x, b, c]), state, (prefix, "conv")).split(sizes)
        if not ssm.get("repeat_kv_before_conv"):
            x, b = repeated(x), repeated(b)
        step = softplus(dt + layer["dt_bias"])
        outs = []
        for head in range(heads):
            x_here, b_here, c_here = (vector.split(dim)[head] for vector in (x, b, c))
            h, rate = state.get((prefix, head), u.new_zeros(dim, dim)), -layer["A_log"][head].exp()
            state[prefix, head], y = recurrence(x=x_here, b=b_here, c=c_here, step=step[head], rate=rate, h=h)
            outs.append(y + layer["D"][head] * x_here)
        return layer.project("out_proj", layer.gated_norm(torch.cat(outs), z, heads))
