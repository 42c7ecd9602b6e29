"""The named methods of the literature, with the papers' settings as defaults.

Every recipe is one tree policy with one verifier; what a method adds beyond that is in their files. The
options are those in which a method's own tables differ. At `temperature` 0, where a drawn child gains
nothing over the most likely one, trees hold the draft's most likely tokens where the method allows it.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftwood import (
    Deterministic,
    Proposal,
    Recipe,
    TopThenSample,
    Verifier,
    WithoutReplacement,
    WithReplacement,
)
from draftwood.base.errors import InvalidInput
from draftwood.methods.recipe import fitted_by
from draftwood.strategies.policies.beam import Beam
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dynamic_depth import DynamicDepth
from draftwood.strategies.policies.dynatree import DynaTree
from draftwood.strategies.policies.expand_rerank import ExpandRerank
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.independent_paths import IndependentPaths
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.policies.redrafter import BeamPaths
from draftwood.strategies.policies.sequoia import ZOO_PAIR, Sequoia
from draftwood.strategies.policies.shapes import SHAPES
from draftwood.strategies.policies.static_tree import StaticTree
from draftwood.strategies.policies.stochastic_beam import StochasticBeam
from draftwood.strategies.policies.svip import SVIP
from draftwood.strategies.policies.threshold_dyspec import ThresholdDySpec
from draftwood.strategies.shape_search import ShapeFit
from draftwood.strategies.verifiers.block import Block
from draftwood.strategies.verifiers.class_ordered_traversal import ClassOrderedTraversal
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.greedy_multi_path import GreedyMultiPath
from draftwood.strategies.verifiers.k_sequential import KSequential
from draftwood.strategies.verifiers.race_traversal import RaceTraversal
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.top_plus_one import TopPlusOne
from draftwood.strategies.verifiers.top_plus_one_traversal import TopPlusOneTraversal
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.strategies.verifiers.typical import Typical


def leviathan(length: int = 5, *, temperature: float = 1.0) -> Recipe:
    """A chain, judged token by token.

    Source: Leviathan et al. 2023 (arXiv 2211.17192); Chen et al. 2023 (arXiv 2302.01318).
    Settings: length 3 to 10 in table 2; RSD's tables take 2 to 5.
    """
    return Recipe(Chain(length, _law(temperature)), _verifier(temperature))


def block(length: int = 8, *, temperature: float = 1.0) -> Recipe:
    """A chain, judged as a whole.

    Source: block verification, Sun et al. 2024 (arXiv 2403.10444).
    Settings: length 4, 6 and 8.
    """
    return Recipe(Chain(length, _law(temperature)), _verifier(temperature, Block()))


def draft_verify(
    length: int = 12, stop_below: float = 0.6, target: float = 0.9, *, temperature: float = 1.0
) -> Recipe:
    """The target drafts for itself with layers left out; a chain ends where it is unsure.

    Source: Draft & Verify, Zhang et al. 2023 (arXiv 2309.08168).
    Settings: length 12, threshold 0.6 at first, moved towards an acceptance of 0.9.
    """
    chain = DynamicDepth(Chain(length, _law(temperature)), stop_below=stop_below, target=target)
    return Recipe(chain, _verifier(temperature), drafter="layer-skip")


def prompt_lookup(length: int = 10) -> Recipe:
    """A chain of what followed the last words before.

    Source: Saxena 2023, prompt lookup decoding.
    Settings: length 10, n-grams of up to 3 tokens.
    """
    return Recipe(Chain(length, Deterministic), RecursiveRejection(), drafter="prompt-lookup")


def rest(budget: int = 64) -> Recipe:
    """The most frequent continuations in a datastore, merged into a tree.

    Source: REST, He et al. 2023 (arXiv 2311.08252).
    Settings: 64 nodes, suffixes of up to 16 tokens.
    """
    return Recipe(LayeredDySpec(budget, law=Deterministic), RecursiveRejection(), drafter="retrieval")


def suffix_decoding(budget: int = 32, threshold: float = 0.02) -> Recipe:
    """Drafts what followed in the texts of this and earlier calls, as far as it is likely.

    Source: SuffixDecoding, Oliaro et al. 2024 (arXiv 2411.04975).
    Settings: here paths of at least 0.02; the authors bound a tree by the length of the match.
    """
    policy = LayeredDySpec(budget, threshold=threshold, law=Deterministic)
    return Recipe(policy, RecursiveRejection(), drafter="suffix-cache", draft_temperature=1.0)


def spectr(paths: int = 8, length: int = 8) -> Recipe:
    """Independent paths, judged by K-sequential selection.

    Source: SpecTr, Sun et al. 2023 (arXiv 2310.15141).
    Settings: 8 paths of length 8; RSD's tables take (2, 2) to (12, 5).
    """
    return Recipe(IndependentPaths(paths, length), KSequential())


def gbv(paths: int = 4, length: int = 4) -> Recipe:
    """Independent paths, of which the one that the target prefers is judged as a block.

    Source: greedy block multi-path verification, 2026 (arXiv 2602.16961).
    Settings: ours, 4 paths of length 4.
    """
    return Recipe(IndependentPaths(paths, length), GreedyMultiPath())


def delayed_expansion(trunk: int = 2, paths: int = 4, length: int = 2) -> Recipe:
    """A chain that branches at its end into independent paths, judged from its leaves up.

    Source: delayed tree expansion, Thomas et al. 2026 (arXiv 2602.16994), without its selector of shapes.
    Settings: ours, a trunk of 2 and 4 paths of length 2.
    """
    for name, value, least in (("trunk", trunk, 0), ("paths", paths, 1), ("length", length, 1)):
        if value < least:
            raise InvalidInput(f"{name} is {value}; give {least} or more.")
    stem = [(0,) * (above + 1) for above in range(trunk)]
    ends = [(0,) * trunk + (path,) + (0,) * below for path in range(paths) for below in range(length)]
    return Recipe(StaticTree(tuple(stem + ends), WithReplacement), Traversal())


def specinfer(
    branching: Sequence[int] | str = (1, 1, 3, 1, 1, 1, 1, 1), *, temperature: float = 1.0
) -> Recipe:
    """A tree of fixed branching drawn with replacement, judged by multi-round rejection.

    Source: SpecInfer, Miao et al. 2023 (arXiv 2305.09781).
    Settings: expansion (1, 1, 3, 1, 1, 1, 1, 1).
    """
    return Recipe(_branching(branching, _law(temperature, WithReplacement)), _verifier(temperature))


def rsd_c(branching: Sequence[int] | str = (2, 2, 2, 2), *, temperature: float = 1.0) -> Recipe:
    """A tree of fixed branching drawn without replacement, judged by recursive rejection.

    Source: RSD, Jeon et al. 2024, algorithm 2 (arXiv 2402.14160).
    Settings: appendix D.3: (2, 2) to (2, 2, 2, 2, 2), (3, 1) to (12, 1, 1, 1, 1).
    """
    return Recipe(_branching(branching, _law(temperature)), _verifier(temperature))


def rsd_s(width: int = 6, depth: int = 5) -> Recipe:
    """Stochastic beam search, judged by recursive rejection.

    Source: RSD, Jeon et al. 2024, algorithm 8 (arXiv 2402.14160).
    Settings: appendix D.3: (2, 2), (3, 2), (3, 3), (4, 3), (5, 4), (7, 4), (6, 5), (12, 5).
    """
    return Recipe(StochasticBeam(width, depth), RecursiveRejection())


def traversal(branching: Sequence[int] | str = (2, 2, 2, 2), *, temperature: float = 1.0) -> Recipe:
    """RSD-C's tree, judged from its leaves up.

    Source: traversal verification, Weng et al. 2025 (arXiv 2505.12398).
    Settings: any tree; here RSD-C's.
    """
    return Recipe(_branching(branching, _law(temperature)), _verifier(temperature, Traversal()))


def class_ordered(branching: Sequence[int] | str = (2, 2, 2, 2), *, temperature: float = 1.0) -> Recipe:
    """RSD-C's tree, its siblings judged in an order that suits the target.

    Source: draftwood, class-ordered traversal.
    Settings: any tree; here RSD-C's.
    """
    verifier = _verifier(temperature, ClassOrderedTraversal())
    return Recipe(_branching(branching, _law(temperature)), verifier)


def class_ordered_sequoia(
    budget: int = 64, acceptance: Sequence[float] | str = ZOO_PAIR, *, temperature: float = 1.0
) -> Recipe:
    """Sequoia's tree, its siblings judged in an order that suits the target.

    Source: draftwood, class-ordered traversal.
    Settings: any tree; here Sequoia's, in ten levels.
    """
    tree = Sequoia(budget, 10, acceptance, _law(temperature))
    return Recipe(tree, _verifier(temperature, ClassOrderedTraversal()))


@fitted_by(ShapeFit(RaceTraversal()))
def race(
    budget: int | None = None, shape: str | Sequence[Sequence[int]] | None = None, *, temperature: float = 1.0
) -> Recipe:
    """A static tree made for it, the larger subtrees below the likelier siblings, all judged as one set.

    Without a `shape` it is the largest of those searched for the zoo's pair that the `budget` (64) holds.
    `draftwood tune` searches the shape for a pair of yours.

    Source: draftwood, race-ordered traversal.
    Settings: shapes of 4 to 32 nodes, searched at temperature 1, and one of 64, searched at 0.6 and 1.
    """
    if budget is not None and budget < 1:
        raise InvalidInput(f"budget is {budget}; a tree has at least 1 node.")
    if shape is None:
        searched = sorted((SHAPES[name] for name in SHAPES if name.startswith("race-")), key=len)
        room = 64 if budget is None else budget
        fitting = [one for one in searched if len(one) <= room]
        shape = fitting[-1] if fitting else searched[0][:room]  # the smallest one is a chain
    policy = StaticTree(shape, _law(temperature), sort=True)
    if budget is not None and len(policy.shape) > budget:
        raise InvalidInput(
            f"shape has {len(policy.shape)} nodes and budget is {budget}; leave one of the two out."
        )
    return Recipe(policy, _verifier(temperature, RaceTraversal()))


def spechub(length: int = 3) -> Recipe:
    """Every node has the most likely token and a drawn one as children, judged by their optimal rule.

    Source: SpecHub, Sun et al. 2024 (arXiv 2411.05289); Hu et al. 2025 (arXiv 2502.18779).
    Settings: binary trees of any depth.
    """
    return Recipe(_branching((2,) * length, TopThenSample), TopPlusOne())


def univer(length: int = 4) -> Recipe:
    """Every node has the most likely token and a drawn one as children, judged from its leaves up.

    Each node divides its allowance by the optimal transport for its children, as UniVer does by its abstract;
    the paper itself could not be read.

    Source: UniVer, Weng et al. 2026 (arXiv 2605.04543); Hu et al. 2025 (arXiv 2502.18779).
    Settings: binary trees of depth 5, by notes on the paper.
    """
    return Recipe(_branching((2,) * length, TopThenSample), TopPlusOneTraversal())


def sequoia(
    budget: int = 64,
    depth: int = 10,
    acceptance: Sequence[float] | str = ZOO_PAIR,
    draft_temperature: float | None = 0.6,
    *,
    temperature: float = 1.0,
) -> Recipe:
    """The best static tree for a measured acceptance vector, drawn without replacement.

    Source: Sequoia, Chen et al. 2024 (arXiv 2402.12374).
    Settings: 64, 128 and 768 nodes, draft temperature 0.6.
    """
    policy = Sequoia(budget, depth, acceptance, _law(temperature))
    return Recipe(policy, _verifier(temperature), draft_temperature=draft_temperature)


def dyspec(
    budget: int = 64,
    acceptance: Sequence[float] | str = (),
    *,
    draft_temperature: float | None = 0.6,
    temperature: float = 1.0,
) -> Recipe:
    """DySpec's greedy tree, grown exactly in as many draft calls as it has layers.

    With a measured `acceptance`, its values follow that instead of the draft's own probabilities.

    Source: DySpec, Xiong et al. 2024, algorithm 1 (arXiv 2410.11744).
    Settings: 64 and 768 nodes, draft temperature 0.6.
    """
    policy = LayeredDySpec(budget, law=_law(temperature), acceptance=acceptance)
    return Recipe(policy, _verifier(temperature), draft_temperature=draft_temperature)


def dyspec_threshold(
    budget: int = 768,
    threshold: float | None = 0.001,
    draft_temperature: float | None = 0.6,
    *,
    temperature: float = 1.0,
) -> Recipe:
    """DySpec's layered form: every slot above a threshold fixed beforehand.

    Source: DySpec, Xiong et al. 2024, algorithm 2 (arXiv 2410.11744).
    Settings: 768 nodes at most, threshold 0.001, draft temperature 0.6.
    """
    policy = ThresholdDySpec(budget, threshold, law=_law(temperature))
    return Recipe(policy, _verifier(temperature), draft_temperature=draft_temperature)


def dynatree(budget: int = 256, depth: int = 5, max_depth: int = 8) -> Recipe:
    """Branching by confidence and depth by path probability, both moved by recent outcomes.

    Source: DynaTree, section 3.3.
    Settings: depth 5, at most 8, 1 to 3 children, thresholds 0.9 and 0.4, 256 nodes.
    """
    return Recipe(DynaTree(depth, max_depth, budget=budget), RecursiveRejection())


def fixed_tree(depth: int = 5, branching: int = 2, budget: int = 256) -> Recipe:
    """The most likely tokens at a fixed branching: DynaTree's baseline.

    Source: DynaTree, section 4.3.
    Settings: depth 5, 2 children, 256 nodes.
    """
    return Recipe(FixedTree(depth, branching, budget, law=Deterministic), RecursiveRejection())


def medusa(
    shape: str = "medusa",
    budget: int | None = None,
    acceptance: Sequence[float] | str = ZOO_PAIR,
    typical: bool = False,
) -> Recipe:
    """A static tree of the most likely tokens of the target's own extra heads.

    With a `budget`, the tree is the best one of that size for `acceptance`, the chances of the first,
    second, ... likely token, as the paper builds its own. The paper accepts what is typical for the target,
    which changes the output's distribution (`typical=True`); by default the output is the target's.

    Source: Medusa, Cai et al. 2024 (arXiv 2401.10774).
    Settings: 63 nodes below the root in four levels.
    """
    if budget is not None:
        policy = StaticTree(Sequoia(budget, 4, acceptance).shape, Deterministic)
    else:
        policy = StaticTree(shape, Deterministic)
    verifier = Typical() if typical else RecursiveRejection()
    return Recipe(policy, verifier, drafter="medusa")


def redrafter(width: int = 45, length: int = 5) -> Recipe:
    """The paths that a beam search ends with.

    Source: ReDrafter, Cheng et al. 2024 (arXiv 2403.09919).
    Settings: 45 beams of length 5 in the authors' code.
    """
    return Recipe(BeamPaths(width, length), RecursiveRejection())


def eagle2(depth: int = 6, branching: int = 10, budget: int = 59) -> Recipe:
    """The most likely nodes of every level are expanded, the best of all candidates kept.

    Source: EAGLE-2, Li et al. 2024 (arXiv 2406.16858), with any draft in place of EAGLE's.
    Settings: depth 6, 10 children, 60 nodes with the root for 7B targets; 50 for 13B and 48 for 70B.
    """
    return Recipe(ExpandRerank(depth, branching, branching, budget), RecursiveRejection())


def dynamic_depth(depth: int = 11, branching: int = 10, budget: int = 59, stop_below: float = 0.3) -> Recipe:
    """EAGLE-2's tree, grown no deeper where the draft is unsure.

    Source: Dynamic Depth Decoding, Brown et al. 2024 (arXiv 2409.00142).
    Settings: EAGLE-2's tree with up to 11 levels.
    """
    tree = ExpandRerank(depth, branching, branching, budget)
    return Recipe(DynamicDepth(tree, stop_below, history=False), RecursiveRejection())


def opt_tree(budget: int = 50, threshold: float = 0.0, depth: int | None = None) -> Recipe:
    """The most likely paths, as many as the budget holds.

    Source: OPT-Tree, Wang et al. 2024 (arXiv 2406.17276).
    Settings: 50 to 60 nodes for 7B targets.
    """
    return Recipe(LayeredDySpec(budget, depth, threshold, Deterministic), RecursiveRejection())


def ddtree(budget: int = 64) -> Recipe:
    """The most likely paths by the per-position distributions of a block drafter, best first.

    Source: DDTree, Ringel et al. 2026 (arXiv 2604.12989).
    Settings: a block drafter, such as a DFlash head, given as `drafter`; the paper tries budgets.
    """
    return Recipe(LayeredDySpec(budget, law=Deterministic), RecursiveRejection())


def svip(length: int = 16, stop_above: float = 0.8, *, temperature: float = 1.0) -> Recipe:
    """A chain that ends where the draft's entropy is high.

    Source: SVIP, Zhang et al. 2024 (arXiv 2411.18462).
    Settings: the length and stop are draftwood's; the draft's temperature is 1, since its entropy is 0
    at 0.
    """
    return Recipe(SVIP(length, stop_above, _law(temperature)), _verifier(temperature), draft_temperature=1.0)


def lookahead(budget: int = 16) -> Recipe:
    """A tree of the n-grams that the target made before, at rejected nodes too.

    Source: Lookahead Decoding, Fu et al. 2024 (arXiv 2402.02057).
    Settings: the pool of n-grams only; no window of guessed tokens takes part in a pass.
    """
    return Recipe(LayeredDySpec(budget, law=Deterministic), RecursiveRejection(), drafter="lookahead")


def token_recycling(budget: int = 64) -> Recipe:
    """A tree of the tokens that the target last found likely after each token, at rejected nodes too.

    Source: Token Recycling, Luo et al. 2024 (arXiv 2408.08696).
    Settings: 8 successors a token; the paper's tree is static and has 80 nodes.
    """
    return Recipe(LayeredDySpec(budget, law=Deterministic), RecursiveRejection(), drafter="token-recycling")


def specexec(width: int = 32, steps: int = 16, budget: int = 128) -> Recipe:
    """A wide beam search whose most likely nodes of all levels are kept.

    Source: SpecExec, Svirschevski et al. 2024 (arXiv 2406.02532).
    Settings: budgets of 16 to 1,024 nodes and more, up to 128 beams in the authors' code.
    """
    return Recipe(Beam(width, steps, budget), RecursiveRejection())


def stree(shape: str = "stree-a", *, temperature: float = 1.0) -> Recipe:
    """A static tree drawn without replacement, judged by multi-step sampling.

    Source: STree, Wu et al. 2025, section 5.3 (arXiv 2505.14969).
    Settings: table 3: stree-a to stree-e.
    """
    policy = StaticTree(shape, _law(temperature))
    return Recipe(policy, _verifier(temperature))


def stree_beam(beams: int = 3, steps: int = 4) -> Recipe:
    """All tokens that a beam search looks at.

    Source: STree, Wu et al. 2025, section 5.1 (arXiv 2505.14969).
    Settings: table 1: M beams by N steps.
    """
    return Recipe(Beam(beams, steps), RecursiveRejection())


def _law(temperature: float, sampled: type[Proposal] = WithoutReplacement) -> type[Proposal]:
    return Deterministic if temperature == 0 else sampled


def _verifier(temperature: float, verifier: Verifier | None = None) -> Verifier:
    return Greedy() if temperature == 0 else verifier or RecursiveRejection()


def _branching(branching: Sequence[int] | str, law: type[Proposal]) -> FixedTree:
    words = branching.split(",") if isinstance(branching, str) else branching
    levels = tuple(int(children) for children in words)
    return FixedTree(len(levels), levels, budget=10**6, law=law)
