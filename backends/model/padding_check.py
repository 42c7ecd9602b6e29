"""Does a model read the padding before a text, in spite of its mask?

Convolutions may: of RecurrentGemma, and of other recurrent layers whose projections have biases. `generate()`
then writes another text after a padded row than after the row by itself.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch

from draftwood.backends.model.probe import COARSE, LIMIT, arithmetic, difference
from draftwood.backends.model.prompt_check import own_steps
from draftwood.backends.recurrent.rebuild import reference
from draftwood.backends.weights.quantized import rounds_activations
from draftwood.base.model_key import ModelKey
from draftwood.protocols.model_prompt import ModelPrompt, placeholders_of

PADDING, TEXT = 5, 4
"""Columns of the row that is looked at; convolutions reach over 4."""

# Of every model seen, the structure that it had, and whether it read padding then.
_known: WeakKeyDictionary[Any, tuple[int, bool]] = WeakKeyDictionary()


def reads_padding(model: Any, *, vocab_size: int) -> bool:
    """Returns whether logits after a text depend on padding before it; the model is asked once.

    Args:
        model: a transformers model.
        vocab_size: width of its logits.
    """
    structure = hash(ModelKey.of(model).structure)
    known = _known.get(model)
    if known is None or known[0] != structure:
        known = _known[model] = structure, _depends_on_padding(model, vocab_size)
    return known[1]


def _depends_on_padding(model: Any, vocab_size: int) -> bool:
    special = placeholders_of(model)
    words = [token for token in (13 * i + 7 for i in range(vocab_size)) if token % vocab_size not in special]
    ids = torch.tensor(words[: 2 * (PADDING + TEXT)]).remainder(vocab_size).view(2, -1)
    mask = torch.ones_like(ids)
    mask[0, :PADDING] = 0
    written, plain = [int(ids[1, 0])], reference(model)
    padded = own_steps(plain, ModelPrompt.of(model, ids, attention_mask=mask), written)[0]
    text, shown = ids[:1, PADDING:], mask[:1, PADDING:]
    alone = own_steps(plain, ModelPrompt.of(model, text, attention_mask=shown), written)[0]
    most = COARSE if rounds_activations(model) else LIMIT.get(arithmetic(model), 0.2)
    return not difference(padded, alone) <= most
