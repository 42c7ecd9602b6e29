"""Optional capabilities of a `StateBackend` besides decoding, one class per capability.

An attribute declares a capability, and its default says that it is not offered; the methods then refuse in a
sentence, or do it by `extend` and `commit`. Override an attribute together with its methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from jaxtyping import Float, Int
from torch import Tensor

from draftwood.base.errors import UnsupportedModel
from draftwood.protocols.model_prompt import ModelPrompt
from draftwood.protocols.ranks import Ranks
from draftwood.trees.level_plan import LevelPlan, Levels


class ReadsPrompts(Protocol):
    """Reads text otherwise than by `prefill` and `extend`.

    Attributes:
        gives_first_logits: whether `first_logits` is offered.
        reads_padding: whether a padded row of `generate()` has another text than the row by itself, so that
            `read_prompt` has to read it.
    """

    gives_first_logits: bool = False
    reads_padding: bool = False

    def first_logits(self, rows: Sequence[Int[Tensor, " length"]]) -> Float[Tensor, "rows vocab"]:
        """Append rows as `prefill` does; returns the logits after the last token of each, `[rows, vocab]`.

        A text's first token then needs no extra pass. Offered where `gives_first_logits` is true; every row
        has at least one token.
        """
        raise UnsupportedModel(
            f"{type(self).__name__} gives no logits with a prefill; call prefill() and extend()."
        )

    def read_prompt(self, prompt: ModelPrompt) -> Float[Tensor, "rows vocab"]:
        """Append rows by the model's own forward over a prompt that holds more than tokens.

        Returns the logits after each row's prompt, `[rows, vocab]`. What the later passes of a row are given
        besides tokens (where its positions go on, types of its tokens) is kept with the row.

        Raises:
            InvalidInput: inputs that the model refuses.
            UnsupportedModel: the backend reads only tokens, or its passes after such a prompt do not give
                what the model's own decoding gives.
        """
        raise UnsupportedModel(
            f"{type(self).__name__} only reads tokens; give the prompt as token ids, or load the model."
        )

    def take_over(self, cache: Any, lengths: Sequence[int]) -> None:
        """Append rows of these lengths, which the model has read into `cache` already.

        Args:
            cache: a transformers cache of a batch that is padded on the left; it is not changed.
            lengths: cached tokens of every row.

        Raises:
            InvalidInput: a cache that cannot be read.
            UnsupportedModel: the backend reads none.
        """
        raise UnsupportedModel(
            f"{type(self).__name__} reads no cache of another call; leave past_key_values out."
        )


class GivesFeatures(Protocol):
    """Keeps inputs of layers, for drafters that are heads on the target.

    Features of layer k < L are the input of decoder layer k, counted from 0: the embedding for k = 0,
    otherwise the residual stream after k layers. Features of layer L are the input of the output head, after
    the final norm. This is the numbering of transformers' `hidden_states`. Features of L + 1, which a backend
    may refuse, are the output of the last layer, before that norm.

    Attributes:
        feature_layers: L, the model's decoder layers; 0: it offers none of these methods.
        hidden_size: width of the features of a layer; None: not known.
    """

    feature_layers: int = 0
    hidden_size: int | None = None

    def keep_features(
        self,
        layers: Sequence[int],
        *,
        last: int | None = None,
        through: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Keep from now on the features that `take_features` returns; without this call they cost nothing.

        One drafter reads them. Repeating a call changes nothing; a call without layers ends it.

        Args:
            layers: numbers of the layers, in the order in which their features are concatenated.
            last: keep the features of at most this many last tokens per row; None for all. Features that are
                never taken accumulate.
            through: a function of the features `[..., len(layers) * hidden_size]` of each pass; its results
                are kept instead. So the features of a long prompt are never held all at once.

        Raises:
            InvalidInput: a layer below 0 or above L + 1, `last` below 1, or rows whose features were not
                kept.
            UnsupportedModel: the backend cannot do it.
        """
        raise UnsupportedModel(
            f"{type(self).__name__} gives no features: its feature_layers is {self.feature_layers}; use a "
            "draft model."
        )

    def take_features(self) -> list[Float[Tensor, "length width"]]:
        """Returns the features of every token committed since the last call.

        One tensor `[tokens, width]` per row, in the order of the text, prompts included; no tokens for a row
        that has committed none since. Up to rounding they equal the features of sequential decoding. They are
        on `device` and belong to the caller.

        Raises:
            UnsupportedModel: nothing was kept; call `keep_features` first.
        """
        raise UnsupportedModel(f"{type(self).__name__} keeps no features; call keep_features() first.")

    def input_embeddings(self, tokens: Int[Tensor, "*n"]) -> Float[Tensor, "*n hidden"]:
        """Returns the model's embeddings of `tokens`, before positions or anything else is added.

        Raises:
            UnsupportedModel: the backend cannot do it.
        """
        raise UnsupportedModel(f"{type(self).__name__} gives no input embeddings; use a draft model.")

    def output_head(self, states: Float[Tensor, "*n hidden"]) -> Float[Tensor, "*n vocab"]:
        """Returns the logits of features of layer L, as `extend` gives them for the same token.

        Raises:
            UnsupportedModel: the backend cannot do it.
        """
        raise UnsupportedModel(f"{type(self).__name__} gives no output head; use a draft model.")


