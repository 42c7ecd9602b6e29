"""The cases of `draftwood prove`: small trees of every policy, random toy models, and what came of each."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from inspect import Parameter
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from draftwood import Drafter, IncompatibleStrategy, Proposal, TreePolicy, Verifier, create
from draftwood.apps.terminal import options
from draftwood.apps.terminal.cli_errors import first_line
from draftwood.base.errors import DraftwoodError, InvalidInput, UnknownStrategy
from draftwood.protocols import registry
from draftwood.protocols.compatibility import check_strategy_fits, needs_several_drafters, registered_laws

if TYPE_CHECKING:
    import torch

    from draftwood.testing import ToyModel, WeightedTree

TOKENS = 3
BUDGET = 100_000  # random outcomes of one case
# One model of each so many is proved over several rounds of the production loop, with commit and the
# next root; the others over one round, which is much cheaper.
_ROUNDS_EVERY = 20


@attrs.frozen
class Toys:
    """One random pair of toy models, and how they are sampled.

    Attributes:
        number: counts the pairs; equal numbers are equal pairs.
    """

    number: int

    @property
    def vocab_size(self) -> int:
        return (3, 2, 3, 4, 3, 2, 2)[self.number % 7]

    @property
    def exact(self) -> bool:
        """Whether all is computed in float64; else in float32, from logits in float32 or bfloat16."""
        return self.number % 5 not in (2, 4)

    @property
    def dtype(self) -> torch.dtype:
        """Returns the dtype of both models' logits."""
        import torch

        if self.exact:
            return torch.float64
        return torch.float32 if self.number % 5 == 2 else torch.bfloat16

    def target(self) -> ToyModel:
        from draftwood.testing import ToyModel

        return ToyModel(
            self.vocab_size,
            seed=10 * self.number,
            sharpness=(1.5, 3.0, 0.7, 6.0)[self.number % 4],
            sparsity=(0.0, 0.3)[self.number % 5 == 3],
            dtype=self.dtype,
        )

    def drafter(self, *, several: bool, silent: bool = True) -> Drafter:
        """A draft near the target, far from it, or sparse; two of them for policies of several drafters.

        Where it may be `silent`, some propose nothing after one of the tokens.
        """
        one = self._draft(1, silent)
        if not several:
            return one
        both: Drafter = create("drafters", "several", {"members": [one, self._draft(2, silent)]})
        return both

    def _draft(self, which: int, may_be_silent: bool) -> Drafter:
        from draftwood.testing import ToyBackend, ToyModel
        from draftwood.testing.models.proof_models import SilentModel
        from draftwood.testing.models.toy import NextTokenModel

        target = self.target()
        model = ToyModel(
            target.vocab_size,
            seed=10 * self.number + which,
            sharpness=(1.0, 2.0)[self.number % 2],
            sparsity=(0.0, 0.3)[self.number % 4 == 1],
            near=target if self.number % 3 else None,
            mix=0.6,
            dtype=self.dtype,
        )
        served: NextTokenModel = model
        if may_be_silent and self.number % 5 == 1:
            served = SilentModel(model.vocab_size, model.seed, dtype=model.dtype, model=model)
        drafter: Drafter = create("drafters", "model", {"backend": ToyBackend(served)})
        return drafter

    @property
    def shapes(self) -> tuple[Mapping[str, Any], ...]:
        """The trees that take no minute on so many tokens, the one whose turn it is first."""
        from draftwood.testing.models.small_sizes import TREES

        small = TREES[: {2: 6, 3: 4, 4: 3}[self.vocab_size]]
        if self.rounds:
            turn = (self.number + 2) % len(small)
        else:
            turns = {2: range(6), 3: (1, 0, 2), 4: (0,)}[self.vocab_size]
            turn = turns[self.number // _ROUNDS_EVERY % len(turns)]
        return (*small[turn:], *small[:turn])

    @property
    def rounds(self) -> int | None:
        return 1 if self.number % _ROUNDS_EVERY else None


@attrs.frozen
class Pair:
    """A registered policy with one of its laws, and a registered lossless verifier.

    Attributes:
        law: None where the policy has no choice.
        switches: the verifier's options that are on or off (see `switch_values`).
        policy_switches: the policy's, such as whether it learns.
    """

    policy: str
    law: type[Proposal] | None
    verifier: str
    switches: Mapping[str, bool | float] = attrs.field(factory=dict)
    policy_switches: Mapping[str, bool] = attrs.field(factory=dict)

    @property
    def grower(self) -> tuple[str, type[Proposal] | None]:
        """Returns the part that grows the trees; pairs with an equal one are proved on the same trees."""
        return self.policy_in_words, self.law

    @property
    def verifier_in_words(self) -> str:
        return _in_words(self.verifier, self.switches)

    @property
    def policy_in_words(self) -> str:
        return _in_words(self.policy, self.policy_switches)

    def build(
        self, shapes: Sequence[Mapping[str, Any]], option_words: Mapping[str, str]
    ) -> tuple[TreePolicy, Verifier, int]:
        """Both with what they take of the options, and which shape it is: the first in which they fit.

        Raises:
            IncompatibleStrategy: they fit in none.
        """
        *others, last = shapes
        for index, shape in enumerate(others):
            try:
                return *self._build(shape, option_words), index
            except IncompatibleStrategy:
                continue
        return *self._build(last, option_words), len(others)

    def _build(
        self, shape: Mapping[str, Any], option_words: Mapping[str, str]
    ) -> tuple[TreePolicy, Verifier]:
        known = known_options("policies", self.policy)
        small = {name: value for name, value in shape.items() if name in known}
        law = {} if self.law is None else {"law": self.law}
        asked = _options_of("policies", self.policy, option_words)
        policy = create("policies", self.policy, {**small, **self.policy_switches, **asked, **law})
        verifier = create(
            "verifiers",
            self.verifier,
            {**self.switches, **_options_of("verifiers", self.verifier, option_words)},
        )
        check_strategy_fits(policy, verifier)
        return policy, verifier


_Drawn: TypeAlias = dict[Hashable, "Sequence[WeightedTree]"]
"""The trees of a model: by what grew them, their shape, the temperature, and whether drafts may be silent."""


@attrs.frozen
class Verdict:
    """The result of a pair.

    Attributes:
        error: the largest difference from the target's joint law in float64; None where none was found.
        word: `"ok"`, `"biased"`, `"fails"`, `"refused"` or `"too large"`.
        why: a sentence, or more with the tree, where the word is not `"ok"`.
        rounded: the largest difference in float32, in which decoding computes.
    """

    pair: Pair
    error: float | None
    word: str
    why: str = ""
    rounded: float | None = None

    @property
    def failed(self) -> bool:
        return self.word in ("biased", "fails")


def pairs(
    policies: Sequence[str], verifiers: Sequence[str], option_words: Mapping[str, str] | None = None
) -> list[Pair]:
    """Every law of the policies with every lossless verifier, switched on and off.

    A strategy that cannot be built is among them: its verdict will say why.
    """
    option_words = option_words or {}
    lossless = [
        (verifier, switches)
        for verifier in verifiers
        for switches in _switches(verifier, option_words)
        if _may_be_lossless(verifier, {**switches, **_options_of("verifiers", verifier, option_words)})
    ]
    return [
        Pair(policy, law, verifier, switches, policy_switches)
        for policy in policies
        for policy_switches in _policy_switches(policy, option_words)
        for law in _laws(policy, option_words)
        for verifier, switches in lossless
    ]


def _in_words(name: str, switches: Mapping[str, bool | float]) -> str:
    return " ".join([name, *(f"{option}={value}".lower() for option, value in switches.items() if value)])


def _policy_switches(policy: str, option_words: Mapping[str, str]) -> Iterator[dict[str, bool]]:
    """Every setting of the options that are true or false."""
    known = known_options("policies", policy).items()
    names = [name for name, option in known if isinstance(option.default, bool) and name not in option_words]
    for values in itertools.product((False, True), repeat=len(names)):
        yield dict(zip(names, values, strict=True))


def _switches(verifier: str, option_words: Mapping[str, str]) -> Iterator[dict[str, bool | float]]:
    from draftwood.testing.models.small_strategies import switch_values

    known = known_options("verifiers", verifier).items()
    switches = {
        name: values
        for name, option in known
        if name not in option_words and (values := switch_values(option))
    }
    for chosen in itertools.product(*switches.values()):
        on = dict(zip(switches, chosen, strict=True))
        try:
            create("verifiers", verifier, {**on, **_options_of("verifiers", verifier, option_words)})
        except InvalidInput:  # these do not go together
            continue
        except Exception:  # a third party's strategy may fail in any way; its verdict will say why
            pass
        yield on


def _may_be_lossless(verifier: str, options: Mapping[str, Any]) -> bool:
    try:
        made = create("verifiers", verifier, options)
        return bool(made.lossless or made.declares_law)
    except Exception:  # a third party's strategy may fail in any way
        return True


def _laws(policy: str, option_words: Mapping[str, str]) -> Iterator[type[Proposal] | None]:
    if "law" not in known_options("policies", policy) or "law" in option_words:
        yield None
        return
    for law in registered_laws():
        try:
            create("policies", policy, {"law": law})
        except DraftwoodError:  # a law that this policy refuses
            continue
        yield law


def prove_pairs(
    pairs: Sequence[Pair], models: Iterable[Toys], option_words: Mapping[str, str] | None = None
) -> list[Verdict]:
    """The largest error of every pair over the toy models; a pair's first failure ends it.

    Pairs of one policy with one law share the trees that it draws on a model.
    """
    verdicts = [Verdict(pair, None, "ok") for pair in pairs]
    for toys in models:
        drawn: _Drawn = {}
        verdicts = [
            _proved_on(toys, verdict, option_words or {}, drawn) if verdict.word == "ok" else verdict
            for verdict in verdicts
        ]
    return verdicts


def _proved_on(toys: Toys, so_far: Verdict, option_words: Mapping[str, str], drawn: _Drawn) -> Verdict:
    """The verdict on a pair after one more model."""
    from draftwood.testing import BudgetExceeded
    from draftwood.testing.diagnosis.tolerances import rounding
    from draftwood.testing.models.small_sizes import LEARNING

    pair = so_far.pair
    try:
        policy, verifier, shape = pair.build(toys.shapes, option_words)
        if policy.learns and toys.rounds is None:
            policy, verifier, shape = pair.build([LEARNING], option_words)
        error, why = _error_on(toys, policy, verifier, (pair.grower, shape), drawn)
    except IncompatibleStrategy as refusal:
        return Verdict(pair, None, "refused", first_line(refusal))
    except BudgetExceeded as limit:
        return Verdict(pair, None, "too large", first_line(limit))
    except AssertionError as fault:
        return Verdict(pair, None, "fails", str(fault))
    except Exception as failure:  # a third party's strategy may fail in any way
        return Verdict(pair, None, "fails", f"{type(failure).__name__}: {first_line(failure)}")
    known = so_far.error if toys.exact else so_far.rounded
    worst = error if known is None else max(known, error)
    after = attrs.evolve(so_far, error=worst) if toys.exact else attrs.evolve(so_far, rounded=worst)
    if why:
        return attrs.evolve(after, word="fails" if error <= rounding(toys.dtype) else "biased", why=why)
    return after


def _error_on(
    toys: Toys, policy: TreePolicy, verifier: Verifier, grown: Hashable, drawn: _Drawn
) -> tuple[float, str]:
    """The largest error, and what is wrong; empty if nothing is."""
    from draftwood.testing import assert_lossless, drawn_trees, joint_law, kept_law
    from draftwood.testing.diagnosis.tolerances import rounding

    # A declared law need not say what it is where there is no draft.
    silent = not verifier.declares_law
    target, drafter = toys.target(), toys.drafter(several=needs_several_drafters(policy), silent=silent)
    # A verifier only for temperature 0 is lossless there.
    temperature = 0.0 if verifier.greedy else (1.0, 0.7)[toys.number % 2]
    case: dict[str, Any] = {
        "target": target,
        "drafter": drafter,
        "tokens": TOKENS,
        "temperature": temperature,
        "rounds": toys.rounds,
        "budget": BUDGET,
    }
    trees = None
    if toys.rounds:
        trees = drawn.get((grown, temperature, silent))
        if trees is None:
            trees = drawn_trees(policy, drafter, temperature=temperature, budget=BUDGET)
            drawn[grown, temperature, silent] = trees
    law = joint_law(policy, verifier, **case, trees=trees)
    expected = kept_law(verifier, target=target, drafter=drafter, tokens=TOKENS, temperature=temperature)
    error = law.error(expected)
    if error <= rounding(toys.dtype) and not law.fault:
        return error, ""
    try:
        assert_lossless(policy, verifier, **case)
    except AssertionError as wrong:
        return error, str(wrong)
    return error, f"the joint law is off by {error:.2g} in one run and not in the next; it must not change."


def known_options(kind: str, name: str) -> Mapping[str, Parameter]:
    """Returns the options of a strategy; none if it cannot be loaded, which its verdict will say."""
    try:
        return registry.options(kind, name)
    except UnknownStrategy:
        raise
    except Exception:  # a third party's module may fail in any way
        return {}


def _options_of(kind: str, name: str, option_words: Mapping[str, str]) -> dict[str, Any]:
    """The options that this strategy has, converted."""
    parameters = known_options(kind, name)
    return {
        option: options.convert(option, word, parameters[option])
        for option, word in option_words.items()
        if option in parameters
    }
