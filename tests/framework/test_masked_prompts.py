"""Masks that hide tokens within a text, its end or all of it, and padding that a model reads."""

import random
from typing import Any

import pytest
import torch
import transformers as hf

from draftwood import InvalidInput, SpeculativeDecoder, UnsupportedModel, custom_generate, load
from draftwood.backends.kinds.recompute import RecomputingBackend
from draftwood.backends.model.padding_check import reads_padding
from draftwood.backends.nodes.row_inputs import RowInputs
from draftwood.protocols.model_prompt import has_holes
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from tests.backends import recurrent_models
from tests.backends.attention_models import VOCAB, bloom, randomised, tiny

BIASED = {
    "bamba with biases": lambda: hf.BambaConfig(
        **recurrent_models.SMALL, **recurrent_models.BAMBA, attn_layer_indices=[1], mamba_proj_bias=True
    ),
    "mamba with biases": lambda: hf.MambaConfig(**recurrent_models.PURE, use_bias=True),
}
ATTENTION: dict[str, Any] = {
    "llama": tiny,
    "gpt2": lambda: randomised(
        hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=512))
    ),
    "gemma3, window": lambda: tiny(
        hf.Gemma3TextConfig,
        head_dim=8,
        sliding_window=7,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "mistral, window": lambda: tiny(hf.MistralConfig, sliding_window=6),
    "llama4, chunks": lambda: tiny(
        hf.Llama4TextConfig,
        attention_chunk_size=6,
        num_local_experts=2,
        intermediate_size_mlp=48,
        head_dim=8,
        layer_types=["chunked_attention", "full_attention"],
    ),
    "bloom": bloom,
    "gpt_neo, window": lambda: randomised(
        hf.GPTNeoForCausalLM(
            hf.GPTNeoConfig(
                vocab_size=VOCAB,
                hidden_size=32,
                num_layers=2,
                num_heads=4,
                attention_types=[[["global", "local"], 1]],
                window_size=6,
            )
        )
    ),
}
RECURRENT = (
    *("bamba", "mamba2", "mamba", "zamba", "qwen3_next", "lfm2", "recurrent_gemma"),
    *("kimi_linear", "bailing_hybrid", "lara_mini"),
)
KINDS = (*ATTENTION, *RECURRENT, *BIASED)


def made(kind: str) -> Any:
    torch.manual_seed(3)
    if kind in ATTENTION:
        model = ATTENTION[kind]()
    elif kind in BIASED:
        model = recurrent_models.build(kind, config=BIASED[kind]())
        for name, parameter in model.named_parameters():
            if name.endswith("in_proj.bias"):
                parameter.data.normal_()
    else:
        model = recurrent_models.build(kind)
    model.generation_config = hf.GenerationConfig(pad_token_id=1)
    return model


def asked(seed: int, vocab: int) -> dict[str, Any]:
    """Up to three rows, each with a hole, padding, both, a hidden end, a random mask, or all hidden."""
    choose, chance = random.Random(seed), torch.Generator().manual_seed(seed)
    rows, length = choose.randint(1, 3), choose.randint(2, 14)
    mask = torch.ones(rows, length, dtype=torch.int64)
    for row in mask:
        kind = choose.choice(["hole", "padding", "hole after padding", "end", "random", "all"])
        if "padding" in kind:
            row[: choose.randrange(length)] = 0
        if "hole" in kind:
            row[choose.randrange(length)] = 0
        if kind == "end":
            row[choose.randrange(length) :] = 0
        if kind == "random":
            row.copy_(torch.rand(length, generator=chance) < 0.6)
        if kind == "all":
            row.zero_()
    ids = torch.randint(2, vocab, (rows, length), generator=chance)
    return {"input_ids": ids, "attention_mask": mask, "max_new_tokens": choose.randint(1, 14)}


