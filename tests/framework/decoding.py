"""A decoder over toy models, and the text that it must write."""

from draftwood import (
    SpeculativeDecoder,
)
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.testing import ToyBackend, ToyModel
from draftwood.testing.models.row_views import TOY_COSTS

TARGET = ToyModel(5, seed=1)

# Contexts of two tokens repeat, so that the draft is often right without being the target.
DRAFT = ToyModel(5, seed=1, order=2, sharpness=1.0)

PROMPTS = [[1, 2, 3], [0], [4, 4, 1, 2, 0, 3]]


def drafter(model=DRAFT, max_length=None):
    return ModelDrafter(ToyBackend(model, max_length=max_length))


def decoder(policy=None, verifier=None, draft=None, target=None):
    return SpeculativeDecoder(
        target or ToyBackend(TARGET),
        draft or drafter(),
        policy or DySpec(6),
        verifier or RecursiveRejection(),
        pass_costs=TOY_COSTS,
    )


def sequentially(prompt, count):
    """The oracle: greedy decoding one token at a time."""
    text = list(prompt)
    for _ in range(count):
        text.append(int(TARGET.logits(text).argmax()))
    return text[len(prompt) :]
