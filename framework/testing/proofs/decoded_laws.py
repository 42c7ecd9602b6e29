"""The laws of drafted and of written tokens, by samples of decoding with trees of any size."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from draftwood.decoding.decoder import SpeculativeDecoder
from draftwood.decoding.generation import Generation
from draftwood.distributions.sampling import SamplingParams
from draftwood.laws.randomness import Randomness
from draftwood.protocols import TreePolicy, Verifier
from draftwood.testing.diagnosis.chi_square import SIGNIFICANCE, chi_square_test
from draftwood.testing.diagnosis.law_broken import LawBroken
from draftwood.testing.models.proof_models import ProofModels, proof_models
from draftwood.testing.models.row_views import TOY_COSTS
from draftwood.testing.models.small_strategies import toy_drafter
from draftwood.testing.models.toy import ToyBackend
from draftwood.testing.proofs.kept_law import kept_model
from draftwood.trees.outcome import Outcome
from draftwood.trees.tree import TokenTree

ROWS = 8
DRAWS = 12_000
"""Drafted tokens of a run, about."""

_BINS = 10
_LONGEST = 512
_TRIAL = 12
_DEPTHS = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
_SIBLINGS = 8
_SIZES = (8, 16, 32, 64)
_WINDOW = 16
_TAILS = (0.95, 0.99)
_SURE = 0.9
_UNLIKELY = "any but the likeliest token, where that has 0.9,"
_SETTINGS = ((8, 1.0, 0.6, True), (300, 1.0, 0.6, False), (40, 0.4, 0.1, False))
"""Vocabularies, temperatures, how near the draft is to the target, and whether the draft has ties.

