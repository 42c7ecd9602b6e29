"""`model.generate(custom_generate=...)`: what the random calls do not meet."""

import copy
import threading

import pytest
import torch
import transformers as hf

from draftwood import InvalidInput, custom_generate
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from tests.backends.attention_models import VOCAB, tiny
from tests.generate_fuzz.models import draft, model, tokenizer
from tests.generate_fuzz.processors import Collects, EndsRowsAtTheirToken

IDS = torch.tensor([[7, 9, 11]])


def loop(**options):
    return custom_generate(
        drafter=ModelDrafter(draft()), policy=DySpec(6), verifier=RecursiveRejection(), **options
    )


def test_a_thread_that_waits_for_a_streamer_gets_the_text_and_its_end():
    streamer = hf.TextIteratorStreamer(tokenizer(), timeout=300)
    options = {"max_new_tokens": 9, "do_sample": False}
    thread = threading.Thread(
        target=model("llama").generate,
        args=(IDS,),
        kwargs=options | {"streamer": streamer, "custom_generate": loop()},
    )
    thread.start()
    text = "".join(streamer)
    thread.join()
    assert text == tokenizer().decode(model("llama").generate(IDS, **options)[0])


class Breaks(hf.StoppingCriteria):
    def __init__(self, error):
        self.error = error

    def __call__(self, input_ids, scores, **kwargs):
        raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("no luck")])
def test_what_breaks_a_call_comes_out_and_ends_the_stream(error):
    streamer = Collects()
    with pytest.raises(type(error)):
        model("llama").generate(
            IDS,
            streamer=streamer,
            stopping_criteria=[Breaks(error)],
            max_new_tokens=9,
            custom_generate=(speculative := loop()),
        )
    assert streamer.ends == 1
    expected = model("llama").generate(IDS, max_new_tokens=5)
    assert torch.equal(model("llama").generate(IDS, max_new_tokens=5, custom_generate=speculative), expected)


def test_stop_strings_and_tokenizer_may_also_be_given_when_the_loop_is_made():
    options = {"max_new_tokens": 30, "do_sample": False}
    full = model("llama").generate(IDS, **options)[0, 3:]
    stop = next(word for word in tokenizer().convert_ids_to_tokens(full)[4:] if word.isalpha())
    expected = model("llama").generate(IDS, **options, stop_strings=stop, tokenizer=tokenizer())
    assert expected.shape[1] < 33
    called = model("llama").generate(
        IDS, **options, stop_strings=stop, tokenizer=tokenizer(), custom_generate=loop()
    )
    made = model("llama").generate(
        IDS, **options, custom_generate=loop(stop_strings=stop, tokenizer=tokenizer())
    )
    assert torch.equal(called, expected)
    assert torch.equal(made, expected)
    with pytest.raises(InvalidInput, match="needs the tokenizer"):
        model("llama").generate(IDS, **options, custom_generate=loop(stop_strings=stop))


def test_a_model_that_was_resized_and_another_model_are_served():
    target = tiny(hf.LlamaConfig)
    speculative = custom_generate(
        drafter=PromptLookup(vocab_size=VOCAB), policy=Chain(2, "top-k"), verifier=RecursiveRejection()
    )
    options = {"max_new_tokens": 8, "do_sample": False}
    for width in (VOCAB, VOCAB + 1, VOCAB):
        target.resize_token_embeddings(width)
        expected = target.generate(IDS, **options)
        assert torch.equal(target.generate(IDS, **options, custom_generate=speculative), expected)
    other = model("mistral")
    assert torch.equal(
        other.generate(IDS, **options, custom_generate=speculative), other.generate(IDS, **options)
    )


def test_the_end_of_the_context_is_no_text_that_ends_silently():
    target = tiny(hf.GPT2Config, n_layer=1, n_head=4, n_embd=32, max_position_embeddings=40)
    options = {"do_sample": False, "eos_token_id": []}
    with pytest.raises(IndexError):
        target.generate(IDS, **options, max_new_tokens=39)
    with pytest.raises(InvalidInput, match="end of the target's context after 38 new tokens"):
        target.generate(IDS, **options, max_new_tokens=39, custom_generate=loop())
    expected = target.generate(IDS, **options, max_new_tokens=38)
    assert torch.equal(target.generate(IDS, **options, max_new_tokens=38, custom_generate=loop()), expected)
    full = target.generate(expected[:, :40], **options, max_new_tokens=1, custom_generate=loop())
    assert torch.equal(full, expected)
    with pytest.raises(InvalidInput, match="has 41 tokens and the target's context holds 40; shorten it"):
        target.generate(expected, **options, max_new_tokens=1, custom_generate=loop())


