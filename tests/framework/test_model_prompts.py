"""Prompts of more than tokens: images, sound, embeddings, token types, positions and given caches."""

import copy
from typing import Any

import pytest
import torch
import transformers as hf

from draftwood import (
    InvalidInput,
    SamplingParams,
    SpeculativeDecoder,
    UnsupportedModel,
    custom_generate,
    load,
)
from draftwood.backends.kinds import packed
from draftwood.backends.model import prompt_check, prompt_reading
from draftwood.backends.nodes.row_inputs import RowInputs
from draftwood.protocols import registry
from draftwood.protocols.model_prompt import ModelPrompt
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from tests.backends.attention_models import VOCAB, bloom, randomised, tiny
from tests.backends.recurrent_models import build
from tests.cache_names import cache_name
from tests.framework.test_text_alone import KINDS

IMAGE = 50
PLAIN: dict[str, Any] = {"max_new_tokens": 16, "do_sample": False}


def strategies():
    return {"policy": LayeredDySpec(8), "verifier": RecursiveRejection()}


@pytest.fixture(scope="module")
def speculative():
    return custom_generate(drafter=tiny(), **strategies())


def made(kind):
    torch.manual_seed(3)
    model = randomised(KINDS[kind]())
    model.generation_config = hf.GenerationConfig(pad_token_id=1, eos_token_id=5)
    return model


def pictured(kind, seed=0):
    """Inputs of two rows of differing length, each with an image, or with sound."""
    chance = torch.Generator().manual_seed(seed)
    if kind == "qwen2_audio":
        ids = torch.tensor([[3, *[IMAGE] * 6, 7, 8], [1, 1, 9, *[IMAGE] * 4, 4, 11]])
        heard = torch.zeros(2, 3000, dtype=torch.int64)
        heard[0, :24] = heard[1, :16] = 1
        sound = {
            "input_features": torch.randn(2, 128, 3000, generator=chance),
            "feature_attention_mask": heard,
        }
        return {"input_ids": ids, "attention_mask": (ids != 1).long(), **sound}
    ids = torch.tensor([[3, *[IMAGE] * 4, 7, 8, 9], [1, 1, *[IMAGE] * 4, 11, 4]])
    inputs = {"input_ids": ids, "attention_mask": (ids != 1).long()}
    if kind == "qwen2_5_vl":
        patches = torch.randn(32, 3 * 2 * 14 * 14, generator=chance)
        marks = (ids == IMAGE).int()
        return inputs | {
            "pixel_values": patches,
            "image_grid_thw": torch.tensor([[1, 4, 4]] * 2),
            "mm_token_type_ids": marks,
        }
    inputs["pixel_values"] = torch.randn(2, 3, 28, 28, generator=chance)
    return inputs | ({"token_type_ids": (ids == IMAGE).long()} if kind == "gemma3" else {})


