"""A pass as OpenVINO runs it: converted from its pure function, and compiled."""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import re
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from time import perf_counter
from typing import Any, Literal, Protocol

import attrs
import torch
from torch import Tensor

from draftwood.backends.model.features import Features
from draftwood.backends.model.model_pass import ModelPass
from draftwood.backends.openvino import kept_models
from draftwood.backends.openvino.bound_request import Compiled
from draftwood.backends.openvino.function import PassFunction
from draftwood.backends.openvino.graph_changes import fold_numbers, in_float32, keep_mlps_apart, widen_weights
from draftwood.base.errors import DraftwoodError, InvalidInput, UnsupportedModel
from draftwood.base.machine_faults import machine_fault

log = logging.getLogger(__name__)

Weights = Literal["int8", "int4"]
"""What weights may be rounded to: 8 bits a column, or 4 bits in groups."""

GROUP = 64
"""Weights of 4 bits that share a scale."""

ROUNDED_RUN_IN = torch.float32
"""The arithmetic of passes over rounded weights; see `_rounded_together`."""

ACTIVATION_GROUPS = 32, 128
"""The fewest and most numbers of an activation that share a scale where they are rounded."""


class ConvertibleFunction(Protocol):
    """A function of tensors that is converted."""

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]: ...

    def content(self) -> str | None:
        """Returns what tells it from every other function, in any process; None where that is not known."""


Sizes = dict[int, list[int]]
"""Sizes of inputs, by their place; -1 for any."""

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.2}
"""Largest difference of an output of the example from the function's own, in root mean squares.

It tells whether attention may be exchanged; how exact passes are is checked later.
"""


@attrs.frozen(eq=False)
class Converted:
    """A compiled pass.

    Attributes:
        function: that it was converted from.
        example: of its inputs.
        compiled: OpenVINO's, with any number of rows, nodes, slots and wanted nodes.
        dtype: of its logits and features.
        width: numbers of a node's features; 0 where none are read.
    """

    function: PassFunction
    example: tuple[Tensor, ...]
    compiled: Compiled
    dtype: torch.dtype
    width: int = 0


def converted(
    model: Any, one: ModelPass, *, reader: Features | None, vocab: int, longest: int | None
) -> Converted:
    """The pass `one` of `model`, whose cache is settled, converted and compiled.

    Attention by key head is tried first, then the model's own.

    Raises:
        UnsupportedModel: the pass cannot be converted, or OpenVINO computes something else.
    """
    name, reasons = type(model).__name__, list[str]()
    for by_key_head in (True, False):
        started = perf_counter()
        try:
            # The model's own attention says what is right.
            usual = PassFunction(model, one, reader=reader, by_key_head=False).eval()
            function = usual
            if by_key_head:
                function = PassFunction(model, one, reader=reader, by_key_head=True).eval()
            example = function.example(vocab=vocab, longest=longest)
            with torch.no_grad(), usual.watched():
                expected = usual(*usual.example(vocab=vocab, longest=longest))
            sizes, dtype = _open_sizes(function, example), model.dtype
            check = partial(_difference, example=example, expected=expected, dtype=dtype)
            with function.watched():
                compiled_pass = compiled(function, example, sizes=sizes, dtype=dtype, check=check)
            width = expected[1].shape[-1] if function.reads_features else 0
            found = Converted(function, example, compiled_pass, expected[0].dtype, width)
        except Exception as error:  # a model or a converter may fail in many ways
            if machine_fault(error) is not None:
                raise
            reasons.append(described(error))
            continue
        log.info(
            "Converted the pass of %s for OpenVINO in %.1f s, with %s.",
            name,
            perf_counter() - started,
            "attention by key head" if by_key_head else "its own attention",
        )
        return found
    reason = "; ".join(dict.fromkeys(reasons))
    raise UnsupportedModel(f'OpenVINO does not run {name} ({reason}); load it with engine="eager".')


