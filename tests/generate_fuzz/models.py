"""Tiny models of every kind that a backend supports, their drafts, and a tokenizer for their tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import tokenizers
import torch
import transformers as hf

from draftwood import TreePolicy, Verifier
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.traversal import Traversal
from tests.backends import attention_models, recurrent_models

VOCAB = 53
EOS, PAD = 5, 1

KINDS: dict[str, Callable[[], Any]] = {
    # The texts of these two go on beyond the length that their configurations name.
    "llama": lambda: attention_models.tiny(hf.LlamaConfig, max_position_embeddings=10),
    "mistral": lambda: attention_models.tiny(hf.MistralConfig, sliding_window=6, max_position_embeddings=10),
    "gemma3": lambda: attention_models.tiny(hf.Gemma3TextConfig, sliding_window=6, head_dim=8),
    "gpt2": lambda: attention_models.tiny(hf.GPT2Config, n_layer=2, n_head=4, n_embd=32, n_positions=512),
    "bloom": attention_models.bloom,
    "mamba": lambda: _recurrent("mamba"),
    "mamba2": lambda: _recurrent("mamba2"),
    "bamba": lambda: _recurrent("bamba"),
    "qwen3_next": lambda: _recurrent("qwen3_next"),
}

STRATEGIES: list[tuple[TreePolicy, Verifier]] = [
    (Chain(3), RecursiveRejection()),
    (DySpec(6), RecursiveRejection()),
    (LayeredDySpec(8), Traversal()),
    (FixedTree(2, 2, law="top-k"), Greedy()),
]


def _recurrent(name: str) -> Any:
    vocab = recurrent_models.VOCAB
    assert vocab > VOCAB
    model = recurrent_models.build(name)
    model.resize_token_embeddings(VOCAB)
    return model


@cache
def model(kind: str) -> Any:
    found = KINDS[kind]().eval()
    for config in (found.generation_config, found.config):
        config.eos_token_id, config.pad_token_id, config.bos_token_id = EOS, PAD, 0
    return found


@cache
def draft() -> Any:
    return attention_models.tiny(hf.LlamaConfig, num_hidden_layers=1)


@cache
def tokenizer() -> Any:
    """Every token is a letter or two; the first few are special."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["<s>", "<pad>", "<unk>", *letters, *map("".join, pairwise(letters))]
    words = words[:VOCAB] + [f"<{n}>" for n in range(VOCAB - len(words))]
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: n for n, w in enumerate(words)}, "<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    inner.decoder = tokenizers.decoders.Fuse()
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>", bos_token="<s>"
    )


def prompt_ids(rows: list[list[int]], *, side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Padded ids and their mask."""
    width = max(map(len, rows))
    ids, mask = [], []
    for row in rows:
        gap = width - len(row)
        padded = ([PAD] * gap + row, [0] * gap + [1] * len(row))
        if side == "right":
            padded = (row + [PAD] * gap, [1] * len(row) + [0] * gap)
        ids.append(padded[0])
        mask.append(padded[1])
    return torch.tensor(ids), torch.tensor(mask)
