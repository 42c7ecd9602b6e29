"""A text drafter as a drafter of vLLM (`"method": "custom_class"`), and a rehearsal without vLLM.

vLLM gives every row's tokens and takes a chain for each. It verifies as if the drafter were certain.
"""

from types import SimpleNamespace

import numpy as np
import torch

from draftwood import Outcome, Request, Requests, zoo
from draftwood.drafters import CachedSuffixes, SuffixCache

LIKELY = 0.3  # a chain ends where it is less likely than this to be right


class SuffixDrafter:
    """Proposes tokens that followed the last tokens in this text, in concurrent texts and in earlier ones."""

    def __init__(self, vllm_config):
        model = vllm_config.model_config
        self.longest = vllm_config.speculative_config.num_speculative_tokens
        self.max_length, self.vocab_size = model.max_model_len, model.get_vocab_size()
        self.cache = SuffixCache(self.vocab_size)
        self.rows = {}  # by the engine's row: a drafter, and the tokens that it knows

    def load_model(self, *arguments, **options):
        """There is none."""

    def propose(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings=None):
        """A chain for every row; none where it was given no token, as in the middle of its prompt."""
        lengths = [int(length) for length in num_tokens_no_spec[: len(sampled_token_ids)]]
        return [
            self._chain(row, np.asarray(token_ids_cpu[row][:length]))
            if sampled and length < self.max_length
            else []
            for row, (sampled, length) in enumerate(zip(sampled_token_ids, lengths, strict=True))
        ]

    def _chain(self, row, text):
        drafter = self._caught_up(row, text)
        chain, chance, token = [], 1.0, int(text[-1])
        while len(chain) < min(self.longest, self.max_length - len(text) - 1):
            request = Request(torch.tensor([token]), torch.tensor([len(chain) - 1]))
            probs = drafter.distributions(Requests.of([request]))[0, 0].softmax(-1)
            token = int(probs.nan_to_num(0.0).argmax())
            chance *= float(probs[token])
            if not chance >= LIKELY:
                break
            chain.append(token)
        return chain

    def _caught_up(self, row, text):
        """A drafter that knows `text` but its last token; rows of an engine come, go and change places."""
        drafter, known = self.rows.get(row, (None, text[:0]))
        if drafter is None or len(known) >= len(text) or not (known == text[: len(known)]).all():
            drafter = CachedSuffixes(self.vocab_size, cache=self.cache)
            drafter.prefill([torch.from_numpy(text[:-1].astype(np.int64))])
        else:
            new = text[len(known) - 1 : -1].tolist()
            drafter.commit([Outcome(range(len(new)), new, extra=int(text[-1]), bonus=False, drafted=0)])
        self.rows[row] = drafter, text.copy()
        return drafter


if __name__ == "__main__":
    # What vLLM does, without its model: the text that comes is known, and drafts of it are counted.
    tokenizer = zoo.tokenizer()
    config = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=512, get_vocab_size=lambda: len(tokenizer)),
        speculative_config=SimpleNamespace(num_speculative_tokens=8),
    )
    proposer = SuffixDrafter(config)
    letter = "Dear {}, thank you for your letter. We are glad to hear that you and your family are well."
    for name in ("Anna", "Tom"):
        text = tokenizer(letter.format(name))["input_ids"]
        tokens, length, rounds = np.zeros((1, 512), dtype=np.int32), 3, 0
        while length < len(text):
            tokens[0, :length] = text[:length]
            (chain,) = proposer.propose([text[length - 1 : length]], np.array([length]), tokens)
            right = 0
            while right < len(chain) and chain[right] == text[length + right]:
                right += 1
            length, rounds = length + right + 1, rounds + 1
        print(f"The letter to {name}: {len(text) - 3} tokens in {rounds} rounds.")
