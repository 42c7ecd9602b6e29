"""Checks of every tree policy; each takes the policy and the number of random models to try."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import attrs
import torch
from torch import Tensor

from draftwood.laws.randomness import CounterRandomness
from draftwood.protocols import TreePolicy, registry
from draftwood.protocols.compatibility import needs_several_drafters
from draftwood.testing.checks.check_runs import MANY_ROWS, assert_declared, for_models
from draftwood.testing.diagnosis.law_broken import LawBroken
from draftwood.testing.models.proof_models import (
    PROOF_MODELS,
    VOCAB,
    WIDE_MODELS,
    ProofModels,
    bigram_models,
    large_models,
    narrow_models,
)
from draftwood.testing.models.row_views import VIEWS, ViewedPolicy
from draftwood.testing.models.small_strategies import fits, toy_drafter
from draftwood.testing.models.toy import ConstantModel, NextTokenModel
from draftwood.testing.proofs.block_efficiency import drawn_trees
from draftwood.testing.proofs.decoded_laws import assert_decoded_laws
from draftwood.testing.proofs.enumerator import enumerate_outcomes
from draftwood.testing.proofs.grown_rows import assert_rows_alike
from draftwood.testing.proofs.hidden_randomness import forbid_hidden_randomness
from draftwood.testing.proofs.joint_rows import assert_rows_lossless
from draftwood.testing.proofs.learnt_states import learnt_states
from draftwood.testing.proofs.lossless import assert_lossless
from draftwood.testing.proofs.proposal_law import assert_proposal_law, grow_tree
from draftwood.testing.proofs.row_isolation import assert_rows_isolated
from draftwood.trees.tree import TokenTree

PROMPT = (2, 0, 2)

_DEEPER = {"length": 4, "depth": 4, "budget": 6, "branching": 1, "paths": 1, "width": 1}
"""Settings that make a policy's trees deep, and keep them few."""


def policy_checks(
    policy: TreePolicy, used: TreePolicy | None = None
) -> Iterator[tuple[str, Callable[[int], str | None]]]:
    """The checks that apply to `policy`, by name.

    Args:
        policy: with a small tree: all of its outcomes are visited.
        used: the same with the settings that will be used; None: they are not looked at.
    """
    yield "declaration", partial(check_declaration, policy)
    # What is not a function of its rng has no law, so this comes before the laws.
    yield "repeatable", partial(check_repeatable, policy)
    yield "interleaved", partial(check_interleaved, policy)
    if policy.scope == "batch":
        yield "rows-jointly", partial(check_rows_jointly, policy)
    else:
        yield "rows-at-once", partial(check_rows_at_once, policy, used)
    yield "proposal-law", partial(check_proposal_law, policy)
    if policy.learns:
        yield "learnt", partial(check_learnt, policy)
    if policy.reads_row:
        yield "views", partial(check_views, policy)
    if (larger := deeper(policy)) is not None:
        yield "deep", partial(check_deep, larger)
    yield "wide", partial(check_wide, policy)
    yield "arithmetic", partial(check_arithmetic, policy)
    if fits(policy, registry.create("verifiers", "recursive-rejection")):
        yield "lossless", partial(check_lossless, policy)
    if isinstance(getattr(policy, "budget", None), int):
        yield "budget", partial(check_budget, policy)
    yield "chain", partial(check_branches, policy)
    if policy.independent_paths and policy.branches:
        yield "independent-paths", partial(check_independent_paths, policy)
    yield "nothing-to-propose", partial(check_nothing_to_propose, policy)
    yield "copies", partial(check_copies, policy)
    if used is not None:
        yield "as-used", partial(check_as_used, used)


def check_declaration(policy: TreePolicy, models: int) -> None:
    """It declares the laws of its trees, and whether they are adaptive, branch, or change by learning."""
    assert_declared(policy, "adaptive", "branches", "independent_paths", "learns", "reads_row")
    assert policy.scope in ("row", "batch"), (
        f"scope is {policy.scope!r}; declare 'row', or 'batch' where rows of a round share a budget."
    )


