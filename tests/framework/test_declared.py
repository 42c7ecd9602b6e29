"""Strategies that were written for an older draftwood are refused in one sentence."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any

import attrs
import pytest
from torch import Tensor

from draftwood import (
    CounterRandomness,
    Drafter,
    InvalidInput,
    Outcome,
    Proposal,
    Request,
    TokenTree,
    TreePolicy,
    Verifier,
    WithReplacement,
    create,
)
from draftwood.laws.proposals import draw_children
from draftwood.protocols.compatibility import check_drafters_fit, check_strategy_fits


@attrs.frozen
class Plain(TreePolicy):
    laws = frozenset({WithReplacement})

    def grow(self, root: int, rng: Any) -> Generator[Request, Tensor, TokenTree]:
        raise NotImplementedError


class Local(Plain):
    local = True


class Observing(Plain):
    def observe(self, outcome: Outcome) -> None: ...


class Undeclared(Verifier):
    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Any) -> Outcome:
        raise NotImplementedError


class LocalVerifier(Undeclared):
    laws = frozenset({WithReplacement})
    local = True


class Alone:
    """A drafter that is derived from nothing, with all that the protocol once had."""

    vocab_size = 3
    drafters = 1
    weight_bytes = 0

    def prefill(self, rows: Any) -> None: ...
    def release(self, rows: Any = None) -> None: ...
    def distributions(self, requests: Any) -> Any: ...
    def commit(self, outcomes: Any) -> None: ...


class Drawless(Proposal):
    vocab_size = 3

    def conditional(self, k: int, earlier: Any) -> Any: ...


class ByRows(Plain):
    def grow_rows(self, roots: Any, rngs: Any) -> Any: ...


class Planned(Plain):
    def planned_trees(self, roots: Any, levels: Any) -> Any: ...


@pytest.mark.parametrize(
    ("policy", "verifier", "sentence"),
    [
        (
            Local(),
            None,
            "Local declares 'local', as a policy for an older draftwood does: `adaptive` means more",
        ),
        (Observing(), None, "Observing has observe() but does not declare that it learns"),
        (ByRows(), None, "ByRows declares 'grow_rows', as a policy for an older draftwood does: `grow`"),
        (Planned(), None, "Planned declares 'planned_trees', as a policy for an older draftwood does: a"),
        (
            Plain(),
            Undeclared(),  # type: ignore[abstract]
            "Undeclared has no 'laws', which every verifier has; derive it from draftwood.Ver",
        ),
        (
            Plain(),
            LocalVerifier(),
            "LocalVerifier declares 'local', as a verifier for an older draftwood does",
        ),
    ],
)
def test_policies_and_verifiers(policy: Any, verifier: Any, sentence: str) -> None:
    with pytest.raises(InvalidInput, match="^" + re.escape(sentence)) as refusal:
        check_strategy_fits(policy, verifier or create("verifiers", "recursive-rejection"))
    assert "\n" not in str(refusal.value)


def test_what_declares_all_passes_whether_derived_or_not() -> None:
    check_strategy_fits(Plain(), create("verifiers", "recursive-rejection"))
    names = (
        *("backends", "model", "names", "planned_levels", "prefill_prompt", "reads_scores", "remembers"),
        *("scored", "source"),
    )
    for name in names:
        alone: Any = Alone()
        for other in {*names} - {name}:
            setattr(alone, other, ())
        with pytest.raises(InvalidInput, match=f"Alone has no '{name}', which every drafter has; derive it"):
            check_drafters_fit(Plain(), alone)
        setattr(alone, name, ())
        check_drafters_fit(Plain(), alone)


def test_what_passes_attributes_on_has_them() -> None:
    class Around:
        def __init__(self, inner: Drafter) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    around: Any = Around(create("drafters", "prompt-lookup", {"vocab_size": 3}))
    check_drafters_fit(Plain(), around)


def test_a_law_that_does_not_say_how_it_is_drawn() -> None:
    import torch

    with pytest.raises(InvalidInput, match="Drawless does not say how its children are drawn"):
        draw_children(Drawless, torch.ones(1, 3) / 3, count=1, rng=CounterRandomness.seeded(0))
