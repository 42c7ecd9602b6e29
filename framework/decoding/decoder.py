"""`SpeculativeDecoder`: one target, one drafter, one policy, one verifier."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import closing
from os import PathLike
from typing import Any, TypeVar, Unpack, cast

import attrs
import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.base.errors import IncompatibleModels, InvalidInput, stop_iteration_as_it_is
from draftwood.decoding.generation import Generation, PartialGeneration
from draftwood.decoding.kept_text import Turn, renew
from draftwood.decoding.loop import RoundLoop
from draftwood.decoding.model_defaults import ModelDefaults
from draftwood.decoding.new_rows import NewRows, checked_count
from draftwood.decoding.prompts import as_prompts, check_prompts, left_padded
from draftwood.decoding.round_records import Round, Statistics, TokenDetails
from draftwood.decoding.row_settings import RowSettings
from draftwood.decoding.session import Session
from draftwood.decoding.stopping import CriteriaBatch, stop_string_criteria
from draftwood.decoding.text_options import TextOptions, check_names
from draftwood.distributions.constraints import Constraint
from draftwood.distributions.sampling import SamplingParams
from draftwood.laws.randomness import SpawnedSeeds, row_seeds
from draftwood.protocols import Drafter, StateBackend, TreePolicy, Verifier, policy_states, registry
from draftwood.protocols.compatibility import check_drafters_fit, check_sampling_fits, check_strategy_fits
from draftwood.protocols.model_prompt import ModelPrompt, PromptRow, has_holes
from draftwood.protocols.named_heads import NamedHead, check_no_head, named_head
from draftwood.protocols.pass_costs import PassCosts
from draftwood.protocols.shape import check_shape
from draftwood.protocols.vocabulary import fit_vocabulary

Seeds = TypeVar("Seeds", int, list[int])

log = logging.getLogger(__name__)


def as_backend(target: Any) -> StateBackend:
    """`target` itself, or the backend of a model object, folder or hub name."""
    if not isinstance(target, (str, PathLike, torch.nn.Module)):
        return cast(StateBackend, target)
    check_no_head(target)
    return registry.load(target)


def is_model(drafter: Any) -> bool:
    """Returns whether `drafter` is a backend, model object, folder or hub name."""
    return isinstance(drafter, (str, PathLike, torch.nn.Module)) or StateBackend in type(drafter).__mro__


def as_drafter(drafter: Any) -> Any:
    """Returns `drafter` itself, or the drafter that a backend, model object, folder or hub name makes.

    A head, of whatever name, is a `NamedHead` until its target is known.
    """
    if not is_model(drafter):
        return drafter
    return named_head(drafter) or registry.get("drafters", "model")(drafter)


@attrs.define(eq=False)
class SpeculativeDecoder:
    """One target, one drafter, one policy, one verifier.

    Args:
        target: a `StateBackend`, or a model object, folder or hub name that one can be made for.
        drafter: a `Drafter`, or a model or backend that drafts, or a head: a module, folder or hub name.
        policy: grows the trees.
        verifier: accepts a path.
        follows_defaults: whether penalties, suppressed tokens and their kin in the target's generation config
            hold for every text, before the processors of `sampling`, as in `generate`; see `ModelDefaults`.
        pass_costs: seconds of passes, for a policy that weighs them (`RowView.costs`); see
            `draftwood.measure_costs`.

    Raises:
        IncompatibleStrategy: the verifier cannot judge the policy's trees.
        IncompatibleModels: target and drafter have different vocabularies.
        InvalidInput: the policy learns, and its state is not one that can be passed on.
    """

    target: StateBackend = attrs.field(converter=as_backend)
    drafter: Drafter = attrs.field(converter=as_drafter)
    policy: TreePolicy
    verifier: Verifier
    follows_defaults: bool = attrs.field(default=True, kw_only=True)
    pass_costs: PassCosts | None = attrs.field(
        default=None,
        kw_only=True,
        validator=attrs.validators.optional(attrs.validators.instance_of(PassCosts)),
    )
    _said: set[str] = attrs.field(factory=set, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if isinstance(self.drafter, NamedHead):
            self.drafter = self.drafter.drafter_for(self.target)
        for part in (self.target, self.drafter, self.policy, self.verifier):
            check_shape(part)
        check_strategy_fits(self.policy, self.verifier)
        check_drafters_fit(self.policy, self.drafter)
        policy_states.first_state(self.policy)
        fit_vocabulary(self.drafter, self.target.vocab_size)
        if any(backend is self.target for backend in self.drafter.backends):
            raise IncompatibleModels(
                "Target and drafter are one backend, which holds one state per row; load the model a second "
                "time for the drafter (the weights are shared)."
            )

    def generate(
        self,
        input_ids: Tensor | Sequence[Sequence[int]] | ModelPrompt,
        attention_mask: Tensor | None = None,
        *,
        constraint: Constraint | Sequence[Constraint] | None = None,
        policy_state: Any = None,
        seed: int | Sequence[int] | None = None,
        streamer: Any = None,
        output_logprobs: bool = False,
        output_scores: bool = False,
        output_logits: bool = False,
        return_dict_in_generate: bool = False,
        **options: Unpack[TextOptions],
    ) -> Tensor | Generation:
        """Write up to `max_new_tokens` after every prompt.

        Args:
            input_ids: `[rows, length]` integers, hidden where `attention_mask` is 0, as on padding; or a
                list of token lists. A tensor is returned unchanged, followed by the new tokens. Or a
                `ModelPrompt`, for images, sound or embeddings, whose `ids` are returned in the same way.
            constraint: the tokens that may be written: one constraint for all rows, or one per row.
            policy_state: initial state of a policy that learns: one for all rows, or a list with one per row,
                as `Generation.policy_states` of an earlier call. Default: the policy's first state.
            seed: row 0 draws from `seed`, the others from seeds spawned from it; or row i from `seed[i]`.
                `Generation.seeds` names them. Default: torch's global generator, or 0 at temperature 0.
            streamer: a `transformers` streamer; one row only, as there. Its `end()` is always called.
            output_logprobs: return `Generation.logprobs`.
            output_scores: return `Generation.scores`; this needs memory for one vocabulary per token.
            output_logits: return `Generation.logits`; this needs as much memory.
            options: see `TextOptions`.

        Returns:
            The sequences, or a `Generation` with `return_dict_in_generate`. Ctrl-C ends all rows and returns
            the text written so far.
        """
        check_names(options)
        given = input_ids if isinstance(input_ids, ModelPrompt) else None
        if given is not None and attention_mask is not None:
            raise InvalidInput("A ModelPrompt holds its own attention_mask; give it to ModelPrompt.of().")
        if given is None:
            given = self._by_forward(input_ids, attention_mask)
        ids = input_ids if given is None else given.ids
        prompts = as_prompts(ids, attention_mask) if given is None else given.texts
        if streamer is not None and len(prompts) > 1:
            raise InvalidInput(f"A streamer shows one row and {len(prompts)} were given; call once per row.")
        keep = TokenDetails(logits=output_logits, scores=output_scores, logprobs=output_logprobs)
        states = policy_states.row_states(self.policy, policy_state, len(prompts))
        statistics, written = Statistics(), PartialGeneration.nothing(states)
        sampling = options.get("sampling")
        if seed is None and (sampling is None or sampling.temperature == 0):
            seed = 0  # nothing of a greedy text is drawn, and torch's generator stays as it is
        seeds = self._agreed(row_seeds(seed, len(prompts)))
        gradients = torch.is_grad_enabled()
        try:
            if streamer is not None:
                streamer.put(torch.tensor([prompts[0]]))
            rounds = self.stream(
                prompts if given is None else given,
                constraint=constraint,
                policy_state=policy_state,
                seed=seeds,
                keep=keep,
                statistics=statistics,
                **options,
            )
            with closing(rounds), stop_iteration_as_it_is:
                for finished_round in rounds:
                    written.add(finished_round)
                    if streamer is not None:
                        streamer.put(torch.tensor(finished_round.rows[0].tokens))
        except KeyboardInterrupt:
            pass
        finally:
            # Ctrl-C may fall between the end of a pass and the line that switches autograd on again. This
            # is a single step in C, where torch.set_grad_enabled() could be interrupted itself.
            torch._C._set_grad_enabled(gradients)
            if streamer is not None:
                streamer.end()
        pad = self._pad(options.get("pad_token_id"))
        padded_prompts = torch.atleast_2d(ids) if isinstance(ids, Tensor) else left_padded(prompts, pad)
        generation = written.generation(padded_prompts, statistics, seeds, pad=pad, keep=keep)
        return generation if return_dict_in_generate else generation.sequences

    def stream(
        self,
        prompts: Sequence[Sequence[int]] | ModelPrompt,
        *,
        constraint: Constraint | Sequence[Constraint] | None = None,
        policy_state: Any = None,
        seed: int | Sequence[int] | None = None,
        keep: TokenDetails | None = None,
        statistics: Statistics | None = None,
        padded: Int[Tensor, "rows length"] | None = None,
        turn: Turn | None = None,
        **options: Unpack[TextOptions],
    ) -> Generator[Round, None, None]:
        """The rounds as they happen: `round.rows[i].tokens` are the tokens just committed.

        Whatever ends the iteration (the last row, an error, the caller), the rows' state is released.

        Args:
            prompts: token ids of every row, or a `ModelPrompt`.
            constraint: as in `generate`, and so are `policy_state` and `seed`.
            policy_state: see `constraint`.
            seed: see `constraint`.
            keep: details that the records hold besides tokens.
            statistics: filled on the way.
            padded: the prompts as one batch `[rows, length]`, which processors and criteria are then shown as
                transformers' `generate` shows it.
            turn: the state from which one row continues; it is filled when the row's text has ended.
            options: see `TextOptions`.
        """
        rows: Sequence[Sequence[int] | PromptRow]
        if isinstance(prompts, ModelPrompt):
            rows = prompts.rows
        else:
            rows = texts = as_prompts(prompts)
            check_prompts(texts, self.target)
        constraints = _per_row(constraint, len(rows))
        states = policy_states.row_states(self.policy, policy_state, len(rows))
        seeds = self._agreed(row_seeds(seed, len(rows)))
        session = self.session(
            seed=0,  # every row has its own
            keep=keep,
            statistics=statistics,
            padded=padded,
            turn=turn,
            begins=prompts.ids.shape[1] if isinstance(prompts, ModelPrompt) and prompts.encoded else None,
            **options,
        )
        for row, (of_row, state, row_seed) in enumerate(zip(constraints, states, seeds, strict=True)):
            kept = turn is not None
            session.add(rows[row], constraint=of_row, policy_state=state, seed=row_seed, kept=kept)
        if turn is not None and turn.past is not None:
            session.go_on(turn.past)
        try:
            with session:
                while session.unfinished:
                    finished_round = session.run()
                    for record in finished_round.rows:
                        if record.error is not None:
                            raise record.error
                    if turn is not None and not session.unfinished:
                        turn.kept = session.keep(pictured=turn.pictured)
                    yield finished_round
        finally:
            session.close()  # Ctrl-C may fall between the lock and the block

    def session(
        self,
        *,
        seed: int | None = None,
        keep: TokenDetails | None = None,
        statistics: Statistics | None = None,
        padded: Int[Tensor, "rows length"] | None = None,
        turn: Turn | None = None,
        begins: int | None = None,
        **options: Unpack[TextOptions],
    ) -> Session:
        """A session without rows, which join, leave and go on between its rounds.

        The options hold for rows that are added without their own; seeds of rows that are added without one
        are spawned from `seed`. `begins` is the number of tokens with which texts of an encoder-decoder
        begin; its forced tokens, and tokens suppressed at the beginning, are then followed. The other
        arguments are the arguments of `stream`.
        """
        check_names(options)
        renew(self.target, self.drafter, past=None if turn is None else turn.past)
        sampling, tokenizer = options.get("sampling"), options.get("tokenizer")
        criteria = list(options.get("stopping_criteria", ()))
        if stop_strings := options.get("stop_strings"):
            criteria.append(stop_string_criteria(stop_strings, tokenizer))
        if (max_rows := options.get("max_rows")) is not None:
            max_rows = checked_count("max_rows", max_rows)
        if padded is not None and max_rows is not None:
            raise InvalidInput("Rows of one padded batch are written together; leave max_rows out.")
        asked = options.get("eos_token_id")
        given = self.target.eos_token_ids if asked is None else asked
        ends = frozenset([given] if isinstance(given, int) else given)
        longest = checked_count("max_new_tokens", options.get("max_new_tokens", 128))
        processors = self._defaults(
            ends, sampled_by_default=sampling is None, begins=begins, longest=(begins or 0) + longest
        )
        sampling = (sampling or SamplingParams()).after(processors)
        check_sampling_fits(self.verifier, sampling)
        keep, pad = keep or TokenDetails(), self._pad(options.get("pad_token_id"))
        together = None
        if criteria and padded is not None:
            alone = bool(ends) or any(hasattr(one, "eos_token_id") for one in criteria)
            rows, batch = range(len(padded)), padded.to(torch.int64)
            together = CriteriaBatch(criteria, rows, batch, pad, alone, keeps_scores=keep.scores)
        statistics = statistics if statistics is not None else Statistics()
        statistics.draft_cost = _draft_cost(self.drafter, self.target)
        loop = RoundLoop(
            target=self.target,
            drafter=fit_vocabulary(self.drafter, self.target.vocab_size),
            verifier=self.verifier,
            trace=options.get("trace", False),
            costs=self.pass_costs,
        )
        new = NewRows(
            self.target,
            self.verifier,
            self.policy,
            SpawnedSeeds(self._agreed(SpawnedSeeds(seed).take())),
            RowSettings.of(sampling, options.get("draft_sampling"), keep),
            ends,
            processors=processors,
            max_new_tokens=longest,
            criteria=criteria,
            tokenizer=tokenizer,
            pad=pad,
            batch=padded,
            together=together,
        )
        return Session(loop, new, max_rows, statistics)

    def _defaults(
        self, ends: frozenset[int], *, sampled_by_default: bool, begins: int | None, longest: int
    ) -> tuple[Any, ...]:
        """Returns the processors of the target's own defaults; logs once which settings are left out."""
        if not self.follows_defaults:
            return ()
        defaults = ModelDefaults.of(
            self.target.model, ends=ends, device=self.target.device, begins=begins, longest=longest
        )
        left_out = (*defaults.left_out, *(defaults.sampling if sampled_by_default else ()))
        if left_out and (said := ", ".join(left_out)) not in self._said:
            self._said.add(said)
            log.warning(
                "The generation config of %s asks for %s, which a SpeculativeDecoder leaves out; give it as "
                "an argument of the call, or use generate(custom_generate=...).",
                type(self.target.model).__name__,
                said,
            )
        return defaults.processors

    def _by_forward(self, input_ids: Any, mask: Any) -> ModelPrompt | None:
        """Returns the prompts if what the mask hides takes the model's own forward to read; else None."""
        model = self.target.model
        if not isinstance(input_ids, Tensor) or mask is None or not hasattr(model, "generate"):
            return None
        ids, mask = torch.atleast_2d(input_ids), torch.atleast_2d(torch.as_tensor(mask))
        if mask.shape != ids.shape or bool(mask.all()):
            return None
        if not has_holes(mask) and not self.target.reads_padding:
            return None
        return ModelPrompt.of(model, ids, attention_mask=mask)

    def _agreed(self, seeds: Seeds) -> Seeds:
        """These seeds; where several processes run the target, the first one's."""
        return seeds if self.target.ranks is None else self.target.ranks.agreed(seeds)

    def _pad(self, pad_token_id: int | None) -> int:
        pad = pad_token_id if pad_token_id is not None else self.target.pad_token_id
        return pad if pad is not None else next(iter(self.target.eos_token_ids), 0)


def _draft_cost(drafter: Drafter, target: StateBackend) -> float:
    return drafter.weight_bytes / target.weight_bytes if target.weight_bytes else 0.0


def _per_row(constraint: Constraint | Sequence[Constraint] | None, rows: int) -> list[Constraint | None]:
    per_row: list[Constraint | None]
    per_row = list(constraint) if isinstance(constraint, Sequence) else [constraint] * rows
    if len(per_row) != rows:
        raise InvalidInput(f"{len(per_row)} constraints were given for {rows} rows; give one per row.")
    return per_row
