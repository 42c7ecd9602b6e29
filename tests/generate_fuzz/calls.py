"""Random arguments of `generate()`."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

import attrs
import torch
import transformers as hf

from tests.cache_names import cache_name
from tests.generate_fuzz import processors as own
from tests.generate_fuzz.models import EOS, KINDS, PAD, STRATEGIES, VOCAB, draft, model, prompt_ids, tokenizer


@attrs.frozen(eq=False)
class Call:
    """One call of `generate()`.

    Attributes:
        kind: of the model.
        strategy: number of the policy and verifier.
        options: of `generate`.
        names: of the features in it.
    """

    kind: str
    strategy: int
    options: dict[str, Any]
    names: tuple[str, ...]

    def __str__(self) -> str:
        shown = {
            name: value for name, value in self.options.items() if name not in ("input_ids", "tokenizer")
        }
        return f"{self.kind}, {STRATEGIES[self.strategy]}, {self.names}: {shown}"


Feature = Callable[[random.Random, dict[str, Any]], None]
FEATURES: dict[str, Feature] = {}


# What most calls cannot have beside anything else.
SELDOM = {
    "assistant",
    "beams",
    "contrastive",
    "counting_processor",
    "dola",
    "embeddings",
    "forced_words",
    "given_cache",
    "guidance",
    "hole",
    "inner_outputs",
    "misspelt",
    "mtp",
    "other_cache",
    "prompt_lookup",
    "right_padding",
    "several_returned_greedily",
    "synthid",
    "token_healing",
}


def feature(change: Feature) -> Feature:
    FEATURES[change.__name__] = change
    return change


def call(number: int, *, features: int = 4) -> Call:
    """Call number `number`; calling it again makes new processors and criteria of the same kind."""
    rng = random.Random(number)
    kind = rng.choice(sorted(KINDS))
    options: dict[str, Any] = {}
    common = sorted(FEATURES.keys() - SELDOM)
    names = rng.sample(common, rng.randrange(features + 1))
    if rng.random() < 0.2:
        names.append(rng.choice(sorted(SELDOM)))
    _prompts(rng, options)
    options["max_new_tokens"] = rng.randrange(1, 14)
    options["do_sample"] = False
    for name in names:
        options["_kind"] = kind
        FEATURES[name](rng, options)
    options.pop("_kind", None)
    strategy = rng.randrange(len(STRATEGIES))
    if options["do_sample"]:
        strategy %= 3  # the last one is for temperature 0
    return Call(kind, strategy, options, tuple(names))


def rows_of(options: dict[str, Any]) -> int:
    return len(options["input_ids"])


def _prompts(rng: random.Random, options: dict[str, Any]) -> None:
    rows = rng.choice([1, 1, 1, 2, 3])
    texts = [[rng.randrange(6, VOCAB) for _ in range(rng.randrange(1, 9))] for _ in range(rows)]
    options["input_ids"], options["attention_mask"] = prompt_ids(texts, side="left")


@feature
def common_padding(rng: random.Random, options: dict[str, Any]) -> None:
    rows = rows_of(options)
    ids, mask = options["input_ids"], options["attention_mask"]
    options["input_ids"] = torch.cat([torch.full((rows, 2), PAD), ids], 1)
    options["attention_mask"] = None if mask is None else torch.cat([torch.zeros(rows, 2).long(), mask], 1)


@feature
def no_mask(rng: random.Random, options: dict[str, Any]) -> None:
    options["attention_mask"] = None


@feature
def bool_mask(rng: random.Random, options: dict[str, Any]) -> None:
    if options["attention_mask"] is not None:
        options["attention_mask"] = options["attention_mask"].bool()


@feature
def right_padding(rng: random.Random, options: dict[str, Any]) -> None:
    texts = [row[row != PAD].tolist() or [7] for row in options["input_ids"]]
    options["input_ids"], options["attention_mask"] = prompt_ids(texts, side="right")


@feature
def hole(rng: random.Random, options: dict[str, Any]) -> None:
    if options["input_ids"].shape[1] > 2:
        mask = torch.ones_like(options["input_ids"])
        mask[:, 1] = 0
        options["attention_mask"] = mask


@feature
def default_length(rng: random.Random, options: dict[str, Any]) -> None:
    options.pop("max_new_tokens", None)


@feature
def max_length(rng: random.Random, options: dict[str, Any]) -> None:
    options.pop("max_new_tokens", None)
    options["max_length"] = rng.randrange(2, 20)


@feature
def min_length(rng: random.Random, options: dict[str, Any]) -> None:
    options["min_length"] = rng.randrange(1, 20)


@feature
def min_new_tokens(rng: random.Random, options: dict[str, Any]) -> None:
    options["min_new_tokens"] = rng.randrange(1, 10)


@feature
def many_eos(rng: random.Random, options: dict[str, Any]) -> None:
    options["eos_token_id"] = rng.sample(range(VOCAB), 12)


@feature
def pad_is_eos(rng: random.Random, options: dict[str, Any]) -> None:
    options["eos_token_id"] = options["pad_token_id"] = rng.randrange(6, VOCAB)


@feature
def no_eos(rng: random.Random, options: dict[str, Any]) -> None:
    options["_without_eos"] = True


@feature
def forced_eos(rng: random.Random, options: dict[str, Any]) -> None:
    options["forced_eos_token_id"] = EOS


@feature
def forced_bos(rng: random.Random, options: dict[str, Any]) -> None:
    options["forced_bos_token_id"] = 7


@feature
def begin_suppress(rng: random.Random, options: dict[str, Any]) -> None:
    options["begin_suppress_tokens"] = rng.sample(range(VOCAB), 30)


@feature
def suppress(rng: random.Random, options: dict[str, Any]) -> None:
    options["suppress_tokens"] = rng.sample(range(VOCAB), 20)


@feature
def decay(rng: random.Random, options: dict[str, Any]) -> None:
    options["exponential_decay_length_penalty"] = (rng.randrange(4), 1.0 + rng.random())


@feature
def repetition_penalty(rng: random.Random, options: dict[str, Any]) -> None:
    options["repetition_penalty"] = rng.choice([1.3, 2.0, 0.7])


@feature
def no_repeat_ngram(rng: random.Random, options: dict[str, Any]) -> None:
    options["no_repeat_ngram_size"] = rng.choice([1, 2, 3])


@feature
def bad_words(rng: random.Random, options: dict[str, Any]) -> None:
    options["bad_words_ids"] = [[rng.randrange(VOCAB)], [rng.randrange(VOCAB), rng.randrange(VOCAB)]]


@feature
def sequence_bias(rng: random.Random, options: dict[str, Any]) -> None:
    options["sequence_bias"] = [[[rng.randrange(VOCAB)], 3.0], [[9, rng.randrange(VOCAB)], -2.0]]


@feature
def encoder_repetition(rng: random.Random, options: dict[str, Any]) -> None:
    options["encoder_repetition_penalty"] = 1.5


@feature
def encoder_no_repeat(rng: random.Random, options: dict[str, Any]) -> None:
    options["encoder_no_repeat_ngram_size"] = 2


@feature
def prefix_allowed(rng: random.Random, options: dict[str, Any]) -> None:
    options["prefix_allowed_tokens_fn"] = own.allowed


@feature
def guidance(rng: random.Random, options: dict[str, Any]) -> None:
    options["guidance_scale"] = 1.5


@feature
def watermark(rng: random.Random, options: dict[str, Any]) -> None:
    options["watermarking_config"] = hf.WatermarkingConfig(bias=2.5, seeding_scheme="lefthash")


@feature
def synthid(rng: random.Random, options: dict[str, Any]) -> None:
    options["watermarking_config"] = hf.SynthIDTextWatermarkingConfig(keys=[654, 400, 836, 123], ngram_len=3)
    options["do_sample"] = True


@feature
def renormalize(rng: random.Random, options: dict[str, Any]) -> None:
    options["renormalize_logits"] = True


@feature
def remove_invalid(rng: random.Random, options: dict[str, Any]) -> None:
    options["remove_invalid_values"] = True


@feature
def sampled_top_1(rng: random.Random, options: dict[str, Any]) -> None:
    options |= {"do_sample": True, "top_k": 1, "temperature": rng.choice([0.5, 1.0, 2.0])}


@feature
def filters(rng: random.Random, options: dict[str, Any]) -> None:
    names = {"top_p": 0.7, "min_p": 0.1, "typical_p": 0.8, "epsilon_cutoff": 0.01, "eta_cutoff": 0.01}
    chosen = rng.sample(sorted(names), 2)
    options |= {name: names[name] for name in chosen} | {"do_sample": True, "top_k": 1}


@feature
def top_h(rng: random.Random, options: dict[str, Any]) -> None:
    options |= {"do_sample": True, "top_k": 1, "top_h": 0.5}


@feature
def several_returned(rng: random.Random, options: dict[str, Any]) -> None:
    options |= {"num_return_sequences": 2, "do_sample": True, "top_k": 1}


@feature
def several_returned_greedily(rng: random.Random, options: dict[str, Any]) -> None:
    options |= {"num_return_sequences": 2}


@feature
def own_processors(rng: random.Random, options: dict[str, Any]) -> None:
    rows = rows_of(options) * options.get("num_return_sequences", 1)
    known = {
        "length": own.FavoursByLength,
        "row": own.FavoursByRow,
        "tensor": lambda: own.HoldsATensorARow(rows),
        "nothing": own.NoOp,
        "shorter": lambda: hf.MinLengthLogitsProcessor(12, EOS),
    }
    chosen = rng.sample(sorted(known), rng.choice([1, 2]))
    options["logits_processor"] = hf.LogitsProcessorList(known[name]() for name in chosen)


@feature
def counting_processor(rng: random.Random, options: dict[str, Any]) -> None:
    options["logits_processor"] = hf.LogitsProcessorList([own.Counts()])


@feature
def own_criteria(rng: random.Random, options: dict[str, Any]) -> None:
    rows = rows_of(options) * options.get("num_return_sequences", 1)
    known: dict[str, Callable[[], Any]] = {
        "length": lambda: own.TooLong(rng.randrange(4, 14)),
        "tokens": own.EndsRowsAtTheirToken,
        "tracker": lambda: own.TracksRows(rows),
        "max_length": lambda: hf.MaxLengthCriteria(rng.randrange(1, 16)),
        "eos": lambda: hf.EosTokenCriteria(rng.randrange(VOCAB)),
        "time": lambda: hf.MaxTimeCriteria(1000.0),
    }
    chosen = rng.sample(sorted(known), rng.choice([1, 2]))
    options["stopping_criteria"] = hf.StoppingCriteriaList(known[name]() for name in chosen)


@feature
def criteria_on_scores(rng: random.Random, options: dict[str, Any]) -> None:
    options["stopping_criteria"] = hf.StoppingCriteriaList([own.ReadsScores()])
    options |= {"return_dict_in_generate": True, "output_scores": True}


@feature
def max_time(rng: random.Random, options: dict[str, Any]) -> None:
    options["max_time"] = 1000.0


@feature
def stop_strings(rng: random.Random, options: dict[str, Any]) -> None:
    options["stop_strings"] = rng.sample(["a", "bc", "m", "no", "xyz", "t", "q", "fg"], 3)
    if rng.random() < 0.9:
        options["tokenizer"] = tokenizer()


@feature
def streamed(rng: random.Random, options: dict[str, Any]) -> None:
    options["streamer"] = own.Collects()


@feature
def beams(rng: random.Random, options: dict[str, Any]) -> None:
    options["num_beams"] = 3


@feature
def contrastive(rng: random.Random, options: dict[str, Any]) -> None:
    options |= {"penalty_alpha": 0.6, "top_k": 4, "do_sample": False}


@feature
def dola(rng: random.Random, options: dict[str, Any]) -> None:
    options["dola_layers"] = "high"


@feature
def forced_words(rng: random.Random, options: dict[str, Any]) -> None:
    options |= {"force_words_ids": [[7]], "num_beams": 2}


@feature
def assistant(rng: random.Random, options: dict[str, Any]) -> None:
    options["assistant_model"] = draft()


@feature
def prompt_lookup(rng: random.Random, options: dict[str, Any]) -> None:
    options["prompt_lookup_num_tokens"] = 2


@feature
def mtp(rng: random.Random, options: dict[str, Any]) -> None:
    options["use_mtp"] = True


@feature
def outputs(rng: random.Random, options: dict[str, Any]) -> None:
    options["return_dict_in_generate"] = True
    for name in rng.sample(["output_scores", "output_logits"], rng.choice([0, 1, 2])):
        options[name] = True


@feature
def inner_outputs(rng: random.Random, options: dict[str, Any]) -> None:
    options[rng.choice(["output_hidden_states", "output_attentions"])] = True
    options["return_dict_in_generate"] = rng.random() < 0.7


@feature
def no_cache(rng: random.Random, options: dict[str, Any]) -> None:
    options["use_cache"] = False


@feature
def other_cache(rng: random.Random, options: dict[str, Any]) -> None:
    options["cache_implementation"] = rng.choice(["static", "dynamic", "quantized"])


@feature
def positions(rng: random.Random, options: dict[str, Any]) -> None:
    length = options["input_ids"].shape[1]
    shift = rng.choice([0, 0, 3])
    options["position_ids"] = (torch.arange(length) + shift).expand(rows_of(options), -1).clone()


@feature
def embeddings(rng: random.Random, options: dict[str, Any]) -> None:
    with torch.no_grad():
        options["inputs_embeds"] = model(options["_kind"]).get_input_embeddings()(options["input_ids"])


@feature
def given_cache(rng: random.Random, options: dict[str, Any]) -> None:
    target, ids = model(options["_kind"]), options["input_ids"]
    cache = hf.DynamicCache(config=target.config)
    options["past_key_values"] = cache
    read = rng.randint(0, ids.shape[1])  # all of them: nothing is left to read
    if read:
        mask = options.get("attention_mask")
        inputs = {} if mask is None else {"attention_mask": mask[:, :read]}
        if mask is not None and "position_ids" in inspect.signature(target.forward).parameters:
            inputs["position_ids"] = (inputs["attention_mask"].cumsum(1) - 1).clamp(min=0)
        with torch.no_grad():
            target(ids[:, :read], **inputs, **{cache_name(target): cache})


@feature
def misspelt(rng: random.Random, options: dict[str, Any]) -> None:
    options["max_new_token"] = 3


@feature
def as_config(rng: random.Random, options: dict[str, Any]) -> None:
    names = [name for name in ("max_new_tokens", "do_sample", "repetition_penalty") if name in options]
    given = {name: options.pop(name) for name in names}
    options["generation_config"] = hf.GenerationConfig(
        **given, eos_token_id=EOS, pad_token_id=PAD, bos_token_id=0
    )
    options.setdefault("do_sample", given.get("do_sample", False))


@feature
def token_healing(rng: random.Random, options: dict[str, Any]) -> None:
    options |= {"token_healing": True, "tokenizer": tokenizer()}
