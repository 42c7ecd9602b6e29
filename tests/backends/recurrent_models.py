"""Tiny random models with recurrent layers, and what transformers itself decodes with them token by token."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tests.cache_names import cache_name

VOCAB = 61
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
BOTH = ["linear_attention", "full_attention"]
BAMBA: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 2,
    "mamba_d_head": 8,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
}
DELTA: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
PURE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "state_size": 8,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2}


def nemotron() -> Any:
    layers = ["linear_attention", "full_attention", "mlp", "linear_attention"]
    heads: dict[str, Any] = {
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "ssm_state_size": 8,
        "n_groups": 2,
        "chunk_size": 8,
    }
    heads |= {"layer_types": layers, "head_dim": 8}
    return hf.NemotronHConfig(**SMALL | {"num_hidden_layers": 4}, **heads)


def zamba() -> Any:
    layers = ["linear_attention", "hybrid", "linear_attention", "hybrid"]
    return hf.Zamba2Config(
        **SMALL | {"num_hidden_layers": 4, "num_key_value_heads": 4},
        layers_block_type=layers,
        n_mamba_heads=8,
        mamba_d_state=8,
        mamba_ngroups=2,
        chunk_size=8,
        adapter_rank=4,
        use_mem_rope=True,
        num_mem_blocks=1,
    )


def falcon_h1(**options: Any) -> Any:
    multipliers: dict[str, Any] = {"ssm_in_multiplier": 0.7, "ssm_multipliers": [0.5, 0.9, 1.1, 1.3, 0.8]}
    return hf.FalconH1Config(**SMALL, **BAMBA, mamba_d_ssm=64, **multipliers, **options)


def granite() -> Any:
    return hf.GraniteMoeHybridConfig(
        **SMALL, **BAMBA, layer_types=BOTH, shared_intermediate_size=48, num_local_experts=4
    )


LATENT: dict[str, Any] = {
    "kv_lora_rank": 16,
    "q_lora_rank": None,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "linear_head_dim": 8,
    "linear_num_heads": 4,
    "linear_conv_kernel_dim": 4,
    "layer_types": BOTH,
    "mlp_layer_types": ["dense", "sparse"],
    "moe_intermediate_size": 16,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "num_expert_group": 1,
    "topk_group": 1,
    "num_shared_experts": 1,
}
LATENT_SMALL = {name: value for name, value in SMALL.items() if name != "max_position_embeddings"} | {
    "num_key_value_heads": 4
}


def recurrent_gemma() -> Any:
    own = {name: value for name, value in SMALL.items() if name != "max_position_embeddings"}
    return hf.RecurrentGemmaConfig(
        **own | {"num_hidden_layers": 3}, attention_window_size=8, block_types=["recurrent", "attention"]
    )


PURES: dict[str, Callable[[], Any]] = {
    "mamba2": lambda: hf.Mamba2Config(**PURE, num_heads=8, head_dim=8, n_groups=2, chunk_size=8),
    "mamba": lambda: hf.MambaConfig(**PURE),
    "falcon_mamba": lambda: hf.FalconMambaConfig(**PURE),
}
"""Recurrent layers alone."""

HYBRIDS: dict[str, Callable[[], Any]] = {
    "bamba": lambda: hf.BambaConfig(**SMALL, **BAMBA, attn_layer_indices=[1]),
    "falcon_h1": falcon_h1,
    "falcon_h1_norm": lambda: falcon_h1(mamba_rms_norm=True, mamba_norm_before_gate=False),
    "granitemoehybrid": granite,
    "zamba": lambda: hf.ZambaConfig(
        **SMALL | {"num_hidden_layers": 4, "num_key_value_heads": 4},
        layers_block_type=["linear_attention", "hybrid", "linear_attention", "hybrid"],
        n_mamba_heads=2,
        mamba_d_state=8,
        mamba_dt_rank=4,
    ),
    "zamba2": zamba,
    "nemotron_h": nemotron,
    "qwen3_next": lambda: hf.Qwen3NextConfig(
        **SMALL,
        **DELTA,
        **EXPERTS,
        head_dim=8,
        layer_types=BOTH,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ),
    "qwen3_5": lambda: hf.Qwen3_5TextConfig(**SMALL, **DELTA, head_dim=8, layer_types=BOTH),
    "qwen3_5_moe": lambda: hf.Qwen3_5MoeTextConfig(
        **SMALL,
        **DELTA,
        **EXPERTS,
        head_dim=8,
        layer_types=BOTH,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ),
    "olmo_hybrid": lambda: hf.OlmoHybridConfig(
        **SMALL, **DELTA | {"linear_num_key_heads": 4}, layer_types=BOTH
    ),
    "lfm2": lambda: hf.Lfm2Config(
        **SMALL, layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False
    ),
    "lfm2_moe": lambda: hf.Lfm2MoeConfig(
        **SMALL,
        **EXPERTS,
        layer_types=["conv", "full_attention"],
        moe_intermediate_size=16,
        num_dense_layers=1,
    ),
    "jamba": lambda: hf.JambaConfig(
        **SMALL, **EXPERTS, attn_layer_period=2, attn_layer_offset=1, mamba_d_state=8, mamba_dt_rank=4
    ),
    "recurrent_gemma": recurrent_gemma,
    "kimi_linear": lambda: hf.KimiLinearConfig(**LATENT_SMALL, **LATENT),
    "bailing_hybrid": lambda: hf.BailingHybridConfig(**LATENT_SMALL, **LATENT),
    "lara_mini": lambda: hf.LaraMiniConfig(
        **{name: value for name, value in SMALL.items() if name != "intermediate_size"},
        **DELTA,
        **EXPERTS,
        head_dim=8,
        layer_types=BOTH,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ),
}
"""Recurrent layers beside attention."""

RECURRENT = PURES | HYBRIDS

KINDS = ("mamba2", "qwen3_next", "lfm2", "jamba", "recurrent_gemma", "kimi_linear")
"""A family of every kind of recurrent layer: Mamba-2, gated delta rule, convolution, Mamba-1, RG-LRU, KDA."""

LEVEL_BY_LEVEL = ("kimi_linear", "bailing_hybrid")
"""Families whose passes go from level to level of a tree, so that they are not captured."""

MIXED = (*KINDS, "falcon_h1", "zamba2")
"""And of every way to go with attention: in turn, both in one layer, one attention for several layers."""


def build(
    name: str, dtype: torch.dtype = torch.float32, *, experts: str | None = "eager", config: Any = None
) -> Any:
    """A model with random weights large enough that its logits differ from token to token."""
    torch.manual_seed(7)
    # Grouped matrix products have no double precision; a loop over experts cannot be traced.
    model = hf.AutoModelForCausalLM.from_config(config or RECURRENT[name](), experts_implementation=experts)
    # Both Zambas multiply rounding a hundredfold at the size that the others need.
    size = 0.12 if "zamba" in name else 0.25
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "A_log" in parameter_name:
                parameter.uniform_(-2.0, 1.0)
            elif "dt_bias" in parameter_name or parameter_name.endswith(("mixer.D", "mamba.D")):
                parameter.normal_()
            elif "norm" not in parameter_name:
                parameter.normal_(0.0, size)
    return model.to(dtype).eval()


def features_after(model: Any, tokens: list[int]) -> Tensor:
    """All hidden states as transformers gives them, `[tokens, layers + 1, hidden]`."""
    with torch.no_grad():
        states = model(torch.tensor([tokens]), use_cache=False, output_hidden_states=True).hidden_states
    # Mamba's models put out nothing of what their first layer reads, and what lies behind the last twice.
    if model.config.model_type in ("mamba", "mamba2", "falcon_mamba"):
        with torch.no_grad():
            first = model.get_input_embeddings()(torch.tensor([tokens]))
        states = (first, *states[:-2], states[-1])
    return torch.stack([one[0] for one in states], 1)


class Doubled(TorchFunctionMode):
    """Inside it, what asks for single precision gets double, as models do for some steps in any dtype."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.float:
            return args[0].double() if args[0].is_floating_point() else args[0].float()
        # It is asked for every attribute of every tensor, so it looks once and without a generator.
        args = [torch.float64 if value is torch.float32 else value for value in args]
        if not kwargs:
            return func(*args)
        return func(*args, **{name: torch.float64 if v is torch.float32 else v for name, v in kwargs.items()})


