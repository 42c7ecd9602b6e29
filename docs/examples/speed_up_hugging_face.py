"""A program that uses transformers already: one argument more, and the text stays the same."""

from draftwood import custom_generate, zoo
from draftwood.policies import LayeredDySpec
from draftwood.verifiers import RecursiveRejection

model, tokenizer = zoo.load("llama-7m"), zoo.tokenizer()
inputs = tokenizer(["Question: There are 30 students in a class."], return_tensors="pt")
ordinary = model.generate(**inputs, max_new_tokens=48, do_sample=False)

speculative = custom_generate(
    drafter=zoo.load("llama-draft"), policy=LayeredDySpec(16), verifier=RecursiveRejection()
)
faster = model.generate(
    **inputs,
    max_new_tokens=48,
    do_sample=False,
    custom_generate=speculative,
    return_dict_in_generate=True,
)
assert faster.sequences.tolist() == ordinary.tolist()
print(tokenizer.decode(faster.sequences[0]))
print(f"The same tokens in {faster.statistics.target_calls} passes of the model instead of 48.")

sampled = model.generate(
    **inputs, max_new_tokens=48, do_sample=True, temperature=0.7, custom_generate=speculative
)
print(tokenizer.decode(sampled[0]))
