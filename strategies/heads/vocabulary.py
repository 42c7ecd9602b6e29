"""Tokens of a head that has fewer than its target: which of the target's they are."""

from __future__ import annotations

import torch
from torch import Tensor

from draftwood import InvalidInput


def target_ids_of(
    d2t: Tensor | None, t2d: Tensor | None, *, proposed: int, vocabulary: int, where: str
) -> Tensor | None:
    """The target's tokens of the maps in a head's file; None where it proposes all.

    Args:
        d2t: int64 `[proposed]` offsets: token i of the head is token `i + d2t[i]` of the target.
        t2d: bool `[vocabulary]`, whether the head has it.
        proposed: tokens of the head.
        vocabulary: tokens of its target.
        where: place of the maps, for messages.

    Raises:
        InvalidInput: maps that are missing, of another shape, or differ from each other.
    """
    if d2t is None:
        if proposed != vocabulary:
            raise InvalidInput(
                f"The head in {where} proposes {proposed} of {vocabulary} tokens and has no map of them "
                "(d2t); copy it again."
            )
        return None
    if d2t.is_floating_point() or d2t.shape != (proposed,):
        raise InvalidInput(
            f"d2t in {where} is {str(d2t.dtype).removeprefix('torch.')} of the shape {tuple(d2t.shape)}; a "
            f"head of {proposed} tokens needs as many offsets, whole numbers."
        )
    ids = d2t.long() + torch.arange(len(d2t))
    if _holds_ids(d2t.long(), ids, t2d, vocabulary):
        raise InvalidInput(
            f"d2t in {where} holds the tokens themselves, where offsets are wanted: token i of the head is "
            "token i + d2t[i] of the target; subtract each token's own number, or copy the head again."
        )
    if t2d is not None:
        if t2d.shape != (vocabulary,):
            raise InvalidInput(
                f"t2d in {where} has the shape {tuple(t2d.shape)}, and its target has {vocabulary} tokens; "
                "one of them is another head's."
            )
        inside = ids[(ids >= 0) & (ids < vocabulary)]
        expected = torch.zeros(vocabulary, dtype=torch.bool).index_fill_(0, inside, True)
        if not torch.equal(t2d.bool(), expected):
            raise InvalidInput(f"The maps d2t and t2d in {where} name different tokens; copy the head again.")
    return ids


def _holds_ids(told: Tensor, ids: Tensor, t2d: Tensor | None, vocabulary: int) -> bool:
    """Whether a map that is no sound one of offsets would be sound as one of tokens."""

    def is_sound(some: Tensor) -> bool:
        inside = bool(((some >= 0) & (some < vocabulary)).all()) and len(some.unique()) == len(some)
        if not inside or t2d is None or t2d.shape != (vocabulary,):
            return inside
        return torch.equal(t2d.bool().nonzero().flatten(), some.sort().values)

    return not is_sound(ids) and is_sound(told)


def maps_of(ids: Tensor, vocabulary: int) -> dict[str, Tensor]:
    """The tensors of which `target_ids_of` makes these."""
    ids = ids.cpu()
    has = torch.zeros(vocabulary, dtype=torch.bool).index_fill_(0, ids, True)
    return {"d2t": ids - torch.arange(len(ids)), "t2d": has}


def is_everything(ids: Tensor, vocabulary: int) -> bool:
    """Whether `ids` are all tokens of the target in their order."""
    return len(ids) == vocabulary and torch.equal(ids, torch.arange(vocabulary))


def check_target_ids(ids: Tensor, *, proposed: int, vocabulary: int) -> None:
    """Raise `InvalidInput` unless `ids` are `proposed` different tokens of the target."""
    if ids.shape != (proposed,):
        raise InvalidInput(
            f"The head's map has the shape {tuple(ids.shape)}; it must name its {proposed} tokens."
        )
    outside = ids[(ids < 0) | (ids >= vocabulary)]
    if len(outside):
        raise InvalidInput(
            f"The head's map names the token {int(outside[0])}, and its target has {vocabulary}; the map "
            "holds offsets (d2t), to be added to each token's own number."
        )
    if len(ids.unique()) < len(ids):
        raise InvalidInput("The head's map names a token of its target twice; copy or train the head again.")
