"""Hypothesis strategies: toy models, distributions, trees, sampling parameters, and pairs that fit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor

from draftwood.distributions.sampling import SamplingParams
from draftwood.laws.proposals import (
    Deterministic,
    Proposal,
)
from draftwood.laws.randomness import CounterRandomness
from draftwood.protocols import TreePolicy, Verifier
from draftwood.protocols.compatibility import registered_laws
from draftwood.testing.models.small_strategies import fitting_pairs
from draftwood.testing.models.toy import NextTokenModel, ToyModel
from draftwood.trees.tree import TokenTree, TreeBuilder

SEEDS = st.integers(0, 2**32 - 1)

# Zeros make sparse and one-hot distributions, and equal weights make ties. The others test rounding: together
# with 1 they are nearly one-hot, and without it they are denormal.
_WEIGHTS = st.one_of(
    st.sampled_from([0.0, 1.0, 1.0, 2.0]),
    st.floats(0, 1),
    st.sampled_from([5e-324, 1e-310, 1e-40, 1e-20, 1e-16, 1e-9, 1e9, 1e16]),
)


@st.composite
def distributions(draw: st.DrawFn, vocab_size: int, *, dtype: torch.dtype = torch.float64) -> Tensor:
    """Probabilities `[vocab_size]`: also sparse, one-hot, tied, nearly one-hot, and with denormal entries."""
    weights = draw(st.lists(_WEIGHTS, min_size=vocab_size, max_size=vocab_size).filter(any))
    p = torch.tensor(weights, dtype=torch.float64)
    return (p / p.sum()).to(dtype)


@st.composite
def toy_models(
    draw: st.DrawFn, vocab_size: int | None = None, *, near: NextTokenModel | None = None
) -> ToyModel:
    """Toy models of `vocab_size` (default: 2 to 4) tokens: flat, moderate, nearly one-hot, sparse, one-hot.

    With `near`, a model of its vocabulary that resembles it more or less, or is its equal.
    """
    vocab_size = near.vocab_size if near else vocab_size or draw(st.integers(2, 4))
    return ToyModel(
        vocab_size,
        seed=draw(SEEDS),
        sharpness=draw(st.sampled_from([1.5, 0.0, 0.5, 4.0, 30.0])),
        order=draw(st.sampled_from([8, 1, 2])),
        sparsity=draw(st.sampled_from([0.0, 0.3, 0.6, 1.0])),
        near=near,
        mix=draw(st.sampled_from([0.5, 0.9, 1.0])) if near else 0.5,
    )


@st.composite
def token_trees(
    draw: st.DrawFn,
    vocab_size: int,
    *,
    max_nodes: int = 6,
    max_children: int = 3,
    laws: Sequence[type[Proposal]] | None = None,
    independent_paths: bool = False,
    dtype: torch.dtype = torch.float64,
) -> TokenTree:
    """Trees of up to `max_nodes` drafted nodes in any shape, whose children may come from their proposals.

    `laws` are the laws of the proposals (None: all registered laws), `dtype` their dtype. With
    `independent_paths` the root branches, into chains of one length.
    """
    tree = TreeBuilder(draw(st.integers(0, vocab_size - 1)))
    paths = draw(st.integers(0, max_children)) if independent_paths else 0
    last = paths * draw(st.integers(0, max_nodes // paths)) if paths else 0
    node = 0
    while node < len(tree):
        room = min(max_children, max_nodes + 1 - len(tree))
        if independent_paths:
            count = (1 if node else paths) if len(tree) <= last else 0
        else:
            count = draw(st.integers(0, room)) if room else 0
        if count:
            law = draw(st.sampled_from(list(registered_laws() if laws is None else laws)))
            tree.add_children(node, *draw(_children(law, count, vocab_size, dtype)))
        node += 1
    return tree.finish()


@st.composite
def _children(
    draw: st.DrawFn, law: type[Proposal], count: int, vocab_size: int, dtype: torch.dtype
) -> tuple[list[int], Proposal]:
    """Up to `count` tokens and a proposal of `law` that may draw them."""
    if law is Deterministic:  # retrieved text need not be likely
        tokens = draw(st.permutations(range(vocab_size)))[:count]
        return tokens, Deterministic(tokens, vocab_size, dtype)
    ps = [draw(distributions(vocab_size, dtype=dtype)) for _ in range(count if law.several_drafters else 1)]
    drawn = law.draw(
        torch.stack(ps) if law.several_drafters else ps[0], count=count, rng=CounterRandomness.seeded(0)
    )
    # Any tokens that the law may draw, not only the tokens of this seed.
    proposal, tokens = drawn.proposal, []
    for k in range(len(drawn.tokens)):
        support = proposal.conditional(k, tokens).nonzero().flatten().tolist()
        if not support:
            break
        tokens.append(draw(st.sampled_from(support)))
    return tokens, proposal


@st.composite
def sampling_params(draw: st.DrawFn, *, greedy: bool = True) -> SamplingParams:
    """Temperature, top-k, top-p and min-p in any combination; `greedy` allows temperature 0."""
    temperatures = [1.0, 0.5, 2.0, *([0.0] if greedy else [])]
    return SamplingParams(
        temperature=draw(st.sampled_from(temperatures)),
        top_k=draw(st.none() | st.integers(1, 4)),
        top_p=draw(st.none() | st.floats(0.05, 1)),
        min_p=draw(st.none() | st.floats(0.01, 1)),
    )


def pairs() -> st.SearchStrategy[tuple[TreePolicy, Verifier]]:
    """A small registered policy and a registered lossless verifier that judges its trees."""
    return st.deferred(lambda: st.sampled_from(fitting_pairs()))
