"""Every family decodes whole texts, as target and as draft, greedily and sampled, one row and three.

A sampled text is compared with that of a target without cache, mask or state, from the same seed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from draftwood import SamplingParams, SpeculativeDecoder, load
from draftwood.protocols import StateBackend
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from tests.backends.attention_models import randomised
from tests.backends.recurrent_models import KINDS, RECURRENT, SMALL, VOCAB, Stepwise, build
from tests.thorough import marks_unless

TOKENS = 14
PROMPTS = [[5, 9, 2, 40, 17], [33], [7, 7, 1, 50, 28, 3, 12, 60]]


class Naive(StateBackend):
    """Keeps lists of tokens, and asks for the logits of every node's whole text."""

    vocab_size, max_length, weight_bytes = VOCAB, None, 0
    gives_first_logits = True

    def __init__(self, logits_after: Any) -> None:
        self.logits_after = logits_after
        self.texts: list[list[int]] = []
        self.nodes: list[list[list[int]]] = []

    @property
    def lengths(self) -> list[int]:
        return [len(text) for text in self.texts]

    def prefill(self, rows: Sequence[Tensor]) -> None:
        self.texts += [row.tolist() for row in rows]
        self.nodes += [[] for _ in rows]

    def first_logits(self, rows: Sequence[Tensor]) -> Tensor:
        self.prefill(rows)
        return torch.stack([self.logits_after(row.tolist()) for row in rows])

    def release(self, rows: Sequence[int] | None = None) -> None:
        kept = [row for row in range(len(self.texts)) if rows is not None and row not in rows]
        self.texts, self.nodes = [self.texts[row] for row in kept], [self.nodes[row] for row in kept]

    def extend(self, tokens: Tensor, parents: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        logits = torch.zeros(*tokens.shape, VOCAB)
        for row, nodes in enumerate(self.nodes):
            for node in range(tokens.shape[1] if counts is None else counts[row]):
                parent = int(parents[row, node])
                nodes.append([*(nodes[parent] if parent >= 0 else []), int(tokens[row, node])])
                logits[row, node] = self.logits_after(self.texts[row] + nodes[-1])
        return logits

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        for row, path in enumerate(paths):
            self.texts[row] += self.nodes[row][path[-1]] if path else []
            self.nodes[row] = []


LLAMA = "llama"


def rows_of(several: Collection[str], alone: Collection[str] = KINDS[:2]) -> list[Any]:
    """Three rows of `several` families, one row of those in `alone`; the rest is for `make thorough`."""
    # The first of three rows is also decoded alone.
    return [
        pytest.param(name, prompts, id=f"{name}-{words}", marks=marks_unless(name in some))
        for words, prompts, some in (("3 rows", PROMPTS, several), ("1 row", PROMPTS[:1], alone))
        for name in RECURRENT
    ]


@cache
def model(name: str) -> Any:
    if name != LLAMA:
        return build(name)
    torch.manual_seed(11)
    return randomised(LlamaForCausalLM(LlamaConfig(**SMALL)), 0.2)


@cache
def oracle(name: str) -> Stepwise:
    """One for all tests of a model, so that what it has decoded is kept."""
    return Stepwise(model(name))


@cache
def loaded(name: str, role: str) -> StateBackend:
    """One for all tests of a model, without rows between them; a target may not be its own draft."""
    return load(model(name))


def written(target: Any, draft: Any, prompts: list[list[int]], **options: Any) -> Any:
    decoder = SpeculativeDecoder(target, ModelDrafter(draft), LayeredDySpec(9), RecursiveRejection())
    return decoder.generate(
        prompts, max_new_tokens=TOKENS, eos_token_id=[], return_dict_in_generate=True, **options
    )


def greedy(logits_after: Any, prompt: list[int]) -> list[int]:
    text = list(prompt)
    for _ in range(TOKENS):
        text.append(int(logits_after(text).argmax()))
    return text[len(prompt) :]


@pytest.mark.parametrize(("name", "prompts"), rows_of(list(RECURRENT)))
def test_as_target(name: str, prompts: list[list[int]]) -> None:
    out = written(loaded(name, "target"), loaded(LLAMA, "draft"), prompts)
    assert out.tokens == [greedy(oracle(name), prompt) for prompt in prompts]


@pytest.mark.parametrize(("name", "prompts"), rows_of(KINDS))
def test_as_target_of_sampled_texts(name: str, prompts: list[list[int]]) -> None:
    sampling = SamplingParams(temperature=0.7)
    # Its own draft, so that trees are accepted deeply.
    target, draft = loaded(name, "target"), loaded(name, "draft")
    result, expected = (
        written(one, draft, prompts, sampling=sampling, seed=3) for one in (target, Naive(oracle(name)))
    )
    assert result.tokens == expected.tokens
    assert result.statistics.tokens_per_round > 1.5
    assert result.tokens != written(target, draft, prompts, sampling=sampling, seed=9).tokens


@pytest.mark.parametrize(("name", "prompts"), rows_of(KINDS[::2]))
def test_as_draft(name: str, prompts: list[list[int]]) -> None:
    naive = Naive(oracle(name))
    sampling = SamplingParams(temperature=0.7)
    for options in ({"seed": 4}, {"sampling": sampling, "seed": 4}):
        result, expected = (
            written(loaded(LLAMA, "target"), drafter, prompts, **options)
            for drafter in (loaded(name, "draft"), naive)
        )
        assert result.tokens == expected.tokens
        # The same trees, not only the same text.
        assert result.statistics.tokens_per_round == expected.statistics.tokens_per_round
        naive.release()


def test_the_documentation_lists_every_family() -> None:
    page = Path(__file__).parents[2] / "docs" / "state-space.md"
    rows = re.findall(r"^\| [^|]+ \| (`.+`[^|]*) \|.*kernels/", page.read_text("utf-8"), flags=re.MULTILINE)
    listed = re.findall(r"`(\w+)`", " ".join(rows))
    assert len(listed) == len(set(listed))
    assert set(listed) == {name.removesuffix("_norm") for name in RECURRENT}