def check_as_used(policy: TreePolicy, models: int) -> str:
    """At the settings that will be used, samples of drafted and of written tokens have their laws."""
    named = (
        registry.create("verifiers", name) for name in ("recursive-rejection", *registry.names("verifiers"))
    )
    judges = (verifier for verifier in named if verifier.lossless and not verifier.greedy)
    verifier = next((verifier for verifier in judges if fits(policy, verifier)), None)
    if verifier is None:
        return "no lossless verifier here judges its trees, so that they were not decoded"
    return assert_decoded_laws(policy, verifier)


def check_rows_at_once(policy: TreePolicy, used: TreePolicy | None, models: int) -> None:
    """Rows that grow together, as in decoding, get the same trees as one by one.

    At the settings that will be used, many rows are grown, so that a budget that they share would bind.
    """
    for toys in PROOF_MODELS[:2]:
        assert_rows_alike(policy, [_draft_of(policy, toys)] * 3, vocab_size=VOCAB, seeds=8)
    if used is not None:
        (toys,) = WIDE_MODELS
        draft = _draft_of(used, toys)
        assert_rows_alike(used, [draft] * MANY_ROWS, vocab_size=toys.draft.vocab_size, seeds=1)


def _draft_of(policy: TreePolicy, toys: ProofModels) -> Callable[[Sequence[int]], Tensor]:
    def draft(path: Sequence[int]) -> Tensor:
        if needs_several_drafters(policy):
            return torch.stack([model.probs(path) for model in toys.drafts])
        return toys.draft.probs(path)

    return draft


def check_rows_jointly(policy: TreePolicy, models: int) -> None:
    """Two and three rows whose trees grow together write the product of the targets' laws."""
    verifier = registry.create("verifiers", "recursive-rejection")
    if not fits(policy, verifier):
        names = registry.names("verifiers")
        lossless = (registry.create("verifiers", name) for name in names)
        fitting = (one for one in lossless if one.lossless and not one.greedy and fits(policy, one))
        verifier = next(fitting, None)
        assert verifier is not None, f"no lossless verifier here judges the trees of {policy}."
    for rows in (PROOF_MODELS[:2], PROOF_MODELS[1:3], PROOF_MODELS[:3]):
        assert_rows_lossless(policy, verifier, rows)


def check_proposal_law(policy: TreePolicy, models: int) -> None:
    """Law P: children follow the declared proposal, and the other declarations hold."""
    for_models(lambda target, *drafts: prove_law(policy, ProofModels(target, drafts)), None, models)


def check_learnt(policy: TreePolicy, models: int) -> None:
    """Law P holds after whatever the policy may have learnt, in pasts as long as its memory."""
    for toys in PROOF_MODELS[:2]:
        drafter = toy_drafter(policy, *toys.drafts)
        for learnt in learnt_states(policy, drafter, prompt=PROMPT):
            try:
                assert_proposal_law(policy, drafter, prompt=PROMPT, state=learnt.state)
            except LawBroken as broken:
                after = LawBroken(f"After {learnt.history} it knows {learnt.state}, and then: {broken}")
                # The message has this sentence already.
                after.error, after.likely = broken.error, broken.likely
                raise after from broken


def check_views(policy: TreePolicy, models: int) -> None:
    """The laws hold whatever the policy may read of a row: lengths, limits, histories and costs."""
    for view in VIEWS:
        viewed = ViewedPolicy(policy, view)
        try:
            prove_law(viewed, PROOF_MODELS[0])
            if policy.scope == "batch":
                check_rows_jointly(viewed, models)
        except LawBroken as broken:
            told = LawBroken(f"For a row of which it reads {view}: {broken}")
            told.error, told.likely = broken.error, broken.likely
            raise told from broken


