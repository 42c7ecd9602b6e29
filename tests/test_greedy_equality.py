"""Greedy text is that of transformers' `generate`, token for token: every strategy, real models, fp32."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TextStreamer

from draftwood import SpeculativeDecoder, custom_generate, load, zoo
from draftwood.backends.kinds.transformer import TransformerBackend
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from draftwood.strategies.drafters.several import Several
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection

TOKENS = 128
FEW = 48
PROMPTS = [row["prompt"] for row in json.loads((Path(__file__).parent / "data" / "prompts.json").read_text())]


@cache
def loaded(name):
    return zoo.load(name)


@pytest.fixture
def model():
    return loaded("llama-7m")


@pytest.fixture
def draft():
    return loaded("llama-draft")


@pytest.fixture(scope="module")
def prompts():
    tokenizer = zoo.tokenizer()
    return [tokenizer(text, return_tensors="pt").input_ids for text in PROMPTS]


@pytest.fixture(scope="module")
def wanted(prompts):
    """Returns `generate`'s texts by the number of a prompt; a short text is the beginning of a long one."""

    @cache
    def text(number, tokens):
        ids = prompts[number]
        return (
            loaded("llama-7m")
            .generate(ids, max_new_tokens=tokens, do_sample=False)[0, ids.shape[1] :]
            .tolist()
        )

    return lambda number, tokens: text(number, max(tokens, FEW))[:tokens]


STRATEGIES = {
    "chain": lambda d, v: (ModelDrafter(d), Chain(5, "top-k"), Greedy()),
    "sampled chain": lambda d, v: (ModelDrafter(d), Chain(5), RecursiveRejection()),
    "fixed tree": lambda d, v: (ModelDrafter(d), FixedTree(4, 2, 24, 0.02, "top-k"), Greedy()),
    "sampled tree": lambda d, v: (
        ModelDrafter(d),
        FixedTree(3, 2, law="with-replacement"),
        RecursiveRejection(),
    ),
    "DySpec": lambda d, v: (ModelDrafter(d), DySpec(16), RecursiveRejection()),
    "layered DySpec": lambda d, v: (ModelDrafter(d), LayeredDySpec(16, law="top-k"), Greedy()),
    "sampled layered DySpec": lambda d, v: (ModelDrafter(d), LayeredDySpec(16), RecursiveRejection()),
    "prompt lookup": lambda d, v: (PromptLookup(v), LayeredDySpec(8, law="top-k"), Greedy()),
    "two drafters": lambda d, v: (
        Several([ModelDrafter(d), PromptLookup(v)]),
        FixedTree(3, 2, law="per-drafter"),
        RecursiveRejection(),
    ),
}


@pytest.mark.parametrize(
    ("rows", "prompts_in_all", "tokens"),
    # A row alone takes four times as long as one of four.
    [
        (1, 1, FEW // 2),
        (3, 3, FEW),
        *(pytest.param(rows, len(PROMPTS), TOKENS, marks=pytest.mark.thorough) for rows in (1, 4)),
    ],
)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_writes_what_generate_writes(
    strategy, rows, prompts_in_all, tokens, model, draft, prompts, wanted
):
    drafter, policy, verifier = STRATEGIES[strategy](load(draft), model.config.vocab_size)
    # Left to itself, `load` falls back to a backend that runs paths where trees come out wrong.
    decoder = SpeculativeDecoder(TransformerBackend(model), drafter, policy, verifier)
    for start in range(0, prompts_in_all, rows):
        batch = [ids[0].tolist() for ids in prompts[start : start + rows]]
        out: Any = decoder.generate(batch, max_new_tokens=tokens, return_dict_in_generate=True, seed=start)
        assert out.tokens == [wanted(number, tokens) for number in range(start, start + rows)]
    assert out.statistics.tokens_per_round > 1


def test_generate_takes_the_loop_as_one_argument(model, draft, prompts, wanted):
    speculative = custom_generate(drafter=draft, policy=LayeredDySpec(16, law="top-k"), verifier=Greedy())
    ids = prompts[0]
    out = model.generate(ids, max_new_tokens=40, do_sample=False, custom_generate=speculative)
    assert out[0, ids.shape[1] :].tolist() == wanted(0, 40)
    out = model.generate(
        ids, max_new_tokens=40, do_sample=False, custom_generate=speculative, return_dict_in_generate=True
    )
    assert out.sequences[0, ids.shape[1] :].tolist() == wanted(0, 40)
    assert out.statistics.new_tokens == 40


def test_generate_batches_and_processors_pass_through(model, draft, prompts):
    tokenizer = zoo.tokenizer()
    tokenizer.padding_side = "left"
    inputs = tokenizer(PROMPTS[:3], return_tensors="pt", padding=True)
    inputs.pop("token_type_ids", None)
    options = {"max_new_tokens": 24, "do_sample": False, "repetition_penalty": 1.3, "no_repeat_ngram_size": 3}
    speculative = custom_generate(drafter=draft, policy=LayeredDySpec(8, law="top-k"), verifier=Greedy())
    plain = model.generate(**inputs, **options)
    assert torch.equal(model.generate(**inputs, **options, custom_generate=speculative), plain)


def test_generate_stops_at_strings_and_streams(model, draft, prompts, capsys):
    tokenizer = zoo.tokenizer()
    ids = prompts[0]
    speculative = custom_generate(
        drafter=draft,
        policy=LayeredDySpec(8),
        verifier=RecursiveRejection(),
        stop_strings=".",
        tokenizer=tokenizer,
        streamer=TextStreamer(tokenizer, skip_prompt=True),
    )
    options = {"max_new_tokens": 60, "do_sample": False}
    plain = model.generate(ids, **options, stop_strings=["."], tokenizer=tokenizer)
    assert torch.equal(model.generate(ids, **options, custom_generate=speculative), plain)
    assert plain.shape[1] < ids.shape[1] + 60
    assert capsys.readouterr().out.strip() == str(tokenizer.decode(plain[0, ids.shape[1] :])).strip()


def test_sampling_through_generate_follows_its_seed(model, draft, prompts):
    speculative = custom_generate(drafter=draft, policy=LayeredDySpec(8), verifier=RecursiveRejection())
    sampled = {"max_new_tokens": 20, "do_sample": True, "top_k": 0, "custom_generate": speculative}
    texts = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        texts.append(model.generate(prompts[0], **sampled).tolist())
    assert texts[0] == texts[1] != texts[2]
