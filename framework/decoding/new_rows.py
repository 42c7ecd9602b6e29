"""`NewRows`: makes the rows of a session."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood.base.errors import InvalidInput
from draftwood.decoding.batch_row import BatchRow
from draftwood.decoding.prompts import as_prompts, check_length, check_prompts
from draftwood.decoding.row_settings import RowSettings
from draftwood.decoding.stopping import CriteriaBatch, RowStops, stop_string_criteria
from draftwood.distributions.constraints import ConstrainedRow, Constraint
from draftwood.distributions.processing import check_processors
from draftwood.distributions.sampling import SamplingParams
from draftwood.laws.randomness import SpawnedSeeds, Streams
from draftwood.protocols import StateBackend, TreePolicy, Verifier, policy_states
from draftwood.protocols.compatibility import check_sampling_fits
from draftwood.protocols.model_prompt import PromptRow
from draftwood.trees.prefixes import RowText


@attrs.define(eq=False)
class NewRows:
    """Makes the rows of a session from what the session sets for all and what a row sets for itself.

    Attributes:
        target: reads the prompts.
        verifier: judges the trees.
        policy: grows the trees of all rows.
        seeds: of rows that are added without one.
        defaults: settings of rows that are added without their own.
        ends: tokens that end a text.
        max_new_tokens: of rows that are added without their own.
        criteria: asked about every row.
        tokenizer: of the target, for stop strings; None: there are none.
        pad: the token that criteria see after the end of a row.
        batch: the prompts of all rows as one padded batch `[rows, length]`, or None.
        together: criteria that are asked about all rows at once, or None.
        processors: of the model's defaults, which every row applies before its own.
    """

    target: StateBackend
    verifier: Verifier
    policy: TreePolicy
    seeds: SpawnedSeeds
    defaults: RowSettings
    ends: frozenset[int]
    max_new_tokens: int
    criteria: Sequence[Any]
    tokenizer: Any
    pad: int
    batch: Tensor | None = None
    together: CriteriaBatch | None = None
    processors: Sequence[Any] = ()
    _checked: list[Any] = attrs.field(factory=list, init=False)

    def row(
        self,
        number: int,
        prompt: Sequence[int] | PromptRow,
        *,
        max_new_tokens: int | None,
        sampling: SamplingParams | None,
        draft_sampling: SamplingParams | None,
        stop_strings: str | Sequence[str] | None,
        stopping_criteria: Sequence[Any],
        logprobs: int | None,
        constraint: Constraint | None,
        policy_state: Any,
        seed: int | None,
        kept: bool,
    ) -> BatchRow:
        """Returns row `number`, all of whose prompt is unread; arguments and errors as in `Session.add`."""
        given = prompt if isinstance(prompt, PromptRow) else None
        if given is not None:
            tokens, length = given.tokens, given.length
            check_length(length, self.target, row=number)
        else:
            (tokens,) = as_prompts([prompt])
            check_prompts([tokens], self.target)
            length = len(tokens)
        (state,) = policy_states.row_states(self.policy, policy_state, 1)
        settings = self._settings(sampling, draft_sampling, logprobs)
        criteria = self._criteria_of(stop_strings, stopping_criteria)
        scores = settings.keep.scores
        return BatchRow(
            number,
            tokens[-1] if tokens else 0,  # of embeddings, before the first token is written
            self.policy,
            Streams.seeded(self.seeds.take(seed)),
            self._stops(number, tokens, max_new_tokens, criteria, scores=scores, length=length),
            settings,
            self._row_text(tokens, number, settings),
            self._constrained(constraint, tokens),
            state,
            kept=kept,
            unread=tokens,
            given=given,
        )

    def go_on(
        self,
        row: BatchRow,
        tokens: Sequence[int],
        *,
        text: Sequence[int],
        max_new_tokens: int | None,
        constraint: Constraint | None,
    ) -> list[int]:
        """Let an idle row go on after its `text` and `tokens` more; errors as in `Session.extend`.

        Returns:
            The tokens, as integers.
        """
        (more,) = as_prompts([tokens])
        whole = [*text, *more]
        check_prompts([more], self.target)
        check_prompts([whole], self.target)
        criteria = () if row.stops.criteria is None else row.stops.criteria.criteria
        constrained = self._constrained(constraint, whole)
        row.stops = self._stops(row.index, whole, max_new_tokens, criteria, scores=row.settings.keep.scores)
        row.constraint = constrained
        row.unread = more
        row.idle = False
        return more

    def _settings(
        self, sampling: SamplingParams | None, draft_sampling: SamplingParams | None, logprobs: int | None
    ) -> RowSettings:
        settings, keep = self.defaults, self.defaults.keep
        if logprobs is not None:
            keep = attrs.evolve(keep, logprobs=True, likeliest=checked_count("logprobs", logprobs, least=0))
        if sampling is not None:
            sampling = sampling.after(self.processors)
            check_sampling_fits(self.verifier, sampling)
            settings = RowSettings.of(sampling, draft_sampling)
        elif draft_sampling is not None:
            settings = attrs.evolve(settings, draft_sampling=draft_sampling)
        return settings if keep == settings.keep else attrs.evolve(settings, keep=keep)

    def _row_text(self, tokens: Sequence[int], number: int, settings: RowSettings) -> RowText | None:
        if not (settings.sampling.reads_prefix or settings.draft_sampling.reads_prefix):
            return None
        if self.batch is None:
            text = RowText.of(torch.tensor(tokens, dtype=torch.int64, device=self.target.device))
        else:
            padded = self.batch.to(self.target.device, torch.int64)
            text = RowText.of(padded[number], row=number, rows=len(padded))
        processors = [*settings.sampling.processors, *settings.draft_sampling.processors]
        known = set(map(id, self._checked))
        if unknown := [processor for processor in processors if id(processor) not in known]:
            check_processors(unknown, [text], vocab_size=self.target.vocab_size)
            self._checked += unknown
        return text

    def _constrained(self, constraint: Constraint | None, text: Sequence[int]) -> ConstrainedRow | None:
        if constraint is None:
            return None
        vocab_size = self.target.vocab_size
        return ConstrainedRow.started(constraint, text, vocab_size=vocab_size, ends=self.ends)

    def _criteria_of(self, stop_strings: str | Sequence[str] | None, criteria: Sequence[Any]) -> list[Any]:
        """The session's criteria and a row's own."""
        if (stop_strings or criteria) and self.batch is not None:
            raise InvalidInput("Rows of one padded batch share their criteria; give them to session().")
        own = [*self.criteria, *criteria]
        return own if not stop_strings else [*own, stop_string_criteria(stop_strings, self.tokenizer)]

    def _stops(
        self,
        row: int,
        text: Sequence[int],
        max_new_tokens: int | None,
        criteria: Sequence[Any],
        *,
        scores: bool,
        length: int | None = None,
    ) -> RowStops:
        """The conditions under which a row ends after `text`, which takes `length` in the context."""
        length = len(text) if length is None else length
        wish, longest = self.max_new_tokens, self.target.max_length
        if max_new_tokens is not None:
            wish = checked_count("max_new_tokens", max_new_tokens)
        # The last token takes no room in the context: nothing is read after it.
        room = wish if longest is None else longest + 1 - length
        asked = self.together
        if criteria and asked is None:
            asked = CriteriaBatch(
                criteria, [row], torch.tensor([text], dtype=torch.int64), self.pad, keeps_scores=scores
            )
        return RowStops(row, self.ends, min(wish, room), room < wish, asked, length)


def checked_count(name: str, count: Any, *, least: int = 1) -> int:
    """An integer >= `least`, or `InvalidInput`."""
    if isinstance(count, bool) or not isinstance(count, Integral):
        raise InvalidInput(f"{name} is {count!r}; give an integer.")
    if count < least:
        raise InvalidInput(f"{name} is {count}; ask for at least {least}.")
    return int(count)