def check_deep(policy: TreePolicy, models: int) -> None:
    """Law P holds down to four levels, over drafts that leave few tokens open."""
    for supports in ((2, 1, 2, 1), (1, 2, 1, 2)):
        prove_law(policy, narrow_models(22, supports, start=len(PROMPT), drafters=2))


def deeper(policy: TreePolicy) -> TreePolicy | None:
    """The policy with long and narrow trees; None where it has no depth or length to raise."""
    if not attrs.has(type(policy)):
        return None
    settings = {name: size for name, size in _DEEPER.items() if isinstance(getattr(policy, name, None), int)}
    if not {"depth", "length"} & set(settings):
        return None
    try:
        return attrs.evolve(policy, **settings)  # type: ignore[misc]
    except Exception:  # these settings do not go together
        return None


def check_wide(policy: TreePolicy, models: int) -> None:
    """Law P holds over eight tokens, at the root and below it, and over 131,072."""
    for supports in ((8, 1), (1, 8, 1)):
        prove_law(policy, narrow_models(21, supports, vocab_size=8, start=len(PROMPT), drafters=2))
    prove_law(policy, large_models(len(PROMPT)))


def check_arithmetic(policy: TreePolicy, models: int) -> None:
    """In float32, and from logits in half precision, children follow the declared law to its rounding."""
    for dtype in (torch.float32, torch.bfloat16):
        for toys in PROOF_MODELS[:2]:
            prove_law(policy, toys.of(dtype))


def prove_law(policy: TreePolicy, toys: ProofModels) -> None:
    """Prove law P on one set of toys."""
    assert_proposal_law(policy, toy_drafter(policy, *toys.drafts), prompt=PROMPT)


def check_lossless(policy: TreePolicy, models: int) -> None:
    """With recursive rejection, and with traversal, the emitted tokens have the target's law.

    Law P speaks of siblings and paths. Here nodes that are neither may betray each other, as where two
    branches share a draw: also over drafts that look at one token, which give one distribution to many nodes.
    """
    _prove_lossless(policy, PROOF_MODELS[0], PROMPT, tokens=3)
    _prove_lossless(policy, PROOF_MODELS[1], PROMPT, tokens=3)
    _prove_lossless(policy, bigram_models(2), (1, 0, 1), tokens=4)


def _prove_lossless(policy: TreePolicy, toys: ProofModels, prompt: tuple[int, ...], *, tokens: int) -> None:
    drafter = toy_drafter(policy, *toys.drafts)
    trees = drawn_trees(policy, drafter, prompt=prompt)
    for name in ("recursive-rejection", "traversal"):
        verifier = registry.create("verifiers", name)
        if fits(policy, verifier):
            assert_lossless(
                policy,
                verifier,
                target=toys.target,
                drafter=drafter,
                prompt=prompt,
                tokens=tokens,
                rounds=1,
                trees=trees,
            )


def check_budget(policy: TreePolicy, models: int) -> None:
    """No tree has more drafted nodes than the attribute `budget`."""
    budget: int = policy.budget  # type: ignore[attr-defined]

    def grow(target: NextTokenModel, draft: NextTokenModel, other: NextTokenModel) -> None:
        for tree in _trees(policy, draft, other):
            drafted = len(tree) - 1
            assert drafted <= budget, f"{policy} drafts {drafted} nodes, over its budget of {budget}."

    for_models(grow, None, models)


def check_branches(policy: TreePolicy, models: int) -> None:
    """A policy that declares `branches = False` only grows chains."""
    if policy.branches:
        return

    def grow(target: NextTokenModel, draft: NextTokenModel, other: NextTokenModel) -> None:
        for tree in _trees(policy, draft, other):
            parents = tree.parents.tolist()
            assert len(set(parents)) == len(parents), (
                f"{policy} declares branches = False and grows a tree with the parents {parents}."
            )

    for_models(grow, None, models)