def compressed(one: Converted, weights: Weights, *, dtype: torch.dtype) -> Converted:
    """The pass `one` with its weights rounded to few bits.

    Raises:
        InvalidInput: NNCF, which rounds them, is not installed.
        UnsupportedModel: it does not round the weights of such a model.
    """
    sizes = _open_sizes(one.function, one.example)
    with one.function.watched():
        found = compiled(one.function, one.example, sizes=sizes, dtype=dtype, weights=weights)
    return attrs.evolve(one, compiled=found)


def _open_sizes(function: PassFunction, example: tuple[Tensor, ...]) -> Sizes:
    """Sizes of all inputs, of which rows, nodes, slots, wanted nodes and older columns are open."""
    inputs = enumerate(zip(example, function.fixed_axes, strict=True))
    return {
        place: [tensor.shape[axis] if axis in fixed else -1 for axis in range(tensor.dim())]
        for place, (tensor, fixed) in inputs
    }


def _difference(
    compiled: Any, example: tuple[Tensor, ...], *, expected: tuple[Tensor, ...], dtype: torch.dtype
) -> str | None:
    """Why a compiled pass gives something other than `expected` of the example; None where it does not."""
    request = compiled.create_infer_request()
    for place, tensor in enumerate(example):
        request.set_input_tensor(place, as_engine(tensor.contiguous()))
    request.infer()
    for place, right in enumerate(expected):
        got = as_torch(request.get_output_tensor(place), right.dtype)
        right = right.float()
        size = right.square().mean().clamp(min=1e-18)
        off = float(((got.float() - right).square().mean() / size).sqrt())
        if got.shape != right.shape or not off <= TOLERANCE[dtype]:
            return f"an output of its pass is off by {off:.2g} of its size"
    return None


def compiled(
    function: ConvertibleFunction,
    example: tuple[Tensor, ...],
    *,
    sizes: Sizes,
    dtype: torch.dtype,
    weights: Weights | None = None,
    check: Callable[[Any], str | None] = lambda _: None,
) -> Compiled:
    """Returns OpenVINO's form of `function`, as it was kept from an earlier conversion, or else converted.

    Args:
        function: of tensors.
        example: of its inputs.
        sizes: of every input, by its place, -1 for an axis that may have any size.
        dtype: of the arithmetic.
        weights: bits that these are rounded to; None: as they are.
        check: returns what is wrong with a compiled form, or None.

    Raises:
        InvalidInput: NNCF, which rounds weights, is not installed.
        UnsupportedModel: NNCF does not round the weights of such a model, or the form is wrong.
    """
    import openvino

    if weights is not None:
        _need_nncf(weights)
    core, key = openvino.Core(), None
    if kept_models.folder() is not None and (content := function.content()) is not None:
        inputs = [(tensor.dtype, tensor.dim()) for tensor in example]
        key = kept_models.key_of([content, inputs, sizes, weights])
        if (model := kept_models.read(core, key)) is not None:
            found = _compiled(core, model, dtype=dtype, weights=weights)
            if check(found.form) is None:
                return found
            kept_models.forget(key)
    model = _converted(function, example, weights)
    model.reshape(sizes)
    found = _compiled(core, model, dtype=dtype, weights=weights)
    if (wrong := check(found.form)) is not None:
        raise UnsupportedModel(wrong)
    if key is not None:
        kept_models.write(model, key)
    return found


def _compiled(core: Any, model: Any, *, dtype: torch.dtype, weights: Weights | None) -> Compiled:
    """OpenVINO's compiled forms of `model`, for as many threads as torch has now."""
    threads = torch.get_num_threads()
    if dtype == torch.bfloat16:
        model = model.clone()
        widen_weights(model)
        if threads == 1:
            keep_mlps_apart(model)
    arithmetic = dtype if weights is None else ROUNDED_RUN_IN
    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "bf16" if arithmetic == torch.bfloat16 else "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": _rounded_together(model, weights, dtype),
    }
    return Compiled(model, partial(core.compile_model, device_name="CPU", config=options))


