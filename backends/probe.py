"""A self-check: does a backend agree with the model's own plain forward on a tree made to tell?

In the probe's tree siblings stand far behind their parents, so that a model that reads a node's position or
distance from its index gives itself away.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from draftwood.backends.model import input_device
from draftwood.backends.recurrent.rebuild import recurrent_layers
from draftwood.protocols import StateBackend

PREFIX, FILLERS = 3, 15
# Differences are root mean squares over the logits' standard deviation. A trained model that misreads the
# tree is off by 0.3 and more. What rounding does is measured on the model itself, where a reduced
# precision of matrix products or a changed choice of experts shows too, and trusted up to a limit.
ROUNDING = 8.0
LIMIT = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.2}


def disagreement(backend: StateBackend, model: Any) -> str | None:
    """Why `backend` (without rows) does not serve `model`, or None where the two agree.

    Runs some 60 tokens through the model. The backend is left without rows where it agrees.
    """
    vocab = backend.vocab_size
    tokens = [(17 * i + 11) % vocab for i in range(PREFIX + FILLERS + 4)]
    prefix, root, fillers = tokens[:PREFIX], tokens[PREFIX], tokens[PREFIX + 1 : PREFIX + 1 + FILLERS]
    chain, last = tokens[-3:-1], tokens[-1]
    nodes = [root, *fillers, *chain]
    parents = [-1] + [0] * (FILLERS + 1) + [FILLERS + 1]
    try:
        backend.prefill([torch.tensor(prefix)])
        tree = backend.extend(torch.tensor([nodes]), torch.tensor([parents]))[0]
        backend.commit([[0, FILLERS + 1, FILLERS + 2]])
        after = backend.extend(torch.tensor([[last]]), torch.tensor([[-1]]))[0]
        backend.commit([[]])
        backend.release()
        text = [*prefix, root, *chain, last]
        along = plain_logits(model, text)
        aside = plain_logits(model, [*prefix, root, fillers[-1]])
        again = plain_logits(model, text + fillers)
    except Exception as error:  # whatever a model raises here, it cannot be served this way
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
    found = torch.cat([tree[[0, FILLERS + 1, FILLERS + 2, FILLERS]], after])
    expected = torch.cat([along[PREFIX:-1], aside[-1:], along[-1:]])
    off, rounding = difference(found, expected), difference(again[: len(text)], along)
    # Scans in single precision hide what rounding between layers does, as it is the same in both passes.
    least = max(1e-4, (16 if recurrent_layers(model.config) else 4) * torch.finfo(model.dtype).eps)
    limit = min(LIMIT.get(model.dtype, 0.2), max(ROUNDING * rounding, least))
    # The negation catches NaN too.
    if not off <= limit:
        return (
            f"its logits differ from sequential decoding by {off:.2g} of their spread, more than {limit:.2g}"
        )
    return None


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest root mean square difference of two `[n, vocab]` over the spread of `expected`."""
    expected = expected.float()
    off = (found.to(expected.device).float() - expected).square().mean(-1).sqrt()
    return float((off / expected.std(-1).clamp(min=1e-9)).max())


def plain_logits(model: Any, tokens: list[int]) -> Tensor:
    """Logits `[len(tokens), vocab]` of one forward pass without cache or mask."""
    with torch.no_grad():
        ids = torch.tensor([tokens], device=input_device(model))
        logits: Tensor = model(input_ids=ids, use_cache=False).logits[0]
    return logits
