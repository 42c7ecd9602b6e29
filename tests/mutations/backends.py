"""Backends with one mistake each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftwood.backends.nodes.validation import check_path, check_paths, remaining_rows
from tests.mutations.mistake import Mistake
from tests.mutations.tiny_backends import VOCAB, Cached, Featured, Recurrent, Row, Windowed


class OtherTemperature(Cached):
    def score(self, row: Row, token: int) -> Tensor:
        return super().score(row, token) / 0.7


class Rounded(Cached):
    def score(self, row: Row, token: int) -> Tensor:
        return super().score(row, token).bfloat16().float()


class PositionsEndAt64(Cached):
    def position(self, row: Row, node: int) -> int:
        return min(super().position(row, node), 63)


class FourRows(Cached):
    """A buffer for four rows, the last of which all further rows use."""

    def extend(self, tokens: Tensor, parents: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        logits = super().extend(tokens, parents, counts)
        logits[4:] = logits[3:4]
        return logits


class AllVisible(Cached):
    def visible(self, row: Row, node: int) -> Sequence[int]:
        return range(node + 1)


class SiblingsVisible(Cached):
    def visible(self, row: Row, node: int) -> Sequence[int]:
        siblings = [index for index in range(node) if row.parents[index] == row.parents[node]]
        return [*row.path(node)[:-1], *siblings, node]


class PositionsByNode(Cached):
    def position(self, row: Row, node: int) -> int:
        return len(row.text) + node


class FirstChildKept(Cached):
    def accepted(self, row: Row, path: Sequence[int]) -> Sequence[int]:
        return [row.parents.index(row.parents[node]) for node in path]


class LastForgotten(Cached):
    """The length is right: the row is padded with what came before."""

    def accepted(self, row: Row, path: Sequence[int]) -> Sequence[int]:
        return [*path[:-1], *path[-2:-1]] if len(path) > 1 else path


class ContiguousKept(Cached):
    def accepted(self, row: Row, path: Sequence[int]) -> Sequence[int]:
        return range(len(path))


class ShortCommit(Cached):
    def accepted(self, row: Row, path: Sequence[int]) -> Sequence[int]:
        return path[:-1]


class EmptyPathKeepsRoot(Cached):
    def accepted(self, row: Row, path: Sequence[int]) -> Sequence[int]:
        return path or [0][: len(row.nodes)]


class OtherRowReleased(Cached):
    def release(self, rows: Sequence[int] | None = None) -> None:
        last = len(self.rows) - 1
        super().release(None if rows is None else [last - row for row in rows])


class RowsStay(Cached):
    """The lengths move up, and the states stay where they are."""

    def release(self, rows: Sequence[int] | None = None) -> None:
        before, stay = self.rows, remaining_rows(rows, have=len(self.rows))
        super().release(rows)
        for row, old, index in zip(self.rows, before, stay, strict=False):
            fill = before[index].text
            row.text = [*old.text, *fill][: len(fill)]


class CommitsRowByRow(Cached):
    """A bad path is found when the rows before it are committed."""

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        check_paths(paths, rows=len(self.rows))
        for index, (row, path) in enumerate(zip(self.rows, paths, strict=True)):
            check_path(path, row.parents, row=index)
            row.text += [row.nodes[node] for node in path]
            row.nodes, row.parents = [], []


class Unchecked(Cached):
    """Tokens that are none are taken for the nearest that is one."""

    def extend(self, tokens: Tensor, parents: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        return super().extend(tokens.clamp(0, VOCAB - 1), parents, counts)


class ParentsOfTheCall(Cached):
    def parent(self, row: Row, parent: int, *, start: int) -> int:
        index = parent + start if parent >= 0 else parent
        return index if index < len(row.parents) else parent


class EmptyRowStartsWithPadding(Cached):
    def visible_text(self, row: Row) -> list[Tensor]:
        return row.text or [self.embedded(0, 0)]

    def seen(self, row: Row, node: int) -> Tensor:
        return torch.stack([*self.visible_text(row), *(row.nodes[index] for index in row.path(node))])


class EqualRowsShare(Cached):
    """Rows of one text share its cache, also when they part."""

    def prefill(self, rows: Sequence[Tensor]) -> None:
        super().prefill(rows)
        texts = [row.tolist() for row in rows]
        new = self.rows[len(self.rows) - len(texts) :]
        for row, text in zip(new, texts, strict=True):
            row.text = new[texts.index(text)].text

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        lengths = [len(row.text) for row in self.rows]
        super().commit(paths)
        for row, length, path in zip(self.rows, lengths, paths, strict=True):
            if len(row.text) != length + len(path):
                row.text = row.text[: length + len(path)]


class FirstLogitsOfTheFirstRows(Cached):
    """Rows that join after others get the others' logits."""

    gives_first_logits = True

    def first_logits(self, rows: Sequence[Tensor]) -> Tensor:
        have = len(self.rows)
        if not rows:
            return torch.zeros(0, VOCAB)
        self.prefill([row[:-1] for row in rows])
        last = torch.tensor([[0]] * have + [[int(row[-1])] for row in rows])
        logits = self.extend(last, torch.full_like(last, -1), [0] * have + [1] * len(rows))
        self.commit([[]] * have + [[0]] * len(rows))
        return logits[: len(rows), 0]


