"""Every mistake with its story and the case that betrays it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import LogitsProcessor

from draftwood import Randomness, TokenTree
from draftwood.base.scratch import Scratch
from draftwood.decoding import round_distributions
from draftwood.decoding.batch_row import BatchRow
from draftwood.decoding.running_rows import RunningRows
from draftwood.decoding.stopping import RowStops
from draftwood.laws import randomness
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.drafters.several import Several
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.block import Block
from draftwood.strategies.verifiers.class_ordered_traversal import ClassOrderedTraversal
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.residual import Residual
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.strategies.verifiers.typical import Typical
from draftwood.testing import NextTokenModel, ToyBackend, ToyModel
from tests.mutations import policies, verifiers
from tests.mutations.case import Case, Mutation
from tests.mutations.chance import MostLikely, OnGrid, Rounded
from tests.mutations.policies import Changed
from tests.mutations.verifiers import Misled


@attrs.frozen(eq=False)
class Flat(NextTokenModel):
    """The tokens of `support` are equally likely, in every context.

    With a power of two of them the probabilities are exact.
    """

    support: tuple[int, ...] = ()

    def logits(self, text: object) -> Tensor:
        logits = torch.full((self.vocab_size,), -torch.inf, dtype=torch.float64)
        logits[list(self.support)] = 0
        return logits


def drafter(model: NextTokenModel) -> ModelDrafter:
    return ModelDrafter(ToyBackend(model))


TARGET, DRAFT = ToyModel(3, seed=1), ToyModel(3, seed=7)
RIGHT = RecursiveRejection()
CHAIN = Case(Chain(2), RIGHT, TARGET, drafter(DRAFT))
PAIR = attrs.evolve(CHAIN, policy=FixedTree(1, 2))
TREE = attrs.evolve(CHAIN, policy=FixedTree(2, 2, 3))
# A coin, or a draw, from 256 uniforms is exact here; half of what the draft proposes the target forbids.
EXACT = attrs.evolve(
    CHAIN,
    policy=Changed(Chain(1), stream=OnGrid),
    verifier=Misled(verifiers.CoinAlone(), stream=OnGrid),
    target=Flat(4, support=(1, 2)),
    tokens=2,
    drafter=drafter(Flat(4, support=(0, 1, 2, 3))),
)


def by_scores(change: Callable[[BatchRow, TokenTree, Tensor], Tensor]) -> Any:
    """`round_distributions.scored` with the scores that `change` makes of a row's logits."""

    def scored(
        batch: RunningRows, trees: Sequence[TokenTree], logits: Tensor, scratch: Scratch
    ) -> tuple[list[Tensor], list[Tensor]]:
        rows = batch.rows
        scores = [change(row, tree, of_row) for row, tree, of_row in zip(rows, trees, logits, strict=True)]
        probs = round_distributions.target_probs
        return scores, [probs(row, one) for row, one in zip(rows, scores, strict=True)]

    return scored


def unscaled(row: object, tree: TokenTree, logits: Tensor) -> Tensor:
    """Scores without the sampling parameters."""
    return logits[: len(tree)]


def seen_from_the_root(row: BatchRow, tree: TokenTree, logits: Tensor) -> Tensor:
    """Scores whose processors see the root's context at every node."""
    return row.settings.sampling.scores(logits[: len(tree)], row.prefixes([()] * len(tree)))