@pytest.mark.parametrize("kind", KINDS)
def test_texts_after_images_or_sound_are_those_of_generate(kind, speculative):
    model = made(kind)
    plain = model.generate(**pictured(kind), **PLAIN)
    assert torch.equal(model.generate(**pictured(kind), **PLAIN, custom_generate=speculative), plain)
    # What it heard or saw in that call is forgotten in the next ones.
    other = model.generate(**pictured(kind, seed=1), **PLAIN)
    assert kind == "gemma3" or not torch.equal(other, plain)  # whose text repeats its last token
    assert torch.equal(model.generate(**pictured(kind, seed=1), **PLAIN, custom_generate=speculative), other)
    words = {"input_ids": torch.tensor([[9, 8, 7, 6]])}
    assert torch.equal(
        model.generate(**words, **PLAIN, custom_generate=speculative), model.generate(**words, **PLAIN)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_decoder_reads_what_a_processor_gives(kind):
    model = made(kind)
    decoder = SpeculativeDecoder(model, tiny(), **strategies())
    prompt = ModelPrompt.of(decoder.target.model, **pictured(kind))
    assert IMAGE in prompt.placeholders
    assert all(IMAGE not in words for words in prompt.words)
    written: Any = decoder.generate(prompt, max_new_tokens=16)
    assert torch.equal(written, model.generate(**pictured(kind), **PLAIN))


@pytest.mark.parametrize("kind", KINDS)
def test_logits_after_images_are_those_of_generate(kind, speculative):
    model, asked = made(kind), {"output_logits": True, "return_dict_in_generate": True}
    model.generation_config.eos_token_id = None  # what generate() computes after an end is nobody's
    plain = model.generate(**pictured(kind), **PLAIN, **asked)
    ours = model.generate(**pictured(kind), **PLAIN, **asked, custom_generate=speculative)
    torch.testing.assert_close(torch.stack(ours.logits), torch.stack(plain.logits), atol=1e-4, rtol=1e-4)
    assert ours.cache is None


@pytest.mark.parametrize(
    "model",
    [
        tiny,
        bloom,
        lambda: tiny(hf.GPT2Config, n_layer=1, n_head=4, n_embd=32),
        *[lambda kind=kind: build(kind) for kind in ("mamba2", "qwen3_next", "lfm2", "recurrent_gemma")],
    ],
    ids=["llama", "bloom", "gpt2", "mamba2", "qwen3_next", "lfm2", "recurrent_gemma"],
)
def test_texts_after_embeddings_are_those_of_generate(model):
    target = model()
    target.generation_config = hf.GenerationConfig(pad_token_id=1, eos_token_id=5)
    vocab, width = target.config.vocab_size, target.get_input_embeddings().weight.shape[1]
    loop = custom_generate(drafter=tiny(vocab_size=vocab), **strategies())
    chance = torch.Generator().manual_seed(2)
    embeddings = torch.randn(2, 70, width, generator=chance)  # more than a recurrent layer reads at once
    seen = torch.ones(2, 70, dtype=torch.int64)
    seen[0, :5] = 0
    ids = torch.arange(140).reshape(2, 70) % vocab
    for inputs in (
        {"inputs_embeds": embeddings[:1]},
        {"inputs_embeds": embeddings, "attention_mask": seen},
        {"inputs_embeds": embeddings, "input_ids": ids, "attention_mask": seen},
        {"inputs_embeds": embeddings[1:], "input_ids": ids[:1, :3], "attention_mask": seen[1:]},
    ):
        plain = target.generate(**inputs, **PLAIN)
        assert torch.equal(target.generate(**inputs, **PLAIN, custom_generate=loop), plain)


def test_token_types_go_on_with_every_token(speculative):
    model = tiny(hf.GPT2Config, n_layer=1, n_head=4, n_embd=32)
    ids = torch.tensor([[3, 4, 9], [4, 8, 4]])
    plain = model.generate(ids, **PLAIN)
    typed = model.generate(ids, token_type_ids=ids, **PLAIN)
    assert not torch.equal(typed, plain)
    assert torch.equal(model.generate(ids, token_type_ids=ids, **PLAIN, custom_generate=speculative), typed)
    assert torch.equal(model.generate(ids, **PLAIN, custom_generate=speculative), plain)


def test_positions_that_are_given_are_followed(speculative):
    model, ids = tiny(), torch.tensor([[3, 4, 9], [4, 8, 4]])
    positions = torch.tensor([[0, 5, 9], [3, 4, 5]])
    plain = model.generate(ids, position_ids=positions, **PLAIN)
    assert not torch.equal(model.generate(ids, **PLAIN), plain)
    ours = model.generate(ids, position_ids=positions, **PLAIN, custom_generate=speculative)
    assert torch.equal(ours, plain)


def test_a_cache_and_an_image_go_together(speculative):
    model, inputs = made("llava"), pictured("llava")
    ids, mask = inputs["input_ids"][:1], inputs["attention_mask"][:1]
    more = torch.cat([torch.tensor([[11, 12, 13]]), ids], 1)

    def cache():
        filled = hf.DynamicCache(config=model.config)
        with torch.no_grad():
            model(more[:, :3], past_key_values=filled)
        return filled

    given = {"input_ids": more, "pixel_values": inputs["pixel_values"][:1]}
    given["attention_mask"] = torch.cat([mask, torch.ones(1, 3, dtype=torch.int64)], 1)
    plain = model.generate(**given, past_key_values=cache(), **PLAIN)
    held = cache()
    ours = model.generate(**given, past_key_values=held, **PLAIN, custom_generate=speculative)
    assert torch.equal(ours, plain)
    assert held.get_seq_length() == 3


@pytest.mark.parametrize("kind", ["static", "sliding"])
def test_caches_of_fixed_size_are_read(kind, speculative):
    windows = {"sliding_window": 4, "use_sliding_window": True, "layer_types": ["sliding_attention"] * 2}
    model = tiny() if kind == "static" else tiny(hf.Qwen2Config, **windows)
    ids = torch.tensor([[3, 4, 9, 8, 7, 11, 12], [4, 8, 4, 9, 6, 13, 2]])
    cache = hf.StaticCache(config=model.config, max_cache_len=40)
    with torch.no_grad():
        model(ids[:, :5], past_key_values=cache)
    plain = model.generate(ids, **PLAIN)
    assert torch.equal(
        model.generate(ids, past_key_values=cache, **PLAIN, custom_generate=speculative), plain
    )


def test_embeddings_may_be_hidden_by_a_mask(speculative):
    model, embeddings = tiny(), torch.randn(2, 4, 32)
    for mask in ([[1, 0, 1, 1], [1] * 4], [[1] * 4, [0] * 4], [[1, 1, 0, 0], [0, 1, 0, 1]]):
        inputs = {"inputs_embeds": embeddings, "attention_mask": torch.tensor(mask)}
        plain = model.generate(**inputs, **PLAIN)
        assert torch.equal(model.generate(**inputs, **PLAIN, custom_generate=speculative), plain)


def test_a_text_that_goes_on_takes_no_images(speculative):
    model, inputs = made("llava"), pictured("llava")
    ids = torch.tensor([[3, 4, 9]])
    kept = model.generate(ids, **PLAIN, return_dict_in_generate=True, custom_generate=speculative)
    with pytest.raises(InvalidInput, match="continues a text, and encoded image was given too"):
        model.generate(
            inputs["input_ids"][:1],
            pixel_values=inputs["pixel_values"][:1],
            past_key_values=kept.cache,
            **PLAIN,
            custom_generate=speculative,
        )


def test_inputs_that_a_model_does_not_take_are_refused():
    with pytest.raises(InvalidInput, match="does not take these inputs .*pixel_values"):
        ModelPrompt.of(tiny(), torch.tensor([[3, 4]]), pixel_values=torch.zeros(1, 3, 28, 28))
    decoder = SpeculativeDecoder(tiny(), tiny(), **strategies())
    prompt = ModelPrompt.of(tiny(), torch.tensor([[3, 4]]))
    with pytest.raises(InvalidInput, match="holds its own attention_mask"):
        decoder.generate(prompt, torch.ones(1, 2))


def test_a_prompt_that_the_model_refuses_is_refused_in_a_sentence(speculative):
    """Such as an image whose place in the text is missing; `generate()` raises a ValueError too."""
    model, inputs = made("llava"), pictured("llava")
    inputs["input_ids"] = inputs["input_ids"].where(inputs["input_ids"] != IMAGE, 8)
    message = "does not read this prompt, with or without draft trees .*ValueError: Image features"
    with pytest.raises(InvalidInput, match=message):
        model.generate(**inputs, **PLAIN, custom_generate=speculative)
    decoder = SpeculativeDecoder(model, tiny(), **strategies())
    with pytest.raises(InvalidInput, match=message):
        decoder.generate(ModelPrompt.of(model, **inputs), max_new_tokens=4)
    written: Any = decoder.generate([[3, 4, 9]], max_new_tokens=4)
    assert len(written) == 1  # it goes on working


def test_rows_of_a_prompt_are_read_together():
    model = made("llava")
    decoder = SpeculativeDecoder(model, tiny(), **strategies())
    prompt = ModelPrompt.of(model, **pictured("llava"))
    with pytest.raises(InvalidInput, match="A prompt of 2 rows is read at once, and 1 of them can join"):
        decoder.generate(prompt, max_new_tokens=4, max_rows=1)
    expected = model.generate(**pictured("llava"), **PLAIN)
    with decoder.session(max_new_tokens=16) as session:
        session.add([9, 8, 7, 6])
        session.run()  # a row of tokens is there already
        for given in prompt.rows:
            session.add(given)
        while session.unfinished:
            session.run()
        alone = model.generate(torch.tensor([[9, 8, 7, 6]]), **PLAIN)[0].tolist()
        assert session.text(0) == alone[: len(session.text(0))]
        for row, text in enumerate(expected.tolist()):
            written = session.text(row + 1)
            assert text[8:][: len(written) - len(prompt.texts[row])] == written[len(prompt.texts[row]) :]


def test_passes_that_differ_after_a_prompt_are_refused(monkeypatch):
    """A backend that forgets where positions go on does not write another text."""
    model = made("qwen2_5_vl")
    monkeypatch.setattr(RowInputs, "positions", lambda self, depths: depths)
    loop = custom_generate(drafter=tiny(), **strategies())
    with pytest.raises(UnsupportedModel, match="differ from its own decoding"):
        model.generate(**pictured("qwen2_5_vl"), **PLAIN, custom_generate=loop)
    assert not load(model).lengths


def test_caches_that_hold_images_apart_are_refused(monkeypatch, speculative):
    """Layers that only see an image, as Mllama's, hold other columns than the text has."""
    model: Any = made("llava")
    read: Any = prompt_reading.read_prompt

    def with_an_image_layer(*args, **options):
        found = read(*args, **options)
        layer = found.cache.layers[1]
        layer.keys, layer.values = layer.keys.repeat(1, 1, 3, 1), layer.values.repeat(1, 1, 3, 1)
        return found

    monkeypatch.setattr(packed, "read_prompt", with_an_image_layer)
    with pytest.raises(UnsupportedModel, match="After this prompt, LlavaForConditionalGeneration keeps a"):
        model.generate(**pictured("llava"), **PLAIN, custom_generate=speculative)


def test_a_kind_of_prompt_is_compared_once(monkeypatch, speculative):
    model, calls = made("llava"), []
    own_steps = prompt_check.own_steps
    monkeypatch.setattr(prompt_check, "own_steps", lambda *args: calls.append(1) or own_steps(*args))
    for seed in range(3):
        model.generate(**pictured("llava", seed=seed), **PLAIN, custom_generate=speculative)
    assert len(calls) == 1
    ids = torch.tensor([[3, 4, VOCAB - 1]])
    model.generate(inputs_embeds=model.get_input_embeddings()(ids), **PLAIN, custom_generate=speculative)
    assert len(calls) == 2


def told(loop, seen, name="prefill"):
    """Notes what the loop's drafter is to read."""
    drafter = loop.drafter
    original = getattr(drafter, name)

    def noting(*args):
        seen.append(args)
        return original(*args)

    return drafter, name, noting


def test_a_draft_of_text_reads_the_words_around_the_images(monkeypatch):
    model = made("llava")
    seen: list[Any] = []
    loop = custom_generate(drafter=tiny(), **strategies())
    monkeypatch.setattr(*told(loop, seen))
    model.generate(**pictured("llava"), **PLAIN, custom_generate=loop)
    (((first, second),),) = seen
    assert first.tolist() == [3, 7, 8, 9]
    assert second.tolist() == [11, 4]


@pytest.mark.parametrize("kind", ["llava", "qwen2_5_vl", "gemma3"])
def test_a_draft_of_the_same_family_reads_the_images(kind):
    """A draft with the target's own weights is right at every node only if it saw what the target saw."""
    model = made(kind)
    chain: dict[str, Any] = {"policy": Chain(5), "draft_sampling": SamplingParams(temperature=0)}
    loop = custom_generate(drafter=made(kind), verifier=RecursiveRejection(), **chain)
    asked = {"return_dict_in_generate": True, "eos_token_id": None}
    plain = model.generate(**pictured(kind), **PLAIN, eos_token_id=None)
    ours = model.generate(**pictured(kind), **PLAIN, **asked, custom_generate=loop)
    assert torch.equal(ours.sequences, plain)
    assert len(ours.statistics.history) == 4  # one token with the prompt, then six at a time


def test_a_draft_of_the_same_class_that_cannot_read_the_images_reads_the_words(caplog, monkeypatch):
    model, other = made("llava"), made("llava")
    other.config.image_token_id = other.model.config.image_token_id = IMAGE + 1
    loop = custom_generate(drafter=other, **strategies())
    plain = model.generate(**pictured("llava"), **PLAIN)
    with caplog.at_level("WARNING"):
        ours = model.generate(**pictured("llava"), **PLAIN, custom_generate=loop)
    assert torch.equal(ours, plain)
    assert "reads only the words of this prompt" in caplog.text


def test_learnt_tokens_of_peft():
    """Prefix tuning fills a cache; prompt tuning is put before every new token by PEFT as installed here."""
    peft = pytest.importorskip("peft")
    base = tiny(hf.GPT2Config, n_layer=2, n_head=4, n_embd=32)
    ids = torch.tensor([[3, 4, 9, 8], [4, 8, 4, 11]])
    loop = custom_generate(drafter=tiny(), **strategies())
    options = {"task_type": "CAUSAL_LM", "num_virtual_tokens": 4}
    prefixed = peft.get_peft_model(base, peft.PrefixTuningConfig(**options)).eval()
    plain = prefixed.generate(input_ids=ids, **PLAIN)
    assert torch.equal(prefixed.generate(input_ids=ids, **PLAIN, custom_generate=loop), plain)
    prompted = peft.get_peft_model(tiny(), peft.PromptTuningConfig(**options)).eval()
    with pytest.raises(UnsupportedModel, match="reads 5 columns for every new token"):
        prompted.generate(input_ids=ids, **PLAIN, custom_generate=loop)


def test_a_text_goes_on_from_a_cache_that_holds_an_image(speculative):
    model = made("qwen2_5_vl")
    first = {name: one[:1] for name, one in pictured("qwen2_5_vl").items() if name != "pixel_values"}
    first["pixel_values"] = pictured("qwen2_5_vl")["pixel_values"][:16]
    out = model.generate(**first, **PLAIN, return_dict_in_generate=True)
    ids = torch.cat([out.sequences, torch.tensor([[7, 8]])], 1)
    mask, name = torch.ones_like(ids), cache_name(model)

    def goes_on(**options):
        held = copy.deepcopy(out[name])
        return model.generate(ids, attention_mask=mask, **{name: held}, **PLAIN, **options)

    plain = goes_on()
    assert torch.equal(goes_on(custom_generate=speculative), plain)
    model.model.rope_deltas = torch.zeros_like(model.model.rope_deltas)
    assert not torch.equal(goes_on(), plain)  # positions after an image are not columns


def test_rows_may_have_different_numbers_of_images(speculative):
    model = made("qwen2_5_vl")
    several = [3, *[IMAGE] * 4, 7, *[IMAGE] * 2, 8, 9]
    ids = torch.tensor([several, [1, 1, 1, 1, 6, 4, *[IMAGE] * 1, 11, 2, 4], [*[1] * 7, 3, 9, 6]])
    patches = torch.randn(28, 3 * 2 * 14 * 14, generator=torch.Generator().manual_seed(1))
    inputs = {
        "input_ids": ids,
        "attention_mask": (ids != 1).long(),
        "pixel_values": patches,
        "image_grid_thw": torch.tensor([[1, 4, 4], [1, 4, 2], [1, 2, 2]]),
        "mm_token_type_ids": (ids == IMAGE).int(),
    }
    plain = model.generate(**inputs, **PLAIN)
    assert torch.equal(model.generate(**inputs, **PLAIN, custom_generate=speculative), plain)
    # Nothing of these images is left for a call with other ones, or with none.
    for given in (inputs | {"pixel_values": patches.flip(0)}, {"input_ids": ids[2:, 7:]}):
        other = model.generate(**given, **PLAIN)
        assert torch.equal(model.generate(**given, **PLAIN, custom_generate=speculative), other)


def test_a_model_is_loaded_once_for_images_and_text(speculative, monkeypatch):
    model, inputs, loaded = made("llava"), pictured("llava"), list[Any]()
    loader = registry.load
    monkeypatch.setattr(registry, "load", lambda *given, **more: loaded.append(1) or loader(*given, **more))
    text = {"input_ids": torch.tensor([[3, 7, 8, 9]])}
    for given in (inputs, text, inputs, text):
        plain = model.generate(**given, **PLAIN)
        assert torch.equal(model.generate(**given, **PLAIN, custom_generate=speculative), plain)
    assert len(loaded) == 1


def test_a_verdict_on_text_is_of_the_model_as_it_is(speculative, monkeypatch):
    model, text = made("llava"), {"input_ids": torch.tensor([[3, 7, 8, 9]])}
    loader, refused = registry.load, list[bool]()

    def load_or_refuse(*given, **more):
        refused.append(model.gate == "closed")
        if refused[-1]:
            raise UnsupportedModel("It reads text in both directions.")
        return loader(*given, **more)

    monkeypatch.setattr(registry, "load", load_or_refuse)
    for model.gate in ("closed", "closed", "open", "open", "closed"):  # no structure, but an attribute
        plain = model.generate(**text, **PLAIN)
        assert torch.equal(model.generate(**text, **PLAIN, custom_generate=speculative), plain)
    assert refused == [True, False]
