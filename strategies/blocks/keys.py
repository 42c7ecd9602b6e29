"""Keys that only block drafters have: the mask's token, and DSpark's correction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftwood import InvalidInput
from draftwood.strategies.blocks.config import FULL, MARKOV, SLIDING, Markov
from draftwood.strategies.heads.keys import switch, whole_number

MARKOV_KEYS = frozenset(
    {
        "confidence_head_with_markov", "enable_confidence_head", "markov_head_type", "markov_rank",
        "use_confidence_head",
    }
)  # fmt: skip
TIED: Mapping[str, tuple[Any, ...]] = {
    # Tensors say whether there is an output head: without one it is the target's, tied there or not.
    "tie_word_embeddings": (False, True, None),
}
TABLES = ("dflash_config", "dspark_config")
"""Nested tables of a description."""
OTHER_CLASSES: Mapping[str, str] = {
    "dconv": "convolutions over the tokens before a slot",
    "dflare": "projections of the context and weights of its layers as DFlare has them",
    "dflash2": "the layers of DFlash 2",
    "dflash-2": "the layers of DFlash 2",
    "dflashlinear": "a recurrent memory of the text",
    "flowspec": "slots that a flow refines in several steps",
    "gemma": "Gemma's norms and scales",
    "deepseek": "latent attention",
    "mla": "latent attention",
    "pspr": "layers that choose among the tokens of all slots",
    "xpress": "the layers of XPress",
}
"""Classes of drafters that compute something else, by a part of their name."""


def layer_types(described: Mapping[str, Any], layers: int, where: str) -> list[str] | None:
    """Returns the types of the layers; None where the table does not name them."""
    types = described.get("layer_types")
    if types is not None and (
        not isinstance(types, list) or len(types) != layers or not set(types) <= {SLIDING, FULL}
    ):
        raise InvalidInput(
            f"layer_types is {types!r:.80} in {where}; it names {FULL} or {SLIDING} for each of {layers} "
            "layers."
        )
    return types


GRU_KEYS = frozenset({"emb_dim", "gru_hidden_dim", "pure_draft_prefix_len", "shift_label"})


def gru(described: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns Domino's correction, as keywords of a `BlockConfig`."""
    kept = described.get("pure_draft_prefix_len", 0)
    if type(kept) is not int or kept < 0:
        raise InvalidInput(
            f"pure_draft_prefix_len is {kept!r:.60} in {where}; give a whole number of 0 or more."
        )
    return {
        "gru": whole_number(described, "gru_hidden_dim", where=where),
        "gru_inner": whole_number(described, "emb_dim", where=where),
        "gru_from": kept,
        "root_guesses": switch(described, "shift_label", where=where),
    }


def mask_token(described: Mapping[str, Any], vocab_size: int, where: str) -> int:
    """Returns the token of the slots after the root."""
    token = described.get("mask_token_id")
    if type(token) is not int or not 0 <= token < vocab_size:
        raise InvalidInput(
            f"mask_token_id is {token!r:.60} in {where}; a block drafter needs the token there that it was "
            f"trained with in the slots after the root, below {vocab_size}: write it in."
        )
    return token


def with_block_size(description: Mapping[str, Any], given: int | None, where: str) -> dict[str, Any]:
    """Returns a description that holds the block size `given`; None changes nothing.

    Raises:
        InvalidInput: a description that says another one.
    """
    if given is None:
        return dict(description)
    tables = [description.get(name) for name in TABLES]
    for table in (description, *(one for one in tables if isinstance(one, dict))):
        if table.get("block_size") not in (None, given):
            raise InvalidInput(
                f"block_size={given!r:.20} is not that of {where}, {table['block_size']!r:.20}; leave it out."
            )
    return {**description, "block_size": given}


def block_size(described: Mapping[str, Any], where: str) -> int:
    """Returns the slots of a block, which TorchSpec's files do not say."""
    if described.get("block_size") is None:
        raise InvalidInput(
            f"block_size is None in {where}; a block drafter needs the number of slots there that it was "
            "trained with, which TorchSpec takes from its training configuration: write it in, or give it as "
            "-o block_size=NUMBER."
        )
    return whole_number(described, "block_size", where=where)


REPEATS = frozenset({"dspark_noise_token_id", "dspark_target_layer_ids", "eagle_aux_hidden_state_layer_ids"})
"""Keys by which converters say the mask's token and the taps a second time, for other programs."""


def check_repeats(described: Mapping[str, Any], taps: Sequence[int], mask: int, where: str) -> None:
    """Refuse a description whose repeats say something else than its usual keys.

    Args:
        described: its keys at every depth.
        taps: layers of the target by their input.
        mask: the token of the slots after the root.
        where: it is stored, for messages.

    Raises:
        InvalidInput: such a key.
    """
    same = {
        "dspark_noise_token_id": mask,
        "dspark_target_layer_ids": [tap - 1 for tap in taps],
        "eagle_aux_hidden_state_layer_ids": list(taps),
    }
    for key, value in same.items():
        if described.get(key) not in (None, value):
            raise InvalidInput(
                f"{key} is {described[key]!r:.60} in {where}, whose other keys make it {value!r:.60}; copy "
                "its description again."
            )


def markov(
    described: Mapping[str, Any], width: int, where: str, *, rank: int, confidence: bool, with_markov: bool
) -> dict[str, Any]:
    """The correction and the confidence head, as keywords of a `BlockConfig`.

    Args:
        described: the table that holds their keys.
        width: of the drafter.
        where: their place, for messages.
        rank: of the correction where its key is missing.
        confidence: whether there is a confidence head, where its key is missing.
        with_markov: whether it reads the correction too, where its key is missing.
    """
    told = described.get("markov_rank")
    told = rank if told is None else told
    if type(told) is not int or not 0 <= told < 2**31:
        raise InvalidInput(f"markov_rank is {told!r:.60} in {where}; give an integer of 0 or more.")
    kind: Markov = described.get("markov_head_type") or "vanilla"
    if kind not in MARKOV:
        raise InvalidInput(f"markov_head_type is {kind!r:.60} in {where}; {', '.join(MARKOV)} are supported.")
    # ModelOpt's name for it; its head always reads the correction too.
    other = switch(described, "use_confidence_head", where=where)
    there = switch(described, "enable_confidence_head", where=where, default=confidence or other)
    reads = switch(described, "confidence_head_with_markov", where=where, default=with_markov or other)
    return {
        "markov_rank": told,
        "markov_type": kind,
        "confidence": (width + told * reads) * there,
    }


def markov_described(width: int, rank: int, kind: Markov, confidence: int) -> dict[str, Any]:
    """The keys of which `markov` makes these again."""
    return {
        "markov_rank": rank,
        "markov_head_type": kind,
        "enable_confidence_head": bool(confidence),
        "confidence_head_with_markov": confidence > width,
    }
