"""A head with one thing changed: its weights, its map or its rotation, as a wrong file would have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood.strategies.blocks.head import BlockHead
from draftwood.strategies.drafters.medusa import Heads
from draftwood.strategies.heads.config import Eagle3Config
from draftwood.strategies.heads.eagle3 import Eagle3Head
from draftwood.strategies.heads.peagle import PEagleHead
from draftwood.strategies.heads.rotation import Rotation

from .misstored import restored, with_weights

Head = Eagle3Head | BlockHead | PEagleHead
_BASES = (10_000.0, 500_000.0, 1_000_000.0)
_ONE_TABLE = 0.2  # relative distance of two tables of words below which they are one table
_WHOLE = {"partial_rotary_factor": 1.0}
# Projections that read embedding and state, the last two of latent attention.
_READ_BOTH = ("q_proj", "k_proj", "v_proj", "q_a_proj", "kv_a_proj_with_mqa")


@attrs.frozen(eq=False)
class Variant:
    """A head that differs from the configured one in one thing.

    Attributes:
        name: what is changed, in words.
        cause: what is wrong with the head where this variant follows its target better, and what to do.
        head: with the other weights shared.
    """

    name: str
    cause: str
    head: Head | Heads


def with_config(head: Head, change: Mapping[str, Any], *, weights: Mapping[str, Tensor] | None = None) -> Any:
    """Returns the same weights under a changed configuration, which may leave out parts.

    Args:
        head: the head.
        change: fields of its configuration.
        weights: replace its weights, by name.
    """
    if isinstance(head, PEagleHead):
        return _around(head, with_config(head.head, change, weights=weights))
    made = type(head)
    with torch.device("meta"):
        other = made(attrs.evolve(head.config, **change), target_ids=head.target_ids.cpu())  # type: ignore[arg-type]
    stored = {**head.state_dict(), **(weights or {})}
    other.load_state_dict({name: stored[name] for name in other.state_dict()}, assign=True)
    if isinstance(head, Eagle3Head):
        other.lent = head.lent
    other.rotation = head.rotation
    return other.to(head.fc.weight).eval().requires_grad_(False)


def weight_variants(head: Head, target: Any) -> Iterator[Variant]:
    """Yields the head with the target's own tables, its map or weights read otherwise, and otherwise rotated.

    Args:
        head: the head.
        target: the transformers model that it was made for.
    """
    if isinstance(head, PEagleHead):
        for variant in weight_variants(head.head, target):
            yield attrs.evolve(variant, head=_around(head, variant.head))
        return
    yield from _of_map(head)
    yield from _of_tables(head, target)
    yield from _of_rotation(head, target)
    yield from _of_basis(head, target)
    config = head.config
    turned = None
    if isinstance(config, Eagle3Config) and config.latent:
        other = not config.latent.interleaved
        yield Variant(
            f"rotation of {'neighbours' if other else 'halves'}",
            f"its keys are rotated otherwise; write rope_interleave: {str(other).lower()} into its config",
            with_config(head, {"latent": attrs.evolve(config.latent, interleaved=other)}),
        )
    else:
        turned = int(config.head_dim * {**_WHOLE, **config.rope}["partial_rotary_factor"])
    for one in restored(head, head_dim=config.head_dim, rotated=turned):
        yield Variant(one.name, one.cause, with_weights(head, one.weights))
    if isinstance(head, Eagle3Head):
        read = {f"midlayer.self_attn.{name}.weight" for name in _READ_BOTH}
        read &= {name for name, _ in head.named_parameters()}
        weights = {name: torch.cat(head.get_parameter(name).chunk(2, 1)[::-1], 1) for name in read}
        yield Variant(
            "embedding and state exchanged",
            "its projections expect the state before the embedding; exchange the halves of their weights",
            with_config(head, {}, weights=weights),
        )


def _around(head: PEagleHead, parts: Any) -> PEagleHead:
    """Returns the P-EAGLE head whose parts that an EAGLE-3 head has too are `parts`."""
    other = copy(head)
    other._modules = {**head._modules, "head": parts}
    other.config = attrs.evolve(head.config, head=parts.config)
    return other


def mask_variants(head: BlockHead | PEagleHead, target: Any) -> Iterator[Variant]:
    """Yields the head with other tokens as its mask: those at both ends of the vocabulary and special ones.

    Args:
        head: the head.
        target: the transformers model that it was made for.
    """
    config = target.config.get_text_config(decoder=True)
    told = [getattr(config, f"{name}_token_id", None) for name in ("bos", "eos", "pad", "mask")]
    special = [one for ids in told for one in (ids if isinstance(ids, list) else [ids])]
    last = int(config.vocab_size) - 1
    for token in dict.fromkeys([*special, 0, 1, 2, 3, last - 1, last]):
        if type(token) is not int or not 0 <= token <= last or token == head.config.mask_token_id:
            continue
        other = copy(head)
        other.config = attrs.evolve(head.config, mask_token_id=token)
        yield Variant(
            f"mask_token_id {token}",
            "its mask_token_id is another token than in its training; copy the one of that training",
            other,
        )


def medusa_variants(heads: Heads, target: Any) -> Iterator[Variant]:
    """Yields the heads in other orders, and with the target's own output head.

    Args:
        heads: the heads.
        target: the transformers model that they were made for.
    """
    numbers = list(range(heads.count))
    orders = {
        "heads in the opposite order": numbers[::-1],
        "heads one place earlier": numbers[1:] + numbers[-1:],
    }
    for name, order in orders.items():
        if order != numbers:
            changed = {key: weight.detach()[order] for key, weight in heads.named_parameters()}
            cause = "its heads guess other places than their numbers say; number them anew"
            yield Variant(name, cause, with_weights(heads, changed))
            cause = "an output head is damaged, or they are in another order than its blocks; copy them again"
            yield Variant(f"output {name}", cause, with_weights(heads, {"output": changed["output"]}))
    weight = getattr(target.get_output_embeddings(), "weight", None)
    if weight is not None and weight.shape == heads.output.shape[1:]:
        output = weight.detach().to(heads.output).expand(heads.count, -1, -1)
        yield Variant(
            "the target's output head",
            "its output heads are not those that it was trained with; copy them again",
            with_weights(heads, {"output": output}),
        )


def _of_map(head: Eagle3Head | BlockHead) -> Iterator[Variant]:
    if head.all_tokens:
        return
    count, vocabulary = len(head.target_ids), head.config.vocab_size
    numbers = torch.arange(count, device=head.target_ids.device)
    readings = {
        "its map read as token ids": head.target_ids - numbers,
        "the first tokens in place of its map": numbers,
    }
    for name, ids in readings.items():
        if ids.min() < 0 or ids.max() >= vocabulary or len(ids.unique()) < count:
            continue
        other = copy(head)
        other._buffers = {**head._buffers, "target_ids": ids}
        yield Variant(name, "its map d2t holds something else than offsets; write it anew", other)


def _of_tables(head: Eagle3Head | BlockHead, target: Any) -> Iterator[Variant]:
    output, words = target.get_output_embeddings(), target.get_input_embeddings()
    config = head.config
    # Where the target scales its embeddings, its module does, so it is used as a whole.
    if head.embed_tokens is not None and words.weight.shape[1] == config.hidden_size:
        features = getattr(config, "target_hidden_size", None) or config.hidden_size
        if features == config.hidden_size:
            yield Variant(
                "the target's embeddings",
                "its embed_tokens.weight is no table that it was trained with; copy it again or leave it out",
                with_config(head, {"own_embedding": False}),
            )
    weight = getattr(output, "weight", None)
    if head.lm_head is not None and weight is not None and weight.shape[1] == config.hidden_size:
        rows = weight[head.target_ids.to(weight.device)].detach().to(head.fc.weight)
        yield Variant(
            "the target's output head",
            "its lm_head.weight is not the one that it was trained with; copy it again",
            with_config(head, {}, weights={"lm_head.weight": rows}),
        )


def _of_rotation(head: Eagle3Head | BlockHead, target: Any) -> Iterator[Variant]:
    config = target.config.get_text_config(decoder=True)
    theirs = getattr(config, "rope_parameters", None) or {}
    ours = dict(head.config.rope)
    bases = dict.fromkeys([*([base] if (base := theirs.get("rope_theta")) else []), *_BASES])
    for base in bases:
        if base != ours["rope_theta"]:
            yield _rotated(head, {**ours, "rope_theta": float(base)}, f"rope_theta {base:g}")
    parts = [theirs.get("partial_rotary_factor"), 1.0]
    for part in dict.fromkeys(part for part in parts if part):
        if part != {**_WHOLE, **ours}["partial_rotary_factor"]:
            rope = {**ours, "partial_rotary_factor": float(part)}
            yield _rotated(head, rope, f"partial_rotary_factor {part:g}")


def _of_basis(head: Eagle3Head | BlockHead, target: Any) -> Iterator[Variant]:
    """Yields the head with the target's rotation left, or undone where only tables of words tell of it."""
    found = _rotation_between(head, target.get_input_embeddings()) if head.rotation is None else None
    if head.rotation is None and found is None:
        return
    other = copy(head)
    other.rotation = found
    if found is None:
        words = "the target's rotation not undone"
        cause = "it was trained on the target after its rotation; give -o rotation=none"
    else:
        words = "the target's states rotated as its words are"
        cause = (
            "its target was rotated after the training of the head, which no file of the target says; save "
            "the matrix of that rotation as safetensors and give it as -o rotation=FILE"
        )
    yield Variant(words, cause, other)


