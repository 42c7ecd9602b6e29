"""Rounds of drafters that read a target's features, without the loop, and their caches."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from draftwood import Outcome, Request
from draftwood.testing import DrafterWithTarget


def many_rounds(data: Any, drafter: DrafterWithTarget) -> list[list[int]]:
    """The texts after drawn rounds: rows join and leave, ask for nothing, take what nobody asked about."""
    texts: list[list[int]] = [[3, 1, 4], [], [7]]
    drafter.prefill([torch.tensor(text, dtype=torch.int64) for text in texts])
    for _ in range(data.draw(st.integers(1, 6))):
        roots = [data.draw(st.integers(0, 22)) for _ in texts]
        asked = [data.draw(st.booleans()) for _ in texts]
        drafter.distributions(
            [
                Request(torch.tensor([root, 5, 6, 7]), torch.tensor([-1, 0, 0, 1])) if some else None
                for root, some in zip(roots, asked, strict=True)
            ]
        )
        outcomes = []
        for text, root in zip(texts, roots, strict=True):
            tokens = data.draw(st.sampled_from([[], [root], [root, 6], [root, 5, 7], [root, 5, 7, 9, 1]]))
            outcomes.append(Outcome(range(len(tokens)), tokens, extra=1, bonus=True, drafted=3))
            text += tokens
        drafter.commit(outcomes)
        if len(texts) > 1 and data.draw(st.booleans()):
            drafter.release([0])
            del texts[0]
        if data.draw(st.booleans()):
            texts.append(data.draw(st.lists(st.integers(0, 22), max_size=70)))
            drafter.prefill([torch.tensor(texts[-1], dtype=torch.int64)])
    return texts


def assert_pair_caches_alike(ours: Any, theirs: Any, texts: list[list[int]]) -> None:
    """Assert that the caches of two `PairRows` that read these texts are equal."""
    assert ours._lengths.tolist() == theirs._lengths.tolist() == [len(text) for text in texts]
    torch.testing.assert_close(ours.waiting, theirs.waiting, atol=1e-9, rtol=0)
    for row, text in enumerate(texts):
        pairs = max(len(text) - 1, 0)
        for part in range(len(ours._cache.parts)):
            held, expected = (
                rows._cache.parts[part][row, :, rows._cache.scratch :][:, :pairs] for rows in (ours, theirs)
            )
            assert expected.abs().sum() > 0 or not pairs
            torch.testing.assert_close(held, expected, atol=1e-9, rtol=0)