def check_independent_paths(policy: TreePolicy, models: int) -> None:
    """A policy that declares `independent_paths` grows chains below one node, and equal ones end together."""
    for toys in (*PROOF_MODELS[:2], *_silent_models()):
        for tree in _trees(policy, *toys.drafts):
            branching = [node for node in range(len(tree)) if len(tree.children(node)) > 1]
            ends: dict[tuple[int, ...], bool] = {}
            for node in range(len(tree)):
                text = tuple(tree.tokens[tree.path(node)].tolist())
                goes_on = bool(tree.children(node))
                if len(branching) > 1 or ends.setdefault(text, goes_on) != goes_on:
                    raise AssertionError(
                        f"{policy} declares independent_paths and grows a tree with the tokens "
                        f"{tree.tokens.tolist()} and the parents {tree.parents.tolist()}."
                    )


def check_nothing_to_propose(policy: TreePolicy, models: int) -> None:
    """Without proposals from the drafter, a tree obeys law P and holds at most the policy's own guesses.

    Where there are none after one of the tokens, law P holds and what is emitted has the target's law.
    """
    silent = ConstantModel(VOCAB, p=torch.zeros(VOCAB, dtype=torch.float64))
    assert_proposal_law(policy, toy_drafter(policy, silent, silent), prompt=PROMPT)
    for toys in _silent_models():
        prove_law(policy, toys)
        _prove_lossless(policy, toys, PROMPT, tokens=3)


def _silent_models() -> list[ProofModels]:
    return [toys.silent_after(VOCAB - 1, start=len(PROMPT)) for toys in PROOF_MODELS[:2]]


def check_repeatable(policy: TreePolicy, models: int) -> None:
    """Equal seeds give equal trees, whatever was grown before."""

    def grow(target: NextTokenModel, draft: NextTokenModel, other: NextTokenModel) -> None:
        seeds = [draft.seed, draft.seed + 1, draft.seed]
        with forbid_hidden_randomness(policy):
            first, _, again = (_seeded(policy, draft, other, seed) for seed in seeds)
        assert _same(first, again), f"{policy} grows another tree from the same seed, {seeds[0]}."

    for_models(grow, None, models)


def check_interleaved(policy: TreePolicy, models: int) -> None:
    """Rows whose trees are grown in turns get the same trees as one by one, and learn the same."""

    def grow(target: NextTokenModel, draft: NextTokenModel, other: NextTokenModel) -> None:
        assert_rows_isolated(policy, [draft, other], [PROMPT, (0, 1)])

    for_models(grow, None, models)


def check_copies(policy: TreePolicy, models: int) -> None:
    """A copy, and one that went through pickle, grow the trees of the original."""
    copies = {"A deep copy": copy.deepcopy(policy), "A pickled copy": pickle.loads(pickle.dumps(policy))}

    def grow(target: NextTokenModel, draft: NextTokenModel, other: NextTokenModel) -> None:
        original = _seeded(policy, draft, other, draft.seed)
        for name, copied in copies.items():
            assert _same(original, _seeded(copied, draft, other, draft.seed)), (
                f"{name} of {policy} grows another tree from the same seed, {draft.seed}."
            )

    for_models(grow, None, models)


def _trees(policy: TreePolicy, draft: NextTokenModel, other: NextTokenModel) -> Iterator[TokenTree]:
    drafter = toy_drafter(policy, draft, other)
    for _, tree in enumerate_outcomes(lambda rng: grow_tree(policy, drafter, prompt=PROMPT, rng=rng)):
        yield tree


def _seeded(policy: TreePolicy, draft: NextTokenModel, other: NextTokenModel, seed: int) -> TokenTree:
    drafter = toy_drafter(policy, draft, other)
    return grow_tree(policy, drafter, prompt=PROMPT, rng=CounterRandomness.seeded(seed))


def _same(one: TokenTree, other: TokenTree) -> bool:
    return torch.equal(one.tokens, other.tokens) and torch.equal(one.parents, other.parents)