class ExtendsByLevels(Protocol):
    """Runs all levels of a draft tree in one pass."""

    def extend_levels(
        self,
        tokens: Int[Tensor, "rows nodes"],
        parents: Int[Tensor, "rows nodes"],
        plan: LevelPlan,
        *,
        temperature: float = 1.0,
    ) -> Levels | None:
        """Extend by these nodes, and on from every row's last one level by level.

        There are no uncommitted nodes before the call.

        What is expanded follows from the model's own distributions, by `plan`. Of every level the first
        `Levels.widths` candidates join the region, in their order, after the nodes that were given.

        Args:
            tokens: int64 `[rows, nodes]`; the last one of a row is the root of its tree.
            parents: int64 `[rows, nodes]`, as in `extend`.
            plan: how a level leads to the next.
            temperature: of the distributions, above 0.

        Returns:
            The candidates of all levels; or None where this is not offered, or some tree would hold more
            than it found. Then the region is as it was.
        """
        return None


class ReadsWindows(Protocol):
    """Runs passes that read a part of the text, by which a target drafts for itself.

    Attributes:
        reads_windows: whether `extend_in_window` is offered.
    """

    reads_windows: bool = False

    def extend_in_window(
        self,
        tokens: Int[Tensor, "rows nodes"],
        parents: Int[Tensor, "rows nodes"],
        counts: Sequence[int] | None = None,
        *,
        sinks: int,
        window: int,
    ) -> Float[Tensor, "rows nodes vocab"]:
        """Returns the logits of drafted nodes, which see a part of the text.

        A node sees the first `sinks` and the last `window` committed tokens, its ancestors and itself. The
        keys and values of the text, and all positions, are those that `extend` reads. There are no
        uncommitted nodes before the call.

        Drafted nodes never join the uncommitted region. Their indices count on from call to call until any
        other call; only `release` keeps the drafted nodes of the rows that remain.

        Args:
            tokens: int64 `[rows, nodes]`.
            parents: int64 `[rows, nodes]`, indices of drafted nodes; -1 is the committed state.
            counts: as in `extend`.
            sinks: 0 or more.
            window: 1 or more.

        Raises:
            UnsupportedModel: the backend cannot do it.
        """
        raise UnsupportedModel(
            f"{type(self).__name__} reads no window of a text: its reads_windows is {self.reads_windows}; "
            "use a draft model."
        )


class RunsTogether(Protocol):
    """Runs a model that is spread over several processes.

    Attributes:
        ranks: the processes that run the model together with this one, which then all make the same calls;
            None: only this process.
    """

    ranks: Ranks | None = None
