"""Medusa heads that are broken, and the verdict on each."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood.strategies.drafters.medusa import save_heads
from draftwood.zoo.heads.floors import Floors
from draftwood.zoo.heads.settings import Found
from draftwood.zoo.heads.verdict import Grade, Verdict, verdict_of
from draftwood.zoo.medusa import heads_loss, new_heads, states
from tests.zoo.test_broken_heads import checked, noise, target, texts
from tests.zoo.test_head_verdicts import SHORT_TEXTS


def test_medusa_heads_whose_blocks_are_zero_are_weak() -> None:
    """They still guess tokens by their output, and no part can be left out that would tell."""
    heads = new_heads(target(), 2)
    found = [Found(name="as configured", by_depth=(0.5, 0.4), gain=0.0, likelier=0.0, clear=False)]

    def verdict() -> Verdict:
        return verdict_of(target(), heads, SHORT_TEXTS, found, Floors(unigram=0.04, lookup=0.1), [])

    assert verdict().grade is Grade.weak
    assert "residual blocks are zero throughout" in verdict().sentence
    with torch.no_grad():
        heads.weight[1, 2, 3] = 0.1
    assert verdict().grade is Grade.right


@pytest.fixture(scope="module")
def trained_medusa() -> Any:
    """Two heads that were fitted to the very texts of this file, which is the fastest way to good ones."""
    heads = new_heads(target(), 2).requires_grad_(True)
    optimiser = torch.optim.Adam(heads.parameters(), lr=3e-3)
    for step in range(60):
        tokens = texts()[step % len(texts())].tokens.clone()
        read = states(target(), tokens).flatten(0, 1)
        loss = heads_loss(
            heads(read).unflatten(1, tokens.shape), tokens, torch.ones_like(tokens[:, 1:]), decay=1.0
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return heads.requires_grad_(False)


def flipped(heads: Any) -> None:
    for weight in heads.parameters():
        weight.copy_(weight.flip(0).clone())


MEDUSA: dict[str, tuple[Callable[[Any], Any], str]] = {
    "right": (lambda heads: None, "the best of these|weaker than it could be"),
    "the opposite order": (flipped, "heads in the opposite order"),
    "a random output head": (
        lambda heads: heads.output[0].copy_(noise(heads.output[0])),
        "an output head is damaged",
    ),
    "output heads in another order": (
        lambda heads: heads.output.copy_(heads.output.flip(0)),
        "in another order than its blocks",
    ),
    "a random residual block": (
        lambda heads: heads.weight[1].normal_(generator=torch.Generator().manual_seed(1)),
        "without the residual block of head 1 its guesses are better",
    ),
    "half of each block": (
        lambda heads: [
            block[len(block) // 2 :].copy_(noise(block[len(block) // 2 :])) for block in heads.weight
        ],
        r"the second half of the residual block of head 0 adds -?0\.0\d\d nats .* the other half adds [01]",
    ),
}


@pytest.mark.parametrize("case", MEDUSA)
@torch.no_grad()
def test_medusa_heads_are_checked(case: str, trained_medusa: Any, tmp_path: Path) -> None:
    change, cause = MEDUSA[case]
    heads = copy.deepcopy(trained_medusa)
    change(heads)
    save_heads(heads, tmp_path, target="llama-7m")
    verdict = checked(tmp_path)
    assert re.search(cause, verdict.sentence), verdict.sentence
    assert verdict.broken == (case not in ("right", "half of each block"))
