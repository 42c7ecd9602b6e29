"""Caches of transformers that another call filled: a text goes on from there as in `generate()`."""

from typing import Any

import pytest
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.research.families_models import build
from draftwood import InvalidInput, SpeculativeDecoder, UnsupportedModel
from draftwood.backends.kinds.given_keys import given_keys
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from tests.cache_names import cache_name
from tests.framework.test_turns import PARTS, Read, cache_of, loop, written
from tests.generate_fuzz.models import VOCAB, model

ATTENTION = ("llama", "mistral", "gemma3", "bloom")
"""Two with windows of 6 tokens, and one that runs path by path."""
OPTIONS: dict[str, Any] = {"max_new_tokens": 9, "do_sample": False}


def filled(target, ids, mask, kind=hf.DynamicCache, **options):
    """A cache that holds `ids`."""
    cache = kind(config=target.config, **options)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        target(ids, attention_mask=mask, position_ids=positions, **{cache_name(target): cache})
    return cache


@given(
    kind=st.sampled_from(ATTENTION),
    lengths=st.lists(st.integers(1, 24), min_size=1, max_size=4),
    read=st.integers(1, 23),
    seed=st.integers(0, 2**32),
    processors=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_rows_go_on_from_a_given_cache(kind, lengths, read, seed, processors):
    target, speculative = model(kind), loop()
    width = max(max(lengths), 2)
    read = min(read, width - 1)
    ids = torch.randint(5, VOCAB, (len(lengths), width), generator=torch.Generator().manual_seed(seed))
    mask = (torch.arange(width) >= width - torch.tensor(lengths)[:, None]).long()
    options = {**OPTIONS, "attention_mask": mask, "repetition_penalty": 1.3 if processors else None}
    before = filled(target, ids[:, :read], mask[:, :read])
    copies = [layer.keys.clone() for layer in before.layers]
    plain = target.generate(ids, **options, past_key_values=filled(target, ids[:, :read], mask[:, :read]))
    for _ in range(2):
        ours = target.generate(ids, **options, past_key_values=before, custom_generate=speculative)
        assert torch.equal(plain, ours)
    assert before.get_seq_length() == read
    assert all(torch.equal(copy, layer.keys) for copy, layer in zip(copies, before.layers, strict=True))


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_what_the_cache_holds_is_what_counts(kind):
    """Not the tokens, which a cache of learned vectors or images has none of."""
    target, speculative = model(kind), loop()
    ids, other = torch.tensor([PARTS[0] * 3]), torch.tensor([PARTS[2] * 5])
    mask = torch.ones_like(ids)
    other_mask = torch.ones_like(ids)
    expected = target.generate(
        ids, **OPTIONS, past_key_values=filled(target, other[:, :12], other_mask[:, :12])
    )
    assert not torch.equal(expected, target.generate(ids, attention_mask=mask, **OPTIONS))
    cache = filled(target, other[:, :12], other_mask[:, :12])
    assert torch.equal(
        target.generate(ids, **OPTIONS, past_key_values=cache, custom_generate=speculative), expected
    )


def test_only_what_is_new_is_read_and_the_next_turn_goes_on():
    target, speculative = model("llama"), loop()
    read = Read(speculative, target)
    read.taken()
    text = [*PARTS[0], *PARTS[1]]
    past = written(target, PARTS[0]).past_key_values  # of a plain call
    text = [*written(target, PARTS[0]).sequences[0].tolist(), *PARTS[1]]
    first = written(target, text, custom_generate=speculative, past_key_values=past)
    assert torch.equal(first.sequences, written(target, text).sequences)
    text = [*first.sequences[0].tolist(), *PARTS[2]]
    second = written(target, text, custom_generate=speculative, past_key_values=cache_of(first))
    assert torch.equal(second.sequences, written(target, text).sequences)
    assert read.taken() == 0


def test_an_empty_cache_changes_nothing():
    target = model("llama")
    ours = written(target, PARTS[0], custom_generate=loop(), past_key_values=hf.DynamicCache())
    assert torch.equal(ours.sequences, written(target, PARTS[0]).sequences)


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("bamba", UnsupportedModel, "has recurrent layers, so past_key_values is not read"),
        ("mamba2", UnsupportedModel, "has recurrent layers, so past_key_values is not read"),
    ],
)
def test_models_whose_caches_are_not_read_say_so(kind, error, message):
    target, ids = model(kind), torch.tensor([PARTS[0]])
    cache = hf.DynamicCache(config=target.config)
    with torch.no_grad():
        target(ids[:, :3], **{cache_name(target): cache})
    with pytest.raises(error, match=message):
        target.generate(ids, **OPTIONS, **{cache_name(target): cache}, custom_generate=loop())
    assert torch.equal(
        target.generate(ids, **OPTIONS, custom_generate=loop()), target.generate(ids, **OPTIONS)
    )


