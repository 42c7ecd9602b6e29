"""Does a backend agree with the model's own plain forward on trees made to tell?

In the probe's tree siblings are far from their parents, and the rows differ in length, so that a model
that takes a node's position or distance from its column gives itself away. One row leads over the few
tokens at which windows and switches begin in a copy made for that (`length_settings`), and one begins beyond
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicSlidingWindowLayer

from draftwood.backends.recurrent.rebuild import clamps_steps, recurrent_layers
from draftwood.backends.structure.context import rope_depends_on_length
from draftwood.backends.structure.forward import (
    cache_argument,
    guarded_pass,
    input_device,
    plain_logits,
    takes,
)
from draftwood.backends.structure.length_settings import SMALL
from draftwood.backends.weights.quantized import rounds_activations
from draftwood.base.errors import UnsupportedModel, sentence
from draftwood.base.machine_faults import machine_fault
from draftwood.protocols import StateBackend

FILLERS = 15
LENGTHS = (SMALL - 2, SMALL + 5)
"""Tokens of the rows; a tree's chain in the first leads over `SMALL`."""
WRITTEN = 4
"""Tokens after a row: the tree's root, its chain of two, and one more."""
# Differences are root mean squares over the logits' standard deviation. A trained model that misreads the
# tree is off by 0.3 and more. What rounding does is measured on the model itself, where a reduced
# precision of matrix products or a changed choice of experts shows too, and trusted up to a limit.
ROUNDING = 8.0
LIMIT = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.2}
COARSE = 0.25
"""The limit where activations are rounded to 8 bits by what else is in a pass."""
DRAWS = 4
"""Roundings of all parts that are tried, of which the one that changes most counts."""


class RaisedReason(str):
    """A reason that is an exception, so that nothing was compared."""


def disagreement(backend: StateBackend, model: Any, *, longest: int = LENGTHS[1]) -> str | None:
    """Why `backend` (without rows) does not serve `model`, or None where the two agree.

    Runs some 150 tokens through the model, and four times `longest`, the tokens of the longer row; fewer
    where its context holds fewer. The backend is left without rows where it agrees.

    Raises:
        UnsupportedModel: running the model showed that the backend does not serve it, or its context is
            too short to tell.
        OutOfMemory: a pass does not fit, which says nothing of the model.
    """
    vocab, room = backend.vocab_size, backend.max_length
    if room is not None and room < WRITTEN + 2:
        raise UnsupportedModel(
            f"{type(model).__name__} has a context of {room} tokens, too short to compare a tree with plain "
            f"decoding; use a model whose context holds {WRITTEN + 2} or more."
        )
    longest = longest if room is None else min(longest, room - WRITTEN)
    lengths = (min(LENGTHS[0], longest - 1), longest)
    prefixes = [[(17 * i + 11 + 29 * row) % vocab for i in range(n)] for row, n in enumerate(lengths)]
    root, *fillers, child, grandchild, last = [(13 * i + 7) % vocab for i in range(FILLERS + 4)]
    chain = [child, grandchild]
    nodes = [root, *fillers, *chain]
    parents = [-1] + [0] * (FILLERS + 1) + [FILLERS + 1]
    path, leaf = [0, FILLERS + 1, FILLERS + 2], FILLERS
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
        differences, rounding, texts = [], 0.0, []
        for row, prefix in enumerate(prefixes):
            text, n = [*prefix, root, *chain, last], len(prefix)
            along, steps = plain_logits(model, text), decoded_logits(model, prefix, text[n:])
            aside = decoded_logits(model, prefix, [root, fillers[-1]])
            logits = torch.cat([tree[row, [*path, leaf]], after[row]])
            expected = torch.cat([steps[:-1], aside[-1:], steps[-1:]])
            if first is not None:
                begin = plain_logits(model, prefix)[-1:]
                logits, expected = torch.cat([logits, first[row, None]]), torch.cat([expected, begin])
            differences.append(difference(logits, expected))
            texts.append((text, along))
            if not row:
                rounding = difference(plain_logits(model, (text + fillers)[:room])[: len(text)], along)
    except UnsupportedModel:
        raise
    except Exception as error:  # whatever a model raises here, it cannot be served this way
        if machine_fault(error) is not None:
            raise
        return RaisedReason(sentence(error))
    # Scans in single precision hide what rounding between layers does, as it is the same in both passes.
    dtype = arithmetic(model)
    least = max(1e-4, (16 if recurrent_layers(model.config) else 4) * torch.finfo(dtype).eps)
    most = COARSE if rounds_activations(model) else LIMIT.get(dtype, 0.2)
    limit = min(most, max(ROUNDING * rounding, least))
    if recurrent_layers(model.config) and limit < max(differences) <= most:
        # Scans of the same tokens round alike in every forward, so that what rounding does does not show.
        eps = torch.finfo(dtype).eps
        moved = [
            difference(moved_logits(model, text, by=eps, draw=draw), along)
            for text, along in texts
            for draw in range(DRAWS)
        ]
        limit = min(most, max(limit, ROUNDING * max(moved)))
    # The negation catches NaN too.
    if not all(value <= limit for value in differences):
        return (
            f"its logits differ from sequential decoding by {max(differences):.2g} of their spread, more "
            f"than {limit:.2g}"
        )
    return None


