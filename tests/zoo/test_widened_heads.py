"""A head for a widened target drafts there what it drafts for the narrow one."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood import IncompatibleModels, InvalidInput, Outcome, Request, UnsupportedModel, load, zoo
from draftwood.strategies.blocks.files import load_block, save_block
from draftwood.strategies.drafters.block_drafter import BlockDrafter
from draftwood.strategies.drafters.eagle3 import Eagle3
from draftwood.strategies.heads.formats import load_head
from draftwood.zoo.heads.widened import widened_head
from draftwood.zoo.widen import parameter_count, widen
from tests.strategies import block_heads, feature_heads
from tests.thorough import marks_unless

ZOO: dict[str, tuple[Any, Any]] = {
    "llama-7m-eagle3": (load_head, Eagle3),
    "llama-7m-dspark": (load_block, BlockDrafter),
}
SWITCHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "usual taps": {"taps": None},
    "norm before": {"norm_before_fc": True, "own_embedding": True, "draft_vocab_size": 23},
    "norm a tap": {"fc_norm": True, "taps": (0, 3)},
}


@cache
def wide_llama() -> Any:
    return widen(zoo.load("llama-7m"), hidden_size=640, num_hidden_layers=11)


def assert_same(drafts: list[tuple[Any, Any]], *, vocabulary: int, seed: int) -> None:
    """Both drafters give the same distributions over random trees of two rows, through three rounds.

    `drafts` are the two targets, each with its drafter.
    """
    chance = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [chance.randrange(vocabulary) for _ in range(count)]

    texts = [torch.tensor(tokens(chance.randint(1, 12))) for _ in range(2)]
    for target, drafter in drafts:
        target.prefill(texts)
        drafter.prefill(texts)
    for _ in range(3):
        nodes = chance.randint(2, 9)
        trees = [tokens(nodes) for _ in texts]
        parents = [[-1, *(chance.randrange(node) for node in range(1, nodes))] for _ in texts]
        for first, last in ((0, 1), (1, nodes)):
            asked = [
                Request(torch.tensor(tree[first:last]), torch.tensor(above[first:last]))
                for tree, above in zip(trees, parents, strict=True)
            ]
            narrow, wide = (_laws(drafter.distributions(asked)) for _, drafter in drafts)
            torch.testing.assert_close(wide, narrow, atol=1e-5, rtol=0)
        paths = [_path(above, chance.randrange(nodes)) for above in parents]
        kept = [[tree[node] for node in path] for tree, path in zip(trees, paths, strict=True)]
        for target, drafter in drafts:
            target.extend(torch.tensor(trees), torch.tensor(parents))
            target.commit(paths)
            drafter.commit([Outcome(range(len(k)), k, extra=0, bonus=True, drafted=nodes - 1) for k in kept])


def _path(parents: list[int], node: int) -> list[int]:
    return [] if node < 0 else [*_path(parents, parents[node]), node]


def _laws(logits: Tensor) -> Tensor:
    """Probabilities; zeros where nothing is proposed."""
    return logits.double().softmax(-1).nan_to_num()


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=marks_unless(not seed)) for seed in range(6)])
@pytest.mark.parametrize("name", ZOO)
def test_the_zoos_heads_draft_the_same(name: str, seed: int) -> None:
    read, drafter = ZOO[name]
    narrow, wide = zoo.load("llama-7m"), wide_llama()
    head = read(zoo.path(name)).float()
    widened: Any = widened_head(head, narrow, wide)
    drafts = [
        (target := load(model), drafter(target, one)) for model, one in ((narrow, head), (wide, widened))
    ]
    assert_same(drafts, vocabulary=4096, seed=seed)
    added = 3 * (640 - 256) * 256
    borrowed = 4096 * 256 * (1 if name.endswith("eagle3") else 2)
    assert parameter_count(widened) == parameter_count(head) + added + borrowed


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
def test_norms_of_features_are_scaled(switches: dict[str, Any]) -> None:
    # With an epsilon that counts, and usual taps that the added layers would move.
    narrow = feature_heads.target()
    wide = widen(narrow, hidden_size=40, num_hidden_layers=9)
    head = feature_heads.random_head(feature_heads.config(norm_eps=0.1, **switches))
    drafts = [
        (target := load(model), Eagle3(target, one))
        for model, one in ((narrow, head), (wide, widened_head(head, narrow, wide)))
    ]
    assert_same(drafts, vocabulary=23, seed=1)


@pytest.mark.parametrize("kind", block_heads.KINDS)
def test_block_drafters_of_every_kind(kind: str) -> None:
    narrow, head = block_heads.MODEL, block_heads.random_head(block_heads.KINDS[kind])
    wide = widen(narrow, hidden_size=40, num_hidden_layers=9)
    drafts = [
        (target := load(model), BlockDrafter(target, one))
        for model, one in ((narrow, head), (wide, widened_head(head, narrow, wide)))
    ]
    assert_same(drafts, vocabulary=block_heads.VOCAB, seed=1)


def test_what_cannot_be_widened_is_refused(tmp_path: Any) -> None:
    narrow, wide = zoo.load("llama-7m"), wide_llama()
    head = load_block(zoo.path("llama-7m-dspark"))
    with pytest.raises(UnsupportedModel, match="Linear reads its own states as it reads its target's"):
        widened_head(torch.nn.Linear(1, 1), narrow, wide)
    with pytest.raises(IncompatibleModels, match="width 256 is no larger shape of a 'llama' of width 640"):
        widened_head(head, wide, narrow)
    with pytest.raises(IncompatibleModels, match="features of width 256, but the narrow target's is 640"):
        widened_head(head, wide, wide)
    with pytest.raises(IncompatibleModels, match="made for states of width 640"):
        BlockDrafter(load(narrow), widened_head(head, narrow, wide))
    with pytest.raises(InvalidInput, match="reads features of width 640 and has the width 256, which no"):
        save_block(widened_head(head, narrow, wide), tmp_path)  # type: ignore[arg-type]