def by_lookup(vocab: int) -> dict[str, Any]:
    return {
        "drafter": PromptLookup(vocab_size=vocab),
        "policy": Chain(3, "top-k"),
        "verifier": RecursiveRejection(),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_mask_hides_is_hidden_as_in_generate(kind: str) -> None:
    model = made(kind)
    vocab = model.get_output_embeddings().out_features
    loop = custom_generate(**by_lookup(vocab))
    decoder = SpeculativeDecoder(model, **by_lookup(vocab))
    holes = 0
    for seed in range(12):
        call = asked(seed, vocab)
        holes += has_holes(call["attention_mask"])
        plain = model.generate(**call, do_sample=False)
        assert torch.equal(model.generate(**call, do_sample=False, custom_generate=loop), plain), seed
        assert torch.equal(decoder.generate(**call), plain), seed  # type: ignore[arg-type]
    assert holes > 5


@pytest.mark.parametrize("kind", ["mistral, window", "bamba"])
def test_a_draft_model_and_trees_change_nothing(kind: str) -> None:
    model = made(kind)
    vocab = model.get_output_embeddings().out_features
    for draft in (tiny(vocab_size=vocab), made(kind)):
        loop = custom_generate(drafter=draft, policy=LayeredDySpec(8), verifier=RecursiveRejection())
        for seed in range(6):
            call = asked(seed, vocab)
            plain = model.generate(**call, do_sample=False)
            assert torch.equal(model.generate(**call, do_sample=False, custom_generate=loop), plain), seed


@pytest.mark.thorough  # compiles
def test_captured_passes_read_holes_too() -> None:
    model = made("mistral, window")
    captured = SpeculativeDecoder(load(model, capture="compile"), **by_lookup(VOCAB))
    for seed in range(12):
        call = asked(seed, VOCAB)
        plain = model.generate(**call, do_sample=False)
        assert torch.equal(captured.generate(**call), plain)  # type: ignore[arg-type]


def test_the_short_way_reads_holes_too() -> None:
    model, loop, call = made("gpt2"), custom_generate(**by_lookup(VOCAB)), asked(3, VOCAB)
    plain = model.generate(**call, do_sample=False)
    assert torch.equal(loop.generate(model, **call, do_sample=False), plain)


def test_a_window_counts_hidden_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    model, call = made("mistral, window"), asked(0, VOCAB)
    call |= {"max_new_tokens": 12, "attention_mask": torch.ones_like(call["attention_mask"])}
    call["attention_mask"][:, 1:-1] = 0
    plain = model.generate(**call, do_sample=False)
    decoder: Any = SpeculativeDecoder(model, **by_lookup(VOCAB))
    assert torch.equal(decoder.generate(**call), plain)
    monkeypatch.setattr(RowInputs, "columns", lambda self, slots: slots)
    monkeypatch.setattr(RowInputs, "slots", lambda self, columns: columns)
    assert not torch.equal(decoder.generate(**call), plain)


def test_rows_keep_their_hidden_columns_when_others_leave() -> None:
    ends = {"eos_token_id": list(range(2, 20))}  # so that rows end in different rounds
    model, loop = made("mistral, window"), custom_generate(**by_lookup(VOCAB))
    for seed in range(12):
        call = asked(seed, VOCAB) | {"max_new_tokens": 14}
        plain = model.generate(**call, **ends, do_sample=False)
        assert torch.equal(model.generate(**call, **ends, do_sample=False, custom_generate=loop), plain), seed


@pytest.mark.parametrize(("kind", "reads"), [("llama", False), ("bamba", False), ("bamba with biases", True)])
def test_padding_that_a_model_reads_is_found(kind: str, reads: bool) -> None:
    model = made(kind)
    assert reads_padding(model, vocab_size=model.get_output_embeddings().out_features) is reads
    padded: dict[str, Any] = {"input_ids": torch.tensor([[1, 1, 7], [4, 5, 6]]), "max_new_tokens": 4}
    padded["attention_mask"] = (padded["input_ids"] != 1).long()
    loop = custom_generate(**by_lookup(model.get_output_embeddings().out_features))
    cache = model.generate(
        padded["input_ids"][:1, -1:], return_dict_in_generate=True, custom_generate=loop
    ).cache
    one = {name: value[:1] if isinstance(value, torch.Tensor) else value for name, value in padded.items()}
    if reads:
        with pytest.raises(InvalidInput, match="continues a text, and padding that the model reads"):
            model.generate(**one, past_key_values=cache, custom_generate=loop)


def test_a_backend_that_cannot_read_holes_says_so() -> None:
    backend: Any = load(made("bamba"))
    decoder = SpeculativeDecoder(RecomputingBackend(backend), **by_lookup(recurrent_models.VOCAB))
    with pytest.raises(UnsupportedModel, match="only reads tokens"):
        decoder.generate(torch.tensor([[3, 4, 5]]), torch.tensor([[1, 0, 1]]))
