"""Several prompts at once: each row draws from its own seed, so no text depends on other rows."""

from draftwood import SamplingParams, SpeculativeDecoder, load, zoo
from draftwood.drafters import ModelDrafter
from draftwood.policies import LayeredDySpec
from draftwood.verifiers import RecursiveRejection

decoder = SpeculativeDecoder(
    load(zoo.load("llama-7m")),  # in float32: in bfloat16 rounding depends on the other rows
    ModelDrafter(load(zoo.load("llama-draft"))),
    LayeredDySpec(budget=16),
    RecursiveRejection(),
)
tokenizer = zoo.tokenizer()
prompts = ["def fibonacci(n):", "Dear Sir,", "Question: What is 3 times 12?\nAnswer:"]
rows = [tokenizer(prompt)["input_ids"] for prompt in prompts]
settings = {"max_new_tokens": 32, "sampling": SamplingParams(temperature=0.7)}

together = decoder.generate(rows, seed=[1, 2, 3], return_dict_in_generate=True, **settings)
for prompt, tokens, reason in zip(prompts, together.tokens, together.finish_reasons, strict=True):
    print(f"--- {len(tokens)} tokens ({reason})\n{prompt}{tokenizer.decode(tokens)}")

alone = decoder.generate(rows[1:2], seed=[2], return_dict_in_generate=True, **settings)
assert alone.tokens[0] == together.tokens[1]
print("--- The second row by itself writes the same text.")
