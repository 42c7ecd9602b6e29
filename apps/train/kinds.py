"""The heads that `draftwood train` makes: their sizes, how they begin, learn and are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import attrs

from draftwood.base.errors import InvalidInput
from draftwood.zoo.distil.rows import Rows
from draftwood.zoo.distil.steps import Trained
from draftwood.zoo.heads.agreement import DEPTHS
from draftwood.zoo.heads.blocks import (
    BlockOptions,
    new_block,
    new_block_config,
    save_block_head,
    trained_block,
)
from draftwood.zoo.heads.eagle3 import (
    HeadOptions,
    new_config,
    new_head,
    save_head,
    tokens_written,
    trained_head,
)
from draftwood.zoo.heads.mtp import new_layer, new_layout, save_trained

_BLOCK_TIMES_RATE = 1.0
_DRAFT_VOCABULARY = 32_000  # tokens, where the vocabulary is larger
_MARKOV_RANK = 32
_WIDTH_TIMES_RATE = 0.5  # the zoo's head of width 256 learns well at 2e-3, and wider ones lower


class Kind(StrEnum):
    """Heads that can be trained."""

    eagle3 = "eagle3"
    block = "block"
    mtp = "mtp"


_OWN: dict[Kind, Mapping[str, Any]] = {
    Kind.eagle3: {"taps": None, "draft_vocabulary": _DRAFT_VOCABULARY},
    Kind.block: {"taps": None, "layers": 1, "markov_rank": _MARKOV_RANK},
    Kind.mtp: {},
}
"""What only some kinds can be told, and what it is where nobody says."""


@attrs.frozen
class Training:
    """The training of a kind of head.

    Attributes:
        config: its sizes; JSON.
        options: how it learns.
        new: makes it, knowing what the target wrote.
        trained: trains a head on rows; called with them, `options`, a checkpoint and how often to write it.
        save: writes it to a folder.
        depths: of which the report tells.
    """

    config: Mapping[str, Any]
    options: Any
    new: Callable[[Sequence[Rows]], Any]
    trained: Callable[..., Iterator[Trained]]
    save: Callable[[Any, Path], None]
    depths: int = DEPTHS


def check_options(kind: Kind, given: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` where the user said something of `taps`, `layers`... that `kind` does not take."""
    for option, value in given.items():
        if option not in _OWN[kind]:
            kinds = " and ".join(other for other in Kind if option in _OWN[other])
            raise InvalidInput(
                f"--{option.replace('_', '-')} is {value}, but it is an option for {kinds}, not for {kind}; "
                "leave it out."
            )


def training_of(
    kind: Kind,
    target: Any,
    *,
    options: dict[str, Any],
    depths: int,
    intermediate: int | None,
    learning_rate: float | None,
    given: Mapping[str, Any],
    name: str,
    longest: int,
) -> Training:
    """Returns the training of a head of `kind` for the model `target`, called `name`.

    Args:
        options: steps, batch and seed.
        depths: how far it is taught to guess.
        intermediate: width of its MLP; None: the target's.
        learning_rate: its peak; None: by the target's width.
        given: what the user said of the options of this kind.
        name: of the target.
        longest: tokens of the rows, beyond which nobody knows how the head guesses.

    Raises:
        InvalidInput: sizes that the target cannot serve.
    """
    sizes = {**_OWN[kind], **given, "intermediate": intermediate}
    if kind is Kind.block:
        block = attrs.evolve(new_block_config(target, depths=depths, **sizes), max_positions=longest)
        rate = learning_rate or _BLOCK_TIMES_RATE / block.hidden_size
        learns = BlockOptions(**options, learning_rate=rate)
        return Training(
            attrs.asdict(block),
            learns,
            lambda shards: new_block(target, block, seed=learns.seed),
            trained_block,
            save_block_head,
            depths,
        )
    if kind is Kind.mtp:
        layout = new_layout(target, depths=depths, **sizes)
        of_pairs = HeadOptions(
            **options, depths=depths, learning_rate=learning_rate or _WIDTH_TIMES_RATE / layout.width
        )
        return Training(
            dict(layout.description),
            of_pairs,
            lambda shards: new_layer(target, layout, seed=of_pairs.seed),
            trained_head,
            lambda head, folder: save_trained(head, folder, target=name),
        )
    config = attrs.evolve(new_config(target, **sizes), max_positions=longest)
    of_pairs = HeadOptions(
        **options, depths=depths, learning_rate=learning_rate or _WIDTH_TIMES_RATE / config.hidden_size
    )
    return Training(
        attrs.asdict(config),
        of_pairs,
        lambda shards: new_head(
            target, config, tokens_written(shards, config.vocab_size), seed=of_pairs.seed
        ),
        trained_head,
        lambda head, folder: save_head(head, folder, target=name),
    )
