"""A hybrid target (Mamba-2 and attention) that a Llama drafts for, sampled through trees."""

from draftwood import SamplingParams, SpeculativeDecoder, load, zoo
from draftwood.drafters import ModelDrafter
from draftwood.policies import LayeredDySpec
from draftwood.verifiers import RecursiveRejection

target = load(zoo.path("bamba-6m"))
decoder = SpeculativeDecoder(
    target, ModelDrafter(load(zoo.path("llama-draft"))), LayeredDySpec(budget=16), RecursiveRejection()
)
tokenizer = zoo.tokenizer()
prompt = tokenizer("The river runs")["input_ids"]
written = decoder.generate(
    [prompt],
    max_new_tokens=48,
    sampling=SamplingParams(temperature=0.7),
    seed=1,
    return_dict_in_generate=True,
)
print(tokenizer.decode(written.sequences[0]))
print(f"{type(target).__name__}: {written.statistics.tokens_per_round:.2f} tokens a round")