class RepeatsLess(LogitsProcessor):
    """Makes the last token of the context less likely."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores.scatter_add(1, input_ids[:, -1:], torch.full_like(scores[:, :1], -2.0))


def at_or_above(heights: NDArray[np.float64], u: float) -> int:
    """`randomness._at` with a test that is not strict."""
    return int(heights.searchsorted(u * heights[-1]))


def last_token_alone(
    self: RowStops, new: tuple[int, ...], scores: object = None
) -> tuple[tuple[int, ...], str | None]:
    """`RowStops.take` that only looks at the last token of a round."""
    kept = new[: self.room]
    self.written += len(kept)
    if kept[-1] in self.eos_token_ids:
        return kept, "eos"
    return kept, "length" if not self.room else None


def as_a_chain(self: ToyBackend, tokens: Tensor, parents: Tensor, counts: object = None) -> Tensor:
    """`ToyBackend.extend` whose nodes see all nodes before them."""
    return _extend(self, tokens, torch.arange(-1, tokens.shape[1] - 1).expand_as(tokens))


_extend = ToyBackend.extend


def coarse(rng: Randomness) -> Randomness:
    return OnGrid(rng, points=256)


MUTATIONS = [
    Mutation(
        "the draft's noise is used again for the token after a rejection",
        "vllm#47386: 63 % where 60 % was meant",
        CHAIN,
        {"verifier": verifiers.DraftNoiseAgain()},
    ),
    Mutation(
        "uniforms of 8 bits",
        "vllm#51367: low resolution starves the tail",
        attrs.evolve(CHAIN, tokens=2),
        {"policy": Changed(Chain(2), stream=coarse), "verifier": Misled(RIGHT, stream=coarse)},
        breaks_law_p=True,
    ),
    Mutation(
        "the target's temperature is not applied",
        "vllm#10198",
        attrs.evolve(CHAIN, temperature=0.7),
        patch=(round_distributions, "scored", by_scores(unscaled)),
    ),
    Mutation(
        "processors that read the prefix see the root's at every node",
        "grammars and penalties on trees",
        attrs.evolve(CHAIN, policy=Chain(1), carried=True, processors=(RepeatsLess(),)),
        patch=(round_distributions, "scored", by_scores(seen_from_the_root)),
    ),
    Mutation(
        "block verification that accepts token by token",
        "vllm-ascend#7807",
        attrs.evolve(CHAIN, verifier=Block()),
        patch=(Residual, "chance", verifiers.chance_of_the_token),
    ),
    Mutation(
        "block verification with the residual of token-wise rejection",
        "vllm-ascend#7807",
        attrs.evolve(CHAIN, verifier=Block()),
        patch=(Residual, "reject", verifiers.residual_of_the_token),
    ),
    Mutation(
        "the coin's test is coin <= p, and the coin may be 0",
        "sglang#35771: a token of probability 0 accepted",
        EXACT,
        {"verifier": Misled(verifiers.CoinAlone(), stream=partial(OnGrid, closed=True))},
    ),
    Mutation(
        "an inverse CDF whose test is not strict",
        "the same at u = 0: a token of probability 0 drawn",
        EXACT,
        patch=(randomness, "_at", at_or_above),
    ),
    Mutation(
        "nodes are judged by their parents' rows",
        "TensorRT-LLM#15098: a wrong slice of the logits",
        TREE,
        {"verifier": Misled(RIGHT, rows=verifiers.rows_of_the_parents)},
    ),
    Mutation(
        "the draft's distribution is returned at another temperature than it was sampled at",
        "transformers#47932, #32867",
        CHAIN,
        {"policy": Changed(Chain(2), tree=policies.warmer)},
        breaks_law_p=True,
    ),
    Mutation(
        "top-k children are verified as if drawn",
        "apple/ml-recurrent-drafter#6",
        PAIR,
        {"policy": Changed(FixedTree(1, 2), stream=MostLikely)},
        breaks_law_p=True,
    ),
    Mutation(
        "an argmax draft is verified as if drawn from its softmax",
        "jaymody/speculative-sampling#3",
        CHAIN,
        {"policy": Changed(Chain(2), stream=MostLikely)},
        breaks_law_p=True,
    ),
    Mutation(
        "the draft is sampled in bfloat16 and verified in full precision",
        "deepseek-ai/DeepSpec#31",
        CHAIN,
        {"policy": Changed(Chain(2), stream=Rounded)},
        breaks_law_p=True,
    ),
    Mutation(
        "a drawn child is dropped because it is unlikely",
        "pruning after sampling",
        TREE,
        {"policy": Changed(FixedTree(2, 2, 3), tree=policies.without_unlikely)},
        breaks_law_p=True,
    ),
    Mutation(
        "nodes are ranked by what was drawn in them",
        "the same by rank: a slot's value must be fixed before its token is known",
        attrs.evolve(CHAIN, policy=LayeredDySpec(3), tokens=2),
        {"policy": Changed(LayeredDySpec(3), tree=policies.two_likeliest)},
        breaks_law_p=True,
    ),
    Mutation(
        "the residual is not renormalised after a rejected sibling",
        "SpecInfer's rule misread",
        PAIR,
        {"verifier": verifiers.ResidualNotNormalised()},
    ),
    Mutation(
        "the draft's law keeps the rejected sibling",
        "without replacement judged as with replacement",
        PAIR,
        {"verifier": verifiers.SiblingsNotRemoved()},
    ),
    Mutation(
        "the token after a rejection is drawn from the target",
        "the residual forgotten",
        CHAIN,
        {"verifier": verifiers.TargetInsteadOfResidual()},
    ),
    Mutation(
        "a token is accepted when the target finds it likely enough",
        "typical acceptance, were it declared lossless",
        CHAIN,
        {"verifier": Typical()},
    ),
    Mutation(
        "siblings are judged in another order than they were drawn in",
        "children sorted by their place in memory",
        PAIR,
        {"verifier": verifiers.LastDrawnFirst()},
    ),
    Mutation(
        "equal siblings are merged under sampling with replacement",
        "duplicates keep their multiplicity",
        attrs.evolve(PAIR, policy=FixedTree(1, 2, law="with-replacement")),
        {"policy": Changed(FixedTree(1, 2, law="with-replacement"), tree=policies.equal_siblings_merged)},
        breaks_law_p=True,
    ),
    Mutation(
        "the drafters' distributions stand in another order than their children",
        "several drafters, one child each",
        attrs.evolve(
            PAIR,
            policy=FixedTree(1, 2, law="per-drafter"),
            drafter=Several([drafter(DRAFT), drafter(ToyModel(3, seed=8))]),
        ),
        {"policy": Changed(FixedTree(1, 2, law="per-drafter"), tree=policies.drafters_exchanged)},
        breaks_law_p=True,
    ),
    Mutation(
        "the bonus token is drawn from the parent's row",
        "one row too early",
        CHAIN,
        {"verifier": Misled(RIGHT, rows=verifiers.bonus_rows_of_the_parents)},
    ),
    Mutation(
        "the bonus token is drawn from the parent's residual",
        "the residual kept after an acceptance",
        CHAIN,
        {"verifier": Misled(RIGHT, rows=verifiers.bonus_rows_of_the_residual)},
    ),
    Mutation(
        "an end-of-text inside the accepted path is ignored",
        "only a round's last token looked at",
        attrs.evolve(CHAIN, carried=True, eos=frozenset({2})),
        patch=(RowStops, "take", last_token_alone),
    ),
    Mutation(
        "several siblings are looked at together although the tree is adaptive",
        "class order on a DySpec tree",
        attrs.evolve(CHAIN, policy=DySpec(2), verifier=Traversal(), tokens=2),
        {"verifier": ClassOrderedTraversal()},
    ),
    Mutation(
        "another path is committed than was accepted",
        "the right tokens over a wrong state",
        attrs.evolve(PAIR, carried=True),
        {"verifier": verifiers.SiblingCommitted()},
    ),
    Mutation(
        "the tree is scored as if it were a chain",
        "the tree mask forgotten",
        TREE,
        patch=(ToyBackend, "extend", as_a_chain),
    ),
]
