"""Encoder-decoders: draft trees over what the encoder read, against `generate()`."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

from draftwood import InvalidInput, ModelPrompt, SpeculativeDecoder, UnsupportedModel, custom_generate
from draftwood.backends.kinds.transformer import TransformerBackend
from draftwood.backends.kinds.unrolled import UnrolledBackend
from draftwood.backends.loading.loader import load
from draftwood.backends.nodes.row_inputs import RowInputs, Source
from draftwood.strategies.drafters.medusa import Heads
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from tests.backends.attention_models import VOCAB, randomised, tiny

START, PAD, END = 3, 1, 2
START_OF_TEXT: dict[str, Any] = {"decoder_start_token_id": START}
PLAIN: dict[str, Any] = {"max_new_tokens": 10, "do_sample": False}
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "pad_token_id": PAD,
    "eos_token_id": END,
    **START_OF_TEXT,
    "forced_eos_token_id": None,
}


def bart(layers=2, seed=3):
    torch.manual_seed(seed)
    config = hf.BartConfig(**SIZES, decoder_layers=layers, max_position_embeddings=64)
    return randomised(hf.BartForConditionalGeneration(config))


def t5(layers=2, seed=3):
    torch.manual_seed(seed)
    config = hf.T5Config(
        vocab_size=VOCAB,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_decoder_layers=layers,
        num_heads=4,
        pad_token_id=PAD,
        eos_token_id=END,
        **START_OF_TEXT,
    )
    return randomised(hf.T5ForConditionalGeneration(config))


def whisper(layers=2, seed=3):
    torch.manual_seed(seed)
    config = hf.WhisperConfig(
        **SIZES,
        decoder_layers=layers,
        num_mel_bins=8,
        max_source_positions=16,
        max_target_positions=64,
        begin_suppress_tokens=[7],
        suppress_tokens=[8, 9],
    )
    return randomised(hf.WhisperForConditionalGeneration(config))


TREE = FixedTree(3, 2, 8, 0.0, "top-k")
KINDS = {"bart": bart, "t5": t5, "whisper": whisper}


def source(kind, seed=0):
    """Inputs of two rows that differ, in length too where the source is a text."""
    chance = torch.Generator().manual_seed(seed)
    if kind == "whisper":
        return {"input_features": torch.randn(2, 8, 32, generator=chance)}
    ids = torch.randint(5, VOCAB, (2, 9), generator=chance)
    mask = torch.ones_like(ids)
    ids[0, 6:], mask[0, 6:] = PAD, 0
    return {"input_ids": ids, "attention_mask": mask}


def loop_of(drafter):
    return custom_generate(drafter=drafter, policy=TREE, verifier=RecursiveRejection())


def same(model, drafter, **options):
    """Whether the greedy text with draft trees is that of `generate()`, which is returned."""
    plain = model.generate(**options)
    assert torch.equal(model.generate(**options, custom_generate=loop_of(drafter)), plain)
    return plain


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drafter", ["small", "lookup", "words"])
def test_greedy_texts_are_those_of_generate(kind, drafter):
    model = KINDS[kind]()
    drafters = {"small": KINDS[kind](1), "lookup": PromptLookup(VOCAB), "words": tiny()}
    plain = same(model, drafters[drafter], **source(kind), **PLAIN)
    other = same(model, drafters[drafter], **source(kind, seed=1), **PLAIN)
    assert not torch.equal(plain, other)


def test_a_mask_over_sound_is_read():
    model = whisper()
    given = {**source("whisper"), "attention_mask": torch.ones(2, 32, dtype=torch.int64)}
    same(model, whisper(1), **given, **PLAIN)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("masked", [0, 1])
def test_a_session_has_rows_with_and_without_a_mask_over_their_sources(kind, masked):
    model, given = KINDS[kind](), source(kind)
    key, whole = next((name, one) for name, one in given.items() if name != "attention_mask")
    rows = [{key: whole[row : row + 1]} for row in range(2)]
    shape = 1, whole.shape[-1]
    rows[masked]["attention_mask"] = torch.ones(shape, dtype=torch.int64)
    decoder = SpeculativeDecoder(model, PromptLookup(VOCAB), TREE, RecursiveRejection())
    with decoder.session(max_new_tokens=9, eos_token_id=[]) as session:
        for one in rows:
            session.add(*ModelPrompt.of(model, **one).rows)
        while session.unfinished:
            session.run()
        written = [session.text(row)[-9:] for row in range(2)]
    plain = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None}
    assert written == [model.generate(**one, **plain)[0, -9:].tolist() for one in rows]


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_of_the_same_family_reads_the_source_too(kind):
    model = KINDS[kind]()
    decoder = SpeculativeDecoder(model, KINDS[kind](), TREE, RecursiveRejection())
    prompt = ModelPrompt.of(model, **source(kind))
    written: Any = decoder.generate(prompt, max_new_tokens=10, eos_token_id=[], return_dict_in_generate=True)
    # The same model with the same source is right throughout.
    rounds = [row for round_ in written.statistics.rounds if not round_.prefill for row in round_.rows]
    assert all(len(row.outcome.path) - 1 == row.depth for row in rounds)
    assert torch.equal(
        written.sequences[:, prompt.columns :],
        model.generate(**source(kind), **PLAIN, eos_token_id=None)[:, -10:],
    )


@pytest.mark.parametrize("kind", ["bart", "t5"])
@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2, "min_length": 6},
        {"encoder_repetition_penalty": 1.3, "encoder_no_repeat_ngram_size": 2},
        {"forced_bos_token_id": 7, "forced_eos_token_id": END},
        {"suppress_tokens": [5, 6], "begin_suppress_tokens": [7, 8]},
        {"decoder_input_ids": torch.tensor([[START, 9, 11], [START, 12, 6]])},
        {
            "decoder_input_ids": torch.tensor([[START, 9, 11], [START, 12, 6]]),
            "decoder_attention_mask": torch.tensor([[1, 1, 1], [0, 1, 1]]),
        },
        {"use_cache": False},
        {"cache_implementation": "static"},
    ],
    ids=["penalties", "source", "forced", "suppressed", "begun", "masked", "no cache", "static"],
)
def test_options_keep_their_meaning(kind, options):
    same(KINDS[kind](), KINDS[kind](1), **source(kind), **PLAIN, **options)


@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_a_source_of_embeddings_or_that_is_encoded_already(kind):
    model, given = KINDS[kind](), source(kind)
    encoded = model.get_encoder()(**given)
    for more in (
        {"inputs_embeds": model.get_input_embeddings()(given["input_ids"])},
        {"encoder_outputs": encoded},
    ):
        options = {"attention_mask": given["attention_mask"], **more, **PLAIN}
        same(model, PromptLookup(VOCAB), **options)
        with pytest.raises(InvalidInput, match=r"own encoder reads, and does not read this one .*lookup"):
            model.generate(**options, custom_generate=loop_of(KINDS[kind](1)))


@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_scores_and_inner_outputs_are_those_of_generate(kind):
    model = KINDS[kind]()
    model.set_attn_implementation("eager")
    asked = dict.fromkeys(("output_logits", "output_attentions", "output_hidden_states"), True)
    options = {**source(kind), **PLAIN, **asked, "return_dict_in_generate": True, "eos_token_id": None}
    plain = model.generate(**options)
    ours = model.generate(**options, custom_generate=loop_of(KINDS[kind](1)))
    assert type(ours) is type(plain)
    for field in plain.keys() - {"cache", "past_key_values"}:
        torch.testing.assert_close(ours[field], plain[field], atol=1e-4, rtol=1e-4)


def test_sampled_rows_are_repeated():
    model = bart()
    torch.manual_seed(0)
    options = {**source("bart"), "max_new_tokens": 6, "do_sample": True, "num_return_sequences": 3}
    out = model.generate(**options, custom_generate=loop_of(bart(1)))
    assert len(out) == 6


@pytest.mark.parametrize("kind", KINDS)
def test_a_decoder_follows_what_the_model_forces(kind):
    model = KINDS[kind]()
    config = model.generation_config
    config.suppress_tokens, config.begin_suppress_tokens = [5, 6], [9, 10]
    if kind != "whisper":  # which forces nothing
        config.forced_bos_token_id, config.forced_eos_token_id = 7, END
    plain = model.generate(**source(kind), **PLAIN)
    decoder = SpeculativeDecoder(model, PromptLookup(VOCAB), Chain(3), RecursiveRejection())
    prompt = ModelPrompt.of(model, **source(kind))
    ours: Any = decoder.generate(prompt, max_new_tokens=10, pad_token_id=PAD)
    # Whisper's own gives the text without its beginning.
    begins = prompt.columns if kind == "whisper" else 0
    assert torch.equal(ours[:, begins : begins + plain.shape[1]], plain)


def test_lookup_reads_the_source():
    prompt = ModelPrompt.of(bart(), **source("bart"))
    ids = source("bart")["input_ids"]
    assert prompt.words == [[*ids[0, :6].tolist(), START], [*ids[1].tolist(), START]]


def test_what_is_refused():
    model, options = t5(), {**source("t5"), **PLAIN}
    with pytest.raises(InvalidInput, match="num_beams asks for another decoding method"):
        model.generate(**options, num_beams=2, custom_generate=loop_of(t5(1)))
    with pytest.raises(UnsupportedModel, match="takes no decoder_position_ids"):
        load(model, attention="mask")
    decoder = SpeculativeDecoder(model, t5(1), LayeredDySpec(4), RecursiveRejection())
    with pytest.raises(UnsupportedModel, match=r"about a source; give ModelPrompt\.of"):
        decoder.generate([[5, 6]], max_new_tokens=3)
    heard = whisper()
    heard.generation_config.no_timestamps_token_id = 40
    with pytest.raises(InvalidInput, match="64 columns of input_features in pieces of 32"):
        ModelPrompt.of(heard, input_features=torch.randn(1, 8, 64), return_timestamps=True)


def test_a_model_that_cannot_go_on_by_several_tokens_is_refused():
    config = hf.ProphetNetConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_encoder_layers=1,
        num_decoder_layers=1,
        num_encoder_attention_heads=2,
        num_decoder_attention_heads=2,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
    )
    model = randomised(hf.ProphetNetForConditionalGeneration(config))
    ids = torch.tensor([[5, 6, 7, 8]])
    with pytest.raises(UnsupportedModel, match="cannot go on from its cache by several tokens"):
        model.generate(ids, **PLAIN, custom_generate=loop_of(PromptLookup(VOCAB)))


def led():
    torch.manual_seed(3)
    config = hf.LEDConfig(
        **{**SIZES, "decoder_layers": 2},
        attention_window=[8, 8],
        max_encoder_position_embeddings=64,
        max_decoder_position_embeddings=64,
    )
    return randomised(hf.LEDForConditionalGeneration(config))


@pytest.mark.parametrize("kind", ["bart", "whisper", "led"])
def test_a_text_ends_with_the_positions_of_the_decoder(kind):
    model = {**KINDS, "led": led}[kind]()
    given = {name: one[1:] for name, one in source(kind).items()}
    prompt = ModelPrompt.of(model, **given)
    decoder = SpeculativeDecoder(model, PromptLookup(VOCAB), TREE, RecursiveRejection())
    out: Any = decoder.generate(prompt, max_new_tokens=100, eos_token_id=(), return_dict_in_generate=True)
    # The last token of a text needs no position.
    assert (out.finish_reasons, out.sequences.shape[1]) == (["context"], 64 + 1)
    longest = model.generate(**given, max_new_tokens=63, do_sample=False, eos_token_id=None)
    assert out.tokens[0][:63] == longest[0, -63:].tolist()


def test_trees_over_sources_of_one_length_are_read_in_one_pass():
    model = whisper()
    by_mask, by_paths = load(model), load(model, attention="paths")
    assert (type(by_mask), type(by_paths)) == (TransformerBackend, UnrolledBackend)
    tree = torch.tensor([[7, 8, 9, 10, 11]]), torch.tensor([[-1, 0, 0, 1, 2]])
    passes = list[int]()
    model.get_decoder().register_forward_hook(lambda *_: passes.append(1))

    def same(call, *given):
        ours, theirs = call(by_mask, *given), call(by_paths, *given)
        assert torch.allclose(ours, theirs, atol=1e-4)

    def reads(backend, seed, rows):
        begun = {"decoder_input_ids": torch.tensor([[START, 20, 21]] * rows)} if seed else {}
        features = source("whisper", seed)["input_features"][:rows]
        return backend.read_prompt(ModelPrompt.of(model, input_features=features, **begun))

    def grows(backend, *paths):
        rows = len(backend.lengths)
        logits = backend.extend(*(one.expand(rows, -1) for one in tree))
        backend.commit(paths)
        return logits

    same(reads, 0, 2)
    same(grows, [0, 2, 4], [0])
    same(reads, 1, 1)  # rows of other lengths, with other sources
    same(grows, [0, 1, 3], [0, 2], [])
    for backend in (by_mask, by_paths):
        backend.release([0])
    same(grows, [0], [0, 1])
    passes.clear()
    same(grows, [0, 2, 4], [0, 1])
    assert len(passes) == 1 + 2 * 1  # one for all rows, and one for each


def test_sources_of_other_lengths_are_refused():
    def given(columns):
        keys = torch.zeros(1, 2, columns, 4)
        return RowInputs(np.zeros(1, np.int64), source=Source(torch.zeros(1, columns, 8), [(keys, keys)]))

    with pytest.raises(InvalidInput, match="sources of 5 columns and others of 7"):
        given(5).joined(given(7))


@pytest.mark.parametrize("kind", KINDS)
def test_heads_read_the_features_of_the_decoder(kind):
    model, given = KINDS[kind](), source(kind)
    torch.manual_seed(1)
    heads = Heads(3, 32, VOCAB)
    for weights in heads.parameters():
        torch.nn.init.normal_(weights, std=0.3)
    same(model, heads, **given, **PLAIN)
    backend = load(model)
    backend.keep_features([backend.feature_layers])
    begun = torch.tensor([[START, 20, 21, 22]] * 2)
    backend.read_prompt(ModelPrompt.of(model, **given, decoder_input_ids=begun[:, :2]))
    backend.extend(begun[:, 2:], torch.tensor([[-1, 0]] * 2))
    backend.commit([[0, 1]] * 2)
    with torch.no_grad():
        states = model(**given, decoder_input_ids=begun, output_hidden_states=True).decoder_hidden_states[-1]
    assert torch.allclose(torch.stack(backend.take_features()), states, atol=1e-4)
    with pytest.raises(UnsupportedModel, match="of which no layers are left out"):
        backend.without_layers([0])
