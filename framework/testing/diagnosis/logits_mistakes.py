"""Finds the known mistake that explains wrong logits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

Node = tuple[int, int]
"""A node's token, and the region index of its parent (-1: the committed state)."""


def difference(logits: Tensor, expected: Tensor) -> float:
    """The largest difference of two logits; infinite for NaN, none where both have -inf."""
    logits, expected = logits.double(), expected.to(logits.device).double()
    off = torch.where(logits == expected, 0.0, (logits - expected).abs()).nan_to_num(
        nan=torch.inf, posinf=torch.inf
    )
    return float(off.max()) if off.numel() else 0.0


def likely_mistake(
    logits: Tensor, expected: Tensor, others: Iterable[tuple[str, Tensor]], *, tolerance: float
) -> str:
    """The mistake that turns `expected` into `logits`, in a sentence; empty if none of those known does.

    Args:
        logits: `[vocab]`.
        expected: logits `[vocab]`, right and not equal to `logits`.
        others: mistakes, and the logits `[vocab]` that each of them would give.
        tolerance: largest difference of two logits that count as equal.
    """
    if not bool(((logits == -torch.inf) | logits.isfinite()).all()):
        return "the logits hold NaN or +inf."
    if not bool(logits.isfinite().any()):
        return "every logit is -inf: the answer is at another index, or missing."
    for mistake, other in others:
        if difference(logits, other) <= tolerance:
            return mistake
    return _of_numbers(logits.double(), expected.to(logits.device).double(), tolerance)


def _of_numbers(logits: Tensor, expected: Tensor, tolerance: float) -> str:
    """Scale, shift and rounding."""
    finite = expected.isfinite()
    if not torch.equal(finite, logits.isfinite()):
        return "other tokens have -inf: the logits went through a filter such as top-k, or lack one."
    logits, expected = logits[finite], expected[finite]
    if len(logits) < 3:
        return ""
    scale = float((logits @ expected) / (expected @ expected).clamp(min=1e-30))
    if scale > 0 and difference(logits, scale * expected) <= tolerance:
        return f"a temperature or scale: the logits are {scale:.4g} times the right ones."
    shift = float((logits - expected).mean())
    if difference(logits, expected + shift) <= tolerance:
        return (
            f"every logit is off by the same {shift:.4g}: these may be log-probabilities; give "
            "the model's own logits."
        )
    for dtype in (torch.bfloat16, torch.float16):
        near = 4 * torch.finfo(dtype).eps * float(expected.abs().max())
        if torch.equal(logits, logits.to(dtype).double()) and difference(logits, expected) <= near:
            name = str(dtype).removeprefix("torch.")
            return f"the logits are rounded to {name}; run the checks in float32."
    return ""


def alternatives(
    text: Sequence[int], nodes: Sequence[Node], node: int, *, start: int = 0
) -> Iterable[tuple[str, list[int]]]:
    """Yields mistakes about one node of a row, each with the tokens that it would make the node follow.

    Args:
        text: committed tokens.
        nodes: nodes of the tree, including the one in question.
        node: region index of the node whose logits are wrong.
        start: number of nodes from earlier calls.
    """
    path = path_to(nodes, node)
    before = list(text)
    tokens = [nodes[index][0] for index in path]
    everything = list(range(node + 1))
    counted = _path_by(nodes, node, start) if start and nodes[node][1] >= 0 else None
    if path != everything:
        other = next(index for index in everything if index not in path)
        # One node cannot tell these two apart.
        too = "; or parents are counted from this call" if counted == everything else ""
        yield (
            f"the tree mask is not applied: node {node} sees node {other}, "
            f"{relation(nodes, node, other)}{too}.",
            before + [nodes[index][0] for index in everything],
        )
    if len(path) > 1:
        yield (
            f"node {node} is scored directly after the text: its ancestors are forgotten.",
            before + tokens[-1:],
        )
    if counted is not None and counted != path:
        yield (
            f"parents are counted from this call: node {node} hangs below node {counted[-2]} "
            f"instead of node {nodes[node][1]}; region indices count on until the next commit.",
            before + [nodes[index][0] for index in counted],
        )
    for other in range(node - 1, -1, -1):
        yield (
            f"node {node} has the logits of node {other}, "
            f"{'its parent' if other == nodes[node][1] else 'another one'}: the answers are out of place.",
            before + [nodes[index][0] for index in path_to(nodes, other)],
        )
    if before:
        yield "the last committed token is missing from the state.", before[:-1] + tokens
        yield "the first committed token is missing from the state.", before[1:] + tokens
        yield "the last committed token stands in the state twice.", [*before, before[-1], *tokens]
    for window in (16, 32, 64, 128, 256):
        if len(before) > window:
            yield f"only the last {window} tokens of the text are kept.", before[-window:] + tokens
        if len(before) + len(tokens) > window:
            yield f"only the last {window} tokens are seen.", (before + tokens)[-window:]
    if len(path) > 1:
        yield "the nodes of the path are taken in the wrong order.", before + tokens[::-1]
        yield "the parent is taken for the node: one row too early.", before + tokens[:-1]


