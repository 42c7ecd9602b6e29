"""Cost and gain of candidates, by STree's cost model and by a contest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from draftwood import PassCosts, measure_costs
from draftwood.apps.bench.specs import ORDINARY, Spec
from draftwood.apps.bench.writers import Text, Writer, writer
from draftwood.apps.files.machine import device_name
from draftwood.apps.models import by_name as models
from draftwood.apps.models import drafters_by_name as drafters
from draftwood.decoding.measured_costs import NODES
from draftwood.decoding.timed_rounds import TOKENS as ROUND_TOKENS

_WARM = 4  # tokens that a candidate writes before it is timed
CONTEXT = 128  # tokens after which passes are timed
TIMING_SECONDS = 15.0  # for rounds of one number of rows
LARGE = (64, 128)  # sizes in addition to `NODES`


@attrs.frozen
class Estimate:
    """The cost model's estimate of a candidate.

    Attributes:
        label: the candidate.
        prompts: number of texts that the estimate rests on.
        tokens_per_round: expected tokens of a round, from the trial.
        acceptance_rate: accepted over drafted tokens.
        tree_size: mean number of drafted tokens in a tree.
        draft_calls: of a round.
        draft_seconds: of a round, for its draft calls.
        target_seconds: of a target pass over the tree.
        other_seconds: of a round, for all else: growing the tree, verification, commit.
        gain: tokens per second divided by ordinary decoding's.
    """

    label: str
    prompts: int
    tokens_per_round: float
    acceptance_rate: float
    tree_size: float
    draft_calls: float
    draft_seconds: float
    target_seconds: float
    other_seconds: float
    gain: float


@attrs.frozen
class ContestResult:
    """A candidate's result in the contest.

    Attributes:
        label: the candidate.
        gain: tokens per second divided by ordinary `generate`'s, all prompts together.
        won: prompts on which it was faster.
        prompts: of the contest.
        equal: whether all texts equal `generate`'s; None above temperature 0, where chance decides.
    """

    label: str
    gain: float
    won: int
    prompts: int
    equal: bool | None


def pass_costs(
    loaded: models.Loaded, largest: int, rows: Sequence[int], tokens: Sequence[int], *, temperature: float
) -> PassCosts:
    """Measures passes of up to `largest` nodes and the root, over text `tokens`; see `measure_costs`."""
    longest = models.context(loaded.target) or 4 * largest + 2 * CONTEXT
    context = min(CONTEXT, longest // 2)
    nodes = {*(size for size in NODES if size <= largest), *(size for size in LARGE if size < largest)}
    return measure_costs(
        loaded.target,
        None if loaded.draft is None else drafters.model_drafter(loaded),
        nodes=[size for size in (*nodes, largest + 1) if context + size + ROUND_TOKENS <= longest],
        rows=rows,
        contexts=(context,),
        tokens=tokens,
        temperature=temperature,
        seconds=TIMING_SECONDS,
        machine=device_name(loaded.target.device),
    )


def estimate(label: str, texts: Sequence[Text], costs: PassCosts) -> Estimate:
    """A candidate by the cost model, from what its texts took.

    Tokens of a round over the time of its draft calls, its target pass and all else; ordinary decoding has
    one token and a pass over one. The nodes of a tree count as spread evenly over its draft calls. Of the
    trial's times only what no pass explains enters, as all else.

    Source: STree, section 4.3, equations 7 and 8 (arXiv 2505.14969), with the draft's calls and all else
    added to the time of a round.
    """
    rounds = sum(text.rounds for text in texts)
    calls, drafted, accepted, draft_spent, target_spent, prompts_spent = (
        sum(getattr(text, name) or 0 for text in texts)
        for name in (
            "draft_calls",
            "drafted",
            "accepted",
            "draft_seconds",
            "target_seconds",
            "prefill_seconds",
        )
    )
    tree, per_call = drafted / rounds, round(drafted / calls) if calls else 0
    one_call = costs.draft(max(per_call, 1)) if costs.draft else (draft_spent / calls if calls else 0.0)
    draft = calls / rounds * one_call
    target = costs.target(1 + round(tree))
    # An accelerator's passes go on after their calls, so a pass is charged at the longer of both times.
    passes = max(draft_spent, draft * rounds) + max(target_spent, target * rounds)
    other = max(sum(text.seconds for text in texts) - prompts_spent - passes, 0.0) / rounds
    tokens = 1 + accepted / rounds
    return Estimate(
        label=label,
        prompts=len(texts),
        tokens_per_round=tokens,
        acceptance_rate=accepted / drafted if drafted else 0.0,
        tree_size=tree,
        draft_calls=calls / rounds,
        draft_seconds=draft,
        target_seconds=target,
        other_seconds=other,
        gain=tokens * costs.target(1) / (draft + target + other),
    )


@attrs.frozen(eq=False)
class TuneTrial:
    """A pair at a temperature with the prompts it is tried on.

    Attributes:
        loaded: the models.
        prompts: as tokens.
        temperature: of the target.
        seed: of the first prompt's draws; each further prompt has the next.
    """

    loaded: models.Loaded
    prompts: Sequence[Sequence[int]]
    temperature: float
    seed: int

    def contest(self, specs: Sequence[Spec], *, tokens: int) -> Iterator[dict[str, Text]]:
        """Prompt by prompt the texts of ordinary `generate` and of every candidate.

        They take turns, and who begins changes from prompt to prompt, so that a slow moment of the machine
        falls on all of them.
        """
        entrants = [(spec.label, self.warmed(spec)) for spec in (Spec(ORDINARY), *specs)]
        for number, prompt in enumerate(self.prompts):
            first = number % len(entrants)
            yield {
                label: one.write(prompt, tokens, self.seed + number)
                for label, one in (*entrants[first:], *entrants[:first])
            }

    def warmed(self, spec: Spec) -> Writer:
        """Returns the writer of a candidate, which has written a few tokens."""
        made = writer(spec, self.loaded, self.temperature)
        made.write(self.prompts[0], _WARM, self.seed)
        return made


def contest_result(label: str, contest: Sequence[dict[str, Text]], *, greedy: bool) -> ContestResult:
    """Returns the result of `label` against ordinary `generate`."""
    pairs = [(texts[label], texts[ORDINARY]) for texts in contest]
    return ContestResult(
        label=label,
        gain=sum(plain.seconds for _, plain in pairs) / sum(own.seconds for own, _ in pairs),
        won=sum(own.seconds < plain.seconds for own, plain in pairs),
        prompts=len(pairs),
        equal=all(own.tokens == plain.tokens for own, plain in pairs) if greedy else None,
    )
