"""Self-speculation on long texts: the target drafts from the beginning and the end of the text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs
from torch import Tensor

from draftwood import Drafter, InvalidInput, Outcome, Request, Requests, StateBackend, UnsupportedModel
from draftwood.base.validators import at_least
from draftwood.protocols.model_prompt import ModelPrompt
from draftwood.strategies.drafters.requested_nodes import RequestedNodes
from draftwood.strategies.drafters.target import as_target


@attrs.define(eq=False)
class Windowed(Drafter):
    """Drafts with the target itself, over the first `sinks` and the last `window` tokens of the text.

    Needs no second model, no training and no second cache: draft passes read the target's own keys and
    values, so nothing is prefilled or committed twice. It pays where reading those takes longer than reading
    the weights: with long texts.

    Attributes:
        target: a backend that declares `reads_windows`; it must be the backend that the decoder drives.
        sinks: tokens at the beginning of the text, to which attention returns.
        window: tokens at its end; drafted ones come in addition.

    Raises:
        UnsupportedModel: the target declares that it cannot read a window.
        InvalidInput: `sinks` below 0 or `window` below 1.

    Source: StreamingLLM (Xiao et al. 2023, arXiv 2309.17453), section 3.2, for the part of the text; MagicDec
    (Chen et al. 2024, arXiv 2408.11049) drafts from it, with a second cache.
    """

    target: StateBackend = attrs.field(converter=as_target, repr=False)
    sinks: int = attrs.field(default=4, validator=at_least(0))
    window: int = attrs.field(default=512, validator=at_least(1))
    _round: RequestedNodes = attrs.field(factory=RequestedNodes, init=False, repr=False)
    source = "StreamingLLM (Xiao et al. 2023), section 3.2; MagicDec (Chen et al. 2024)"

    def __attrs_post_init__(self) -> None:
        if not self.target.reads_windows:
            raise UnsupportedModel(
                f"{type(self.target).__name__} reads no window of a text (its reads_windows is "
                f"{self.target.reads_windows}), as with recurrent layers, trees path by path, captured "
                "passes, an engine or several processes; draft with a model or by prompt lookup."
            )

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return self.target.vocab_size

    @property
    def weight_bytes(self) -> int:  # type: ignore[override]
        return self.target.weight_bytes

    def prefill(self, rows: Sequence[Tensor]) -> None:
        self._join(len(rows))

    def prefill_prompt(self, prompt: ModelPrompt, rows: Sequence[int]) -> None:
        self._join(len(rows))

    def _join(self, rows: int) -> None:
        self._round.join([[] for _ in range(rows)])
        if len(self.target.lengths) != len(self._round):
            raise InvalidInput(
                f"The drafter's target holds {len(self.target.lengths)} row(s), not the {len(self._round)} "
                "of the drafter; give the drafter the same backend object as the decoder."
            )

    def release(self, rows: Sequence[int] | None = None) -> None:
        self._round.release(rows)

    def distributions(self, requests: Sequence[Request | None]) -> Tensor:
        target, room = self.target, self.target.max_length
        fed = self._round.take(
            Requests.of(requests), lengths=() if room is None else target.lengths, room=room
        )
        logits = target.extend_in_window(
            fed.tokens, fed.parents, fed.counts.tolist(), sinks=self.sinks, window=self.window
        )
        return fed.asked(logits)

    def commit(self, outcomes: Sequence[Outcome]) -> None:
        # The target has committed the tokens, so none is lacking.
        self._round.commit([()] * len(outcomes))


def check_one_a_target(members: Iterable[Drafter]) -> None:
    """Refuse two windows over one target, which holds the drafted nodes of one drafter."""
    targets = [id(member.target) for member in members if isinstance(member, Windowed)]
    if len(set(targets)) < len(targets):
        raise InvalidInput(
            "Two windowed drafters have the same target, and it holds the drafted nodes of one; "
            "leave one out, or let the other draft with layer-skip."
        )
