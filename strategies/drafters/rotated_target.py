"""Heads on a rotated target, whose features are turned back for those that were trained before."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.nn.functional import cosine_similarity

from draftwood import InvalidInput, StateBackend, UnsupportedModel
from draftwood.strategies.drafters.target import checkpoint_of, repository_of
from draftwood.strategies.heads.rotation import Rotation, read_rotation, rotation_in

log = logging.getLogger(__name__)
NONE = "none"
_WORDS = 64
_ALIKE = 0.9  # mean cosine of two tables' words, from which they are one table


class RotatedHead(Protocol):
    """A head that reads features of a target, in the basis of its training.

    Attributes:
        rotation: undone in what it reads of its target; None where there is none.
        embed_tokens: its own table of words; None where it is the target's.
        lm_head: its own output head; None where it is the target's.
    """

    rotation: Rotation | None
    embed_tokens: Any
    lm_head: Any


def undo_rotation(head: RotatedHead, target: StateBackend, told: str | None = None) -> None:
    """Have `head` read its target as it was before its rotation, if it has one and the head is older.

    A head whose own table of words is the rotated target's was trained on it, and is left as it is.

    Args:
        head: whose `rotation` is set.
        target: the backend that it reads.
        told: `"none"` for a head that was trained on this very target, or a file of safetensors with the
            matrix; None for what the files of the target say.

    Raises:
        InvalidInput: a file that is missing, corrupt or holds no rotation of the target's width.
        UnsupportedModel: the files say that the target is rotated and hold no matrix, or the head uses the
            target's output head.
    """
    head.rotation = None
    rotation = _rotation_of(target, told)
    if rotation is None or (told is None and _has_words_of(head, target)):
        return
    if len(rotation.matrix) != target.hidden_size:
        raise InvalidInput(
            f"The rotation of the target is {len(rotation.matrix)} wide, but its hidden states are "
            f"{target.hidden_size} wide; give the matrix of this target as -o rotation=FILE."
        )
    if head.lm_head is None:
        raise UnsupportedModel(
            "The head uses the output head of its target, whose rotation has merged the weights of the last "
            "norm into that, and no file holds these; use a head with its own lm_head, or give "
            "-o rotation=none for one that was trained on this very target."
        )
    log.info("The target is rotated, so its features are turned back for the head.")
    head.rotation = rotation


def check_not_rotated(target: StateBackend, told: str | None, *, kind: str) -> None:
    """Refuse a rotated target for a head that reads what its output head reads.

    Args:
        target: the backend.
        told: `"none"` for a head that was trained on this very target; None for what its files say.
        kind: what the head is, for messages.

    Raises:
        InvalidInput: another value of `told`.
        UnsupportedModel: the files of the target say that it is rotated.
    """
    if told not in (None, NONE):
        raise InvalidInput(f"rotation is {told!r:.60}; {kind} take only 'none' there, or no rotation at all.")
    if _rotation_of(target, told) is not None:
        raise UnsupportedModel(
            f"The target is rotated, and {kind} read its states after the last norm, whose weights the "
            "rotation has merged into the output head; use an EAGLE-3 head, or give -o rotation=none for "
            "one that was trained on this very target."
        )


def _rotation_of(target: StateBackend, told: str | None) -> Rotation | None:
    if told == NONE:
        return None
    if told is not None:
        return read_rotation(Path(told))
    folder = checkpoint_of(target)
    return None if folder is None else rotation_in(folder, repository_of(target))


@torch.no_grad()
def _has_words_of(head: RotatedHead, target: StateBackend) -> bool:
    """Whether the head's own table of words is the target's, which is rotated."""
    if head.embed_tokens is None:
        return False
    tokens = torch.linspace(0, target.vocab_size - 1, _WORDS).long()
    theirs = target.input_embeddings(tokens)
    own = head.embed_tokens(tokens.to(next(head.embed_tokens.parameters()).device)).to(theirs)
    if own.shape != theirs.shape:
        return False
    return bool(cosine_similarity(own.float(), theirs.float()).mean() > _ALIKE)