class WindowOneShort(Windowed):
    def seen(self, row: Row, node: int) -> Tensor:
        return super().seen(row, node)[-self.model.window + 1 :]


class LastTokensAlone(Cached):
    def seen(self, row: Row, node: int) -> Tensor:
        return super().seen(row, node)[-128:]


class OneBuffer(Cached):
    """Every call writes its logits to one tensor and returns a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = torch.zeros(64, 512, VOCAB)

    def extend(self, tokens: Tensor, parents: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        logits = super().extend(tokens, parents, counts)
        view = self.buffer[: logits.shape[0], : logits.shape[1]]
        view.copy_(logits)
        return view


class FirstShapeAgain(Cached):
    """Replays the pass that was captured for a shape with the parents of the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.captured: dict[tuple[int, ...], Tensor] = {}

    def extend(self, tokens: Tensor, parents: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        fits = counts is None and not any(row.nodes for row in self.rows)
        if fits and parents.numel() and int(parents.max()) >= 0:
            parents = self.captured.setdefault(tuple(parents.shape), parents.clone())
        return super().extend(tokens, parents, counts)

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        # The paths name nodes that hang elsewhere now.
        check_paths(paths, rows=len(self.rows))
        for row, path in zip(self.rows, paths, strict=True):
            row.text += [row.nodes[node] for node in path if node < len(row.nodes)]
            row.nodes, row.parents = [], []


class PaddingTakesPlaces(Cached):
    def extend(self, tokens: Tensor, parents: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        logits = super().extend(tokens, parents, counts)
        for row in self.rows:
            while len(row.nodes) < max(len(other.nodes) for other in self.rows):
                row.nodes.append(torch.zeros_like(self.embedded(0, 0)))
                row.parents.append(-1)
        return logits


class PositionsOfTheLongest(Cached):
    """Rows are padded at the left, and positions count the padding."""

    def position(self, row: Row, node: int) -> int:
        return max(len(other.text) for other in self.rows) + row.depth(node)


class SlotNotCleared(Cached):
    """A row that joins takes the slot of one that was released, and what it held."""

    def __init__(self) -> None:
        super().__init__()
        self.free: list[Row] = []

    def release(self, rows: Sequence[int] | None = None) -> None:
        stay = remaining_rows(rows, have=len(self.rows))
        if rows is not None:
            self.free += [row for index, row in enumerate(self.rows) if index not in stay]
        else:
            self.free = []
        super().release(rows)

    def joined(self, text: Sequence[int]) -> Row:
        row = super().joined(text)
        if self.free:
            old = self.free.pop().text
            row.text = [*old[:2], *row.text[2:]] if len(row.text) > 2 and len(old) > 1 else row.text
        return row


class MaskOf64Bits(Cached):
    def visible(self, row: Row, node: int) -> Sequence[int]:
        return [index for index in row.path(node) if index < 64 or index == node]


class ShallowPaths(Cached):
    def visible(self, row: Row, node: int) -> Sequence[int]:
        return row.path(node)[-32:]


class LogitsOfTheParents(Cached):
    def extend(self, tokens: Tensor, parents: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        have = [len(row.nodes) for row in self.rows]
        logits = super().extend(tokens, parents, counts)
        right = logits.clone()
        for index, row in enumerate(self.rows):
            for column in range(len(row.nodes) - have[index]):
                above = row.parents[have[index] + column] - have[index]
                if above >= 0:
                    logits[index, column] = right[index, above]
        return logits


class NodesCounted(Cached):
    @property
    def lengths(self) -> list[int]:
        return [len(row.text) + len(row.nodes) for row in self.rows]


class WritesToParents(Cached):
    def extend(self, tokens: Tensor, parents: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        logits = super().extend(tokens, parents, counts)
        parents += torch.tensor(self.lengths, dtype=torch.int64).unsqueeze(1)
        return logits


class JoinsInFront(Cached):
    def prefill(self, rows: Sequence[Tensor]) -> None:
        before = self.rows
        self.rows = []
        super().prefill(rows)
        self.rows += before


class StateOfTheNodeBefore(Recurrent):
    """A scan over the nodes in their given order."""

    def before(self, row: Row, node: int) -> Tensor:
        return row.nodes[node - 1] if node else self.committed(row)


class LastStateKept(Recurrent):
    """The state cannot be rolled back, so that of the last node stays."""

    def accepted(self, row: Row, path: Sequence[int]) -> Sequence[int]:
        return [*path[:-1], len(row.nodes) - 1] if path else path


class StatesInBfloat16(Recurrent):
    """Between rounds the states are kept in lower precision."""

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        super().commit(paths)
        for row in self.rows:
            row.text[-1:] = [state.bfloat16().float() for state in row.text[-1:]]


class StateOfTheFirstCall(Recurrent):
    """Nodes of later calls step from the committed state whatever their parent is."""

    def before(self, row: Row, node: int) -> Tensor:
        return self.committed(row) if node >= 6 else super().before(row, node)


class FeaturesOfTheFirstNodes(Featured):
    def nodes_read(self, path: Sequence[int]) -> Sequence[int]:
        return range(len(path))


class FeaturesOfTheParents(Featured):
    """Off by one: every accepted node has its parent's, and the root its own."""

    def nodes_read(self, path: Sequence[int]) -> Sequence[int]:
        return [*path[:1], *path[:-1]]


class PromptWithoutFeatures(Featured):
    def joined(self, text: Sequence[int]) -> Row:
        row = super().joined(text)
        row.kept = []
        return row


class FeaturesTwice(Featured):
    def left(self, row: Row) -> list[Tensor]:
        return row.kept[-1:]


class LayersInOrder(Featured):
    def ordered(self, layers: Sequence[int]) -> list[int]:
        return sorted(layers)


class AllFeatures(Featured):
    """Returns the features of all tokens where only the last were requested."""

    def as_kept(self, features: list[Tensor]) -> Tensor:
        last, self.last = self.last, None
        try:
            return super().as_kept(features)
        finally:
            self.last = last


class HeadWithoutCap(Featured):
    def output_head(self, states: Tensor) -> Tensor:
        return states @ self.model.head


def _of(name: str, story: str, wrong: type[Cached | Recurrent]) -> Mistake:
    right = next(kind for kind in (Featured, Windowed, Cached, Recurrent) if issubclass(wrong, kind))
    return Mistake(name, story, "backend", right, wrong)


MISTAKES: list[Mistake] = [
    _of("the logits are at another temperature", "a deep copy is at the same one", OtherTemperature),
    _of("the logits are rounded to bfloat16", "deepseek-ai/DeepSpec#31", Rounded),
    _of("positions end at 64", "a buffer of position ids that is too short", PositionsEndAt64),
    _of("a fifth row has the answers of the fourth", "a buffer for four rows", FourRows),
    _of("all earlier nodes are visible", "the tree mask forgotten", AllVisible),
    _of("siblings are visible", "a mask by depth with the wrong comparison", SiblingsVisible),
    _of("positions count nodes", "arange instead of depths", PositionsByNode),
    _of("a commit keeps first children", "vllm#55688: chains need no path", FirstChildKept),
    _of("a commit keeps the last but one node twice", "a slice that is one short", LastForgotten),
    _of("a commit keeps the first nodes", "vllm#55688: accepted paths are not contiguous", ContiguousKept),
    _of("a commit keeps one node too few", "the bonus token counted twice", ShortCommit),
    _of("an empty path keeps the root", "a falsy list", EmptyPathKeepsRoot),
    _of("another row is released", "rows counted from the end", OtherRowReleased),
    _of("rows behind a released one do not move up", "states by slot, rows by number", RowsStay),
    _of("a bad path is found half way", "rows checked one by one", CommitsRowByRow),
    _of("tokens that are none go through", "an index clamped", Unchecked),
    _of("parents count from the call's first node", "region indices that do not count on", ParentsOfTheCall),
    _of("an empty row starts with padding", "a prefill of at least one token", EmptyRowStartsWithPadding),
    _of(
        "joining rows get the first rows' logits",
        "rows counted without those there",
        FirstLogitsOfTheFirstRows,
    ),
    _of("equal rows share a state", "a prefix cache without a copy on write", EqualRowsShare),
    _of("a sliding window is one token short", "the token itself counted or not", WindowOneShort),
    _of("only the last 128 tokens are seen", "a window that the model does not have", LastTokensAlone),
    _of("one buffer is returned by all calls", "a static output of a captured graph", OneBuffer),
    _of("the first tree of a shape is replayed", "a mask captured with the graph", FirstShapeAgain),
    _of("padding takes places", "nodes counted over the batch", PaddingTakesPlaces),
    _of("positions count the padding at the left", "rows of differing length", PositionsOfTheLongest),
    _of("a new row finds what a released one left", "a slot that is not cleared", SlotNotCleared),
    _of("a mask holds 64 nodes", "one 64-bit word a node", MaskOf64Bits),
    _of("ancestors are followed for 32 steps", "a fixed number of doublings", ShallowPaths),
    _of("a node has its parent's logits", "TensorRT-LLM#15098", LogitsOfTheParents),
    _of("lengths count uncommitted nodes", "the cache's own length", NodesCounted),
    _of("extend writes to the parents it is given", "padding masked in place", WritesToParents),
    _of("new rows stand in front", "a batch rebuilt the other way round", JoinsInFront),
    _of("a node steps from the state before it", "mlx-lm#846: a scan over a tree", StateOfTheNodeBefore),
    _of("a commit leaves the state of the last node", "mlx-lm#1446: no roll back", LastStateKept),
    _of("committed states are kept in bfloat16", "a cache narrower than the model", StatesInBfloat16),
    _of("later calls step from the committed state", "vectors kept of one call alone", StateOfTheFirstCall),
    _of(
        "features are those of the first nodes", "accepted paths are not contiguous", FeaturesOfTheFirstNodes
    ),
    _of("features are those of the parents", "a feature goes with the next token", FeaturesOfTheParents),
    _of("the prompt has no features", "kept by extend alone", PromptWithoutFeatures),
    _of("the last features are given twice", "a slice with the root in it", FeaturesTwice),
    _of("layers are put in their order", "a set of layers", LayersInOrder),
    _of("all features are given, not the last", "an option that is not read", AllFeatures),
    _of("the output head leaves out the soft-cap", "the LM head alone", HeadWithoutCap),
]
