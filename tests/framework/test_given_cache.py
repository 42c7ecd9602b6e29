"""Caches of transformers that another call filled: a text goes on from there as in `generate()`."""

from typing import Any

import pytest
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import cache_utils
from transformers.cache_utils import QuantizedLayer

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


HYBRIDS = {
    "bamba": True,
    "falcon_h1": True,
    "granitemoehybrid": True,
    "jamba": False,
    "kimi_linear": True,
    "lfm2_moe": True,
    "nemotron_h": True,
    "olmo_hybrid": True,
    "qwen3_5": True,
    "qwen3_next": True,
    "zamba": False,
    "zamba2": True,
}
"""Whether transformers' own layers go on from their states with more than one token; some forget them."""


@pytest.mark.parametrize("family", sorted(HYBRIDS))
def test_hybrids_go_on_from_the_states_of_a_given_cache(family):
    target, speculative = build(family, reach=8), loop(PromptLookup(96))
    for module in target.modules():  # transformers clamps steps of a prompt, and of no token by itself
        if hasattr(module, "time_step_limit"):
            module.time_step_limit = (0.0, 0.02)
    ids = torch.randint(5, 90, (3, 14), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :5] = mask[2, :9] = 0
    options, name = {**OPTIONS, "pad_token_id": 0, "eos_token_id": None}, cache_name(target)
    for rows, read in (([0], 10), ([0], 13), ([0, 1, 2], 10), ([0, 1, 2], 13)):
        text, seen = ids[rows], mask[rows]

        def cache(text=text, seen=seen, read=read):
            asked = {**options, "max_new_tokens": 1, "return_dict_in_generate": True}
            return cache_of(target.generate(text[:, :read], attention_mask=seen[:, :read], **asked))

        goes_on = HYBRIDS[family] or read == 13
        own = {name: cache()} if goes_on else {}
        expected = target.generate(text, attention_mask=seen, **options, **own)
        given = cache()
        for _ in range(2):  # the given one is not changed
            ours = target.generate(
                text, attention_mask=seen, **options, **{name: given}, custom_generate=speculative
            )
            assert torch.equal(ours, expected)


@pytest.mark.parametrize("family", ["bamba", "lfm2_moe", "qwen3_5"])
@pytest.mark.parametrize("read", [10, 13])
def test_hybrids_go_on_with_tokens_that_a_mask_hides(family, read):
    target, speculative = build(family, reach=8), loop(PromptLookup(96))
    for module in target.modules():
        if hasattr(module, "time_step_limit"):
            module.time_step_limit = (0.0, 0.02)
    ids = torch.randint(5, 90, (2, 14), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, 3] = mask[1, :5] = mask[1, 11] = 0
    options, name = {**OPTIONS, "pad_token_id": 0, "eos_token_id": None}, cache_name(target)

    def cache():
        asked = {**options, "max_new_tokens": 1, "return_dict_in_generate": True}
        return cache_of(target.generate(ids[:, :read], attention_mask=mask[:, :read], **asked))

    expected = target.generate(ids, attention_mask=mask, **options, **{name: cache()})
    ours = target.generate(
        ids, attention_mask=mask, **options, **{name: cache()}, custom_generate=speculative
    )
    assert torch.equal(ours, expected)


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("mamba2", "has only recurrent layers, whose cache does not count its tokens"),
        ("recurrent_gemma", "is in no cache of transformers; leave past_key_values out"),
    ],
)
def test_models_whose_caches_are_not_read_say_so(family, message):
    target, ids = build(family, reach=8), torch.tensor([PARTS[0]])
    cache, speculative = hf.DynamicCache(config=target.config), loop(PromptLookup(96))
    with torch.no_grad():
        target(ids[:, :3], **{cache_name(target): cache})
    with pytest.raises(UnsupportedModel, match=message):
        target.generate(ids, **OPTIONS, **{cache_name(target): cache}, custom_generate=speculative)
    assert torch.equal(
        target.generate(ids, **OPTIONS, custom_generate=speculative), target.generate(ids, **OPTIONS)
    )


def test_padding_that_was_read_into_states_is_told():
    """Layers of transformers mask no padding where they are given one column."""
    target, speculative = build("qwen3_next", reach=8), loop(PromptLookup(96))
    ids, mask = torch.tensor([[3, 9, 4, 11], [1, 1, 8, 7]]), torch.tensor([[1] * 4, [0, 0, 1, 1]])
    options = {**OPTIONS, "pad_token_id": 1, "attention_mask": mask, "eos_token_id": None}
    for read, message in ((1, "has read padding into the recurrent states of row 1"), (2, None)):
        cache = hf.DynamicCache(config=target.config)
        positions = (mask[:, :read].cumsum(1) - 1).clamp(min=0)
        with torch.no_grad():
            target(
                ids[:, :read],
                attention_mask=mask[:, :read],
                position_ids=positions,
                **{cache_name(target): cache},
            )
        call = {**options, cache_name(target): cache, "custom_generate": speculative}
        if message is None:
            assert torch.equal(target.generate(ids, **call), target.generate(ids, **options))
        else:
            with pytest.raises(InvalidInput, match=message):
                target.generate(ids, **call)


