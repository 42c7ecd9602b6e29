"""`Draw`: the random choices that make up a configuration."""

from __future__ import annotations

from random import Random
from typing import Any, TypeVar

T = TypeVar("T")

VOCAB = 61
POSITIONS = 2048
LETTERS: dict[str, Any] = {
    "vocab_size": VOCAB,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "relu", "relu2")


class Draw(Random):
    """A source of random choices."""

    def of(self, *choices: T) -> T:
        """Returns one of `choices`."""
        return self.choice(choices)

    def flag(self) -> bool:
        """Returns true or false."""
        return self.random() < 0.5

    def divisor(self, number: int) -> int:
        """Returns a divisor of `number`."""
        return self.choice([one for one in range(1, number + 1) if number % one == 0])

    def window(self) -> int:
        """Returns the width of an attention window."""
        return self.of(1, 2, 3, 5, 8, 13, 64, 200)

    def layers(self, *kinds: str) -> list[str]:
        """Returns the kinds of 2 to 4 layers, each kind at least once, in random order."""
        more = self.choices(kinds, k=self.randint(0, 4 - len(kinds)))
        found = [*kinds, *more]
        self.shuffle(found)
        return found

    def heads(self, *, dims: tuple[int, ...] = (2, 4, 6, 8, 16)) -> dict[str, Any]:
        """Returns the sizes of attention: heads, of which several may share keys, and a hidden size."""
        heads, dim = self.of(1, 2, 3, 4, 6), self.choice(dims)
        return {
            "num_attention_heads": heads,
            "num_key_value_heads": self.divisor(heads),
            "hidden_size": heads * dim,
        }

    def own_head_dim(self) -> dict[str, Any]:
        """Returns sizes of attention whose heads together are wider or narrower than the hidden size."""
        # Some families want the one to be a multiple of the other's heads all the same.
        return self.heads(dims=(4, 6, 10)) | {"head_dim": self.of(2, 4, 8, 12)}

    def rope(self, *, parts: tuple[float, ...] = (1.0,)) -> dict[str, Any]:
        """Returns the parameters of a rotation, of such a part of every head."""
        return {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": self.of(100.0, 10000.0, 5e5),
                "partial_rotary_factor": self.choice(parts),
            }
        }

    def block(self, **options: Any) -> dict[str, Any]:
        """Returns what decoder blocks of most families have, and `options`."""
        return {
            **LETTERS,
            "num_hidden_layers": self.randint(1, 3),
            "intermediate_size": self.of(8, 24, 48),
            "max_position_embeddings": POSITIONS,
            "tie_word_embeddings": self.flag(),
            "hidden_act": self.choice(ACTIVATIONS),
            **options,
        }

    def experts(self, **names: str) -> dict[str, Any]:
        """Returns numbers of experts, under other `names` where a family has others."""
        count = self.of(2, 3, 4, 6)
        return {
            names.get("count", "num_experts"): count,
            names.get("chosen", "num_experts_per_tok"): self.randint(1, count),
        }
