"""A constraint without a grammar package: a regular expression, asked for every token of the vocabulary."""

from __future__ import annotations

from functools import cache

import attrs
import regex
import torch

from draftwood import Constraint, zoo


@cache
def spellings():
    """The zoo's tokens as text, one character a byte; None for the special ones."""
    tokenizer = zoo.tokenizer()
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in kept]
    alphabet = {chr(byte): chr(byte) for byte in kept}
    alphabet |= {chr(256 + index): chr(byte) for index, byte in enumerate(shifted)}
    return [
        None if token in tokenizer.all_special_ids else "".join(alphabet[c] for c in name)
        for token, name in enumerate(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))))
    ]


@attrs.frozen(eq=False)
class PatternConstraint(Constraint):
    """Texts that match all of `pattern`; a state is the text so far, True after its end."""

    pattern: str
    eos: int = 0

    def start(self, prompt):
        return ""

    def advance(self, state, token):
        if token == self.eos:
            return True if state is True or regex.fullmatch(self.pattern, state) else None
        if state is True or token >= len(spellings()) or spellings()[token] is None:
            return None
        text = state + spellings()[token]
        return text if regex.fullmatch(self.pattern, text, partial=True) else None

    def masks(self, states, vocab_size):
        return torch.tensor([[self.advance(s, t) is not None for t in range(vocab_size)] for s in states])
