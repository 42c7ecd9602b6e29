"""A new tree policy in thirty lines: it is proved, then it writes text."""

import attrs

from draftwood import Deterministic, SpeculativeDecoder, TreeBuilder, TreePolicy, load, zoo
from draftwood.drafters import ModelDrafter
from draftwood.testing import ToyBackend, ToyModel, assert_lossless
from draftwood.verifiers import RecursiveRejection


@attrs.frozen
class Comb(TreePolicy):
    """A chain of the draft's best guesses, each with its runner-up as a sibling."""

    length: int = 3
    laws = frozenset({Deterministic})

    def grow(self, root, rng):
        tree, node = TreeBuilder(root), 0
        for _ in range(self.length):
            (siblings,) = yield tree.open([node], Deterministic, 2)
            if not siblings.tokens:  # the drafter has nothing to propose here
                break
            node, *_ = tree.add_siblings(node, siblings)
        return tree.finish()


toy_drafter = ModelDrafter(ToyBackend(ToyModel(vocab_size=3, seed=2)))
assert_lossless(Comb(), RecursiveRejection(), target=ToyModel(vocab_size=3, seed=1), drafter=toy_drafter)
print("Comb is lossless: every random outcome on the toy models was visited.")

decoder = SpeculativeDecoder(
    load(zoo.path("llama-7m")), ModelDrafter(load(zoo.path("llama-draft"))), Comb(5), RecursiveRejection()
)
prompt = zoo.tokenizer()("def fibonacci(n):")["input_ids"]
written = decoder.generate([prompt], max_new_tokens=48, return_dict_in_generate=True)
print(zoo.tokenizer().decode(written.sequences[0]))
print(f"{written.statistics.tokens_per_round:.2f} tokens a round")
