"""Does a backend agree with the model's own plain forward on trees made to tell?

In the probe's tree siblings stand far behind their parents, and the rows differ in length, so that a model
that takes a node's position or distance from its column gives itself away. One row leads over the few
tokens at which windows and switches begin in a copy made for that (`length_settings`), and one begins beyond
them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from draftwood.backends.context import rope_depends_on_length
from draftwood.backends.forward import plain_logits
from draftwood.backends.length_settings import SMALL
from draftwood.backends.quantized import quantized
from draftwood.backends.recurrent.rebuild import recurrent_layers
from draftwood.errors import UnsupportedModel
from draftwood.machine_faults import machine_fault
from draftwood.protocols import StateBackend

FILLERS = 15
LENGTHS = (SMALL - 2, SMALL + 5)
"""Tokens of the rows; a tree's chain in the first leads over `SMALL`."""
# Differences are root mean squares over the logits' standard deviation. A trained model that misreads the
# tree is off by 0.3 and more. What rounding does is measured on the model itself, where a reduced
# precision of matrix products or a changed choice of experts shows too, and trusted up to a limit.
ROUNDING = 8.0
LIMIT = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.2}
COARSE = 0.25
"""The limit where activations are rounded to 8 bits by what else is in a pass."""


def disagreement(backend: StateBackend, model: Any, *, longest: int = LENGTHS[1]) -> str | None:
    """Why `backend` (without rows) does not serve `model`, or None where the two agree.

    Runs some 150 tokens through the model, and four times `longest`, the tokens of the longer row. The
    backend is left without rows where it agrees.

    Raises:
        UnsupportedModel: running the model showed that the backend does not serve it.
        OutOfMemory: a pass does not fit, which says nothing of the model.
    """
    vocab, lengths = backend.vocab_size, (LENGTHS[0], longest)
    prefixes = [[(17 * i + 11 + 29 * row) % vocab for i in range(n)] for row, n in enumerate(lengths)]
    root, *fillers, child, grandchild, last = [(13 * i + 7) % vocab for i in range(FILLERS + 4)]
    chain = [child, grandchild]
    nodes = [root, *fillers, *chain]
    parents = [-1] + [0] * (FILLERS + 1) + [FILLERS + 1]
    path, leaf = [0, FILLERS + 1, FILLERS + 2], FILLERS
    # A longer text may change the logits at each of its tokens.
    by_length = rope_depends_on_length(model)
    try:
        rows = [torch.tensor(prefix) for prefix in prefixes]
        first = None
        if backend.gives_first_logits:
            first = backend.first_logits(rows)
        else:
            backend.prefill(rows)
        tree = backend.extend(torch.tensor([nodes] * 2), torch.tensor([parents] * 2))
        backend.commit([path] * 2)
        after = backend.extend(torch.tensor([[last]] * 2), torch.tensor([[-1]] * 2))
        backend.commit([[]] * 2)
        backend.release()
        differences, rounding = [], 0.0
        for row, prefix in enumerate(prefixes):
            text, n = [*prefix, root, *chain, last], len(prefix)
            along, aside = plain_logits(model, text), plain_logits(model, [*prefix, root, fillers[-1]])
            logits, steps = torch.cat([tree[row, [*path, leaf]], after[row]]), along[n:]
            if by_length:
                ends = range(n + 1, len(text) + 1)
                steps = torch.cat([plain_logits(model, text[:end])[-1:] for end in ends])
            expected = torch.cat([steps[:-1], aside[-1:], steps[-1:]])
            if first is not None:
                begin = plain_logits(model, prefix)[-1:] if by_length else along[n - 1 : n]
                logits, expected = torch.cat([logits, first[row, None]]), torch.cat([expected, begin])
            differences.append(difference(logits, expected))
            if not row:
                rounding = difference(plain_logits(model, text + fillers)[: len(text)], along)
    except UnsupportedModel:
        raise
    except Exception as error:  # whatever a model raises here, it cannot be served this way
        if machine_fault(error) is not None:
            raise
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
    # Scans in single precision hide what rounding between layers does, as it is the same in both passes.
    least = max(1e-4, (16 if recurrent_layers(model.config) else 4) * torch.finfo(model.dtype).eps)
    most = COARSE if quantized(model) else LIMIT.get(model.dtype, 0.2)
    limit = min(most, max(ROUNDING * rounding, least))
    # The negation catches NaN too.
    if not all(value <= limit for value in differences):
        return (
            f"its logits differ from sequential decoding by {max(differences):.2g} of their spread, more "
            f"than {limit:.2g}"
        )
    return None


def difference(logits: Tensor, expected: Tensor) -> float:
    """The largest root mean square difference of two `[n, vocab]` over the spread of `expected`."""
    expected = expected.float()
    off = (logits.to(expected.device).float() - expected).square().mean(-1).sqrt()
    return float((off / expected.std(-1).clamp(min=1e-9)).max())
