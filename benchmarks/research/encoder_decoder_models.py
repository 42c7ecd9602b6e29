"""Every encoder-decoder of the installed transformers, built tiny, with a source for two rows that differ."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from benchmarks.research.families_models import VOCAB, build
from benchmarks.research.pictured_forms import FORMS
from benchmarks.research.pictured_models import pictured_prompt, with_placeholders

Inputs = dict[str, Any]

NARROW: dict[str, Any] = {
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers", "num_encoder_layers"), 2),
    **dict.fromkeys(("encoder_num_hidden_layers", "decoder_num_hidden_layers"), 2),
    **dict.fromkeys(("num_sparse_encoder_layers", "num_sparse_decoder_layers"), 1),
    **{"num_attention_layers": 2, "t2u_encoder_layers": 1, "t2u_decoder_layers": 1},
    **{"speech_encoder_layers": 2, "num_mel_bins": 16, "input_feat_per_channel": 16},
    **{"speech_encoder_intermediate_size": 96, "speech_encoder_attention_heads": 4},
    **{"d_kv": 16, "d_ff": 96, "conv_channels": 32, "max_source_positions": 64, "max_target_positions": 128},
    **{"num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4, "attention_window": [8, 8]},
    **{"max_encoder_position_embeddings": 128, "max_decoder_position_embeddings": 128},
    **{"positional_attention_window": 8, "pad_token_id": 2, "eos_token_id": 1, "decoder_start_token_id": 0},
}
"""Names that only configurations of encoder-decoders have, and what makes them small."""

_READS = {**NARROW, "is_decoder": True, "add_cross_attention": True}
_FORMULA_EYE: dict[str, Any] = {
    **{"hidden_size": 64, "decoder_hidden_size": 64, "mlp_dim": 64, "num_attention_heads": 4},
    **{"image_size": 64, "window_size": 2, "num_hidden_layers": 2, "global_attn_indexes": [1]},
    **dict.fromkeys(("output_channels", "post_conv_in_channels"), 32),
    **dict.fromkeys(("post_conv_mid_channels", "post_conv_out_channels"), 32),
}
GIVEN: dict[str, dict[str, Any]] = {
    "encoder-decoder": {"decoder": _READS},
    "vision-encoder-decoder": {"decoder": _READS},
    "speech-encoder-decoder": {"decoder": _READS},
    "prophetnet": {"pad_token_id": 0},
    "t5gemma2": {"encoder": {"text_config": {"more": {"hidden_size": 64, "vocab_size": VOCAB}}}},
    "moonshine_streaming": {"more": {"num_key_value_heads": 4}},
    "pp_formulanet": {"vision_config": {"more": _FORMULA_EYE}},
}
"""Further options that a family needs."""


def encoder_decoder_families() -> list[str]:
    """Every `model_type` of transformers' classes for text that is an encoder-decoder."""
    return sorted(family for family in _classes() if _is_encoder_decoder(family))


def build_encoder_decoder(family: str, *, reach: int) -> Any:
    """A tiny model of `family`, whose texts begin with token 0."""
    more = {**NARROW, **GIVEN.get(family, {})}
    model = with_placeholders(build(family, reach=reach, classes=_classes(), more=more))
    start = getattr(model.config, "decoder_start_token_id", None)
    model.generation_config.decoder_start_token_id = 0 if start is None else start
    model.generation_config.pad_token_id = VOCAB - 1  # Whisper takes it away from the end of a text
    return model


def prompt_with_source(model: Any, *, seed: int = 0) -> Inputs | None:
    """Inputs of `generate()` for two rows; None where it takes no form that is known."""
    for inputs in _forms(model, torch.Generator().manual_seed(seed)):
        try:
            model.generate(**inputs, max_new_tokens=2, do_sample=False)
        except Exception:  # a form of another family fails in any way
            continue
        return inputs
    return None


def _classes() -> dict[str, Any]:
    return {
        **modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
        **modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
        **modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    }


def _is_encoder_decoder(family: str) -> bool:
    kind = CONFIG_MAPPING[family]
    default = getattr(kind, "is_encoder_decoder", False)
    return bool(inspect.signature(kind.__init__).parameters.get("is_encoder_decoder") or default) and (
        default is True or bool(getattr(_made(kind), "is_encoder_decoder", False))
    )


def _made(kind: Any) -> Any:
    try:
        return kind()
    except Exception:  # some need parts that have no default
        return None


def _forms(model: Any, chance: torch.Generator) -> Iterator[Inputs]:
    if (pictured := pictured_prompt(model, seed=chance.initial_seed())) is not None:
        yield pictured
    ids = torch.randint(5, VOCAB - 8, (2, 11), generator=chance)
    mask = torch.ones_like(ids)
    ids[0, 7:], mask[0, 7:] = 2, 0  # an encoder's text is padded after it
    text = {"input_ids": ids, "attention_mask": mask}
    takes = inspect.signature(model.forward).parameters
    if "flattened_patches" in takes:
        patches = torch.randn(2, 16, 2 + 3 * 16 * 16, generator=chance)
        patches[..., :2] = torch.arange(1, 33).view(2, 16).remainder(4)[..., None].float()
        yield {"flattened_patches": patches, "attention_mask": torch.ones(2, 16)}
    if "bbox" in takes:
        yield {**text, "bbox": torch.zeros(2, 11, 4)}
    if "input_ids" in takes and "pixel_values" not in takes:
        yield text
    for kind in ("image", "audio"):
        for form in FORMS[kind]:
            for inputs in form(model, chance):
                if inputs.keys() <= takes.keys():
                    yield inputs
                    if "input_ids" in takes:
                        yield {**inputs, **text}
