"""Contenders by name: `dyspec:budget=16`, `chain+block`, `my_policy:Comb`, or a mode of `generate` itself."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from draftwood.apps.models import by_name as models
from draftwood.apps.models import drafters_by_name as drafters
from draftwood.apps.models.method import Strategy, strategy_of_parts, strategy_of_recipe
from draftwood.apps.terminal import options
from draftwood.base.errors import IncompatibleStrategy, InvalidInput, UnknownStrategy, nearest
from draftwood.protocols import registry

OURS = "ordinary"
"""Ordinary decoding of draftwood, which every contest of several rows compares with too."""

ORDINARY, ASSISTED, LOOKUP = "generate", "generate-assisted", "generate-prompt-lookup"
MODES = (ORDINARY, ASSISTED, LOOKUP)


@attrs.frozen
class Spec:
    """One contender.

    Attributes:
        name: a mode of `generate`, a recipe, a policy, or policy and verifier with a plus sign between them
            (no verifier: the usual one for the temperature); each registered or `package.module:Name`.
        options: name=value, for recipe, policy, verifier or drafter; `drafter` names a drafter.
        budget: the nodes asked for, where the run sweeps budgets and the contender has one.
    """

    name: str
    options: tuple[str, ...] = ()
    budget: int | None = None

    @property
    def label(self) -> str:
        return ":".join((self.name, *self.options))

    @property
    def is_transformers(self) -> bool:
        """Whether transformers' own `generate` runs it."""
        return self.name in MODES

    @property
    def parts(self) -> tuple[str, str | None] | None:
        """Policy and verifier; None for a recipe, and a mode of `generate`."""
        policy, plus, verifier = self.name.partition("+")
        whole = not plus and policy in (*MODES, *registry.names("recipes"))
        return None if whole else (policy, verifier or None)

    def strategy(self, temperature: float) -> Strategy:
        """Returns the strategy that `draftwood generate` would run under this name.

        Raises:
            UnknownStrategy: a name or option that does not exist.
            InvalidInput: an option's value, or a drafter that is a model.
            IncompatibleStrategy: parts that do not fit each other, or the temperature.
        """
        words = options.parse(self.options)
        drafter = words.pop("drafter", None)
        if drafter is not None and not drafters.is_drafter(drafter):
            raise InvalidInput(
                f"{self.label!r} names the drafter {drafter!r}; give a head, a registered one or "
                "package.module:Name, and models as pairs."
            )
        own = () if self.parts else registry.options("recipes", self.name)
        given = None if "draft_temperature" in own else words.pop("draft_temperature", None)
        words_left = [f"{name}={value}" for name, value in words.items()]
        if self.parts:
            strategy = strategy_of_parts(*self.parts, drafter or models.DRAFT, words_left, temperature)
        else:
            strategy = strategy_of_recipe(self.name, drafter, words_left, temperature)
        if given is not None:
            parameter = registry.options_of(Strategy)["draft_temperature"]
            draft_temperature = options.convert("draft_temperature", given, parameter)
            strategy = attrs.evolve(strategy, draft_temperature=draft_temperature)
        if strategy.verifier.greedy and temperature != 0:
            raise IncompatibleStrategy(
                f"{self.label!r} only supports temperature 0, not {temperature}; leave the verifier "
                "out for the usual one."
            )
        return strategy


def parse(word: str) -> Spec:
    """`"rsd-s:width=4:depth=3"` as a `Spec`.

    Raises:
        UnknownStrategy: nothing of this name.
        InvalidInput: an option that is not name=value, or options for a mode of `generate`.
    """
    name, words = options.split(word)
    options.parse(words)
    known = {*MODES, *registry.names("recipes"), *registry.names("policies")}
    if not {"+", ":"} & set(name) and name not in known:
        registry.check_name_not_gone(name)
        raise UnknownStrategy(f"There is no strategy {name!r:.80}{nearest(name, known)}")
    if name in MODES and words:
        raise InvalidInput(f"{word!r} gives {name!r} an option, and it has none; write {name!r}.")
    return Spec(name, tuple(words))


def measured(label: str, words: Sequence[str], budgets: Sequence[int]) -> Spec:
    """The contender that a run over `words` and `budgets` wrote down as `label`; nothing is looked up."""
    swept = {
        f"{Spec(*_split(word)).label}:{size}={budget}": budget
        for word in words
        for size in ("budget", "length")
        for budget in budgets
    }
    return Spec(*_split(label), swept.get(label))


def _split(word: str) -> tuple[str, tuple[str, ...]]:
    name, words = options.split(word)
    return name, tuple(words)


def contenders(
    words: Sequence[str], budgets: Sequence[int], temperature: float, *, ours: bool = False
) -> list[Spec]:
    """Ordinary `generate` and then every strategy, once for each budget where it has one, each checked.

    A budget is the nodes of a tree: the option `budget`, or a chain's `length`. A strategy that has
    neither, or was given it, runs once.

    Args:
        words: names of strategies with their options.
        budgets: nodes of a tree.
        temperature: of the target.
        ours: whether ordinary decoding of draftwood runs too.
    """
    specs = [Spec(ORDINARY), *([Spec(OURS)] if ours else [])]
    for word in words:
        spec = parse(word)
        size = _size(spec, temperature) if budgets and not spec.is_transformers else None
        specs += [Spec(spec.name, (*spec.options, f"{size}={b}"), b) for b in budgets] if size else [spec]
    unique = list({spec.label: spec for spec in specs}.values())
    for spec in unique:
        if not spec.is_transformers:
            spec.strategy(temperature)
    return unique


def _size(spec: Spec, temperature: float) -> str | None:
    """The option that sets the tree's size, unless it was chosen."""
    kind_and_name = ("policies", spec.parts[0]) if spec.parts else ("recipes", spec.name)
    parameters = registry.options(*kind_and_name)
    chosen = options.parse(spec.options)
    if "budget" in parameters:
        return None if "budget" in chosen else "budget"
    if "length" in parameters and "length" not in chosen and not spec.strategy(temperature).policy.branches:
        return "length"
    return None
