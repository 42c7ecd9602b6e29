"""`Drafter`: next-token logits for the nodes of a growing tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from jaxtyping import Float, Int
from torch import Tensor

from draftwood.protocols.model_prompt import ModelPrompt, words_of
from draftwood.protocols.scored_nodes import ScoredNodes
from draftwood.protocols.state_backend import StateBackend
from draftwood.trees.level_plan import LevelPlan, Levels
from draftwood.trees.outcome import Outcome
from draftwood.trees.request import Request


class Drafter(Protocol):
    """Supplies next-token logits for the nodes a policy asks for.

    Attributes:
        vocab_size: width of its logits.
        drafters: how many distributions it gives a node; above 1 the logits are `[..., drafters, vocab]`.
        backends: those whose rows it keeps, which nobody else may use meanwhile.
        weight_bytes: bytes of its weights, which a memory-bound pass must read; 0 for a table.
        source: paper and algorithm.
        model: whose next-token logits it gives, for the checks to compare with, as in `StateBackend`; None
            where they are no model's.
        reads_scores: whether it is told what the target said of every scored node, by `scored`.
        names: of the drafters of which a request may ask one (`Request.drafter`); empty: it is one.
        remembers: whether its logits also depend on texts that were committed in other rows and in earlier
            calls. Within a round they do not depend on other requests. Sampled texts then depend on those
            texts too, but their law does not.
    """

    vocab_size: int
    drafters: int = 1
    backends: Sequence[StateBackend] = ()
    weight_bytes: int = 0
    source: str = ""
    model: Any = None
    remembers: bool = False
    reads_scores: bool = False
    names: Sequence[str] = ()

    def prefill(self, rows: Sequence[Int[Tensor, " length"]]) -> None:
        """Append rows whose text before the root is `rows[i]` `[length]` int64 (possibly empty)."""
        ...

    def prefill_prompt(self, prompt: ModelPrompt, rows: Sequence[int]) -> None:
        """Append these rows of a prompt that holds more than tokens, all of which the target has read.

        Default: the drafter reads the words, that is, the tokens without placeholders of images, videos or
        sound, and of embeddings nothing. The law of the text does not depend on it.
        """
        self.prefill(words_of(prompt, rows, vocab_size=self.vocab_size))

    def release(self, rows: Sequence[int] | None = None) -> None:
        """Forget these rows, or all of them; never raises for a row that it does not have."""
        ...

    def distributions(
        self, requests: Sequence[Request | None]
    ) -> Float[Tensor, "rows nodes *drafters vocab"]:
        """Logits `[rows, nodes, vocab]` for one request a row, padded to the longest.

        `None` where a row asks for nothing. A node where nothing is proposed gets -inf throughout. What the
        caller gives may be `Requests`, which holds all of them as one batch; `Requests.of` makes it so. The
        logits are the caller's own, to be written to.
        """
        ...

    def planned_levels(
        self, roots: Sequence[int], plan: LevelPlan, *, temperature: float = 1.0
    ) -> Levels | None:
        """Returns all levels of a round under `roots`, one per row, in one call; None: ask level by level.

        They stand for all calls of `distributions` that a policy of this plan would make, after a softmax at
        this temperature. Where it gives None, nothing has happened. Offer it where many small calls cost
        more than one large one.
        """
        return None

    def scored(self, nodes: ScoredNodes) -> None:
        """Take the target's logits of a round's nodes, rejected ones too, before the round's `commit`.

        Called where `reads_scores` is true; elsewhere it costs nothing. The logits are known before the next
        round draws anything, so whatever is proposed later may depend on them.
        """
        return

    def commit(self, outcomes: Sequence[Outcome]) -> None:
        """Keep each row's accepted path (`outcome.tokens`, root first) and drop the rest.

        Tokens may be among them that nobody asked about, such as leaves, a constraint's or the next turn of
        a chat. An outcome without tokens leaves its row's text as it is.
        """
        ...
