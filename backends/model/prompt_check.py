"""A check that passes after a prompt of more than tokens give what the model's own decoding gives.

What `load` finds out on words says nothing of images: a model may give later tokens positions, embeddings or
masks that follow from them. So the first prompt of each kind is read once more by the plain model, which then
decodes a few tokens by its own cache; ours must give the same logits.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from draftwood.backends.model.model_cache import empty_cache
from draftwood.backends.model.probe import COARSE, LIMIT, arithmetic, difference
from draftwood.backends.model.prompt_reading import PromptForward
from draftwood.backends.recurrent.rebuild import reference
from draftwood.backends.structure.forward import guarded_pass
from draftwood.backends.weights.quantized import rounds_activations
from draftwood.base.errors import DraftwoodError, UnsupportedModel
from draftwood.base.machine_faults import machine_fault
from draftwood.base.model_key import ModelKey
from draftwood.protocols import StateBackend
from draftwood.protocols.model_prompt import ModelPrompt

# Of every model seen, the structure that it had, and the kinds of prompts that were right then.
_right: WeakKeyDictionary[Any, tuple[int, set[Any]]] = WeakKeyDictionary()


def check_behind(backend: StateBackend, prompt: ModelPrompt, logits: Tensor) -> None:
    """Compare `backend`, whose last rows have just read `prompt`, with the model's own decoding.

    Only the first prompt of a kind is compared: of the same inputs by name and dimensions. The state of the
    backend is the same afterwards; rows of a prompt that is refused are released.

    Args:
        backend: without uncommitted nodes.
        prompt: that its last rows have read.
        logits: `[rows, vocab]` after it, as the backend has them.

    Raises:
        UnsupportedModel: the logits differ.
    """
    model = backend.model
    kind = type(backend), _kind(prompt)
    structure = hash(ModelKey.of(model).structure)
    known, right = _right.get(model, (structure, set()))
    if known == structure and kind in right:
        return
    have = len(backend.lengths) - len(prompt)
    try:
        off = _difference_behind(backend, reference(model), prompt, logits)
    except BaseException as error:
        backend.release(range(have, have + len(prompt)))
        if isinstance(error, DraftwoodError) or not isinstance(error, Exception) or machine_fault(error):
            raise
        raise UnsupportedModel(
            f"After this prompt, {type(model).__name__} cannot go on from its cache by several tokens "
            f"({type(error).__name__}: {' '.join(str(error).split())[:160].rstrip('.')}); decode without "
            "custom_generate=."
        ) from error
    # An encoder-decoder gives nothing for words only.
    dtype = arithmetic(model, run=(lambda: own_steps(model, prompt, [])) if prompt.encoded else None)
    most = COARSE if rounds_activations(model) else LIMIT.get(dtype, 0.2)
    # The negation catches NaN too.
    if not off <= most:
        backend.release(range(have, have + len(prompt)))
        raise UnsupportedModel(
            f"After a prompt with {', '.join(_names(prompt)) or 'these inputs'}, passes of "
            f"{type(model).__name__} differ from its own decoding by {off:.2g} of the logits' spread, "
            f"more than {most:.2g}; decode without custom_generate=."
        )
    _right[model] = structure, {*(right if known == structure else ()), kind}


def _difference_behind(backend: StateBackend, model: Any, prompt: ModelPrompt, first: Tensor) -> float:
    """Returns the largest difference of the logits of a tree after the prompt, over their spread."""
    rows, vocab = len(prompt), backend.vocab_size
    have = len(backend.lengths) - rows
    root, aside, child, grandchild = [(13 * number + 7) % vocab for number in range(4)]
    tokens, parents, path = [root, aside, child, grandchild], [-1, 0, 0, 2], [0, 2, 3]
    counts = [0] * have + [len(tokens)] * rows
    logits = backend.extend(
        torch.tensor([tokens] * (have + rows)), torch.tensor([parents] * (have + rows)), counts
    )[have:]
    backend.commit([()] * (have + rows))
    found = torch.cat([first[:, None].to(logits), logits[:, path]], 1)
    along = own_steps(model, prompt, [tokens[node] for node in path])
    return difference(found.flatten(0, 1), along.flatten(0, 1))


def own_steps(model: Any, prompt: ModelPrompt, written: list[int]) -> Tensor:
    """Logits `[rows, len(written) + 1, vocab]` of the model's own steps after `prompt` over these tokens."""
    forward = PromptForward(model, prompt, empty_cache(model))
    with guarded_pass(len(prompt)):
        output = model(**forward.first())
        logits = [output.logits[:, -1]]
        for token in written:
            output = model(**forward.next(output, torch.full((len(prompt),), token)))
            logits.append(output.logits[:, -1])
    return torch.stack(logits, 1)


def _names(prompt: ModelPrompt) -> list[str]:
    return sorted(
        name
        for name, value in prompt.inputs.items()
        if isinstance(value, Tensor) or (value and not isinstance(value, bool | int | Cache))
    )


def _kind(prompt: ModelPrompt) -> Any:
    """Returns what makes two prompts alike: their inputs by name, with the dimensions of tensors."""
    dims = {
        (name, prompt.inputs[name].dim() if isinstance(prompt.inputs[name], Tensor) else 0)
        for name in _names(prompt)
    }
    return frozenset(dims), prompt.ids.shape[1] > 0
