"""Contenders of models that `generate()` does not run, such as those in GGUF files."""

from __future__ import annotations

import pytest
import torch

from draftwood import SamplingParams, UnsupportedModel
from draftwood.apps.bench.specs import ASSISTED, LOOKUP, ORDINARY, Spec
from draftwood.apps.bench.writers import TokenByToken, writer
from draftwood.apps.models.by_name import Dtype, Loaded, Loader
from draftwood.testing import ToyBackend, ToyModel

MODEL = ToyModel(8, seed=1)


@pytest.fixture
def loaded() -> Loaded:
    backend = ToyBackend(MODEL)
    return Loaded(backend, backend, None, Loader(Dtype.float32, torch.device("cpu"), False))


def test_one_token_per_pass_writes_the_likeliest_tokens(loaded: Loaded) -> None:
    made = writer(Spec(ORDINARY), loaded, 0.0)
    assert isinstance(made, TokenByToken)
    text, expected = made.write([1, 2, 3], 12, 1), [1, 2, 3]
    for _ in range(12):
        expected.append(int(MODEL.logits(expected).argmax()))
    assert text.tokens == expected[3:]
    assert (text.rounds, text.first_tokens, text.accept_lengths) == (12, 1, [1] * 12)
    assert 0 < text.first_token_seconds <= text.seconds
    assert loaded.target.lengths == []
    assert made.write([1], 3, 1).rounds == 3


def test_one_token_per_pass_samples_by_its_seed(loaded: Loaded) -> None:
    sampled = TokenByToken(loaded.target, SamplingParams(temperature=1.0))
    texts = [sampled.write([1, 2, 3], 12, seed).tokens for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("name", [ASSISTED, LOOKUP])
def test_modes_of_transformers_are_refused(loaded: Loaded, name: str) -> None:
    with pytest.raises(UnsupportedModel, match="transformers does not run ToyBackend"):
        writer(Spec(name), loaded, 0.0).write([1, 2], 3, 1)
