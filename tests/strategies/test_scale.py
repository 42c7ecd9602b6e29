"""Verifiers at the size of real trees and vocabularies: what they allocate, and what they walk."""

import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import draftwood
from draftwood import TapeRandomness, TokenTree, WithoutReplacement
from draftwood.strategies.verifiers.block import Block
from draftwood.strategies.verifiers.class_ordered_rejection import ClassOrderedRejection
from draftwood.strategies.verifiers.class_ordered_traversal import ClassOrderedTraversal
from draftwood.strategies.verifiers.race_traversal import RaceTraversal
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.traversal import Traversal

VERIFIERS = [
    RecursiveRejection(),
    Traversal(),
    Block(),
    ClassOrderedRejection(),
    ClassOrderedTraversal(),
    RaceTraversal(),
]


class Watch(TorchDispatchMode):
    """Counts torch calls, and the bytes of the storages that their results hold at a time.

    What a kernel allocates for itself and frees before it returns is not seen.
    """

    def __init__(self):
        super().__init__()
        self.calls = self.live = self.peak = 0
        self._tensors = {}  # of every storage that was made here

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        given = {one.untyped_storage()._cdata for one in tree_leaves((args, kwargs)) if torch.is_tensor(one)}
        result = func(*args, **(kwargs or {}))
        for one in tree_leaves(result):
            if torch.is_tensor(one):
                self._made(one, given)
        return result

    def _made(self, tensor, given):
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._tensors:
            if key in given:  # a view of what was there before
                return
            self._tensors[key] = 0
            self.live += size
            self.peak = max(self.peak, self.live)
        self._tensors[key] += 1
        weakref.finalize(tensor, self._gone, key, size)

    def _gone(self, key, size):
        self._tensors[key] -= 1
        if not self._tensors[key]:
            del self._tensors[key]
            self.live -= size


class Lines:
    """Counts the lines of draftwood that run."""

    def __enter__(self):
        self.run, self._root, self._before = 0, str(Path(draftwood.__file__).parents[1]), sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_):
        sys.settrace(self._before)

    def _trace(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(self._root):
            return None
        self.run += event == "line"
        return self._trace


def grown(shape, nodes, drafts):
    """A tree of `nodes` nodes, of `shape[i]` children at level i (the last number: at all below)."""
    parents, tokens, proposals, level, depth = [-1], [0], {}, [0], 0
    rng = uniforms(low=0.0, seed=3)
    while level:
        below = list[int]()
        for node in level:
            count = min(shape[min(depth, len(shape) - 1)], nodes - len(parents))
            if count:
                proposals[node] = WithoutReplacement(drafts[node % len(drafts)])
                below += range(len(parents), len(parents) + count)
                tokens += rng.without_replacement(proposals[node].p, count)
                parents += [node] * count
        level, depth = below, depth + 1
    return TokenTree(torch.tensor(tokens), torch.tensor(parents), proposals)


def shape_for(verifier):
    return (1,) if isinstance(verifier, Block) else (8, 4, 2, 1)


def uniforms(*, low, seed=5):
    u = torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return TapeRandomness(low + (1 - low) * u)


NODES, VOCAB = 768, 128_000


@pytest.fixture(scope="module")
def large():
    """Draft rows that a few nodes share, and a target row for each node, 393 MB."""
    generator = torch.Generator().manual_seed(1)
    drafts = torch.randn(4, VOCAB, generator=generator).mul_(3).softmax(-1)
    targets = torch.empty(NODES, VOCAB)
    for node, row in enumerate(targets):
        # Near the draft at the node, with its mass elsewhere on every other token.
        row.copy_(drafts[node % 4])
        row[node % 7 :: 2] *= 0.3
        row.div_(row.sum())
    return drafts, targets


@pytest.mark.parametrize("verifier", VERIFIERS, ids=str)
def test_a_large_tree_takes_at_most_one_more_matrix(verifier, large):
    drafts, targets = large
    tree = grown(shape_for(verifier), NODES, drafts)
    # Coins near 1 refuse most siblings, so that a traversal settles much of the tree.
    with Watch() as watch:
        outcome = verifier.verify(tree, targets, uniforms(low=0.9))
    assert 0 <= outcome.extra < VOCAB
    assert watch.peak <= (NODES + 32) * VOCAB * 4


def small(vocab):
    """Draft and target rows of 64 nodes; tokens beyond 1,000 hold next to nothing, so nothing changes."""
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(68, 1000, dtype=torch.float64, generator=generator).mul_(2).softmax(-1)
    targets = 0.7 * rows[:4].repeat(16, 1) + 0.3 * rows[4:]
    both = torch.cat([rows[:4], targets])
    if vocab > 1000:
        both = torch.cat([both * (1 - 1e-8), both.new_full((68, vocab - 1000), 1e-8 / (vocab - 1000))], -1)
    return both[:4], both[4:]


@pytest.mark.parametrize("verifier", VERIFIERS, ids=str)
def test_neither_calls_nor_lines_grow_with_the_vocabulary(verifier):
    outcomes, calls, run = [], [], []
    for vocab in (1_000, 16_000):
        drafts, targets = small(vocab)
        tree = grown(shape_for(verifier), 64, drafts)
        with Watch() as watch:
            outcomes.append(verifier.verify(tree, targets, uniforms(low=0.8)))
        with Lines() as lines:
            verifier.verify(tree, targets, uniforms(low=0.8))
        calls.append(watch.calls)
        run.append(lines.run)
    assert outcomes[0] == outcomes[1]
    assert run[0] == run[1]
    assert run[0] > 50
    # A few more where the number of likely tokens passes a threshold.
    assert calls[1] <= calls[0] * 1.01
