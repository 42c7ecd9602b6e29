"""Rows whose text a backend has not prefilled: from a cache of another call, and read on after their own."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import transformers as hf

from draftwood.backends.kinds.state_cost import backend_for
from draftwood.backends.loading.loader import load
from draftwood.base.errors import UnsupportedModel
from draftwood.protocols import StateBackend
from draftwood.testing.backends import Mirror
from draftwood.testing.models.oracles import Text
from tests.backends.attention_models import VOCAB, plain, tiny
from tests.backends.captured_models import as_traced, few_shapes, served
from tests.backends.recurrent_models import Stepwise, build
from tests.cache_names import cache_name

WINDOW = {"sliding_window": 6}
MODELS: dict[str, Any] = {
    "llama": tiny,
    "mistral": partial(tiny, hf.MistralConfig, **WINDOW),
    "gemma3": partial(tiny, hf.Gemma3TextConfig, **WINDOW, head_dim=8),
}
TEXTS = [[7, 9, 11, 4, 20, 22, 8, 30, 31, 12, 3], [6, 8, 20], [40]]


def filled(model: Any, texts: list[list[int]]) -> hf.DynamicCache:
    """A cache that holds these texts, padded on the left."""
    width = max(map(len, texts))
    ids = torch.tensor([[1] * (width - len(text)) + text for text in texts])
    mask = (torch.arange(width) >= width - torch.tensor(list(map(len, texts)))[:, None]).long()
    cache = hf.DynamicCache(config=model.config)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        model(ids, attention_mask=mask, position_ids=positions, **{cache_name(model): cache})
    return cache


def taken_over(mirror: Mirror, cache: hf.DynamicCache, texts: list[list[int]]) -> None:
    """The backend takes the rows over, and so does its mirror."""
    mirror.log.prefill(texts)
    mirror.backend.take_over(cache, [len(text) for text in texts])
    mirror.texts += [Text(text, len(text) + 1) for text in texts]
    mirror.nodes += [[] for _ in texts]
    mirror.check_lengths()


def rounds(mirror: Mirror) -> None:
    """Trees over all rows, of which a path that skips a node is kept, beyond every window."""
    rows = len(mirror.texts)
    for start in range(4):
        tree = [(start + 3, -1), (start + 9, 0), (start + 17, 0), (start + 5, 2), (start + 6, 3)]
        mirror.extend([[(token % VOCAB, parent) for token, parent in tree] for _ in range(rows)])
        mirror.commit([[0, 2, 3] if row != start % rows else [0] for row in range(rows)])
    mirror.check_state()


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("passes", ["captured", "mask", "paths"])
def test_a_given_cache(kind: str, passes: Any) -> None:
    model = MODELS[kind]()
    with few_shapes():
        captured = passes == "captured"
        backend: Any = served(model, capture=as_traced) if captured else load(model, attention=passes)
        mirror = Mirror(backend, partial(plain, MODELS[kind]()))
        for first in (TEXTS, TEXTS[:1]):  # the second time over buffers that are there
            taken_over(mirror, filled(model, first), first)
            rounds(mirror)
            mirror.release([0])
            mirror.prefill([[5, 2, 9]])
            rounds(mirror)
            mirror.release(None)
        if captured:
            assert backend.captured.graphs > 0


def test_rows_taken_over_join_others() -> None:
    model = tiny()
    with few_shapes():
        mirror = Mirror(served(model, capture=as_traced), partial(plain, tiny()))
        mirror.prefill([[9] * 3, [4, 5, 6, 7]])
        taken_over(mirror, filled(model, TEXTS), TEXTS)
        rounds(mirror)


@pytest.mark.parametrize("attention", ["mask", "paths"])
def test_a_cache_holds_no_features(attention: Any) -> None:
    model = tiny()
    backend = load(model, attention=attention)
    backend.keep_features([0])
    with pytest.raises(UnsupportedModel, match="a drafter that reads its features, so past_key_values is"):
        backend.take_over(filled(model, TEXTS), [len(text) for text in TEXTS])
    assert backend.lengths == []


@pytest.mark.parametrize("name", ["mamba2", "bamba", "qwen3_next"])
def test_recomputing_backends_read_on_and_take_no_cache(name: str) -> None:
    model = build(name)
    backend: StateBackend = backend_for(model, "recompute")
    mirror = Mirror(backend, after := Stepwise(build(name)))
    mirror.prefill([[3, 4, 5], [6, 7]])
    rounds(mirror)
    more = [[8, 9, 10, 11], []]
    logits = backend.read(more)
    assert not logits[1].any()
    mirror.texts = [Text([*text, *new], len(text) + 1) for text, new in zip(mirror.texts, more, strict=True)]
    torch.testing.assert_close(logits[0], after(list(mirror.texts[0])), atol=1e-4, rtol=1e-4)
    mirror.check_lengths()
    rounds(mirror)
    with pytest.raises(UnsupportedModel, match="RecomputingBackend reads no cache of another call"):
        backend.take_over(filled(model, TEXTS), [len(text) for text in TEXTS])
    mirror.check_state()
