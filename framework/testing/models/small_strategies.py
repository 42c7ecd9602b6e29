"""Small policies and verifiers of every registered kind, and which of them fit each other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from inspect import Parameter
from typing import Any

import attrs

from draftwood.base.errors import IncompatibleStrategy
from draftwood.protocols import Drafter, TreePolicy, Verifier, registry
from draftwood.protocols.compatibility import check_strategy_fits, needs_several_drafters
from draftwood.testing.models.small_sizes import COMBINED
from draftwood.testing.models.toy import NextTokenModel, ToyBackend


@attrs.frozen
class NamedStrategy:
    """A strategy with the name and options by which the registry builds it."""

    name: str
    options: Mapping[str, Any]
    strategy: Any = attrs.field(repr=False)

    def __str__(self) -> str:
        options = ", ".join(f"{key}={getattr(v, '__name__', v)}" for key, v in self.options.items())
        return f"{self.name}({options})"


def small_policies() -> list[NamedStrategy]:
    """Every registered policy in every combination of the small sizes that it takes."""
    return list(_built("policies", COMBINED))


def small_verifiers() -> list[NamedStrategy]:
    """Every registered verifier that is lossless at any temperature, with each of its switches on and off."""
    built = _built("verifiers", {})
    return [verifier for verifier in built if verifier.strategy.lossless and not verifier.strategy.greedy]


def switch_values(option: Parameter) -> tuple[bool, bool] | tuple[float, float] | None:
    """Off and on for an option that is a switch: a boolean, or a number whose default is 0.0."""
    if isinstance(option.default, bool):
        return False, True
    return (0.0, 0.5) if isinstance(option.default, float) and option.default == 0 else None


def fits(policy: TreePolicy, verifier: Verifier) -> bool:
    """Returns whether `verifier` judges the trees of `policy`."""
    try:
        check_strategy_fits(policy, verifier)
    except IncompatibleStrategy:
        return False
    return True


def fitting_pairs() -> list[tuple[TreePolicy, Verifier]]:
    """Every small policy with every lossless verifier that judges its trees."""
    return [
        (policy.strategy, verifier.strategy)
        for policy, verifier in itertools.product(small_policies(), small_verifiers())
        if fits(policy.strategy, verifier.strategy)
    ]


def toy_drafter(policy: TreePolicy, *models: NextTokenModel) -> Drafter:
    """Returns a drafter for `policy`: all `models` where each child has its own drafter, else the first.

    Where the policy asks drafters by name, these are the models in turn.
    """
    drafters = [registry.create("drafters", "model", {"backend": ToyBackend(model)}) for model in models]
    if needs_several_drafters(policy) and len(drafters) > 1:
        return registry.create("drafters", "several", {"members": drafters})  # type: ignore[no-any-return]
    if policy.asks:
        named = dict(zip(sorted(policy.asks), itertools.cycle(models), strict=False))
        members = {
            name: registry.create("drafters", "model", {"backend": ToyBackend(model)})
            for name, model in named.items()
        }
        return registry.create("drafters", "named", {"members": members})  # type: ignore[no-any-return]
    return drafters[0]  # type: ignore[no-any-return]


def _built(kind: str, sizes: Mapping[str, Sequence[Any]]) -> Iterator[NamedStrategy]:
    for name in registry.names(kind):
        try:
            parameters = registry.options(kind, name)
        except Exception:  # a third party's module may fail in any way
            continue
        values = {option: sizes[option] for option in parameters if option in sizes}
        values |= {option: switch for option, p in parameters.items() if (switch := switch_values(p))}
        for chosen in itertools.product(*values.values()):
            options = dict(zip(values, chosen, strict=True))
            try:
                yield NamedStrategy(name, options, registry.create(kind, name, options))
            except Exception:  # these values do not fit together, or it needs another option
                continue
