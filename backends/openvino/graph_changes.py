"""Changes of a converted graph, after which OpenVINO finds faster forms of its parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

NESTED = frozenset({"If", "Loop", "TensorIterator"})
"""Kinds of nodes that hold graphs."""

ACTIVATIONS = frozenset({"Gelu", "Swish"})
"""Kinds of nodes that an MLP gates by."""

BOUND = 3e38
"""Larger than all that an MLP computes, unless it overflows."""


def fold_numbers(model: Any) -> None:
    """Put single numbers that are converted to another type in place of their conversion.

    OpenVINO would keep these conversions. Then it would not see that a model rotates queries and keys, and
    would compute that by many operations in place of one.
    """
    import openvino

    for node in model.get_ops():
        if node.get_type_name() != "Convert":
            continue
        source, kind = node.input_value(0).get_node(), node.output(0).get_element_type()
        if source.get_type_name() == "Constant" and not list(source.shape) and kind.is_real():
            number = openvino.op.Constant(kind, openvino.Shape([]), [float(source.data)])
            for reader in node.output(0).get_target_inputs():
                reader.replace_source_output(number.output(0))


def in_float32(model: Any) -> None:
    """Compute in float32 what a graph computes in bfloat16; its weights, inputs and outputs keep their types.

    A graph's types do not say in what precision OpenVINO runs it. But only where they are float32 does it see
    rotations and rounded weights, which it would otherwise compute by many operations, or not keep rounded.
    """
    import openvino
    from openvino import opset13

    if any(node.get_type_name() in NESTED for node in model.get_ops()):
        return  # types inside would have to follow
    narrow = openvino.Type.bf16
    given = [result.input_value(0).get_element_type() for result in model.get_results()]
    for node in model.get_ordered_ops():
        kind = node.get_type_name()
        if node.get_output_size() != 1 or node.output(0).get_element_type() != narrow:
            continue
        if kind in ("Constant", "Parameter", "Convert"):
            source = node.input_value(0) if kind == "Convert" else node.output(0)
            wide = source
            readers = node.output(0).get_target_inputs()
            if source.get_element_type() != openvino.Type.f32:
                wide = opset13.convert(source, openvino.Type.f32).output(0)
            for reader in readers:
                reader.replace_source_output(wide)
    for result, kind in zip(model.get_results(), given, strict=True):
        if kind == narrow:
            result.input(0).replace_source_output(opset13.convert(result.input_value(0), narrow).output(0))
    model.validate_nodes_and_infer_types()


def widen_weights(model: Any) -> None:
    """Put weights of matrices in float32 in place of their conversion from bfloat16.

    OpenVINO makes a float32 copy of such weights for every form that it compiles, before it packs them in the
    precision that it runs in. Of weights in float32 it makes none: all forms share them, and are compiled in
    a third to a half of the time.
    """
    import openvino

    for node in model.get_ops():
        if node.get_type_name() != "Convert" or node.get_output_element_type(0) != openvino.Type.f32:
            continue
        source = node.input_value(0).get_node()
        readers = node.output(0).get_target_inputs()
        if source.get_type_name() != "Constant" or source.get_element_type() != openvino.Type.bf16:
            continue
        if all(reader.get_node().get_type_name() == "MatMul" for reader in readers):
            bits = torch.from_numpy(source.data.view(np.int16).copy())
            wide = openvino.Tensor(bits.view(torch.bfloat16).float().numpy())
            number = openvino.op.Constant(wide, shared_memory=True)
            for reader in readers:
                reader.replace_source_output(number.output(0))


def keep_mlps_apart(model: Any) -> None:
    """Keep OpenVINO from running gated MLPs as one operation each, by a bound that changes no number.

    On CPUs with matrix tiles (AMX), OpenVINO 2026.4 divides by half the number of threads when it builds that
    operation: with one thread, the process dies.
    """
    from openvino import opset13

    for node in model.get_ordered_ops():
        if node.get_type_name() != "MatMul":
            continue
        source = node.input_value(0)
        gated = source.get_node()
        kinds = {one.get_source_output().get_node().get_type_name() for one in gated.inputs()}
        if gated.get_type_name() == "Multiply" and kinds & ACTIVATIONS:
            node.input(0).replace_source_output(opset13.clamp(source, -BOUND, BOUND).output(0))
    model.validate_nodes_and_infer_types()
