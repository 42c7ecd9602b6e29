"""Drawn trees as the kernels of verification take them."""

from dataclasses import replace

import torch
from torch import Tensor

from draftwood import TokenTree
from draftwood.kernels.tree_plan.arrays import TreeCase
from draftwood.strategies.verifiers.batched.on_device import tree_case


def case_of(tree: TokenTree, targets: Tensor, tape: Tensor) -> TreeCase:
    case = tree_case(tree, targets, tape)
    assert case is not None
    return case


def on_device(case: TreeCase, device: torch.device) -> TreeCase:
    laws = [None if law is None else law.to(device) for law in case.laws]
    return replace(case, targets=case.targets.to(device), laws=laws)
