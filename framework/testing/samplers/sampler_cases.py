"""Test cases for a foreign sampler: toy models of many kinds, and the drafts that they make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.base.errors import InvalidInput
from draftwood.distributions.sampling import SamplingParams
from draftwood.laws.proposals import Proposal
from draftwood.testing.models.small_strategies import toy_drafter
from draftwood.testing.models.toy import NextTokenModel, ToyModel
from draftwood.testing.models.tree_shapes import Shape, ShapedPolicy
from draftwood.testing.proofs.block_efficiency import drawn_trees, target_distributions
from draftwood.testing.samplers.rounded_models import held_by, wide
from draftwood.trees.tree import TokenTree

PROMPT = (0,)

PLAIN = SamplingParams(temperature=1.0)
"""Settings that leave the target as it is."""

_FEW_TOKENS = 12
"""Tokens up to which there are models for thresholds too: with more of them a proof takes a minute."""


@attrs.frozen(eq=False)
class SamplerCase:
    """One draft, as an engine hands it to its sampler.

    Row 0 of the target is its distribution after the last committed token, row `i + 1` after drafted token
    `i` (on that token's own path). In a batch every tensor but `parents` has one dimension more in front.

    Attributes:
        draft_tokens: int64 `[n]`, numbered level by level; siblings in the order in which they were drawn.
        parents: int64 `[n]`: the target's row that each drafted token follows; `0 .. n-1` in a chain.
        target_probs: `[n + 1, vocab]`.
        draft_probs: `[n, vocab]`: the draft's distribution after the same row, for every drafted token.
            Siblings share it: what the law takes away for earlier siblings is not taken away here, and a
            deterministic draft has it too, though its tokens were not drawn from it.
        law: how the tokens of one row's children were drawn.
        uniforms: `[k]` numbers in [0, 1), of the dtype of the probabilities, float32 at least; empty if none
            were asked for.
        target_logits: `[n + 1, vocab]`: the target's logits before `settings`, for samplers that apply them
            themselves; float32 at least. `target_probs` is the distribution after them.
        settings: the row's settings; in a batch one for each row.
    """

    draft_tokens: Int[Tensor, "*rows n"]
    parents: Int[Tensor, " n"]
    target_probs: Float[Tensor, "*rows n1 vocab"]
    draft_probs: Float[Tensor, "*rows n vocab"]
    law: type[Proposal]
    uniforms: Float[Tensor, "*rows k"]
    target_logits: Float[Tensor, "*rows n1 vocab"] = attrs.field(
        default=attrs.Factory(lambda case: case.target_probs.log(), takes_self=True)
    )
    settings: tuple[SamplingParams, ...] = (PLAIN,)

    def children(self, row: int) -> list[int]:
        """Returns the indices in `draft_tokens` of the tokens after a row of the target, in drawn order."""
        return [index for index, parent in enumerate(self.parents.tolist()) if parent == row]


def copied(case: SamplerCase) -> SamplerCase:
    """Returns the case with copies of all its tensors: a sampler may write to its arguments."""
    fields: dict[str, Any] = attrs.asdict(case, recurse=False)
    copies: dict[str, Any] = {name: one.clone() for name, one in fields.items() if isinstance(one, Tensor)}
    return attrs.evolve(case, **copies)


@attrs.frozen(eq=False)
class Draft:
    """A draft with the probability that it is made, its tree, and the target with the row's settings."""

    weight: float
    case: SamplerCase
    tree: TokenTree
    target_probs: Tensor
    target: NextTokenModel


@attrs.frozen(eq=False)
class SettledModel(NextTokenModel):
    """A target whose distribution has been changed by a request's settings."""

    model: NextTokenModel = attrs.field(kw_only=True)
    settings: SamplingParams = attrs.field(kw_only=True)

    def logits(self, text: Sequence[int]) -> Tensor:
        return self.settings.distribution(self.model.logits(text).unsqueeze(0))[0].log()


def settled(model: NextTokenModel, settings: SamplingParams) -> NextTokenModel:
    """Returns the model with these settings; the model itself where they change nothing."""
    if settings == PLAIN:
        return model
    if settings.processors:
        raise InvalidInput(
            f"The settings have processors ({settings.processors}); leave them out: a proof of a "
            "sampler takes temperature, top_k, top_p and min_p."
        )
    return SettledModel(model.vocab_size, settings=settings, model=model)


def sampler_models(vocab_size: int = 3, *, seed: int = 0) -> dict[str, tuple[NextTokenModel, NextTokenModel]]:
    """Pairs of target and draft by name; in each of them some kind of mistake shows, or cannot be told.

    Vocabularies of more than 12 tokens have two pairs less. Another seed gives others of the same kinds.
    """

    def model(number: int, **options: Any) -> NextTokenModel:
        return ToyModel(vocab_size, number + 100 * seed, **options)

    plain, sure = model(1), model(106, sharpness=3.5)
    surer = settled(sure, SamplingParams(temperature=0.5))
    models = {
        "plain": (plain, model(2)),
        "sharp": (model(3, sharpness=5.0), model(4, sharpness=5.0)),
        "flat": (model(6, sharpness=0.2), model(7, sharpness=0.2)),
        "a target that forbids tokens": (model(40, sparsity=0.5), model(2)),
        "a draft that lacks tokens": (plain, model(8, sparsity=0.5)),
        "both one-hot": (model(9, sparsity=1.0), model(10, sparsity=1.0)),
        "draft and target equal": (plain, plain),
        "a draft near the target": (plain, model(11, near=plain, mix=0.9)),
    }
    if vocab_size > _FEW_TOKENS:
        return models
    # Thresholds for likely tokens, and rules for residuals of next to nothing, show only where both are sure.
    return models | {
        "a draft surer than the target": (sure, surer),
        "a target surer than the draft": (surer, sure),
    }


def shape_of(parents: Sequence[int]) -> Shape:
    """Returns the nested shape of a tree whose drafted token `i` follows row `parents[i]`."""
    below: list[list[Shape]] = [[] for _ in range(len(parents) + 1)]
    for index, parent in enumerate(parents):
        if not 0 <= parent <= index:
            raise InvalidInput(
                f"Drafted token {index} has the parent row {parent}; give 0 for the root, or i + 1 for an "
                "earlier drafted token i."
            )
    for row in range(len(parents), 0, -1):
        below[parents[row - 1]].insert(0, tuple(below[row]))
    return tuple(below[0])


def drafts(
    target: NextTokenModel,
    draft: NextTokenModel,
    *,
    parents: Sequence[int],
    law: type[Proposal],
    dtype: torch.dtype = torch.float64,
    settings: SamplingParams = PLAIN,
) -> list[Draft]:
    """Every draft of the shape that `draft` makes by `law`, without its uniforms.

    Where the law runs out of tokens a draft has fewer of them. The settings apply to the target. Both models
    are rounded to probabilities that `dtype` holds exactly, if it has few bits.
    """
    raw, target = target, held_by(dtype, settled(target, settings))
    draft = held_by(dtype, draft)
    policy = ShapedPolicy(shape_of(parents), law)
    made = []
    for weighted in drawn_trees(policy, toy_drafter(policy, draft), prompt=PROMPT):
        tree = weighted.tree
        rows = target_distributions(tree, target, PROMPT, 1.0)
        above = tree.parents[1 : len(tree)]
        proposed = target_distributions(tree, draft, PROMPT, 1.0)[above]
        case = SamplerCase(
            draft_tokens=tree.tokens[1 : len(tree)],
            parents=above,
            target_probs=rows.to(dtype),
            draft_probs=proposed.to(dtype),
            law=law,
            uniforms=torch.zeros(0, dtype=wide(dtype)),
            target_logits=(rows if settings == PLAIN else target_distributions(tree, raw, PROMPT, 1.0))
            .log()
            .to(wide(dtype)),
            settings=(settings,),
        )
        made.append(Draft(weighted.weight, case, tree, rows, target))
    return made


def likely_breaks(draft: Draft) -> Iterator[float]:
    """Yields guesses of uniforms at which a sampler's decision about this draft may change."""
    tree, rows = draft.tree, draft.target_probs
    for node in range(len(tree)):
        left, shared = rows[node], 0.0
        earlier: list[int] = []
        yield from left.cumsum(0).tolist()
        for rank, child in enumerate(tree.children(node)):
            token = int(tree.tokens[child])
            law = tree.proposals[node].conditional(rank, tuple(earlier)).double()
            shared += float(rows[node][token])
            yield shared
            for proposed in (law, draft.case.draft_probs[child - 1].double()):
                yield float(left[token] / proposed[token])
            left = residual(left, law)
            yield from left.cumsum(0).tolist()
            earlier.append(token)


def residual(target: Tensor, draft: Tensor) -> Tensor:
    """Returns max(target - draft, 0), divided by its sum; the target where nothing is left."""
    rest = (target - draft).clamp(min=0)
    return rest / rest.sum() if rest.any() else target


Models = Mapping[str, tuple[NextTokenModel, NextTokenModel]]
"""By name: a target and a draft over one vocabulary."""
