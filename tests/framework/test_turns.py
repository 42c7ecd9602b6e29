"""Turns of a chat through `generate()`: what one call returns as its cache spares the next a prefill."""

import gc

import pytest
import torch
import transformers as hf

from draftwood import InvalidInput, create, custom_generate
from draftwood.base import locks
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from tests.generate_fuzz.models import VOCAB, draft, model, tokenizer
from tests.generate_fuzz.processors import Collects

PARTS = [[7, 8, 9, 10, 11], [12, 13], [14, 15, 16]]
GREEDY = {"max_new_tokens": 7, "do_sample": False, "return_dict_in_generate": True}


def loop(drafter=None):
    return custom_generate(drafter=drafter or draft(), policy=LayeredDySpec(8), verifier=RecursiveRejection())


def written(target, ids, **options):
    ids = torch.tensor([ids])
    return target.generate(ids, attention_mask=torch.ones_like(ids), **{**GREEDY, **options})


def cache_of(output):
    """By its name in the newest transformers, or its older one."""
    return getattr(output, "cache", None) or getattr(output, "past_key_values", None)


class Read:
    """Counts the tokens of prompts that the target of a loop reads."""

    def __init__(self, speculative, target):
        written(target, PARTS[0], custom_generate=speculative, return_dict_in_generate=False)
        self.backend, self.tokens = speculative._decoder.target, 0
        for name in ("prefill", "first_logits"):
            setattr(self.backend, name, self.counted(getattr(self.backend, name)))

    def counted(self, method):
        def counting(rows):
            self.tokens += sum(map(len, rows))
            return method(rows)

        return counting

    def taken(self):
        tokens, self.tokens = self.tokens, 0
        return tokens


@pytest.mark.parametrize("kind", ["llama", "mistral", "bloom", "mamba", "mamba2", "bamba", "qwen3_next"])
def test_a_turn_reads_only_what_is_new(kind):
    target, speculative = model(kind), loop()
    read, past = Read(speculative, target), None
    text: list[int] = []
    for number, part in enumerate(PARTS):
        text = [*text, *part]
        plain = written(target, text).sequences
        ours = written(target, text, custom_generate=speculative, past_key_values=past)
        assert torch.equal(ours.sequences, plain)
        tokens = read.taken()
        assert tokens == 0 if number else tokens >= len(part) - 1
        assert len(read.backend.lengths) == 1
        past, text = cache_of(ours), ours.sequences[0].tolist()
        assert past.tokens == text
        assert past.get_seq_length() == len(text) - 1


def follows_the_sum(input_ids, scores):
    """Scores that depend on every token of the text, and on how often it is there."""
    favoured = torch.nn.functional.one_hot(input_ids.sum(1) % VOCAB, scores.shape[1])
    return scores + 20.0 * favoured


def turns(options_of_turn, *, target=None, speculative=None):
    """Texts of plain calls and of ours, turn by turn."""
    target, speculative = target or model("llama"), speculative or loop()
    text: list[int] = []
    past, pairs = None, []
    for part, options in zip(PARTS, options_of_turn, strict=True):
        text = [*text, *part]
        plain = written(target, text, **options).sequences
        ours = written(target, text, **options, custom_generate=speculative, past_key_values=past)
        pairs.append((plain.tolist(), ours.sequences.tolist()))
        past, text = cache_of(ours), ours.sequences[0].tolist()
    return pairs


def test_every_turn_has_options_of_its_own():
    words = tokenizer().convert_ids_to_tokens([20, 30])
    different = [
        {"max_new_tokens": 1},  # the drafter has read nothing of it
        {"repetition_penalty": 1.4, "logits_processor": [follows_the_sum], "max_new_tokens": 12},
        {"stop_strings": words, "tokenizer": tokenizer(), "eos_token_id": []},
    ]
    for chosen in (different, different[::-1], [different[1]] * 3):
        for plain, ours in turns(chosen):
            assert plain == ours


def test_a_text_goes_on_without_anything_new():
    target, speculative = model("mamba2"), loop()
    first = written(target, PARTS[0], custom_generate=speculative, eos_token_id=[])
    text = first.sequences[0].tolist()
    again = written(
        target, text, custom_generate=speculative, past_key_values=cache_of(first), eos_token_id=[]
    )
    assert torch.equal(
        again.sequences, written(target, PARTS[0], max_new_tokens=14, eos_token_id=[]).sequences
    )