def _rounded_together(model: Any, weights: Weights | None, dtype: torch.dtype) -> int:
    """Numbers of an activation that are rounded to 8 bits by one scale; 0: activations are not rounded.

    Where weights are rounded, a model in bfloat16 gives up as much precision here. Its passes run in float32
    otherwise: in bfloat16 OpenVINO 2026.4 did not become faster by rounding activations, and trees of up to
    16 nodes take half to four fifths of their time there. On CPUs with matrix tiles (AMX)
    passes over more than 32 tokens take longer, 128 tokens 1.4 times as long; with the tiles switched off,
    passes over 5 tokens and more take about half as long.
    In float32, which is chosen for exact passes, activations stay as they are.
    """
    if weights is None or dtype != torch.bfloat16:
        return 0
    least, most = ACTIVATION_GROUPS
    rounded = ("i4", "u4", "i8", "u8")
    widths = [
        one.shape[-1]
        for one in model.get_ops()
        if one.get_type_name() == "Constant"
        and one.get_element_type().get_type_name() in rounded
        and len(one.shape) > 1
        and one.shape[-1] > 1  # as zero points have
    ]
    return max(math.gcd(most, *widths), least)


def _converted(function: Any, example: tuple[Tensor, ...], weights: Weights | None) -> Any:
    """The model that OpenVINO makes of `function`, with weights of these bits."""
    import openvino

    with torch.no_grad(), warnings.catch_warnings():
        # Of branches that a trace settles: what the function gives at other sizes is compared later.
        warnings.simplefilter("ignore")
        # By itself OpenVINO would trace three times, to compare the traces.
        traced = torch.jit.trace(function, example, check_trace=False)
        model = openvino.convert_model(traced, example_input=example)
    fold_numbers(model)
    if weights is not None:
        model = _rounded(model, weights)
    in_float32(model)
    return model


def _need_nncf(weights: Weights) -> None:
    """Refuse to round weights where NNCF, which does so, is not installed."""
    if importlib.util.find_spec("nncf") is None:
        raise InvalidInput(
            f"weights={weights!r} needs the package nncf, which is not installed; "
            'run `pip install "draftwood[openvino]"`, or leave weights out.'
        )


def _rounded(model: Any, weights: Weights) -> Any:
    """`model` with weights of few bits."""
    import nncf

    options: Any = {"mode": nncf.CompressWeightsMode.INT8_ASYM}
    if weights == "int4":
        options = {"mode": nncf.CompressWeightsMode.INT4_ASYM, "ratio": 1.0, "group_size": GROUP}
    told = logging.getLogger("nncf")
    level = told.level
    told.setLevel(logging.ERROR)
    try:
        with (
            open(os.devnull, "w", encoding="utf-8") as nowhere,
            redirect_stdout(nowhere),
        ):  # of its progress bars
            return nncf.compress_weights(model, **options)
    except Exception as error:
        if machine_fault(error) is not None:
            raise
        raise UnsupportedModel(
            f"NNCF does not round the weights to {weights} ({described(error)}); leave weights out."
        ) from error
    finally:
        told.setLevel(level)


def as_engine(tensor: Tensor) -> Any:
    """An OpenVINO tensor over the memory of `tensor`, contiguous on the CPU, which the caller keeps."""
    import openvino

    if tensor.dtype == torch.bfloat16:
        held = tensor.view(torch.uint16).numpy()
        return openvino.Tensor(held, list(held.shape), openvino.Type.bf16)
    return openvino.Tensor(tensor.numpy(), shared_memory=True)


def as_torch(tensor: Any, dtype: torch.dtype) -> Tensor:
    """Returns an OpenVINO tensor's values, over its memory."""
    if dtype == torch.bfloat16:
        import numpy as np

        return torch.from_numpy(tensor.data.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(tensor.data)


def described(error: Exception) -> str:
    """Describes an error for the middle of a sentence."""
    text = " ".join(str(error).split())
    if isinstance(error, DraftwoodError):
        return text.rstrip(".")
    if (missing := re.search(r"No conversion rule found for operations: ([\w:, ]+)", text)) is not None:
        return f"it has no form of {missing[1].strip()}"
    return f"{type(error).__name__}: {text[:160]}".rstrip(". ")
