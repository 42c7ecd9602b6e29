"""Checks of every verifier; each takes the verifier and the number of random models to try."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from draftwood.base.errors import InvalidDistribution
from draftwood.laws.proposals import Proposal
from draftwood.laws.randomness import CounterRandomness, TapeRandomness
from draftwood.protocols import Verifier, registry
from draftwood.protocols.compatibility import laws_of
from draftwood.testing.checks.check_runs import (
    MANY_ROWS,
    assert_declared,
    check_settings,
    for_models,
    served_models,
)
from draftwood.testing.checks.lossy_checks import check_lossiness
from draftwood.testing.models.generators import distributions, token_trees
from draftwood.testing.models.proof_models import (
    PROOF_MODELS,
    VOCAB,
    WIDE_MODELS,
    ProofModels,
    large_models,
    narrow_models,
    open_models,
)
from draftwood.testing.models.small_strategies import fits, toy_drafter
from draftwood.testing.models.toy import ConstantModel, NextTokenModel, ToyModel
from draftwood.testing.models.tree_shapes import (
    BRANCHING,
    CHAINS,
    DEEP,
    DEEP_CHAINS,
    LONG_CHAIN,
    Shape,
    ShapedPolicy,
    ShapeTrees,
    TooNarrow,
    are_paths,
)
from draftwood.testing.proofs.checked_verifier import CheckedVerifier
from draftwood.testing.proofs.decoded_laws import assert_decoded_laws
from draftwood.testing.proofs.enumerator import BudgetExceeded, enumerate_outcomes
from draftwood.testing.proofs.hidden_randomness import forbid_hidden_randomness
from draftwood.testing.proofs.judged_rows import assert_judged_alike
from draftwood.testing.proofs.lossless import assert_lossless
from draftwood.testing.proofs.round_proof import assert_round_lossless
from draftwood.trees.tree import TokenTree

_LARGEST = (
    "chain of 2",
    "three",
    "two, the first with a child",
    "two, the second with a child",
    "one with two",
)
"""Shapes that hold all smaller ones."""

_EIGHT_LEVELS = (2, 1, 1, 1, 1, 2, 1, 1)
"""Tokens that drafts leave open at the levels of a long chain."""

_MOST = 800
"""Outcomes of one case, where a smaller one would do."""

CORNERS: dict[str, tuple[list[float], list[float]]] = {
    "draft and target equal": ([0.5, 0.3, 0.2], [0.5, 0.3, 0.2]),
    "draft and target one-hot on different tokens": ([1.0, 0.0, 0.0], [0.0, 0.0, 1.0]),
    "draft and target one-hot on the same token": ([0.0, 1.0, 0.0], [0.0, 1.0, 0.0]),
    "a draft without support where the target has some": ([0.5, 0.5, 0.0], [0.2, 0.3, 0.5]),
    "a target without support where the draft has some": ([0.2, 0.3, 0.5], [0.0, 1.0, 0.0]),
    "ties": ([1 / 3, 1 / 3, 1 / 3], [0.25, 0.25, 0.5]),
    "denormal probabilities": ([1.0, 5e-324, 1e-310], [1e-310, 1.0, 5e-324]),
    "a target a little above the draft": ([0.5, 0.5 - 1e-16, 1e-16], [0.5 - 1e-16, 0.5, 1e-16]),
}
"""Draft and target probabilities at which residuals vanish, divisions fail and tests of equality mislead."""


def verifier_checks(
    verifier: Verifier, used: Verifier | None = None
) -> Iterator[tuple[str, Callable[[int], str | None]]]:
    """The checks that apply to `verifier`, by name; `used`: also judge large trees while decoding."""
    yield "declaration", partial(check_declaration, verifier)
    # What is not a function of its rng has no law, so this comes before the laws.
    yield "repeatable", partial(check_repeatable, verifier)
    laws = laws_of(verifier)
    if verifier.lossless or verifier.declares_law:
        kept = "declared" if verifier.declares_law else "lossless"
        for law in laws:
            yield f"{kept}-{law.__name__}", partial(check_lossless, verifier, law)
            yield f"corners-{law.__name__}", partial(check_corners, verifier, law)
            if verifier.adaptive and verifier.branches:
                yield f"adaptive-{law.__name__}", partial(check_adaptive, verifier, law)
        # What is wrong in a simple case is told by the checks above, so these ask for what is left.
        for law in laws:
            yield f"deep-{law.__name__}", partial(check_deep, verifier, law)
            yield f"wide-{law.__name__}", partial(check_wide, verifier, law)
            yield f"arithmetic-{law.__name__}", partial(check_arithmetic, verifier, law)
            if verifier.lossless:  # a declared law need not say what it is without a draft
                yield f"silent-{law.__name__}", partial(check_silent, verifier, law)
            if verifier.branches and not verifier.adaptive and not _may_repeat(law):
                yield f"siblings-{law.__name__}", partial(check_siblings, verifier, law)
        yield "rounds", partial(check_rounds, verifier)
    if not verifier.lossless:
        for law in laws:
            yield f"lossiness-{law.__name__}", partial(check_lossiness, verifier, law)
    yield "bad-input", partial(check_bad_input, verifier)
    yield "together", partial(check_together, verifier)
    if used is not None and (used.lossless or used.declares_law) and not used.greedy:
        yield "as-used", partial(check_as_used, used)


def check_declaration(verifier: Verifier, models: int) -> None:
    """It declares the laws that it accepts, and its promises about them."""
    assert_declared(
        verifier, "lossless", "declares_law", "adaptive", "branches", "independent_paths", "greedy"
    )
    assert not (verifier.lossless and verifier.declares_law), (
        "lossless says that texts have the target's law, and declares_law that they have another; set "
        "lossless to False."
    )


_LARGE: tuple[tuple[str, dict[str, int]], ...] = (
    ("layered-dyspec", {"budget": 24}),
    ("independent-paths", {"paths": 3, "length": 6}),
    ("fixed-tree", {"depth": 3, "branching": 2}),
    ("chain", {"length": 8}),
)
"""Policies of trees larger than can be enumerated."""


def check_as_used(verifier: Verifier, models: int) -> str:
    """On trees as large as are used, samples of written tokens have the target's law, or the declared one."""
    for name, options in _LARGE:
        policy = registry.create("policies", name, options)
        if fits(policy, verifier):
            return assert_decoded_laws(policy, verifier)
    return "no policy here grows trees that it judges, so that nothing was decoded"