A draft far from the target shows more rejections.
"""


def assert_decoded_laws(policy: TreePolicy, verifier: Verifier, *, seed: int = 0) -> str:
    """Test law P of drafted tokens and law V of written ones while rows of toy models are decoded.

    A token's rank by the law that it should have, most likely first, with its own share of it drawn, is
    uniform in [0, 1), whatever came before. The ranks of a run are tested by chi-square: of drafted tokens in
    all, by depth, by number among siblings, by node and by row; of written tokens in all, by row and by the
    text's length. Each token must also come as often as its probabilities say. So any settings can be looked
    at, and a bias of some size is seen; needs scipy. Written tokens are those that decoding returns, and
    their law is the target model's own, or the one that the verifier declares, so that faults of everything
    between the two are seen.

    Returns:
        What was drawn, and the smallest bias that would have been seen.

    Raises:
        LawBroken: ranks are not uniform, or a token that cannot come did.
    """
    said = []
    for vocab_size, temperature, near, tied in _SETTINGS:
        toys = proof_models(31, vocab_size=vocab_size, target=2.0, draft=1.5, mix=near)
        toys = toys.with_ties if tied else toys
        run = partial(_run, policy, verifier, toys, temperature)
        drafted, written = run(tokens=_TRIAL, seed=seed)
        cost = max(drafted.count / max(written.count, 1), 1.0)
        tokens = min(max(int(DRAWS / ROWS / cost), 24), _LONGEST)
        drafted, written = run(tokens=tokens, seed=seed + 1)
        bias = drafted.test(f"{policy} breaks law P: of its drafted tokens")
        drifts = written.test(f"{verifier} with {policy} breaks law V: of the written tokens")
        said.append(
            f"{drafted.count:,} drafted and {written.count:,} written tokens over {vocab_size} "
            f"at temperature {temperature:g}, "
            f"where biases of {bias:.1%} and {drifts:.1%} are seen"
        )
    return f"{ROWS} rows: " + "; ".join(said)


@attrs.define
class _Ranks:
    """Counts of ranks in each of the bins, by group; and of tokens, with the numbers that should come.

    Attributes:
        vocab_size: of the tokens.
        chance: draws a token's place in its own share.
        counts: of each bin, by group.
        tokens: how often each token came, and the sum of its probabilities `[2, vocab]`.
        kinds: the same two numbers of tokens of a kind, by its name.
    """

    vocab_size: int
    chance: random.Random
    counts: dict[str, list[int]] = attrs.field(factory=dict)
    tokens: NDArray[Any] = attrs.field(init=False)
    kinds: dict[str, list[float]] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.tokens = np.zeros((2, self.vocab_size))

    @property
    def count(self) -> int:
        return sum(self.counts.get("in all", ()))

    def see(self, token: int, law: Tensor, groups: Sequence[str], kinds: Mapping[str, Sequence[int]]) -> bool:
        """Note the rank of `token` in `law` `[vocab]`, and its kinds; whether it can come at all.

        Groups and kinds, which are tokens by name, are those that are known before it is drawn.
        """
        shares = law.double().numpy()
        shares = shares / shares.sum()
        p = shares[token]
        if not p > 0:
            return False
        earlier = (shares > p) | ((shares == p) & (np.arange(len(shares)) < token))
        rank = float(shares[earlier].sum()) + self.chance.random() * float(p)
        place = min(int(rank * _BINS), _BINS - 1)
        for group in ("in all", *groups):
            self.counts.setdefault(group, [0] * _BINS)[place] += 1
        self.tokens[0, token] += 1
        self.tokens[1] += shares
        for kind, tokens in kinds.items():
            self._count(kind, token in tokens, float(shares[list(tokens)].sum()))
        ranked = -np.sort(-shares)
        before = ranked.cumsum() - ranked
        own = float(before[int(earlier.sum())])
        for part in _TAILS:
            self._count(
                f"a token of the last {1 - part:.0%}", own >= part, float(ranked[before >= part].sum())
            )
        if ranked[0] > _SURE:
            self._count(_UNLIKELY, bool(earlier.any()), 1 - float(ranked[0]))
        return True

    def _count(self, kind: str, came: bool, due: float) -> None:
        both = self.kinds.setdefault(kind, [0.0, 0.0])
        both[0] += came
        both[1] += due

    def test(self, what: str) -> float:
        """The smallest bias that is seen in all of them; raises `LawBroken` for one that there is."""
        law: dict[tuple[int, ...], float] = {(place,): 1 / _BINS for place in range(_BINS)}
        smallest = 1.0
        for group, counts in self.counts.items():
            found = chi_square_test(
                {(place,): count for place, count in enumerate(counts)}, law, models=len(self.counts)
            )
            if group == "in all":
                smallest = found.smallest_bias
            if found.p_value < SIGNIFICANCE / len(self.counts):
                total = sum(counts)
                worst = max(range(_BINS), key=lambda place: abs(counts[place] - total / _BINS))
                raise LawBroken(
                    f"{what} {group} ({total:,}) the {worst + 1}. tenth, counted from the most likely, has a "
                    f"share of {counts[worst] / total:.3f}; it should have 0.100 (p = {found.p_value:.1g}).",
                    error=abs(counts[worst] / total - 1 / _BINS),
                )
        named = {f"token {number}": pair for number, pair in enumerate(self.tokens.T.tolist())} | self.kinds
        for kind, (came, due) in named.items():
            # Chernoff's bound for a sum of coins whose chances are known before each.
            apart = due - came + (came * math.log(came / due) if came and due > 0 else 0.0)
            if due > 0 and apart > math.log(2 * len(named) / SIGNIFICANCE):
                raise LawBroken(
                    f"{what} {kind} came {came:.0f} times in {self.count:,} and should have come {due:.0f} "
                    "times.",
                    error=abs(came - due) / self.count,
                )
        return smallest


def _run(
    policy: TreePolicy,
    verifier: Verifier,
    toys: ProofModels,
    temperature: float,
    *,
    tokens: int,
    seed: int,
) -> tuple[_Ranks, _Ranks]:
    vocab_size = toys.target.vocab_size
    chance = random.Random(seed)
    watched = _Watched(policy, verifier, _Ranks(vocab_size, chance))
    drafter = toy_drafter(policy, *toys.drafts)
    decoder = SpeculativeDecoder(ToyBackend(toys.target), drafter, policy, watched, pass_costs=TOY_COSTS)
    prompts = [[row % vocab_size, 1, row // 2 % vocab_size] for row in range(ROWS)]
    generation = decoder.generate(
        prompts,
        max_new_tokens=tokens,
        sampling=SamplingParams(temperature=temperature),
        seed=seed,
        eos_token_id=[],
        return_dict_in_generate=True,
    )
    assert isinstance(generation, Generation)
    written = _Ranks(vocab_size, chance)
    kept = kept_model(verifier, toys.target, toys.drafts)
    for row, (prompt, text) in enumerate(zip(prompts, generation.tokens, strict=True)):
        for place, token in enumerate(text):
            part = f"in quarter {1 + 4 * place // tokens} of the texts"
            # A verifier knows the draft's distribution only where something was drafted.
            model = toys.target if place in watched.undrafted(row) else kept
            law = model.probs([*prompt, *text[:place]], temperature)
            if not written.see(token, law, [f"of row {row}", part], _repeats([*prompt, *text[:place]])):
                raise LawBroken(
                    f"{verifier} with {policy} breaks law V: token {token} was written, which "
                    f"{'its own law' if verifier.declares_law else 'the target'} gives probability 0 there."
                )
    return watched.drafted, written


class _Watched(Verifier):
    """Judges as `verifier` does, and records the ranks of the drafted tokens that it saw."""

    def __init__(self, policy: TreePolicy, verifier: Verifier, drafted: _Ranks) -> None:
        self.policy, self.verifier = policy, verifier
        self.laws, self.lossless, self.adaptive = verifier.laws, verifier.lossless, verifier.adaptive
        self.branches, self.greedy = verifier.branches, verifier.greedy
        self.declares_law = verifier.declares_law
        self.drafted = drafted
        self._rows: dict[int, tuple[int, Randomness]] = {}
        self._written: dict[int, int] = {}
        self._undrafted: dict[int, set[int]] = {}

    def declared_law(self, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
        return self.verifier.declared_law(target_probs, draft_probs)

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        (outcome,) = self.verify_rows([tree], [target_probs], [rng])
        return outcome

    def verify_rows(
        self, trees: Sequence[TokenTree], target_probs: Sequence[Tensor], rngs: Sequence[Randomness]
    ) -> list[Outcome]:
        for tree, rng in zip(trees, rngs, strict=True):
            # A row is known by its stream, which is kept so that no other takes its name.
            row, _ = self._rows.setdefault(id(rng), (len(self._rows), rng))
            self._see(tree, row)
        outcomes = self.verifier.verify_rows(trees, target_probs, rngs)
        for tree, rng, outcome in zip(trees, rngs, outcomes, strict=True):
            row, _ = self._rows[id(rng)]
            begun = self._written.get(row, 0)
            if len(tree) == 1:
                self._undrafted.setdefault(row, set()).add(begun)
            self._written[row] = begun + len(outcome.path)
        return outcomes

    def undrafted(self, row: int) -> set[int]:
        """Returns the places in the text of `row` at which nothing was drafted."""
        return self._undrafted.get(row, set())

    def _see(self, tree: TokenTree, row: int) -> None:
        tokens, depths = tree.tokens.tolist(), tree.depths.tolist()
        paths = {0: tokens[:1]}
        for node, number, child, earlier in _children(tree):
            paths[child] = [*paths[node], tokens[child]]
            law = tree.proposals[node].conditional(number, earlier)
            groups = [f"of row {row}"]
            groups += [f"from depth {depth} on" for depth in _DEPTHS if depths[child] >= depth]
            groups += [f"from node {size} of a tree on" for size in _SIZES if child >= size]
            groups += [f"that are number {number} among siblings"] if number < _SIBLINGS else []
            if not self.drafted.see(tokens[child], law, groups, _repeats(paths[node])):
                raise LawBroken(
                    f"{self.policy} breaks law P: token {tokens[child]} was drawn at depth {depths[child]} "
                    f"as child {number}, after {earlier}, where its declared law gives it probability 0."
                )


def _repeats(text: Sequence[int]) -> dict[str, list[int]]:
    """Returns the tokens that would repeat one of the last tokens of `text`, by how often."""
    last = list(text[-_WINDOW:])
    times = {f"a token that came {count} times shortly before": count for count in (1, 2, 3)}
    return {name: [t for t in set(last) if last.count(t) == count] for name, count in times.items()} | {
        "a token that follows itself": last[-1:]
    }


def _children(tree: TokenTree) -> Iterator[tuple[int, int, int, tuple[int, ...]]]:
    """Every drafted node: its parent, its number among siblings, itself, and its earlier siblings' tokens."""
    tokens: list[Any] = tree.tokens.tolist()
    for node in range(len(tree)):
        earlier: tuple[int, ...] = ()
        for number, child in enumerate(tree.children(node)):
            yield node, number, child, earlier
            earlier = (*earlier, tokens[child])
