"""Masks of nodes: windows by position, in any form that a model needs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor

from draftwood.backends.attention.number_masks import NumberMasks
from draftwood.backends.attention.tree_attention import Attending
from draftwood.backends.attention.tree_kernel import TREE, BitMasks
from draftwood.backends.nodes.buckets import Shape
from draftwood.backends.nodes.pass_inputs import PassInputs
from draftwood.backends.nodes.region import WORD, Staged, packed
from draftwood.backends.nodes.staging import send
from draftwood.backends.structure.masks import Reach, reaches
from draftwood.base.errors import UnsupportedModel


def test_reach_ends_at_the_window() -> None:
    keys = np.arange(10)[None]
    window, chunk = Reach(window=3), Reach(chunk=4)
    assert np.flatnonzero(window.sees(np.array([[7]]), keys)[0, 0, :8]).tolist() == [5, 6, 7]
    assert np.flatnonzero(chunk.sees(np.array([[6]]), keys)[0, 0, :7]).tolist() == [4, 5, 6]
    assert not window.limits(3)
    assert window.limits(4)
    assert not chunk.limits(4)
    assert chunk.limits(5)
    assert not Reach().limits(10**9)


def masks_of(
    kinds: dict[str, Reach], seen: list[list[int]], *, lengths: list[int], depths: list[list[int]], dtype: Any
) -> tuple[Any, Tensor]:
    """Masks of numbers for the last node of every row, and what nodes see by masks of bits.

    Padded to a larger shape, both say the same of these nodes.
    """
    cpu, rows, columns = torch.device("cpu"), len(lengths), len(depths[0])
    staged = Staged(
        np.full((rows, 1), -1),
        [1] * rows,
        columns - 1,
        packed(np.array(seen, bool)[:, None]),
        np.array(depths)[:, -1:],
    )
    before: Any = SimpleNamespace(depths=np.array(depths)[:, :-1])
    inputs = PassInputs.of(
        torch.zeros(rows, 1, dtype=torch.int64),
        staged,
        kinds=kinds,
        before=before,
        lengths=np.array(lengths),
        base=max(lengths),
        ragged=min(lengths) < max(lengths),
        max_length=None,
    )
    numbers = NumberMasks(tuple(kinds), dtype=dtype, device=cpu)
    bits = BitMasks(tuple(kinds), attention=Attending([], TREE))
    room = Shape(rows + 1, 4, max(lengths) + 3, WORD)
    (masks, exact), (_, more) = (seen_by(numbers, inputs, shape) for shape in (None, room))
    (_, by_bits), (_, more_by_bits) = (seen_by(bits, inputs, shape) for shape in (None, room))
    slots = exact.shape[2]
    for wide in (more, more_by_bits):
        assert torch.equal(wide[:rows, :1, :slots], exact)
        assert not wide[:rows, :1, slots:].any()
        # Softmax needs something for padding too.
        assert wide.any(2).all()
    return masks, by_bits


def seen_by(form: Any, inputs: PassInputs, room: Shape | None) -> tuple[Any, Tensor]:
    """Returns masks for `attention_mask=`, and the first kind's as bool `[rows, nodes, slots]`."""
    tensors = send(inputs.arrays(form, room), torch.device("cpu"))
    masks, bits = form.of(tensors, room or inputs.shape)
    if bits:
        return masks, bits[0].visible()
    first = next(iter(masks.values())) if isinstance(masks, dict) else masks
    return masks, first[:, 0] == 0


def test_windows_count_positions_not_slots() -> None:
    # A root at position 2 in slot 2; its children at position 3 in slots 3, 4, 5; a grandchild in slot 6.
    mask, bits = masks_of(
        {"sliding_attention": Reach(window=2)},
        [[True, False, False, True, True]],
        lengths=[2],
        depths=[[0, 1, 1, 1, 2]],
        dtype=torch.float32,
    )
    assert (mask[0, 0, 0] == 0).nonzero().flatten().tolist() == [5, 6]
    assert torch.equal(mask[:, 0] == 0, bits)


@pytest.mark.parametrize("window", [None, 3, 9])
def test_a_shorter_row_has_a_gap(window: int | None) -> None:
    mask, bits = masks_of(
        {"full_attention": Reach(window=window)},
        [[True, True], [False, True]],
        lengths=[6, 2],
        depths=[[0, 1], [0, 0]],
        dtype=torch.float64,
    )
    expected = [[*range(6), 6, 7], [0, 1, 7]] if window != 3 else [[5, 6, 7], [0, 1, 7]]
    assert [(row == 0).nonzero().flatten().tolist() for row in mask[:, 0, 0]] == expected
    assert torch.equal(mask[:, 0] == 0, bits)


def test_a_model_that_mixes_layers_gets_a_mask_for_each_kind() -> None:
    config = hf.Gemma3TextConfig(
        num_hidden_layers=2, sliding_window=4, layer_types=["sliding_attention", "full_attention"]
    )
    kinds = reaches(config)
    assert kinds == {"sliding_attention": Reach(window=4), "full_attention": Reach()}
    built, _ = masks_of(kinds, [[True]], lengths=[3], depths=[[0]], dtype=torch.bfloat16)
    assert list(built) == list(kinds)
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
