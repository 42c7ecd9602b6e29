"""The files of MTP layers: read out of a model's checkpoint or from a separate folder, and written."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from draftwood import InvalidInput, UnsupportedModel
from draftwood.strategies.heads.files import check_finite, read_description, read_named, write_head
from draftwood.strategies.heads.sizes import check_held
from draftwood.strategies.mtp.families import TARGET, family_of
from draftwood.strategies.mtp.head import IN_SINGLE, MtpHead
from draftwood.strategies.mtp.layout import Layout, layout_of, without_layer
from draftwood.strategies.mtp.speculators import is_speculator, layout_in_file, native_layout

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_ONE_BY_ONE = re.compile(r"(.*\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)\.weight")
_COMPUTED = "rotary_emb.inv_freq"
_ARCHITECTURE = "MTPModel"


def is_layer(folder: str | PathLike[str]) -> bool:
    """Whether `folder` holds an MTP layer without its model, readable or not."""
    try:
        description = read_description(folder)
    except InvalidInput:
        return False
    if is_speculator(description):
        return True
    classes = description.get("architectures")
    alone = isinstance(classes, list) and any(str(name).endswith(_ARCHITECTURE) for name in classes)
    return alone and family_of(description) is not None


def load_layer(folder: str | PathLike[str]) -> MtpHead:
    """Reads the MTP layer in `folder`, a model's checkpoint or the layer's own, in its stored dtype.

    Of the checkpoint's other tensors nothing is read.

    Raises:
        UnsupportedModel: a family or a layer that is not served; see `layout_of`.
        InvalidInput: files that are missing or corrupt, a checkpoint without an MTP layer, one that is
            quantised, a key that is not known, a tensor that is missing, left over or of another shape.
    """
    folder = Path(folder)
    where = f"{str(folder)!r}"
    description = read_description(folder)
    if is_speculator(description):
        layout = native_layout(description, where=where)
        in_file = layout_in_file(layout)
    else:
        layout = in_file = layout_of(description, where=where)
    stored = _tensors(folder, in_file, where)
    _check_numbers(stored, in_file, where)
    _stack_experts(stored, in_file, where)
    check_held(layout.sizes, stored, vocabulary=layout.vocab_size, where=where)
    try:
        with torch.device("meta"):
            head = MtpHead(
                layout, own_words="embed_tokens.weight" in stored, own_output="lm_head.weight" in stored
            )
    except (RuntimeError, TypeError, ValueError, ArithmeticError, MemoryError) as error:
        # transformers' classes fail in many ways where sizes do not fit each other.
        reason = " ".join(str(error).split())[:120].rstrip(".")
        raise InvalidInput(
            f"The config in {where} has sizes that no layer has ({reason}); copy it again."
        ) from error
    _check(stored, head, in_file, where)
    _common_dtype(stored)
    head.load_state_dict(stored, assign=True)
    return head.eval().requires_grad_(False)


def save_layer(head: MtpHead, folder: str | PathLike[str], *, target: str) -> None:
    """Write `head` into a separate folder, with the names that its family's checkpoints have.

    Args:
        head: the layer; its weights are written in the dtype that they have.
        folder: made where it is missing.
        target: the name of the model that it was made for.
    """
    layout = head.layout
    tensors = {_in_file(name, layout): tensor for name, tensor in _unstacked(head.state_dict()).items()}
    description = {
        **layout.description,
        "architectures": [layout.family.classes[1] + _ARCHITECTURE],
        "model_type": layout.family.model_types[-1],
        TARGET: target,
        "torch_dtype": str(head.like.dtype).removeprefix("torch."),
    }
    write_head(folder, description, tensors)


def _tensors(folder: Path, layout: Layout, where: str) -> dict[str, Tensor]:
    """Returns the tensors of the layer, by our names."""
    beginnings = tuple(layout.prefix + begin for begin in layout.family.beginnings)
    found = read_named(folder, lambda name: name.startswith(beginnings) and not name.endswith(_COMPUTED))
    if not any(name.startswith(beginnings[0]) for name in found):
        raise without_layer(where, f"no tensor begins with {beginnings[0]}")
    return {_ours(name, layout): tensor for name, tensor in found.items()}


def _ours(name: str, layout: Layout) -> str:
    """Our name of a file's tensor; what is none of the layer keeps its own."""
    rest = name.removeprefix(layout.prefix)
    for theirs, ours in _longest_first(layout.names):
        if rest.startswith(theirs):
            return ours + rest.removeprefix(theirs)
    return name