def decoded_logits(model: Any, prompt: list[int], written: list[int]) -> Tensor:
    """Logits `[len(written), vocab]` after each of the tokens `written` one by one after `prompt`.

    One forward over the whole text gives them, unless its length changes the logits at each of its tokens, or
    the model may read a prompt otherwise than it decodes: by clamped steps, or by windows that only its
    cache has. Then its own decoding does.
    """
    text = [*prompt, *written]
    if rope_depends_on_length(model):
        ends = range(len(prompt) + 1, len(text) + 1)
        return torch.cat([plain_logits(model, text[:end])[-1:] for end in ends])
    if not clamps_steps(model) and not _cache_has_windows(model):
        return plain_logits(model, text)[len(prompt) :]
    name, device = cache_argument(model), input_device(model)
    options: dict[str, Any] = {name: DynamicCache(config=model.config), "use_cache": True}
    logits, start = [], 0
    with guarded_pass(1):
        for piece in (prompt, *([token] for token in written)):
            ids = torch.tensor([piece], device=device)
            if takes(model, "position_ids"):
                options["position_ids"] = torch.arange(start, start + len(piece), device=device).unsqueeze(0)
            logits.append(model(input_ids=ids, **options).logits[0, -1:])
            start += len(piece)
    return torch.cat(logits[1:])


def _cache_has_windows(model: Any) -> bool:
    layers = DynamicCache(config=model.config).layers
    return any(isinstance(layer, DynamicSlidingWindowLayer) for layer in layers)


def moved_logits(model: Any, text: list[int], *, by: float, draw: int = 0) -> Tensor:
    """Logits `[len(text), vocab]` of `text`, where all that a part gives is off by `by`, as if rounded.

    How much that changes differs between one `draw` and another.
    """
    noise = torch.Generator().manual_seed(draw)

    def move(_: Any, __: Any, given: Any) -> Any:
        if not isinstance(given, Tensor) or not given.is_floating_point():
            return given
        off = 1 + by * torch.randn(given.shape, generator=noise)
        return given * off.to(given)

    parts = [module for module in model.modules() if next(module.children(), None) is None]
    hooks = [module.register_forward_hook(move) for module in parts]
    try:
        return plain_logits(model, text)
    finally:
        for hook in hooks:
            hook.remove()


def arithmetic(model: Any, *, run: Callable[[], Any] | None = None) -> torch.dtype:
    """The dtype of the model's matrix products: a narrower one than its weights' under autocast.

    Seen in a pass, as autocast may be inside the forward, where accelerate puts it; `run` makes one where the
    model needs more than words.
    """
    seen: list[torch.dtype] = []
    head = model.get_output_embeddings()
    if head is None:
        return model.dtype  # type: ignore[no-any-return]
    hook = head.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    try:
        plain_logits(model, [1, 2, 3]) if run is None else run()
    finally:
        hook.remove()
    dtypes: list[torch.dtype] = [model.dtype, *(dtype for dtype in seen if dtype.is_floating_point)]
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)


def difference(logits: Tensor, expected: Tensor) -> float:
    """The largest root mean square difference of two `[n, vocab]` over the spread of `expected`."""
    expected = expected.float()
    off = (logits.to(expected.device).float() - expected).square().mean(-1).sqrt()
    return float((off / expected.std(-1).clamp(min=1e-9)).max())