@pytest.mark.parametrize("family", ["lfm3", "zaya", "deepseek_v4"])
def test_models_that_run_path_by_path_go_on_from_whatever_their_caches_keep(family):
    """Recurrent states, indices and compressed keys, which are not only keys and values."""
    target, speculative = build(family, reach=8), loop(PromptLookup(96))
    ids = torch.randint(5, 90, (2, 14), generator=torch.Generator().manual_seed(1))
    options, name = {**OPTIONS, "pad_token_id": 0, "eos_token_id": None}, cache_name(target)

    def cache_behind(rows):
        asked = {"max_new_tokens": 1, "return_dict_in_generate": True}
        return cache_of(target.generate(rows[:, :8], **{**options, **asked}))

    for rows in (ids[:1], ids):
        plain = target.generate(rows, **options, **{name: cache_behind(rows)})
        assert torch.equal(plain, target.generate(rows, **options))
        given = cache_behind(rows)
        for _ in range(2):  # the given one is not changed
            ours = target.generate(rows, **options, **{name: given}, custom_generate=speculative)
            assert torch.equal(ours, plain)
    first = target.generate(
        ids[:1],
        **options,
        **{name: cache_behind(ids[:1])},
        return_dict_in_generate=True,
        custom_generate=speculative,
    )
    more = torch.cat([first.sequences, ids[1:, :3]], 1)
    second = target.generate(more, **options, **{name: cache_of(first)}, custom_generate=speculative)
    assert torch.equal(second, target.generate(more, **options))
    with pytest.raises(InvalidInput, match="past_key_values holds 2 rows and 1 were given"):
        target.generate(ids[:1], **options, **{name: cache_behind(ids)}, custom_generate=speculative)


def test_recurrent_states_are_never_left_out():
    """A cache of other layers than the model's own is only read where it holds keys and values."""
    target, made = build("lfm3", reach=8), build("lara_mini", reach=8)
    ids = torch.tensor([PARTS[0]])
    cache = hf.DynamicCache(config=made.config)
    with torch.no_grad():
        made(ids[:, :3], **{cache_name(made): cache})
    with pytest.raises(InvalidInput, match="Layer with recurrent states, and the model"):
        target.generate(ids, **OPTIONS, **{cache_name(target): cache}, custom_generate=loop(PromptLookup(96)))


def test_caches_that_cannot_be_read_say_so():
    target, speculative = model("llama"), loop()
    ids = torch.tensor([PARTS[0]])
    mask = torch.ones_like(ids)

    def goes_on(cache):
        return target.generate(ids, **OPTIONS, past_key_values=cache, custom_generate=speculative)

    with pytest.raises(InvalidInput, match="use_cache=False and a past_key_values that holds tokens"):
        target.generate(
            ids,
            **OPTIONS,
            past_key_values=filled(target, ids[:, :3], mask[:, :3]),
            use_cache=False,
            custom_generate=speculative,
        )
    with pytest.raises(InvalidInput, match="holds 5 tokens of row 0, whose text has 5; give the whole text"):
        goes_on(filled(target, ids, mask))
    other = filled(target, ids[:, :3], mask[:, :3])
    other.layers[1] = type("OtherLayer", (type(other.layers[1]),), {})()
    with pytest.raises(InvalidInput, match="past_key_values is a OtherLayer, which is not supported"):
        goes_on(other)
    with pytest.raises(InvalidInput, match="holds 2 rows and 1 were given; give one text for each"):
        goes_on(filled(target, ids[:, :3].repeat(2, 1), mask[:, :3].repeat(2, 1)))
    half = filled(target, ids[:, :3], mask[:, :3])
    half.layers[1].keys = half.layers[1].values = None
    half.layers[1].is_initialized = False
    with pytest.raises(
        InvalidInput, match="Layer 1 of past_key_values has read 0 tokens and the first one 3"
    ):
        goes_on(half)
    with pytest.raises(InvalidInput, match="is a QuantizedCache, which would change the text"):
        goes_on(hf.QuantizedCache.__new__(hf.QuantizedCache))  # its packages are not here
    with pytest.raises(InvalidInput, match="past_key_values is a list; give a DynamicCache"):
        given_keys([], [1])
    assert torch.equal(goes_on(None), target.generate(ids, **OPTIONS))  # nothing was left behind


def test_a_row_longer_than_the_context_is_refused():
    target = model("gpt2")
    decoder = SpeculativeDecoder(target, target, loop().policy, loop().verifier)
    with pytest.raises(InvalidInput, match="Row 0 has 600 tokens, but the model's context holds 512"):
        decoder.target.take_over(hf.DynamicCache(), [600])
