"""`Recipe`: a named method of the literature, assembled from registered parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import attrs

from draftwood.decoding.decoder import SpeculativeDecoder
from draftwood.distributions.sampling import SamplingParams
from draftwood.protocols import TreePolicy, Verifier
from draftwood.protocols.compatibility import check_strategy_fits
from draftwood.protocols.pass_costs import PassCosts


@attrs.frozen
class Recipe:
    """Policy and verifier of a named method, and its settings of the draft.

    Attributes:
        policy: grows the trees.
        verifier: judges them.
        drafter: name of the registered drafter that the method was written for; any other can be used too.
        draft_temperature: the draft's own; None: the target's, or 1 where that is 0.

    Raises:
        IncompatibleStrategy: the verifier cannot judge the policy's trees.
    """

    policy: TreePolicy
    verifier: Verifier
    drafter: str = "model"
    draft_temperature: float | None = None

    def __attrs_post_init__(self) -> None:
        check_strategy_fits(self.policy, self.verifier)

    def decoder(
        self, target: Any, drafter: Any, *, pass_costs: PassCosts | None = None
    ) -> SpeculativeDecoder:
        """A decoder of this method, of arguments that are taken as `SpeculativeDecoder` takes them."""
        return SpeculativeDecoder(target, drafter, self.policy, self.verifier, pass_costs=pass_costs)

    def draft_sampling(self, sampling: SamplingParams) -> SamplingParams | None:
        """Returns the `draft_sampling` argument of `generate` that goes with `sampling` in this method."""
        if self.draft_temperature is None:
            return None
        return attrs.evolve(sampling, temperature=self.draft_temperature)


class Fit(Protocol):
    """A function that fits a recipe's tree to a pair; `draftwood tune` calls it before it tries the recipe.

    Attributes:
        option: the recipe's option that is fitted; a value that the user chose is kept.
    """

    option: str

    def __call__(
        self,
        target: Any,
        drafter: Any,
        prompts: Sequence[Sequence[int]],
        *,
        budgets: Sequence[int],
        sampling: SamplingParams,
        draft_sampling: SamplingParams,
        tokens: int,
        seed: int,
        watch: Callable[[Sequence[Any]], Iterable[Any]],
    ) -> Mapping[int, str]:
        """The option's text for every one of `budgets`.

        Args:
            target, drafter: as `SpeculativeDecoder` takes them.
            prompts: of calibration, as tokens.
            budgets: numbers of nodes that a tree may have.
            sampling: of the target, above temperature 0.
            draft_sampling: of the draft.
            tokens: of a text.
            seed: of the first prompt's draws.
            watch: iterates over the steps of the work, and shows its progress.
        """
        ...


RecipeFunction = TypeVar("RecipeFunction", bound=Callable[..., Recipe])


def fitted_by(fit: Fit) -> Callable[[RecipeFunction], RecipeFunction]:
    """A decorator: the recipe's tree can be fitted to a pair by `fit`."""

    def mark(recipe: RecipeFunction) -> RecipeFunction:
        recipe.fit = fit  # type: ignore[attr-defined]
        return recipe

    return mark