def check_lossless(verifier: Verifier, law: type[Proposal], models: int) -> None:
    """The emitted tokens have the target's law, or the declared one, on trees of several small shapes."""

    def prove(toys: ProofModels) -> None:
        for shape in shapes(verifier, *_LARGEST):
            prove_round(verifier, shape, law, toys)

    for_models(lambda target, *drafts: prove(ProofModels(target, drafts)), verifier, models)


def check_adaptive(verifier: Verifier, law: type[Proposal], models: int) -> None:
    """The target's law comes out where a sibling's existence depends on the tokens of those before it."""

    def prove(target: NextTokenModel, *drafts: NextTokenModel) -> None:
        for shape in shapes(verifier, "three", "two, the first with a child", "two, the second with a child"):
            policy = ShapedPolicy(shape, law, adaptive=True)
            drafter = toy_drafter(policy, *drafts)
            assert_lossless(policy, verifier, target=target, drafter=drafter, rounds=1)

    for_models(prove, verifier, models // 2, toys=PROOF_MODELS[:2])


def check_deep(verifier: Verifier, law: type[Proposal], models: int) -> None:
    """The target's law holds down to depth 4, with any numbering of the nodes and with padding."""
    deep = judged_by(verifier, DEEP) or DEEP_CHAINS
    (toys,) = served_models(verifier, [narrow_models(5, (3, 2, 2, 2), drafters=2)])
    for shape in deep.values():
        # Where chain and leaf together are too many outcomes, the chain is proved by itself.
        cases = [(deep_shape, toys) for deep_shape in (shape, *DEEP_CHAINS.values())]
        affordable(verifier, cases, law, depth_first=True, padding=2)
    (longer,) = served_models(verifier, [narrow_models(5, _EIGHT_LEVELS, target_support=2, drafters=2)])
    prove_round(verifier, LONG_CHAIN, law, longer)


def check_wide(verifier: Verifier, law: type[Proposal], models: int) -> None:
    """The target's law comes out over eight tokens, 40, 300 and 131,072, and with five siblings."""
    (wide,) = served_models(verifier, WIDE_MODELS)
    prove_round(verifier, BRANCHING["two"] if verifier.branches else CHAINS["one"], law, wide)
    for many in served_models(verifier, [large_models(), open_models(300, 2), open_models(40, 40)]):
        prove_round(verifier, CHAINS["one"], law, many)
    if verifier.branches:
        # Where siblings may be equal, two tokens make thirty-two of them.
        distinct = not _may_repeat(law)
        cases = []
        for siblings in (5, 3):
            open_tokens = siblings if distinct else 2
            (toys,) = served_models(
                verifier, [narrow_models(6, (open_tokens,), vocab_size=6, target_support=3)]
            )
            cases.append((((),) * siblings, toys))
        affordable(verifier, cases, law)


def _may_repeat(law: type[Proposal]) -> bool:
    """Returns whether siblings drawn by `law` may hold one token."""
    p = torch.full((2, 3), 1 / 3, dtype=torch.float64)
    drawn = law.draw(p if law.several_drafters else p[0], count=2, rng=CounterRandomness.seeded(0))
    first = drawn.tokens[0]
    return float(drawn.proposal.conditional(1, [first])[first]) > 0


def check_siblings(verifier: Verifier, law: type[Proposal], models: int) -> None:
    """The target's law comes out where the draft has more tokens than the three that are drawn.

    A verifier that looks at all siblings at once has a different law there. Where it draws a time, all times
    of a grid are visited.
    """
    (toys,) = served_models(verifier, [narrow_models(7, (4,), vocab_size=4, target_support=2)])
    prove_round(verifier, BRANCHING["three"], law, toys)


def check_arithmetic(verifier: Verifier, law: type[Proposal], models: int) -> None:
    """In float32, and from logits in half precision, it is as exact as that arithmetic allows."""
    names = ("chain of 2", "two, the first with a child", "three")
    dtypes = (torch.float32, torch.bfloat16)
    for toys, dtype in zip(served_models(verifier, PROOF_MODELS[:2]), dtypes, strict=True):
        for shape in shapes(verifier, *names):
            prove_round(verifier, shape, law, toys.of(dtype))


def check_silent(verifier: Verifier, law: type[Proposal], models: int) -> None:
    """The target's law comes out where drafts propose nothing after one of the tokens."""
    for toys in served_models(verifier, PROOF_MODELS[:2]):
        for shape in shapes(verifier, "a chain below each of two", "chain of 2", "one with two"):
            policy, silent = ShapedPolicy(shape, law), toys.silent_after(VOCAB - 1)
            drafter = toy_drafter(policy, *silent.drafts)
            assert_lossless(policy, verifier, target=silent.target, drafter=drafter, tokens=3, rounds=1)


def check_rounds(verifier: Verifier, models: int) -> None:
    """Several rounds of the production loop, in which the extra token is the next root."""
    law = min(laws_of(verifier), key=lambda law: (law.several_drafters, law.__name__))
    policy = ShapedPolicy(BRANCHING["two"] if verifier.branches else CHAINS["chain of 2"], law)
    target = ToyModel(2, seed=1, sparsity=1.0 if verifier.greedy else 0.0)
    drafter = toy_drafter(policy, ToyModel(2, seed=2), ToyModel(2, seed=3))
    assert_lossless(policy, verifier, target=target, drafter=drafter)


def check_corners(verifier: Verifier, law: type[Proposal], models: int) -> None:
    """It is exact, or refuses with `InvalidDistribution`, where draft and target make residuals vanish."""
    for name, (draft, target_law) in CORNERS.items():
        if verifier.greedy and max(target_law) < 1:
            continue
        target = ConstantModel(VOCAB, p=torch.tensor(target_law, dtype=torch.float64))
        proposed = ConstantModel(VOCAB, p=torch.tensor(draft, dtype=torch.float64))
        for shape in shapes(verifier, "chain of 2", "two", "two, the first with a child"):
            policy = ShapedPolicy(shape, law)
            drafter = toy_drafter(policy, proposed, proposed)
            try:
                assert_lossless(policy, verifier, target=target, drafter=drafter, tokens=2, rounds=1)
            except AssertionError as error:
                if not isinstance(error.__cause__, InvalidDistribution):
                    raise AssertionError(f"With {name}: {error}") from error


def check_bad_input(verifier: Verifier, models: int) -> None:
    """Whatever the tree and the target, it emits tokens that the target allows, or refuses.

    The trees need not obey law P: they may hold tokens that their proposals give probability 0. Targets
    come in float64, in float32, and rounded to half precision. Every outcome is visited, and the draws
    at the ends of the unit interval are made as production makes them.
    """

    @given(data=st.data())
    @check_settings(max(models, 1) * 5)
    def judge(data: st.DataObject) -> None:
        tree = data.draw(judged_trees(verifier))
        if data.draw(st.booleans()):
            tree = with_tokens(tree, data.draw(st.permutations(range(VOCAB))))
        rows = [data.draw(targets(verifier.greedy)) for _ in range(len(tree))]
        dtype = data.draw(st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16]))
        target = rounded(torch.stack(rows), dtype)
        checked = CheckedVerifier(verifier, refusal=InvalidDistribution)
        try:
            for _ in enumerate_outcomes(partial(checked.verify, tree, target), budget=2000):
                pass
            for u in (0.0, 1 - 2**-53):
                checked.verify(tree, target, TapeRandomness(torch.full((1000,), u, dtype=torch.float64)))
        except (InvalidDistribution, BudgetExceeded):
            pass
        assert not checked.fault, checked.fault

    judge()