class Stepwise:
    """Next-token logits by transformers' own decoding, one token at a time.

    The caches of all prefixes seen are kept, so that another token costs one step. RecurrentGemma keeps its
    states in the model itself; it is run over the whole text without them.
    """

    def __init__(self, model: Any) -> None:
        self.model = copy.deepcopy(model)
        self._positions = "position_ids" in inspect.signature(model.forward).parameters
        self._after: dict[tuple[int, ...], tuple[Tensor, Any]] = {}

    @torch.no_grad()
    def __call__(self, tokens: list[int]) -> Tensor:
        if self.model.config.model_type == "recurrent_gemma":
            return self.model(torch.tensor([tokens]), use_cache=False).logits[0, -1]  # type: ignore[no-any-return]
        return self._step(tuple(tokens))[0]

    def _step(self, tokens: tuple[int, ...]) -> tuple[Tensor, Any]:
        if tokens not in self._after:
            if len(tokens) == 1:
                cache: Any = hf.DynamicCache(config=self.model.config)
            else:
                cache = copy.deepcopy(self._step(tokens[:-1])[1])
            options: dict[str, Any] = {cache_name(self.model): cache}
            if self._positions:
                options["position_ids"] = torch.tensor([[len(tokens) - 1]])
            out = self.model(torch.tensor([tokens[-1:]]), use_cache=True, **options)
            self._after[tokens] = (out.logits[0, -1], cache)
        return self._after[tokens]