def _in_file(name: str, layout: Layout) -> str:
    for theirs, ours in _longest_first({ours: theirs for theirs, ours in layout.names.items()}):
        if name.startswith(theirs):
            return layout.prefix + ours + name.removeprefix(theirs)
    return name


def _longest_first(names: Mapping[str, str]) -> list[tuple[str, str]]:
    return sorted(names.items(), key=lambda pair: -len(pair[0]))


def _stack_experts(stored: dict[str, Tensor], layout: Layout, where: str) -> None:
    """Stack experts: separate tensors in a file are one tensor in transformers' modules.

    Raises:
        InvalidInput: an expert lacks a part, or has one of another shape than the others.
    """
    each: dict[str, dict[str, dict[int, Tensor]]] = {}
    for name in list(stored):
        if found := _ONE_BY_ONE.fullmatch(name):
            experts, number, part = found.groups()
            each.setdefault(experts, {}).setdefault(part, {})[int(number)] = stored.pop(name)
    for experts, parts in each.items():
        count = 1 + max(number for some in parts.values() for number in some)
        for part, some in parts.items():
            usual = Counter(tuple(tensor.shape) for tensor in some.values()).most_common(1)[0][0]
            for number in range(count):
                name = _in_file(f"{experts}.{number}.{part}.weight", layout)
                if number not in some:
                    raise InvalidInput(
                        f"The MTP layer in {where} lacks {name}, and has other parts of this expert or later "
                        "ones; copy the checkpoint again."
                    )
                if (shape := tuple(some[number].shape)) != usual:
                    raise InvalidInput(
                        f"{name} in {where} has the shape {shape}, and most other experts have {usual}; copy "
                        "the checkpoint again."
                    )
        stacked = {
            part: torch.stack([some[number] for number in sorted(some)]) for part, some in parts.items()
        }
        if "gate_proj" in stacked and "up_proj" in stacked:
            stacked["gate_up_proj"] = torch.cat([stacked.pop("gate_proj"), stacked.pop("up_proj")], 1)
        stored.update({f"{experts}.{part}": tensor for part, tensor in stacked.items()})


def _unstacked(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns stacked weights one by one, as files have them."""
    single: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        experts, dot, part = name.rpartition(".")
        if not experts.endswith(".experts") or not dot:
            single[name] = tensor
            continue
        parts = {part: tensor}
        if part == "gate_up_proj":
            parts = dict(zip(("gate_proj", "up_proj"), tensor.chunk(2, 1), strict=True))
        single |= {
            f"{experts}.{number}.{which}.weight": one.clone()
            for which, some in parts.items()
            for number, one in enumerate(some)
        }
    return single


def _check_numbers(stored: Mapping[str, Tensor], layout: Layout, where: str) -> None:
    """Refuse quantised tensors, and values that are not finite."""
    for name, tensor in stored.items():
        if tensor.dtype not in _DTYPES:
            raise UnsupportedModel(
                f"{_in_file(name, layout)} in {where} is {str(tensor.dtype).removeprefix('torch.')}, so the "
                "MTP layer is quantised; layers in float16, bfloat16 or more are read."
            )
        check_finite(_in_file(name, layout), tensor, where)


def _check(stored: dict[str, Tensor], head: MtpHead, layout: Layout, where: str) -> None:
    expected = head.state_dict()
    if missing := sorted(expected.keys() - stored.keys()):
        raise InvalidInput(
            f"The MTP layer in {where} lacks {_listed(missing, layout)}, which its config asks for; copy the "
            "checkpoint again."
        )
    if unused := sorted(stored.keys() - expected.keys()):
        raise InvalidInput(
            f"The MTP layer in {where} has tensors that its config does not mention: "
            f"{_listed(unused, layout)}; it may have several layers or another form, and one of the known "
            "form is read."
        )
    for name, tensor in stored.items():
        if tensor.shape != expected[name].shape:
            raise InvalidInput(
                f"{_in_file(name, layout)} in {where} has the shape {tuple(tensor.shape)}, and the config "
                f"says {tuple(expected[name].shape)}; one of them is another model's."
            )


def _listed(names: list[str], layout: Layout) -> str:
    shown = ", ".join(_in_file(name, layout)[:80] for name in names[:6])
    return shown if len(names) <= 6 else f"{shown} and {len(names) - 6} more"


def _common_dtype(stored: dict[str, Tensor]) -> None:
    """Passes run in one dtype, that of the projection; routers' corrections stay as exact as they are."""
    dtype = stored["projection.weight"].dtype
    for name, tensor in stored.items():
        if not name.endswith(IN_SINGLE):
            stored[name] = tensor.to(dtype)