def test_states_that_a_cache_does_not_have_are_told():
    target, speculative = build("bamba", reach=8), loop(PromptLookup(96))
    ids = torch.tensor([PARTS[0]])
    cache = hf.DynamicCache(config=target.config)
    with torch.no_grad():
        target(ids[:, :3], **{cache_name(target): cache})
    without = next(layer for layer in cache.layers if hasattr(layer, "conv_states"))
    without.conv_states = {0: None}
    with pytest.raises(InvalidInput, match="without the one state that .*mamba continues"):
        target.generate(ids, **OPTIONS, **{cache_name(target): cache}, custom_generate=speculative)


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

    # An empty one is filled in the first step, and the second one reads the whole text again.
    for cache in (filled(target, ids[:, :3], mask[:, :3]), hf.DynamicCache(config=target.config)):
        call = {**OPTIONS, cache_name(target): cache, "use_cache": False}
        with pytest.raises(InvalidInput, match="use_cache=False and .* reads tokens twice"):
            target.generate(ids, **call, custom_generate=speculative)
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
    with pytest.raises(InvalidInput, match="past_key_values is a list; give a DynamicCache"):
        given_keys([], [1])
    assert torch.equal(goes_on(None), target.generate(ids, **OPTIONS))  # nothing was left behind


def test_a_row_longer_than_the_context_is_refused():
    target = model("gpt2")
    decoder = SpeculativeDecoder(target, target, loop().policy, loop().verifier)
    with pytest.raises(InvalidInput, match="Row 0 has 600 tokens, but the model's context holds 512"):
        decoder.target.take_over(hf.DynamicCache(), [600])


class Rounded(QuantizedLayer):
    """Keys and values in steps of a half; the packages of transformers' own layers are not needed here."""

    def _quantize(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:  # type: ignore[override]
        return (tensor * 2).round().to(torch.int16)

    def _dequantize(self, rounded: torch.Tensor) -> torch.Tensor:
        return rounded.float() / 2


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("read", [[9], [9, 2], [6, 1, 1]])
def test_quantised_caches_are_read_until_they_round_again(rows, read):
    target, speculative = model("llama"), loop()
    ids = torch.randint(5, VOCAB, (rows, sum(read) + 3), generator=torch.Generator().manual_seed(rows))
    mask = torch.ones_like(ids)
    mask[1:, :2] = 0

    def cache(residual):
        layers: list[Any] = [
            Rounded(residual_length=residual) for _ in range(target.config.num_hidden_layers)
        ]
        made, start = hf.Cache(layers=layers), 0
        for piece in read:
            stop = start + piece
            positions = (mask[:, :stop].cumsum(1) - 1).clamp(min=0)[:, start:]
            with torch.no_grad():
                target(
                    ids[:, start:stop],
                    attention_mask=mask[:, :stop],
                    position_ids=positions,
                    **{cache_name(target): made},
                )
            start = stop
        return made

    exact = sum(read[1:])  # the first piece is rounded at once
    longest = 12 - exact - 3 + 1
    options = {**OPTIONS, "attention_mask": mask, "max_new_tokens": longest}
    given, name = cache(12), cache_name(target)
    plain = target.generate(ids, **options, **{name: cache(12)})
    never = target.generate(ids, **options, **{name: cache(1000)})
    assert torch.equal(plain, never)  # nothing is rounded again
    for _ in range(2):
        ours = target.generate(ids, **options, **{name: given}, custom_generate=speculative)
        assert torch.equal(ours, plain)
    assert not torch.equal(plain, target.generate(ids, **options))
    options["max_new_tokens"] = longest + 1
    with pytest.raises(InvalidInput, match=f"ask for up to {longest} new tokens, or leave it out"):
        target.generate(ids, **options, **{name: cache(12)}, custom_generate=speculative)


def test_quantised_caches_of_a_beam_search_have_their_rows_in_its_order():
    target, order = model("llama"), torch.tensor([1, 0])
    ids = torch.randint(5, VOCAB, (2, 9), generator=torch.Generator().manual_seed(3))
    made = hf.Cache(layers=[Rounded() for _ in range(target.config.num_hidden_layers)])
    with torch.no_grad():
        target(ids[:, :6], **{cache_name(target): made})
        target(ids[:, 6:8], **{cache_name(target): made})
    before: Any = given_keys(made, [8, 8])
    layers: Any = made.layers
    for layer in layers:
        layer.reorder_cache(order)
    after: Any = given_keys(made, [8, 8])
    for old, new in zip(before, after, strict=True):
        assert all(torch.equal(one[order], other) for one, other in zip(old, new, strict=True))


def test_quantised_caches_that_round_at_once_say_so():
    target, ids = model("llama"), torch.tensor([PARTS[0]])

    def refused(cache, match):
        with pytest.raises(InvalidInput, match=match):
            target.generate(ids, **OPTIONS, **{cache_name(target): cache}, custom_generate=loop())

    empty = hf.Cache(layers=[Rounded() for _ in range(target.config.num_hidden_layers)])
    refused(empty, "is quantised and would round .* ask for up to 1 new tokens")
    call = {**OPTIONS, "max_new_tokens": 1, cache_name(target): empty, "custom_generate": loop()}
    assert torch.equal(target.generate(ids, **call), target.generate(ids, **{**OPTIONS, "max_new_tokens": 1}))
    with pytest.raises(InvalidInput, match="draft trees do not; leave it out"):
        target.generate(ids, **call, prefill_chunk_size=2)  # the second piece reads the first one rounded
    if hasattr(cache_utils, "Fp8QuantizedLayer"):
        every = hf.QuantizedCache("fp8", config=target.config)
        refused(every, "ask for up to 1 new tokens")
        with torch.no_grad():
            target(ids[:, :3], **{cache_name(target): every})
        refused(every, "draft trees do not; leave it out")
