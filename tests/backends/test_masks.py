"""Which nodes see which: windows by position, ancestors by parents, in any form a model asks for."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf

from draftwood.backends.host_region import HostRegion
from draftwood.backends.masks import Masks, Reach, reaches
from draftwood.backends.region import Region
from draftwood.errors import InvalidTree, UnsupportedModel


def seen_by(parents: list[int], node: int) -> set[int]:
    """The node and its ancestors, read off the parents one by one."""
    seen = set()
    while node >= 0:
        seen.add(node)
        node = parents[node]
    return seen


def on_device(rows: int) -> Region:
    return Region(rows, torch.device("cpu"))


MAKES: list[Callable[[int], Region | HostRegion]] = [on_device, HostRegion]


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("seed", range(8))
def test_a_region_grown_call_by_call_sees_ancestors(make: Any, seed: int) -> None:
    rng = random.Random(seed)
    region, rows = make(3), 3
    parents: list[list[int]] = [[] for _ in range(rows)]
    columns: list[list[int]] = [[] for _ in range(rows)]
    for _ in range(rng.randint(1, 5)):
        n = rng.choice([1, 2, 3, 7, 40])
        counts = [n] * rows if rng.random() < 0.5 else [rng.randint(0, n) for _ in range(rows)]
        given = torch.full((rows, n), -1)
        for row, count in enumerate(counts):
            for place in range(count):
                have = len(parents[row])
                given[row, place] = rng.randint(-1, have - 1)
                parents[row].append(int(given[row, place]))
                columns[row].append(region.columns + place)
        staged = region.stage(given, counts)
        for row, count in enumerate(counts):
            for place in range(count):
                node = len(parents[row]) - count + place
                ancestors = seen_by(parents[row], node)
                expected = {columns[row][ancestor] for ancestor in ancestors}
                assert set(staged.visible[row, place].nonzero().flatten().tolist()) == expected
                assert staged.depths[row, place] == len(ancestors) - 1
        region.accept(staged)
    assert region.counts == [len(row) for row in parents]
    paths = [sorted(seen_by(row, len(row) - 1)) if row else [] for row in parents]
    expected_columns = [[taken[node] for node in path] for taken, path in zip(columns, paths, strict=True)]
    assert region.columns_of(paths) == expected_columns
    for row, taken in enumerate(columns):
        depths = [len(seen_by(parents[row], node)) - 1 for node in range(len(taken))]
        assert region.depths[row, taken].tolist() == depths
    region.keep([2, 0])
    assert region.columns_of([paths[2], paths[0]]) == [expected_columns[2], expected_columns[0]]
    region.clear()
    assert region.columns == 0
    assert region.stage(torch.tensor([[-1], [-1]]), [1, 0]).visible.tolist() == [[[True]], [[True]]]


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 8, 9, 10, 33, 34, 70])
def test_a_chain_in_one_call_sees_all_of_itself(make: Any, n: int) -> None:
    staged = make(1).stage(torch.arange(-1, n - 1).unsqueeze(0), [n])
    assert torch.equal(staged.visible[0], torch.ones(n, n).tril().bool())


@pytest.mark.parametrize("make", MAKES)
def test_staging_alone_changes_nothing(make: Any) -> None:
    region = make(1)
    region.accept(region.stage(torch.tensor([[-1, 0]]), [2]))
    region.stage(torch.tensor([[1, 2, 1]]), [3])
    staged = region.stage(torch.tensor([[0]]), [1])
    assert staged.visible.tolist() == [[[True, False, True]]]
    assert region.depths.tolist() == [[0, 1]]
    with pytest.raises(InvalidTree, match="names node 2"):
        region.columns_of([[0, 2]])


def test_reach_ends_at_the_window() -> None:
    keys = torch.arange(10).unsqueeze(0)
    window, chunk = Reach(window=3), Reach(chunk=4)
    assert window.sees(torch.tensor([[7]]), keys)[0, 0, :8].nonzero().flatten().tolist() == [5, 6, 7]
    assert chunk.sees(torch.tensor([[6]]), keys)[0, 0, :7].nonzero().flatten().tolist() == [4, 5, 6]
    assert not window.limits(3)
    assert window.limits(4)
    assert not chunk.limits(4)
    assert chunk.limits(5)
    assert not Reach().limits(10**9)


def test_windows_count_positions_not_slots() -> None:
    masks = Masks({"sliding_attention": Reach(window=2)}, dtype=torch.float32, device=torch.device("cpu"))
    # Root at position 2 in slot 2; its children at position 3 in slots 3, 4, 5; a grandchild in slot 6.
    keys = torch.tensor([[0, 1, 2, 3, 3, 3, 4]])
    visible = torch.tensor([[[True, True, True, False, False, True, True]]])
    mask = masks.build(visible, queries=torch.tensor([[4]]), keys=keys, longest=7)
    assert isinstance(mask, torch.Tensor)
    assert (mask[0, 0, 0] == 0).nonzero().flatten().tolist() == [5, 6]


def test_a_model_that_mixes_layers_gets_a_mask_for_each_kind() -> None:
    config = hf.Gemma3TextConfig(
        num_hidden_layers=2, sliding_window=4, layer_types=["sliding_attention", "full_attention"]
    )
    kinds = reaches(config)
    assert kinds == {"sliding_attention": Reach(window=4), "full_attention": Reach()}
    masks = Masks(kinds, dtype=torch.bfloat16, device=torch.device("cpu"))
    built = masks.build(torch.ones(1, 1, 6).bool(), queries=torch.tensor([[5]]), keys=None, longest=4)
    assert isinstance(built, dict)
    assert all(not mask.any() and mask.dtype == torch.bfloat16 for mask in built.values())


def test_windows_by_family() -> None:
    assert reaches(hf.LlamaConfig(num_hidden_layers=2)) == {"full_attention": Reach()}
    assert reaches(hf.MistralConfig(sliding_window=6)) == {"sliding_attention": Reach(window=6)}
    assert reaches(hf.MistralConfig(sliding_window=None)) == {"full_attention": Reach()}
    llama4 = hf.Llama4TextConfig(num_hidden_layers=4, attention_chunk_size=8)
    assert reaches(llama4) == {"chunked_attention": Reach(chunk=8), "full_attention": Reach()}


def test_layers_without_keys_of_their_own_are_no_obstacle() -> None:
    shared = hf.Gemma3nTextConfig(num_hidden_layers=10, num_kv_shared_layers=5, sliding_window=6)
    assert set(reaches(shared)) == {"sliding_attention", "full_attention"}


def test_other_caches_are_named() -> None:
    with pytest.raises(UnsupportedModel, match="Layer 0 of mamba2 keeps a LinearAttentionLayer"):
        reaches(hf.Mamba2Config(hidden_size=32, num_heads=8, head_dim=8, num_hidden_layers=1))
