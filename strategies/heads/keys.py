"""The keys of a head's description: one list for EAGLE-3, P-EAGLE and block drafters, at every depth.

Every key is one of three: it is read, it is accepted for some values only, or it is known to change nothing
of what a trained head computes. Any other key is refused, since a program that drops a key in silence drops a
norm or a mask. A key that is null was not set.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from re import compile as pattern
from typing import Any

import attrs

from draftwood import InvalidInput

# Names, places and versions; what only training or only `generate` reads; plans for several devices; sizes
# of experts, of which the tensors of a head show that it has none.
WITHOUT_EFFECT = frozenset(
    {
        "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path",
        "architectures", "attn_implementation", "auto_map", "base_model_ep_plan", "base_model_pp_plan",
        "base_model_tp_plan", "dtype", "has_no_defaults_at_init", "is_decoder", "keys_to_ignore_at_inference",
        "model_type", "name_or_path", "speculators_version", "target_model_name_or_path", "target_model_type",
        "torch_dtype", "transformers_version",
        # training
        "attention_dropout", "aux_loss_alpha", "confidence_head_alpha", "draft_num_hidden_layers",
        "embed_requires_grad", "enable_sp_ulysses", "gradient_checkpointing", "initializer_range",
        "label2id", "id2label", "loss_scale", "max_anchors", "num_anchors", "num_labels",
        "output_router_logits",
        "pretraining_tp",
        "problem_type", "router_aux_loss_coef", "seq_aux", "step_loss_decay", "ttt_length", "ttt_steps",
        # generation
        "begin_suppress_tokens", "bos_token_id", "decoder_start_token_id", "diversity_penalty", "do_sample",
        "early_stopping", "encoder_no_repeat_ngram_size", "eos_token_id", "exponential_decay_length_penalty",
        "forced_bos_token_id", "forced_eos_token_id", "length_penalty", "max_length", "min_length",
        "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences", "output_attentions",
        "output_hidden_states", "output_scores", "pad_token_id", "prefix", "remove_invalid_values",
        "repetition_penalty", "return_dict", "return_dict_in_generate", "sep_token_id", "suppress_tokens",
        "task_specific_params", "temperature", "tokenizer_class", "top_k", "top_p", "typical_p", "use_cache",
        "bad_words_ids", "chunk_size_feed_forward", "finetuning_task",
        # gpt-oss says so what its rotation's own keys say
        "initial_context_length",
        # sizes of experts, and switches of other programs' memory
        "decoder_sparse_step", "ep_size", "first_k_dense_replace", "mlp_only_layers", "moe_intermediate_size",
        "moe_layer_freq", "n_group", "n_routed_experts", "n_shared_experts", "norm_topk_prob", "num_experts",
        "num_experts_per_tok", "num_local_experts", "num_nextn_predict_layers", "routed_scaling_factor",
        "scoring_func", "shared_expert_intermediate_size", "tf_legacy_loss", "topk_group", "topk_method",
        "torchscript", "use_bfloat16",
        # what only P-EAGLE's training reads
        "down_sample_ratio", "down_sample_ratio_min",
        # heads that classify a text, and tokens of a target's tokenizer
        "add_classification_head", "class_num", "cla_share_factor", "dense_list", "modal_type",
        "org_vocab_size", "pool_type", "use_mrope",
        # norms of queries and keys, and an output head, which the tensors show
        "has_lm_head", "use_qk_norm",
    }
)  # fmt: skip
# A part of a name that speaks of a forward: such a key may change one, whatever else it is called.
_OF_FORWARDS = (
    "rope|rotary|rotat|position|scale|scaling|norm|head|layer|attention|attn|mask|window|vocab|embed|bias|"
    "hidden|residual|state|tap"
)
_NAMES = (
    # tokens, but for masks
    r"(?!.*(mask|noise|pard|ptd))\w+_token_(id|ids|index)|(image|im|mask_init|text|video|eod|pad)_(\w+_)?id",
    # training
    r"(\w+_)?(dropout|pdrop|initializer|init_std)(_\w+)?",
    rf"(?!.*({_OF_FORWARDS}))(\w+_)?(loss|learning_rate|lr|warmup|weight_decay|epochs?|optimizer|scheduler|"
    r"gradient|seed|datasets?|wandb|checkpoint|checkpointing|batch_size|max_steps|train|training|trainer)(_\w+)?",
    # names, versions, dtypes and ways of computing the same
    rf"(?!.*({_OF_FORWARDS}))\w*(version|revision)",
    r"\w*(name_or_path|dtype|backend|attn_implementation|commit_hash)",
    r"_?(converted_from|comment|comments|description|notes?|license|author|tags|language|library_name|pipeline_tag|created_by)",
)
_WITHOUT_EFFECT = pattern("|".join(f"(?:{name})" for name in _NAMES))
"""Names of keys that makers choose freely, for what changes nothing of what a trained head computes."""
SWITCHES = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
"""Norms that an EAGLE-3 head has or has not."""
_NOTHING: tuple[Any, ...] = (None, False, [], {})
ONLY: Mapping[str, tuple[Any, ...]] = {
    "activation": ("silu", "swish", None),
    "add_cross_attention": _NOTHING,
    "additional_fc": _NOTHING,
    "attention_mode": ("gqa", "mha", None),
    "compression_config": _NOTHING,
    "cross_attention_hidden_size": (None,),
    "hidden_act": ("silu", "swish", None),
    "hidden_activation": ("silu", "swish", None),
    "is_encoder_decoder": _NOTHING,
    "mlp_bias": (False, None),
    "next_layer_regular": (True, None),
    "parallel_draft_step": (1, None),
    "parallel_drafting": (False, None),
    "pruned_heads": _NOTHING,
    "quantization_config": _NOTHING,
    "reuse_target_lm_head": (False, None),
    "norm_type": ("rms", "rmsnorm", "rms_norm", None),
    "position_embedding_type": ("rope", None),
    "sinks": _NOTHING,
    "use_cla": (False, None),
    "use_rotary_pos_emb": (True, None),
    "tie_encoder_decoder": _NOTHING,
    "use_input_layernorm_in_first_layer": (True, None),
    "use_aux_hidden_state": (True, None),
    "use_last_layernorm": (True, None),
    "use_mtp_layernorm": (False, None),
}
"""Keys that are accepted for these values: others describe a head that computes something else."""

# Keys that are read of heads of one kind, so that a head of another kind is told what they belong to.
ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"), "EAGLE-3 heads"),
    **dict.fromkeys(("eagle_config", "eagle_aux_hidden_state_layer_ids"), "EAGLE-3 heads"),
    **dict.fromkeys(("ptd_token_id", "pard_token", "mask_token_id"), "P-EAGLE heads and block drafters"),
    **dict.fromkeys(("block_size", "dflash_config", "dspark_config", "num_target_layers"), "block drafters"),
    **dict.fromkeys(("aux_hidden_state_layer_ids", "sample_from_anchor"), "block drafters"),
    **dict.fromkeys(("markov_rank", "markov_head_type", "enable_confidence_head"), "DSpark drafters"),
    **dict.fromkeys(("emb_dim", "gru_hidden_dim", "pure_draft_prefix_len", "shift_label"), "Domino drafters"),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim"), "layers with latent attention"),
    **dict.fromkeys(("medusa_num_heads", "medusa_num_layers"), "Medusa heads"),
}


def _as_keys(keys: Iterable[str]) -> frozenset[str]:
    return frozenset(keys)


@attrs.frozen(kw_only=True)
class Table:
    """Keys of one table of a description, which are checked together.

    Attributes:
        read: keys that the reader of the format looks at.
        only: keys that are accepted for some values, in addition to `ONLY`.
        kind: what the description is of, for messages.
    """

    read: frozenset[str] = attrs.field(converter=_as_keys)
    only: Mapping[str, tuple[Any, ...]] = attrs.field(factory=dict)
    kind: str = "a head"

    def check(
        self, described: Mapping[str, Any], *, where: str, copied: Collection[str] = frozenset()
    ) -> None:
        """Refuse keys that are not known, and values that are not supported.

        Args:
            described: the table.
            where: where it is stored, for messages.
            copied: other keys, which are the target's.

        Raises:
            InvalidInput: a key or a value, by name.
        """
        accepted = {**ONLY, **self.only}
        for key, value in described.items():
            if key in self.read or (key in copied and key not in accepted and key not in ELSEWHERE):
                continue
            if key in accepted:
                if not _among(value, accepted[key]):
                    raise InvalidInput(
                        f"{key} is {value!r:.60} in {where}; heads are read where it is "
                        f"{accepted[key][0]!r}, since other values change what the head computes: use "
                        "another head."
                    )
            elif not has_no_effect(key) and value is not None and not _is_default(key, value):
                raise InvalidInput(self._unknown(key, where))

    def _unknown(self, key: str, where: str) -> str:
        if owner := ELSEWHERE.get(key):
            return (
                f"{where} has the key {key!r:.60}, which belongs to {owner} and is not read for {self.kind}; "
                "use a head whose description agrees with its kind."
            )
        return (
            f"{where} has the key {key!r:.60}, which is not known here and may change what the head "
            "computes; use a head without it, or one whose keys docs/head-formats.md lists."
        )


def has_no_effect(key: str) -> bool:
    """Returns whether `key` is known to change nothing of what a trained head computes."""
    return key in WITHOUT_EFFECT or _WITHOUT_EFFECT.fullmatch(key) is not None


def _among(value: Any, accepted: tuple[Any, ...]) -> bool:
    # False == 0 and True == 1 in Python, but a description means what it says.
    return any(type(value) is type(one) and value == one for one in accepted) or (
        isinstance(value, float) and value in [one for one in accepted if type(one) is int]
    )


@cache
def _defaults() -> Mapping[str, Any]:
    from transformers import PretrainedConfig

    return PretrainedConfig().to_dict()


def _is_default(key: str, value: Any) -> bool:
    """Whether a key of every configuration of transformers has its default."""
    known = _defaults()
    return key in known and known[key] == value


def check_class(description: Mapping[str, Any], *, others: Mapping[str, str], where: str) -> None:
    """Refuse a description whose `architectures` names a class that computes something else.

    Args:
        description: the whole of it.
        others: parts of class names in lower case, with what such a class has.
        where: it is stored, for messages.

    Raises:
        InvalidInput: such a class, by name.
    """
    for name in named_classes(description):
        if part := next((part for part in others if part in name.lower()), None):
            raise InvalidInput(
                f"architectures names {name!r:.60} in {where}, which has {others[part]}; such heads are not "
                "supported: use another."
            )


def check_layers_like(
    description: Mapping[str, Any], *, kinds: Collection[str], plain: bool, like: str, where: str
) -> None:
    """Refuse a `model_type` whose layers are others, unless a class says by itself what its layers are.

    Args:
        description: the whole of it; some makers copy `model_type` from the target.
        kinds: those whose layers are alike.
        plain: whether its class has such layers whatever `model_type` says.
        like: whose they are, for messages.
        where: it is stored, for messages.
    """
    kind = description.get("model_type")
    if kind in (None, "", *kinds) or plain:
        return
    raise InvalidInput(f"model_type is {kind!r:.60} in {where}; layers like {like} are read.")


def named_classes(description: Mapping[str, Any]) -> list[str]:
    """The names in `architectures`; none where it is missing or is no list."""
    names = description.get("architectures")
    return [str(name) for name in names] if isinstance(names, list) else []


def whole_number(described: Mapping[str, Any], key: str, *, where: str, default: int | None = None) -> int:
    """Returns the value of `key`, 1 or more; without `default` it must be there."""
    value = described.get(key)
    if value is None and default is not None:
        return default
    if type(value) is not int or not 1 <= value < 2**31:
        raise InvalidInput(
            f"{key} is {value!r:.60} in {where}; a head needs a whole number of 1 or more there, of 31 bits."
        )
    return value


def switch(described: Mapping[str, Any], key: str, *, where: str, default: bool = False) -> bool:
    """Returns whether `key` is on; `default` where it is missing."""
    value = described.get(key)
    if value is not None and not isinstance(value, bool):
        raise InvalidInput(f"{key} is {value!r:.60} in {where}; give true or false.")
    return default if value is None else value


def switches(described: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Returns `SWITCHES`, as keywords of an `Eagle3Config`."""
    return {name: switch(described, name, where=where) for name in SWITCHES}


def layers_named(value: Any, key: str, *, where: str) -> tuple[int, ...] | None:
    """Returns layers as whole numbers; None where `value` is."""
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(layer) is int for layer in value):
        raise InvalidInput(f"{key} is {value!r:.60} in {where}; give a list of layers.")
    return tuple(value)


def merged(
    outer: Mapping[str, Any], inner: Mapping[str, Any], keys: Collection[str], *, where: str
) -> dict[str, Any]:
    """Returns `keys` of two tables that may both hold them.

    Raises:
        InvalidInput: a key whose two values differ.
    """
    found: dict[str, Any] = {}
    for key in keys:
        values = [table[key] for table in (outer, inner) if table.get(key) is not None]
        if len(values) == 2 and values[0] != values[1]:
            raise InvalidInput(
                f"{key} is {values[0]!r:.40} and {values[1]!r:.40} in two tables of {where}; copy the head's "
                "description again."
            )
        if values:
            found[key] = values[0]
    return found
