"""EAGLE-3 heads and block drafters for targets with recurrent layers."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from draftwood import Outcome, Request, SamplingParams, SpeculativeDecoder, load
from draftwood.strategies.drafters.block_drafter import BlockDrafter
from draftwood.strategies.drafters.eagle3 import Eagle3
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.testing import DrafterWithTarget, check_strategy
from tests.backends.recurrent_models import VOCAB, Doubled, Stepwise, build
from tests.strategies import block_heads, feature_heads
from tests.thorough import marks_unless

ALL = [f"{target}-{head}" for target in ("mamba2", "bamba", "qwen3_next") for head in ("eagle3", "block")]
PROMPTS = [[5, 9, 2, 40, 17], [33, 8], [7, 7, 1, 50, 28, 3, 12, 60]]
TOKENS = 10
PARENTS = [-1, 0, 0, 1, 1, 3]
TAKEN = ([0], [0, 2], [0, 1, 3, 5])
"""Paths in the tree of `PARENTS`."""


def pairs(*ordinary: str) -> list[Any]:
    """Targets with heads; all but those named are for `make thorough`."""
    return [pytest.param(*pair.split("-"), marks=marks_unless(pair in ordinary), id=pair) for pair in ALL]


@cache
def model(name: str) -> Any:
    return build(name, torch.float64)


def beside(kind: str, target: Any) -> Any:
    """A head of random weights, which reads what both layers of `target` do."""
    backend = load(target)
    if kind == "eagle3":
        made = feature_heads.config(
            hidden_size=32, target_hidden_size=32, vocab_size=VOCAB, draft_vocab_size=50, taps=(0, 1)
        )
        return DrafterWithTarget(backend, Eagle3(backend, feature_heads.random_head(made)))
    block = block_heads.config(
        hidden_size=32,
        vocab_size=VOCAB,
        target_layers=2,
        taps=(0, 1),
        markov_rank=3,
        root_guesses=True,
    )
    return DrafterWithTarget(backend, BlockDrafter(backend, block_heads.random_head(block)))


def from_scratch(kind: str, head: Any, target: Any, text: list[int], path: list[int]) -> Any:
    if kind == "eagle3":
        return feature_heads.path_logits(head, target, text, path)
    return block_heads.depth_logits(head, text, path, model=target)


@pytest.mark.parametrize(("name", "kind"), pairs("mamba2-eagle3", "bamba-block", "qwen3_next-eagle3"))
def test_behind_paths_of_trees_it_drafts_from_features_of_a_plain_forward(name: str, kind: str) -> None:
    with Doubled():
        drafter = beside(kind, model(name))
        texts = [list(prompt) for prompt in PROMPTS]
        drafter.prefill([torch.tensor(text) for text in texts])
        for turn in range(3):
            tree = [[(3 * turn + 7 * row + 11 * node) % VOCAB for node in range(6)] for row in range(3)]
            drafter.target.extend(torch.tensor(tree), torch.tensor(PARENTS).expand(3, -1))
            paths = [TAKEN[(row + turn) % 3] for row in range(3)]
            drafter.target.commit(paths)
            words = [[tree[row][node] for node in path] for row, path in enumerate(paths)]
            drafter.drafter.commit(
                [
                    Outcome(path, some, extra=1, bonus=True, drafted=5)
                    for path, some in zip(paths, words, strict=True)
                ]
            )
            texts = [text + some for text, some in zip(texts, words, strict=True)]
        asked = [[8, 2, 3], [9, 1, 4], [7, 7, 8]]
        logits = drafter.distributions(
            [Request(torch.tensor(row), torch.tensor([-1, 0, 0])) for row in asked]
        )
        for row, text in enumerate(texts):
            root, *children = asked[row]
            for column, path in ((0, [root]), (2, [root, children[1]])):
                expected = from_scratch(kind, drafter.drafter.head, model(name), text, path)
                torch.testing.assert_close(logits[row, column], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("name", "kind"), pairs(*ALL))
def test_greedy_text_is_that_of_ordinary_decoding(name: str, kind: str) -> None:
    with Doubled():
        drafter, step = beside(kind, model(name)), stepwise(name)
        policy = LayeredDySpec(9, law="top-k")
        decoder = SpeculativeDecoder(drafter.target, drafter.drafter, policy, RecursiveRejection())
        out: Any = decoder.generate(
            PROMPTS, max_new_tokens=TOKENS, eos_token_id=[], return_dict_in_generate=True
        )
        for prompt, tokens in zip(PROMPTS, out.tokens, strict=True):
            text = list(prompt)
            for _ in range(TOKENS):
                text.append(int(step(text).argmax()))
            assert tokens == text[len(prompt) :]
        # Every tree is full but where a text ends.
        assert out.statistics.sums["drafted"] > 5 * out.statistics.sums["rounds"]


@cache
def stepwise(name: str) -> Stepwise:
    return Stepwise(model(name))


@pytest.mark.parametrize(("name", "kind"), pairs("bamba-eagle3", "mamba2-block"))
def test_a_sampled_row_does_not_depend_on_the_rows_beside_it(name: str, kind: str) -> None:
    with Doubled():
        drafter = beside(kind, model(name))
        decoder: Any = SpeculativeDecoder(
            drafter.target, drafter.drafter, LayeredDySpec(9), RecursiveRejection()
        )

        def written(prompts: Any, seed: Any) -> Any:
            return decoder.generate(
                prompts,
                max_new_tokens=TOKENS,
                sampling=SamplingParams(temperature=0.8),
                eos_token_id=[],
                seed=seed,
                return_dict_in_generate=True,
            ).tokens

        together = written(PROMPTS, [4, 5, 6])
        assert together == [written([prompt], [4 + row])[0] for row, prompt in enumerate(PROMPTS)]


@pytest.mark.parametrize(("name", "kind"), pairs("mamba2-block"))
def test_it_keeps_what_every_drafter_must(name: str, kind: str) -> None:
    with Doubled():
        check_strategy(beside(kind, model(name)))
