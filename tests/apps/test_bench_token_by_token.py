"""Contenders of models that `generate()` does not run, such as those in GGUF files."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

from draftwood import SamplingParams, StateBackend, UnsupportedModel, load, zoo
from draftwood.apps.bench.specs import ASSISTED, LOOKUP, ORDINARY, Spec
from draftwood.apps.bench.writers import TokenByToken, writer
from draftwood.apps.models.by_name import Dtype, Loaded, Loader


@attrs.frozen(eq=False)
class Nameless:
    """A model with logits only."""

    backend: StateBackend


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    target: Any = load(zoo.path("llama-draft"), dtype=torch.float32)
    target.model = Nameless(target)
    loader = Loader(Dtype.float32, torch.device("cpu"), False)
    return Loaded(target, target, zoo.tokenizer(), loader)


def test_one_token_per_pass_writes_what_generate_writes(loaded: Loaded) -> None:
    model = load(zoo.path("llama-draft"), dtype=torch.float32).model
    prompt = zoo.tokenizer()("The elephant is")["input_ids"]
    ids = torch.tensor([prompt])
    expected = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, eos_token_id=None
    )
    made = writer(Spec(ORDINARY), loaded, 0.0)
    assert isinstance(made, TokenByToken)
    text = made.write(prompt, 12, 1)
    assert text.tokens == expected[0, len(prompt) :].tolist()
    assert (text.rounds, text.first_tokens, text.accept_lengths) == (12, 1, [1] * 12)
    assert 0 < text.first_token_seconds <= text.seconds
    assert loaded.target.lengths == []
    assert made.write(prompt[:1], 3, 1).rounds == 3


def test_one_token_per_pass_samples_by_its_seed(loaded: Loaded) -> None:
    prompt = zoo.tokenizer()("The elephant is")["input_ids"]
    sampled = TokenByToken(loaded.target, SamplingParams(temperature=1.0))
    texts = [sampled.write(prompt, 12, seed).tokens for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("name", [ASSISTED, LOOKUP])
def test_modes_of_transformers_are_refused(loaded: Loaded, name: str) -> None:
    with pytest.raises(UnsupportedModel, match="transformers does not run"):
        writer(Spec(name), loaded, 0.0).write([1, 2], 3, 1)