def check_repeatable(verifier: Verifier, models: int) -> None:
    """Equal trees, targets and streams give equal outcomes, and the input is not changed."""

    @given(data=st.data(), seed=st.integers(0, 2**32))
    @check_settings(models)
    def twice(data: st.DataObject, seed: int) -> None:
        tree = data.draw(judged_trees(verifier))
        target = torch.stack([data.draw(targets(verifier.greedy)) for _ in range(len(tree))])
        before = target.clone()
        marginals = {node: law.marginal(0).clone() for node, law in tree.proposals.items()}
        try:
            with forbid_hidden_randomness(verifier):
                first, second = (verifier.verify(tree, target, CounterRandomness.seeded(seed)) for _ in "ab")
        except InvalidDistribution:
            return
        assert first == second, f"{verifier} gives {first} and then {second} on one stream."
        assert torch.equal(target, before), f"{verifier} writes to the target's probabilities."
        for node, law in tree.proposals.items():
            assert torch.equal(law.marginal(0), marginals[node]), f"{verifier} writes to a proposal."

    twice()


def check_together(verifier: Verifier, models: int) -> None:
    """Judging rows together gives the same outcomes, and draws as many numbers, as one by one."""

    @given(data=st.data(), seed=st.integers(0, 2**32))
    @check_settings(models)
    def both(data: st.DataObject, seed: int) -> None:
        # Kernels only judge float32.
        dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
        trees = data.draw(st.lists(judged_trees(verifier, dtype), min_size=1, max_size=4))
        rows = [
            torch.stack([data.draw(targets(verifier.greedy)) for _ in range(len(tree))]).to(dtype)
            for tree in trees
        ]
        # Several samples of one prompt: equal rows still have their own draws.
        for count in (len(trees) + 1, MANY_ROWS):
            repeated = [number % len(trees) for number in range(count)]
            assert_judged_alike(
                verifier, [trees[at] for at in repeated], [rows[at].clone() for at in repeated], seed
            )

    both()


