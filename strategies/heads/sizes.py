"""Sizes that a description names, against what the weights next to it hold, before memory is asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor

from draftwood import InvalidInput

MOST_GUESSES = 1024
"""Tokens that a head guesses in one pass, at most: every one takes its place in the pass."""
_FEW_LAYERS = 256
_LARGEST_VOCABULARY = 2**24
"""Tokens of a target whose table a head does not bring, at most."""


def check_held(
    sizes: Mapping[str, int], tensors: Mapping[str, Tensor], *, vocabulary: int, where: str
) -> None:
    """Refuse sizes that no weights have, of which larger things are made than the files hold.

    Args:
        sizes: of the head by name; each is a dimension of some tensor, or a part of one.
        tensors: of the head's files.
        vocabulary: of its target.
        where: the files are, for messages.

    Raises:
        InvalidInput: a size is larger than every dimension of the tensors.
    """
    widest = max((size for tensor in tensors.values() for size in tensor.shape), default=0)
    known = {**sizes, "vocab_size": vocabulary if vocabulary > max(widest, _LARGEST_VOCABULARY) else 0}
    if odd := next((name for name, size in known.items() if size > widest), None):
        raise InvalidInput(
            f"{odd} is {known[odd]} in {where}, and its weights are {widest} wide at most; one of them is "
            "another head's."
        )


def check_taps(
    taps: tuple[int, ...] | None, tensors: Mapping[str, Tensor], *, width: int, where: str
) -> None:
    """Refuse a caller's taps of another number than the head's projection reads.

    Args:
        taps: layers that the caller names; None where the description does.
        tensors: of the head's files.
        width: of the target.
        where: the files are, for messages.

    Raises:
        InvalidInput: another number of them.
    """
    weight = tensors.get("fc.weight")
    if taps is not None and weight is not None and weight.dim() == 2 and weight.shape[1] != len(taps) * width:
        raise InvalidInput(
            f"taps names {len(taps)} layers, but the head in {where} reads {weight.shape[1] // width}; give "
            "that many."
        )


def check_layers(layers: int, tensors: Collection[str], where: str) -> None:
    """Refuse many layers, more than there are tensors, before anything is made for each of them."""
    if layers > max(len(tensors), _FEW_LAYERS):
        raise InvalidInput(
            f"num_hidden_layers is {layers} in {where}, and its files hold {len(tensors)} tensors; one of "
            "them is another head's."
        )


def check_guesses(name: str, count: int) -> None:
    """Refuse a head that guesses more tokens than a pass should hold."""
    if count > MOST_GUESSES:
        raise InvalidInput(f"{name} is {count}; heads that guess up to {MOST_GUESSES} tokens are read.")
