"""Checks of which policies, verifiers and drafters fit together."""

from __future__ import annotations

from draftwood.base.errors import IncompatibleStrategy
from draftwood.distributions.sampling import SamplingParams
from draftwood.laws.proposals import Proposal
from draftwood.protocols import Drafter, TreePolicy, Verifier, registry
from draftwood.protocols.declared import check_declared


def needs_several_drafters(policy: TreePolicy) -> bool:
    """Returns whether children are drawn from distributions of several drafters."""
    return any(law.several_drafters for law in policy.laws)


def registered_laws() -> list[type[Proposal]]:
    """The registered laws, by class name; one that cannot be imported is left out."""
    laws = []
    for name in registry.names("laws"):
        try:
            laws.append(registry.get("laws", name))
        except Exception:  # a third party's module may fail in any way
            continue
    return sorted(laws, key=lambda law: law.__name__)


def laws_of(verifier: Verifier) -> list[type[Proposal]]:
    """Returns the laws to try `verifier` with, sorted by name: its own, or all if it accepts any law."""
    known = {*verifier.laws, *(law for law in registered_laws() if serves(verifier, law))}
    named = known if Proposal in verifier.laws else verifier.laws
    return sorted({*named} - {Proposal}, key=lambda law: law.__name__)


def serves(verifier: Verifier, law: type[Proposal]) -> bool:
    """Returns whether `verifier` judges children drawn by `law`, named or as one of any one-by-one law."""
    return law in verifier.laws or (Proposal in verifier.laws and law.one_by_one)


def check_drafters_fit(policy: TreePolicy, drafter: Drafter) -> None:
    """Raise `IncompatibleStrategy` unless `policy` grows its trees from this number of drafters.

    Raises:
        InvalidInput: the drafter lacks what every drafter declares.
    """
    check_declared(drafter, Drafter)
    if needs_several_drafters(policy) != (drafter.drafters > 1):
        raise IncompatibleStrategy(
            f"{type(policy).__name__} with the laws {_law_names(policy)} cannot use {drafter.drafters} "
            "drafter(s); give Several([...]) to a law such as PerChild, and one drafter to any other law."
        )
    if missing := sorted(policy.asks - set(drafter.names)):
        raise IncompatibleStrategy(
            f"{type(policy).__name__} asks the drafters {sorted(policy.asks)} by name, and "
            f"{type(drafter).__name__} has no {missing[0]!r}; give draftwood.drafters.Named a drafter of "
            "each name."
        )


def check_sampling_fits(verifier: Verifier, sampling: SamplingParams) -> None:
    """Raise `IncompatibleStrategy` unless `verifier` supports this sampling of the target."""
    if verifier.greedy and sampling.temperature != 0:
        raise IncompatibleStrategy(
            f"{type(verifier).__name__} only supports temperature 0, not {sampling.temperature}; "
            "use recursive rejection."
        )


def check_strategy_fits(policy: TreePolicy, verifier: Verifier) -> None:
    """Raise `IncompatibleStrategy` unless `verifier` judges the trees of `policy`.

    The message names the registered lossless verifiers that do, built with their default options.

    Raises:
        InvalidInput: one of them lacks what every policy or verifier declares.
    """
    check_declared(policy, TreePolicy)
    check_declared(verifier, Verifier)
    problem = _misfit(policy, verifier)
    if problem is None:
        return
    fitting = []
    for name in registry.names("verifiers"):
        try:
            other = registry.create("verifiers", name)
            check_declared(other, Verifier)
        except Exception:  # a third party's module may fail in any way, or need options
            continue
        if other.lossless and _misfit(policy, other) is None:
            fitting.append(name)
    raise IncompatibleStrategy(
        f"{type(verifier).__name__} {problem} of {type(policy).__name__}; "
        f"verifiers that fit: {', '.join(fitting) or 'none'}."
    )


def _misfit(policy: TreePolicy, verifier: Verifier) -> str | None:
    """Returns why `verifier` cannot judge the trees of `policy`, or None."""
    strange = [law for law in policy.laws if not serves(verifier, law)]
    if strange:
        return f"does not verify the law {', '.join(sorted(law.__name__ for law in strange))}"
    if policy.adaptive and not verifier.adaptive:
        return "cannot verify adaptive trees"
    if verifier.independent_paths and policy.branches and not policy.independent_paths:
        return "only judges chains and independent paths, not the trees"
    if policy.branches and not verifier.branches:
        return "only judges chains, not the branching trees"
    return None


def _law_names(policy: TreePolicy) -> str:
    return ", ".join(sorted(law.__name__ for law in policy.laws))