@pytest.mark.parametrize("eos", [True, False])
def test_rows_that_criteria_end_are_padded_only_where_there_is_an_end_of_text(eos):
    """Without one `generate` goes on with all rows until all have been ended."""
    target = model("llama")
    prompts = torch.tensor([[7, 9, 11], [8, 20, 9], [30, 31, 32]])
    options = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": 5 if eos else None}
    kept = target.generation_config.eos_token_id
    target.generation_config.eos_token_id = options["eos_token_id"]
    try:
        plain = target.generate(prompts, **options, stopping_criteria=[EndsRowsAtTheirToken()])
        actual = target.generate(
            prompts, **options, stopping_criteria=[EndsRowsAtTheirToken()], custom_generate=loop()
        )
    finally:
        target.generation_config.eos_token_id = kept
    assert plain.shape[1] > 4
    assert torch.equal(actual, plain)
    assert bool((plain[:, 3:] == target.generation_config.pad_token_id).any()) == eos


def test_the_global_seed_repeats_a_sampled_text():
    llama, own = model("llama"), loop()  # built before the seed is set, since weights are drawn too

    def sampled(seed):
        torch.manual_seed(seed)
        return llama.generate(IDS.repeat(3, 1), max_new_tokens=12, do_sample=True, custom_generate=own)

    assert torch.equal(sampled(1), sampled(1))
    assert not torch.equal(sampled(1), sampled(2))
    assert len({tuple(row) for row in sampled(1).tolist()}) == 3


@pytest.mark.parametrize("kind", ["llama", "mamba2"])
def test_a_call_without_ids_begins_with_the_first_token(kind):
    plain = model(kind).generate(max_new_tokens=6, do_sample=False)
    assert plain[0, 0] == 0
    assert plain.shape[1] > 2
    assert torch.equal(model(kind).generate(max_new_tokens=6, do_sample=False, custom_generate=loop()), plain)


def test_filters_of_zero_change_nothing_and_a_temperature_that_overflows_is_told():
    options = {"max_new_tokens": 9, "do_sample": True, "temperature": 0.7, "top_k": 0}
    texts = []
    for filters in ({}, {"min_p": 0.0}):
        torch.manual_seed(5)
        texts.append(model("llama").generate(IDS, **options, **filters, custom_generate=loop()))
    assert torch.equal(*texts)
    with pytest.raises(InvalidInput, match=r"temperature=5e-324 is too small.*Use 0 for greedy decoding\."):
        model("llama").generate(IDS, **options | {"temperature": 5e-324}, custom_generate=loop())


def test_greedy_calls_leave_torchs_generator_alone():
    options = {"max_new_tokens": 6, "custom_generate": loop()}
    state = torch.get_rng_state()
    model("llama").generate(IDS, do_sample=False, **options)
    assert torch.equal(torch.get_rng_state(), state)
    model("llama").generate(IDS, do_sample=True, **options)
    assert not torch.equal(torch.get_rng_state(), state)


def test_stop_iteration_of_a_criterion_comes_out_as_it_is():
    def enough(ids, scores):
        raise StopIteration("enough")

    for options in ({}, {"custom_generate": loop()}):
        with pytest.raises(StopIteration, match="enough"):
            model("llama").generate(IDS, max_new_tokens=6, stopping_criteria=[enough], **options)


@pytest.mark.parametrize("cache", ["static", "dynamic", "hybrid", "sliding_window", "hybrid_chunked"])
@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_caches_that_change_nothing_are_accepted(kind, cache):
    options = {"max_new_tokens": 20, "do_sample": False, "cache_implementation": cache}
    plain = model(kind).generate(IDS, **options)
    assert torch.equal(model(kind).generate(IDS, **options, custom_generate=loop()), plain)


def test_an_adapter_per_row_is_refused():
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    adapted = get_peft_model(copy.deepcopy(model("llama")), settings).eval()
    adapted.add_adapter("other", settings)
    options = {"input_ids": IDS.repeat(2, 1), "max_new_tokens": 6, "custom_generate": loop()}
    with pytest.raises(InvalidInput, match="adapter_names= chooses an adapter for each row"):
        adapted.generate(**options, adapter_names=["default", "other"])
    assert adapted.generate(**options).shape[0] == 2
