"""`Case`: one random configuration, its model, and the prompts that it is given."""

from __future__ import annotations

import re
from typing import Any

import attrs
import torch
import transformers as hf

from tests.configurations.attention import ATTENTION
from tests.configurations.drawing import VOCAB, Draw
from tests.configurations.recurrent import RECURRENT

FAMILIES = RECURRENT | ATTENTION
PIECE = 64
"""Tokens of a prompt that recurrent layers of ours read at once."""
BOUNDARIES = re.compile(r"chunk_size|window|conv_kernel|d_conv|conv1d_width|kernel_dim|L_cache|block_size")
"""Options that say after how many tokens something changes."""


@attrs.frozen
class Case:
    """One random configuration.

    Attributes:
        number: of the case in its sequence.
        family: of the model.
        config: of the model.
        prompts: of rows that are written together.
        new: tokens that are written.
    """

    number: int
    family: str
    config: Any = attrs.field(repr=False)
    prompts: list[list[int]] = attrs.field(repr=lambda prompts: f"of {[len(one) for one in prompts]} tokens")
    new: int

    @classmethod
    def of(cls, number: int, *, seed: int = 0, families: tuple[str, ...] = ()) -> Case:
        """Returns case `number` of the sequence with this seed, of one of `families`, by default any."""
        draw = Draw(f"{seed} {number}")
        # Every second case has recurrent layers, which have more options that go together.
        chosen = families or tuple(draw.of(RECURRENT, ATTENTION))
        family = chosen[number % len(chosen)] if families else draw.choice(chosen)
        config = FAMILIES[family](draw)
        lengths = [_length(draw, _boundaries(config)) for _ in range(draw.of(1, 2, 3))]
        if draw.random() < 0.05:
            lengths[0] = 1000 + draw.randint(0, 40)
        prompts = [[draw.randrange(1, VOCAB) for _ in range(length)] for length in lengths]
        return cls(number, family, config, prompts, new=draw.of(6, 10, 16))

    def model(self, *, noise: float = 0.0) -> Any:
        """Returns a new model, the same at every call; with `noise` one whose weights are a little off."""
        torch.manual_seed(self.number)
        # A loop over experts, since grouped products round otherwise for other numbers of tokens.
        model = hf.AutoModelForCausalLM.from_config(self.config, experts_implementation="eager")
        # Both Zambas multiply rounding a hundredfold at the size that the others need.
        size = 1.0 if "zamba" in self.family else 2.0
        for name, parameter in model.named_parameters():
            _randomise(name, parameter, size)
        if noise:
            for parameter in model.parameters():
                parameter.data.mul_(1 + noise * torch.randn_like(parameter))
        model.generation_config.eos_token_id = None
        return model.eval()


@torch.no_grad()
def _randomise(name: str, parameter: torch.Tensor, size: float) -> None:
    """Weights with which texts go on to new tokens: embeddings are small compared with what layers add."""
    if "A_log" in name:
        parameter.uniform_(-2.0, 1.0)
    elif "dt_bias" in name or name.endswith((".D", "sinks")):
        parameter.normal_()
    elif "norm" in name or ".ln_" in name:
        parameter.add_(torch.randn_like(parameter), alpha=0.2)
    elif re.search("embed|wte|wpe", name):
        parameter.normal_(0.0, 0.1)
    elif parameter.dim() < 2:
        parameter.normal_(0.0, 0.2)
    else:
        parameter.normal_(0.0, size / parameter.shape[-1] ** 0.5)


def _boundaries(config: Any) -> list[int]:
    options = config.to_dict().items()
    found = {value for name, value in options if BOUNDARIES.search(name) and isinstance(value, int)}
    return sorted(found | {PIECE, 128})


def _length(draw: Draw, boundaries: list[int]) -> int:
    """The length of a prompt: short, or about a place where something changes."""
    if draw.random() < 0.3:
        return draw.randint(1, 12)
    return max(1, draw.of(1, 2) * draw.choice(boundaries) + draw.of(-1, 0, 1, 2))
