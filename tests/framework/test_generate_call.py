"""The arguments of a `generate()` call reach a loop, however `generate` is wrapped."""

import functools
import inspect

import pytest
import torch
import transformers as hf

from draftwood import InvalidInput
from draftwood.integrations import generate_call
from tests.framework.test_custom_generate import IDS, loop
from tests.generate_fuzz.models import draft, model, tokenizer
from tests.generate_fuzz.processors import Collects


def wrapped(times, *, named):
    """`generate` inside so many functions of a program that traces it."""
    function = hf.GenerationMixin.generate
    for _ in range(times):

        def traced(self, *args, inner=function, **kwargs):
            return inner(self, *args, **kwargs)

        function = functools.wraps(function)(traced) if named else traced
    return function


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("times", range(4))
def test_a_wrapped_generate_tells_as_much(times, named, monkeypatch):
    monkeypatch.setattr(hf.GenerationMixin, "generate", wrapped(times, named=named))
    options = {"max_new_tokens": 20, "do_sample": False}
    full = model("llama").generate(IDS, **options)[0, 3:]
    stop = next(word for word in tokenizer().convert_ids_to_tokens(full)[4:] if word.isalpha())
    expected = model("llama").generate(IDS, **options, stop_strings=stop, tokenizer=tokenizer())
    shown = Collects()
    told = {"stop_strings": stop, "tokenizer": tokenizer(), "streamer": shown}
    assert torch.equal(model("llama").generate(IDS, **options, **told, custom_generate=loop()), expected)
    assert shown.ends == 1
    assert shown.prompt is not None
    with pytest.raises(InvalidInput, match="assistant_model asks for another decoding method"):
        model("llama").generate(IDS, **options, assistant_model=draft(), custom_generate=loop())
    embeddings = {"inputs_embeds": model("llama").get_input_embeddings()(IDS) * 2}
    expected = model("llama").generate(IDS, **options, **embeddings)
    assert torch.equal(
        model("llama").generate(IDS, **options, **embeddings, custom_generate=loop()), expected
    )


@pytest.mark.parametrize("told", [True, False])
def test_the_loops_own_generate_sees_every_argument(told, monkeypatch):
    """Also where a version of transformers does not tell a loop anything."""
    if not told:
        name = generate_call._METHOD
        noting = getattr(hf.GenerationMixin, name)
        monkeypatch.setattr(hf.GenerationMixin, name, inspect.unwrap(noting))
        monkeypatch.setattr(generate_call, "_METHOD", "_a_name_of_another_version")
    speculative = loop()
    options = {"max_new_tokens": 20, "do_sample": False}
    expected = model("llama").generate(IDS, **options)
    shown = Collects()
    assert torch.equal(speculative.generate(model("llama"), IDS, **options, streamer=shown), expected)
    assert (shown.ends, shown.prompt is not None) == (1, True)
    stop = next(word for word in tokenizer().convert_ids_to_tokens(expected[0, 7:]) if word.isalpha())
    stops = {"stop_strings": [stop], "tokenizer": tokenizer()}
    cut = model("llama").generate(IDS, **options, **stops)
    assert torch.equal(speculative.generate(model("llama"), IDS, **options, **stops), cut)
    with pytest.raises(InvalidInput, match="assistant_model asks for another decoding method"):
        speculative.generate(model("llama"), IDS, **options, assistant_model=draft())
    with pytest.raises(InvalidInput, match="leave it out"):
        speculative.generate(model("llama"), IDS, custom_generate=loop())
    if told:
        model("llama").generate(IDS, **options, custom_generate=speculative)
    else:
        with pytest.warns(UserWarning, match="own generate"):
            model("llama").generate(IDS, **options, custom_generate=speculative)


def test_nothing_of_a_call_that_failed_is_taken_for_the_next():
    speculative, shown = loop(), Collects()
    with pytest.raises(ValueError):
        speculative.generate(model("llama"), IDS, temperature=-1.0, do_sample=True, streamer=shown)
    assert generate_call.Call.taken() is None
    options = {"max_new_tokens": 5, "do_sample": False}
    model("llama").generate(IDS, **options, custom_generate=speculative)
    assert not shown.ends
