"""Outlines' own calls, with draft trees besides. Outlines has no release for Python 3.14."""

from typing import Any, Literal

import pydantic
import pytest
import torch

from draftwood import zoo
from tests.strategies.test_constraint_processors import PROMPTS, TOKENIZER, loop

outlines = pytest.importorskip("outlines", reason="outlines has no release for this Python")
CFG, Regex = outlines.types.CFG, outlines.types.Regex
DIGITS = Regex(r"[a-z]{3,12} [0-9]{2,4}")
GRAMMAR = '?start: NAME "=" NUMBER\nNAME: /[a-z]{1,6}/\nNUMBER: /[0-9]{1,4}/\n'


class Review(pydantic.BaseModel):
    label: Literal["positive", "negative"]
    score: int = pydantic.Field(ge=0, le=9)


@pytest.fixture(autouse=True, scope="module")
def uncompiled():
    """outlines compiles the function that masks scores, which takes seconds here."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.fixture(scope="module")
def model():
    found = zoo.load("llama-7m")
    found.generation_config.pad_token_id = 1
    return found


@pytest.fixture(scope="module")
def speculative():
    return loop()


@pytest.mark.parametrize("kind", [DIGITS, Literal["yes", "no", "yesterday"], int, Review], ids=str)
def test_outlines_own_call(kind, model, speculative):
    ask: Any = outlines.from_transformers(model, TOKENIZER)
    options: Any = {"max_new_tokens": 24, "do_sample": False}
    plain = ask(PROMPTS[0], kind, **options)
    assert ask(PROMPTS[0], kind, **options, custom_generate=speculative) == plain
    generator = outlines.Generator(ask, kind)
    for _ in range(2):  # outlines begins its processor anew for every call
        assert generator(PROMPTS[0], **options, custom_generate=speculative) == plain
    batch = ask.batch(PROMPTS, kind, **options)
    assert ask.batch(PROMPTS, kind, **options, custom_generate=speculative) == batch


@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        *[
            (kind, backend)
            for kind in (DIGITS, Review)
            for backend in ("outlines_core", "xgrammar", "llguidance")
        ],
        (CFG(GRAMMAR), "llguidance"),  # for which this grammar is written
    ],
)
def test_outlines_backends(kind, backend, model, speculative):
    generator = outlines.Generator(outlines.from_transformers(model, TOKENIZER), kind, backend=backend)
    options: Any = {"max_new_tokens": 24, "do_sample": False, "repetition_penalty": 1.2}
    plain = generator.batch(PROMPTS, **options)
    assert generator.batch(PROMPTS, **options, custom_generate=speculative) == plain


def test_an_automaton_follows_any_path():
    from draftwood.strategies.constraints.outlines import OutlinesConstraint

    ask: Any = outlines.from_transformers(zoo.load("llama-draft"), TOKENIZER)
    generator: Any = outlines.Generator(ask, Regex("a+b?"))
    index = generator.logits_processor.index
    constraint: Any = OutlinesConstraint(index)
    a, b, x = (TOKENIZER.convert_tokens_to_ids(letter) for letter in "abx")
    state = constraint.start([3, 4])
    first = constraint.advance(state, a)
    assert constraint.advance(state, b) is None
    assert constraint.advance(first, x) is None
    assert constraint.advance(first, -1) is None
    last = constraint.advance(first, b)
    end = TOKENIZER.eos_token_id
    masks = constraint.masks([state, first, last], 200)
    assert masks[:, [a, b, end]].tolist() == [[True, False, False], [True, True, True], [False, False, True]]
    assert constraint.advance(last, end) == last  # texts that go on after their end stay there
    assert constraint.advance(last, a) is None
