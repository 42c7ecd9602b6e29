"""Which nodes see which: windows by position, in any form a model asks for."""

from __future__ import annotations

import pytest
import torch
import transformers as hf

from draftwood.backends.masks import Masks, Reach, reaches
from draftwood.errors import UnsupportedModel


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