@torch.no_grad()
def _rotation_between(head: Eagle3Head | BlockHead, words: torch.nn.Module) -> Rotation | None:
    """Returns the rotation that makes the head's own table of words the target's; None where none does.

    Source: the orthogonal Procrustes problem (Schoenemann 1966).
    """
    table = getattr(head.embed_tokens, "weight", None)
    theirs = getattr(words, "weight", None)
    if table is None or theirs is None or theirs.shape != table.shape:
        return None
    some = torch.linspace(0, len(table) - 1, min(len(table), 4 * table.shape[1])).long()
    before, after = table[some.to(table.device)].float(), theirs[some.to(theirs.device)].to(table).float()
    if _differ(before, after) < _ONE_TABLE:
        return None
    left, _, right = torch.linalg.svd(before.T @ after)
    rotation = Rotation(left @ right)
    return rotation if _differ(rotation.undone(after), before) < _ONE_TABLE else None


def _differ(some: Tensor, others: Tensor) -> float:
    """Returns the distance of two tables, as a share of the size of one."""
    return float((some - others).norm() / others.norm().clamp(min=1e-9))


def _rotated(head: Eagle3Head | BlockHead, rope: Mapping[str, Any], words: str) -> Variant:
    return Variant(
        words,
        f"its rotation is another than its config says; write {words.replace(' ', ': ')} there",
        with_config(head, {"rope": rope}),
    )