def judged_trees(verifier: Verifier, dtype: torch.dtype = torch.float64) -> st.SearchStrategy[TokenTree]:
    """Draws trees of up to four drafted nodes that `verifier` judges, whatever their tokens."""
    return token_trees(
        VOCAB,
        max_nodes=4,
        max_children=3 if verifier.branches else 1,
        laws=laws_of(verifier),
        independent_paths=verifier.independent_paths,
        dtype=dtype,
    )


def prove_round(
    verifier: Verifier,
    shape: Shape,
    law: type[Proposal],
    toys: ProofModels,
    *,
    depth_first: bool = False,
    padding: int = 0,
    budget: int = 100_000,
) -> None:
    """Prove one round on trees of `shape`; where the draft runs out of tokens, on what is left of them."""
    try:
        trees = ShapeTrees(shape, law, toys.drafts, depth_first=depth_first, padding=padding)
        assert_round_lossless(trees, verifier, toys.target, budget=budget)
    except TooNarrow:
        policy = ShapedPolicy(shape, law)
        drafter = toy_drafter(policy, *toys.drafts)
        assert_lossless(policy, verifier, target=toys.target, drafter=drafter, rounds=1)


def affordable(
    verifier: Verifier,
    cases: Sequence[tuple[Shape, ProofModels]],
    law: type[Proposal],
    *,
    depth_first: bool = False,
    padding: int = 0,
) -> None:
    """Prove the first of `cases` whose outcomes are few enough for a check that others wait for."""
    for number, (shape, toys) in enumerate(cases, start=1):
        budget = _MOST if number < len(cases) else 100_000
        try:
            prove_round(verifier, shape, law, toys, depth_first=depth_first, padding=padding, budget=budget)
        except BudgetExceeded:
            if number == len(cases):
                raise
            continue
        return


