"""Drafters that guess all depths in one pass from what their target has committed: its features."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
from torch import Tensor

from draftwood import IncompatibleModels, InvalidInput, StateBackend, UnsupportedModel
from draftwood.strategies.drafters.depth_marginals import DepthMarginals
from draftwood.strategies.drafters.rotated_target import RotatedHead
from draftwood.strategies.drafters.target import as_target
from draftwood.strategies.heads.rotation import undone


@attrs.define(eq=False)
class FeatureMarginals(DepthMarginals):
    """Reads the features of `target`, and must be the only one who takes them.

    Attributes:
        target: a backend that declares its `feature_layers`, the one that the decoder drives. It must have no
            rows yet.
    """

    target: StateBackend = attrs.field(converter=as_target, repr=False)

    def _begin(
        self,
        what: str,
        *,
        width: int,
        vocabulary: int,
        taps: Callable[[int], Sequence[int]],
        through: Callable[[Tensor], Tensor],
    ) -> None:
        """Have the target keep features, and see that it is the head's.

        Args:
            what: the head is, for messages.
            width: of the features that it was made for.
            vocabulary: likewise.
            taps: the layers to be kept, by how many the target has.
            through: what is made of features at once, so that of a long prompt no more is held.

        Raises:
            UnsupportedModel: the target gives none.
            IncompatibleModels: they are of another width or vocabulary.
        """
        check_target(self.target, what, width=width, vocabulary=vocabulary)
        self.target.keep_features(taps(self.target.feature_layers), through=through)

    def _check_rows(self, rows: Sequence[Tensor], *, held: int) -> None:
        """Raise `InvalidInput` unless just these `rows` have joined the `held` ones in the target."""
        committed = self.target.lengths
        if committed[held:] != list(map(len, rows)):
            raise InvalidInput(
                f"The head's target holds {len(committed)} row(s), not the {len(rows)} that join here; give "
                f"{type(self).__name__} the same backend object as the decoder."
            )

    def _taken(self, width: int) -> list[Tensor]:
        """Takes the target's features since the last call, projected: `[length, width]` for every row."""
        taken = self.target.take_features()
        for states in taken:
            if states.shape[1] != width:
                raise InvalidInput(
                    f"The head reads states of width {width}, but its target keeps features of width "
                    f"{states.shape[1]}; give {type(self).__name__} a separate backend."
                )
        return taken

    def _embedded(self, tokens: Tensor, head: RotatedHead) -> Tensor:
        """Embeddings by a head's own table, or by the target's."""
        if head.embed_tokens is None:
            return undone(head.rotation, self.target.input_embeddings(tokens))
        embedded: Tensor = head.embed_tokens(tokens)
        return embedded


def check_target(target: StateBackend, what: str, *, width: int, vocabulary: int) -> None:
    """Raise unless `target` gives features, of the width and vocabulary that `what`, a head, was made for.

    Raises:
        UnsupportedModel: it gives none.
        IncompatibleModels: another width or vocabulary.
    """
    if not target.feature_layers:
        raise UnsupportedModel(
            f"{type(target).__name__} declares no features (its feature_layers is 0), which "
            f"{what} reads; draft with a model or by prompt lookup."
        )
    for kind, ours, theirs in (
        ("states of width", width, target.hidden_size),
        ("a vocabulary of", vocabulary, target.vocab_size),
    ):
        if ours != theirs:
            raise IncompatibleModels(
                f"{what[0].upper()}{what[1:]} was made for {kind} {ours}, but the target's is {theirs}; "
                "choose one made for this target."
            )
