"""Passes through the tree kernel in heavy-path order, of which callers see nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor

from benchmarks.research.orders import blocks_of, heavy_path
from draftwood.backends.kinds import packed
from draftwood.backends.kinds.ssm import HybridBackend
from draftwood.backends.kinds.transformer import TransformerBackend
from draftwood.backends.nodes.heavy_paths import in_heavy_paths
from draftwood.backends.nodes.region import Region
from draftwood.kernels import support
from draftwood.kernels.testing import relative_error
from draftwood.kernels.tree_attention import dispatch
from draftwood.kernels.tree_attention.mask import TreeMask
from draftwood.testing.backends import StateBackendTests
from draftwood.trees.tree import TokenTree
from tests.backends.test_recurrent_kernels import MODELS as RECURRENT
from tests.backends.test_region import path_to
from tests.backends.test_tree_kernel import MODELS, VOCAB, tiny
from tests.thorough import some_of


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    with support.kernels_enabled(True):
        yield


def random_parents(nodes: int, chance: random.Random, *, old: int = 0) -> list[int]:
    """Every node hangs below any earlier one, all equally likely; the first below the committed state."""
    return [chance.randrange(node) if node else -1 for node in range(old, old + nodes)]


def as_tree(parents: list[int]) -> TokenTree:
    return TokenTree(torch.zeros(len(parents), dtype=torch.int64), torch.tensor(parents))


@pytest.mark.parametrize("seed", range(20))
def test_columns_are_heavy_paths(seed: int) -> None:
    chance = random.Random(seed)
    nodes = chance.choice([1, 2, 5, 33, 90])
    rows = [random_parents(nodes, chance) for _ in range(3)]
    plain = Region.empty(3).stage(np.array(rows), [nodes] * 3)
    staged = in_heavy_paths(plain)
    assert staged.columns is not None
    for row, parents in enumerate(rows):
        order = heavy_path(as_tree(parents))
        assert staged.columns[row].argsort().tolist() == order
        assert (staged.visible[row] == plain.visible[row][order][:, order]).all()
        assert (staged.depths[row] == plain.depths[row][order]).all()
    orders = staged.orders()
    numbers = np.arange(3 * nodes)
    assert (numbers[orders["from call"]][orders["to call"]] == numbers).all()


def a_round(backend: Any) -> tuple[list[Tensor], list[int]]:
    """Returns tensors of a round over two ragged rows, and the first row's parents.

    The tensors are logits of a tree in two calls, hidden states after its commit, and logits of a step.
    """
    chance, tensors, vocab = random.Random(5), list[Tensor](), backend.vocab_size
    backend.keep_features([0, backend.feature_layers])
    backend.prefill([[chance.randrange(vocab) for _ in range(n)] for n in (20, 3)])
    parents: list[list[int]] = [[], []]
    for counts in ([140, 20], [4, 9]):
        call = torch.full((2, max(counts)), -1)
        for row, count in enumerate(counts):
            new = random_parents(count, chance, old=len(parents[row]))
            call[row, :count] = torch.tensor(new)
            parents[row] += new
        tokens = torch.tensor([[chance.randrange(vocab) for _ in call[0]] for _ in call])
        logits = backend.extend(tokens, call, counts)
        tensors += [logits[row, :count].clone() for row, count in enumerate(counts)]
    backend.commit([path_to(len(row_parents) - 1, row_parents) for row_parents in parents])
    tensors += backend.take_features()
    return [*tensors, *backend.extend(torch.tensor([[1], [2]]), torch.tensor([[-1], [-1]]))], parents[0]


NARROW = {"num_attention_heads": 2, "num_key_value_heads": 1}


@pytest.mark.triton
@pytest.mark.parametrize(
    "name", some_of(["grouped heads", "soft-cap, windows", "a hybrid"], ["grouped heads"])
)
def test_a_model_gives_and_keeps_the_same_over_fewer_blocks(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "a hybrid":
        torch.manual_seed(3)
        config = RECURRENT["bamba"]()
        config.update(NARROW)
        model, kind = hf.AutoModelForCausalLM.from_config(config).eval().to(device), HybridBackend
    else:
        config, options = MODELS[name]
        model, kind = tiny(config, **options, **NARROW), TransformerBackend
    with support.kernels_enabled(False):
        expected, parents = a_round(kind(model))
    masks, attend = list[TreeMask](), dispatch.attend

    def noted(**options: Any) -> Tensor:
        masks.append(options["mask"])
        return attend(**options)

    monkeypatch.setattr(dispatch, "attend", noted)
    result, _ = a_round(kind(model))
    for one, right in zip(result, expected, strict=True):
        assert relative_error(one, right.to(one.device)) < 1e-5
    tree = as_tree(parents[:140])
    (visited,) = {int(mask.blocks(group=1, lines=32)[1][0].sum()) for mask in masks if mask.columns == 140}
    assert visited == blocks_of(tree, heavy_path(tree)) < blocks_of(tree, list(range(140)))


class Reordered(StateBackendTests):
    """Law S with every pass of several nodes reordered."""

    @pytest.fixture(autouse=True)
    def every_pass(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(packed, "REORDER_ABOVE", 1)


@pytest.mark.thorough
class TestWindows(Reordered):
    vocab_size = VOCAB
    examples, steps, longest = 4, 6, 60
    model = tiny(MODELS["soft-cap, windows"][0], **MODELS["soft-cap, windows"][1], **NARROW)

    def make_backend(self) -> TransformerBackend:
        return TransformerBackend(self.model, chunk=16)

    def logits_after(self, tokens: list[int]) -> Tensor:
        with torch.no_grad():
            logits: Tensor = self.model(torch.tensor([tokens], device=self.model.device)).logits
        return logits[0, -1]
