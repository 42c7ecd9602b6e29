"""Loading GGUF files, and saying why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftwood.backends.gguf.backend import GgufBackend
from draftwood.backends.gguf.context import KINDS, Settings
from draftwood.backends.gguf.header import GgufHeader
from draftwood.backends.gguf.library import Weights, library
from draftwood.backends.gguf.model import GgufModel
from draftwood.backends.model.probe import ROUNDING, difference
from draftwood.base.errors import InvalidInput, UnsupportedModel

EXACT, ROUNDED, MOST = 1e-3, 0.05, 0.2
"""Allowed differences of logits as parts of their spread: where all numbers are float32, where some are
rounded, and at most, since a model that misreads a tree is off by 0.3 and more."""

_ALL_FLOAT32 = 0
"""llama.cpp's number of files whose weights are all float32."""

_OTHER_OPTIONS: dict[str, tuple[tuple[Any, ...], str]] = {
    "attention": (("auto", "mask"), "trees run as sequences of llama.cpp"),
    "capture": (("off",), "llama.cpp runs its passes"),
    "engine": (("auto", "eager"), "llama.cpp runs its passes"),
    "offload": ((None,), "llama.cpp maps its weights from the file"),
    "trust_remote_code": ((False,), "it holds no code"),
    "weights": ((None,), "its weights are rounded as the file says"),
}
"""Options of `load` that are for models of transformers: what may be given, and the reason."""


def load_gguf(
    file: Path,
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    flash: bool = False,
    threads: int | None = None,
) -> GgufBackend:
    """Returns a backend for the model in a GGUF file, which llama.cpp runs.

    Args:
        file: a GGUF file, or the first part of a file that was split.
        dtype: of keys and values: float32, float16 or bfloat16; None is float32. Weights are not converted.
        device: None or `"cpu"`; any other puts all layers on the GPU for which llama.cpp was built.
        flash: whether attention runs by llama.cpp's flash attention. On a CPU it is slower for trees, and
            it rounds float32 keys and values to half precision.
        threads: of a pass; None: as many as torch has.

    Raises:
        InvalidInput: a file that is missing or damaged, an option that it does not take, or llama-cpp-python
            is not installed.
        UnsupportedModel: a model that llama.cpp does not read, that writes no text or keeps recurrent states,
            or whose trees give other logits than its own decoding.
        OutOfMemory: the weights or a context do not fit.
    """
    keys = _keys(dtype)
    header = GgufHeader.of_file(file)
    _refuse(header, file)
    on_gpu = device is not None and torch.device(device).type != "cpu"
    if on_gpu and not library().llama_supports_gpu_offload():
        raise InvalidInput(
            f"device is {str(device)!r}, and llama-cpp-python was built without a GPU; build it for one, or "
            "give device='cpu'."
        )
    settings = Settings(
        keys=keys,
        threads=threads or torch.get_num_threads(),
        flash=flash,
        most_cells=header.original_context,
    )
    weights = Weights.of_file(file, on_gpu=on_gpu)
    _refuse_kind(weights, header, file)
    model = GgufModel(file, weights, settings)
    limits = [length for length in (header.context, header.original_context) if length]
    backend = GgufBackend(model, max_length=min(limits, default=None))
    exact = keys == "float32" and not flash and header.values.get("general.file_type") == _ALL_FLOAT32
    if (reason := _disagreement(backend, least=EXACT if exact else ROUNDED)) is not None:
        raise UnsupportedModel(
            f"Trees over {file.name} do not give what llama.cpp's own decoding gives: {reason}."
        )
    return backend


def check_options(**options: Any) -> None:
    """Refuse options of `load` that mean nothing for a GGUF file.

    Raises:
        InvalidInput: one of them.
    """
    for name, value in options.items():
        allowed, why = _OTHER_OPTIONS[name]
        if value not in allowed:
            raise InvalidInput(
                f"{name} is {str(value)!r}, which is not for a GGUF file: {why}; leave it out."
            )


def _keys(dtype: torch.dtype | str | None) -> Any:
    name = "float32" if dtype in (None, "auto") else str(dtype).removeprefix("torch.")
    if name not in KINDS:
        raise InvalidInput(
            f"dtype is {name!r}; llama.cpp keeps keys and values in one of {', '.join(KINDS)}."
        )
    return name


def _refuse(header: GgufHeader, file: Path) -> None:
    """Refuse what is no model by itself, by what its header says."""
    kind = header.values.get("general.type", "model")
    if kind != "model":
        raise UnsupportedModel(
            f"{file.name} holds a model's {kind} and no language model; name the file of the model."
        )
    if (part := header.values.get("split.no", 0)) > 0:
        raise InvalidInput(f"{file.name} is part {part + 1} of a model; name the first part.")
    if not header.tensors:
        raise UnsupportedModel(f"{file.name} holds a vocabulary without weights; name the file of the model.")


def _refuse_kind(weights: Weights, header: GgufHeader, file: Path) -> None:
    """Refuse models that are run in another way than by keys and values of attention."""
    lib, handle = library(), weights.handle
    if lib.llama_model_has_encoder(handle) or lib.llama_model_is_diffusion(handle):
        raise UnsupportedModel(
            f"{file.name} ({header.architecture}) is no decoder-only language model; name one that is."
        )
    if lib.llama_model_is_recurrent(handle) or lib.llama_model_is_hybrid(handle):
        raise UnsupportedModel(
            f"{file.name} ({header.architecture}) keeps recurrent states, of which llama.cpp shares none "
            "between the paths of a tree; load the original model with transformers."
        )


def _disagreement(backend: GgufBackend, *, least: float) -> str | None:
    """Why trees of `backend`, without rows, differ from the model's own decoding; None if they do not."""
    vocab = backend.vocab_size
    texts = [[(17 * place + 11 + 29 * row) % vocab for place in range(n)] for row, n in enumerate((14, 21))]
    nodes = [(13 * place + 7) % vocab for place in range(10)]
    # Siblings are far from their parents; the second call extends leaves and inner nodes of the first.
    parents, later, path = [-1, 0, 0, 0, 1, 1, 4], [6, 1], [0, 1, 4, 6]
    first = backend.first_logits([torch.tensor(text) for text in texts])
    tree = backend.extend(torch.tensor([nodes[:7]] * 2), torch.tensor([parents] * 2))
    more = backend.extend(torch.tensor([nodes[7:9]] * 2), torch.tensor([later] * 2))
    backend.commit([path] * 2)
    after = backend.extend(torch.tensor([nodes[9:]] * 2), torch.tensor([[-1]] * 2))
    backend.release()
    ways = [[*path, 7], [0, 3], [0, 1, 5], [0, 1, 8], [*path, 9]]
    found, expected, rounding = list[Tensor](), list[Tensor](), 0.0
    for row, text in enumerate(texts):
        own = backend.model.continued(text, [[nodes[node] for node in way] for way in ways])
        found += [*tree[row, path], more[row, 0], tree[row, 3], tree[row, 5], more[row, 1], after[row, 0]]
        expected += [*own[0], *(logits[-1] for logits in own[1:])]
        found.append(first[row])
        expected.append(backend.model.logits(text))
        # Rounding: the same token, read together with others and by itself.
        again = backend.model.logits([*text, *(nodes[node] for node in path)])
        rounding = max(rounding, difference(again[None], own[0][None, len(path) - 1]))
    off = difference(torch.stack(found), torch.stack(expected))
    allowed = min(MOST, max(least, ROUNDING * rounding))
    # The negation catches NaN too.
    if not off <= allowed:
        return f"logits differ by {off:.2g} of their spread, more than {allowed:.2g}"
    return None