def after_another_commit(
    text: Sequence[int], nodes: Sequence[Node], accepted: Sequence[int], tokens: Sequence[int]
) -> Iterable[tuple[str, list[int]]]:
    """Yields mistakes in the last commit, each with the tokens that it would make the node follow.

    Args:
        text: tokens committed before that commit.
        nodes: nodes that were uncommitted before it.
        accepted: the path that the commit should have kept.
        tokens: tokens on the path of the node whose logits are wrong, in the next tree.
    """

    def stands(*indices: int) -> list[int]:
        return [*text, *(nodes[index][0] for index in indices), *tokens]

    right = list(accepted)
    if right:
        yield f"the commit forgot the last node of the path {right}.", stands(*right[:-1])
        yield f"the commit of the path {right} was lost.", stands()
        yield (
            f"the commit kept the first {len(right)} nodes instead of the path {right}.",
            stands(*range(len(right))),
        )
        yield f"the commit kept the path {right} in the wrong order.", stands(*right[::-1])
        yield f"the commit forgot the root of the path {right}.", stands(*right[1:])
    for leaf in range(len(nodes)):
        path = path_to(nodes, leaf)
        if path != right:
            yield f"another path was committed: {path} instead of {right}.", stands(*path)
    if list(range(len(nodes))) != right:
        yield (
            f"the commit kept all {len(nodes)} nodes instead of the path {right}.",
            stands(*range(len(nodes))),
        )


def path_to(nodes: Sequence[Node], node: int) -> list[int]:
    """Region indices from a root down to `node`."""
    path = []
    while node >= 0:
        path.append(node)
        node = nodes[node][1]
    return path[::-1]


def relation(nodes: Sequence[Node], node: int, other: int) -> str:
    """Returns the relation of `other`, which is not an ancestor, to `node`."""
    if nodes[other][1] == nodes[node][1]:
        return "its sibling"
    if any(nodes[other][1] == nodes[index][1] for index in path_to(nodes, node)):
        return "a sibling of an ancestor"
    return "which is no ancestor of it"


def _path_by(nodes: Sequence[Node], node: int, start: int) -> list[int]:
    """The path where the last call's parents count from its first node, as far as that leads somewhere."""
    path = []
    while node >= 0:
        path.append(node)
        parent = nodes[node][1]
        node = parent + start if start <= parent + start < node and parent >= 0 else parent
    return path[::-1]


def drawn(nodes: Sequence[Node], path: Sequence[int]) -> str:
    """A tree in one line, the nodes on `path` marked."""
    shown = [
        f"{'*' if index in path else ''}{index}: {token} below {parent}"
        for index, (token, parent) in enumerate(nodes)
    ]
    return "; ".join(shortened(shown))


def shortened(items: Sequence[object], most: int = 24) -> list[str]:
    """The items in words; of more than `most` the first and last ones."""
    words = [str(item) for item in items]
    if len(words) <= most:
        return words
    return [*words[: most // 2], f"... {len(words) - most} more ...", *words[-(most // 2) :]]


def numbers(logits: Tensor) -> str:
    """The first logits in short."""
    few = [f"{value:.5g}" for value in logits.flatten()[:8].tolist()]
    return "[" + " ".join(few) + (" ..." if logits.numel() > 8 else "") + "]"