def shapes(verifier: Verifier, *names: str) -> list[Shape]:
    """Returns the shapes that `verifier` judges; if any of these are in `names`, only those."""
    judged = {**CHAINS, **judged_by(verifier, BRANCHING)}
    return [shape for name, shape in judged.items() if not names or name in names]


def judged_by(verifier: Verifier, branching: Mapping[str, Shape]) -> dict[str, Shape]:
    """Returns which of these shapes, all of which branch, `verifier` judges."""
    return {
        name: shape
        for name, shape in branching.items()
        if verifier.branches and (are_paths(shape) or not verifier.independent_paths)
    }


def targets(one_hot: bool) -> st.SearchStrategy[Tensor]:
    """Draws target rows `[VOCAB]`; one-hot rows for a verifier that only supports temperature 0."""
    if one_hot:
        return st.integers(0, VOCAB - 1).map(lambda token: torch.eye(VOCAB, dtype=torch.float64)[token])
    return distributions(VOCAB)


def rounded(p: Tensor, dtype: torch.dtype) -> Tensor:
    """Probabilities as a model computing in `dtype` leaves them: off by its rounding, in float32 or above."""
    return p if dtype == torch.float64 else p.to(dtype).float()


def with_tokens(tree: TokenTree, renamed: list[int]) -> TokenTree:
    """The tree with other tokens under the same proposals, which may give them probability 0."""
    return TokenTree(torch.tensor(renamed)[tree.tokens], tree.parents, tree.proposals, tree.size)