def test_a_text_that_is_no_continuation_is_read_anew():
    target, speculative = model("bamba"), loop()
    first = cache_of(written(target, PARTS[0], custom_generate=speculative))
    other = [*PARTS[1], *PARTS[0], *PARTS[2]]
    ours = written(target, other, custom_generate=speculative, past_key_values=first)
    assert torch.equal(ours.sequences, written(target, other).sequences)
    # The first text's states are gone, and it is read again.
    longer = [*first.tokens, 9]
    ours = written(target, longer, custom_generate=speculative, past_key_values=first)
    assert torch.equal(ours.sequences, written(target, longer).sequences)


def test_other_calls_find_no_rows():
    target, shared = model("llama"), create("drafters", "model", {"backend": draft()})
    speculative, other = loop(shared), loop(shared)
    kept = cache_of(written(target, PARTS[0], custom_generate=speculative))
    assert len(shared.backends[0].lengths) == 1
    plain = written(target, PARTS[2]).sequences
    assert torch.equal(written(target, PARTS[2], custom_generate=other).sequences, plain)
    text = [*kept.tokens, 11]
    ours = written(target, text, custom_generate=speculative, past_key_values=kept)
    assert torch.equal(ours.sequences, written(target, text).sequences)
    del ours, kept
    gc.collect()
    assert not speculative._decoder.target.lengths  # nobody can go on from it any more
    assert not locks._kept


@pytest.mark.parametrize("change", ["weights", "training", "eos"])
def test_a_model_that_has_changed_reads_the_text_again(change):
    target, speculative = model("llama").__class__(model("llama").config).eval(), loop()
    target.load_state_dict(model("llama").state_dict())
    first = written(target, PARTS[0], custom_generate=speculative)
    text = [*first.sequences[0].tolist(), *PARTS[1]]
    if change == "weights":
        with torch.no_grad():
            for weight in target.parameters():
                weight.mul_(1.3)
    elif change == "training":
        target.train()
    else:
        target.generation_config.eos_token_id = 9
    ours = written(target, text, custom_generate=speculative, past_key_values=cache_of(first))
    assert torch.equal(ours.sequences, written(target, text).sequences)


def test_an_error_leaves_no_rows():
    target, speculative = model("llama"), loop()
    first = written(target, PARTS[0], custom_generate=speculative)
    text = [*first.sequences[0].tolist(), *PARTS[1]]

    class Fails(hf.LogitsProcessor):
        def __call__(self, input_ids, scores):
            if input_ids.shape[1] > len(text) + 2:
                raise RuntimeError("no luck")
            return scores

    with pytest.raises(RuntimeError, match="no luck"):
        written(
            target,
            text,
            logits_processor=[Fails()],
            custom_generate=speculative,
            past_key_values=cache_of(first),
            eos_token_id=[],
        )
    assert not speculative._decoder.target.lengths
    shown = Collects()
    plain = written(target, text, return_dict_in_generate=False)
    options = {"custom_generate": speculative, "return_dict_in_generate": False, "streamer": shown}
    assert torch.equal(written(target, text, **options), plain)
    assert not speculative._decoder.target.lengths


def test_what_cannot_be_gone_on_from_is_told():
    target, speculative = model("llama"), loop()
    past = cache_of(written(target, PARTS[0], custom_generate=speculative))
    two = torch.tensor([PARTS[0]] * 2)
    with pytest.raises(InvalidInput, match="holds one text and 2 rows were given"):
        target.generate(two, **GREEDY, custom_generate=speculative, past_key_values=past)
    assert cache_of(target.generate(two, **GREEDY, custom_generate=speculative)) is None
    with pytest.raises(InvalidInput, match="was made by draft trees and holds no keys"):
        written(target, [*past.tokens, 5], past_key_values=past)
    looked_up = create("drafters", "prompt-lookup", {"vocab_size": VOCAB})
    for plain, ours in turns([{}] * 3, speculative=loop(looked_up)):
        assert plain == ours
