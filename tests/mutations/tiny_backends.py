"""Two tiny models and backends that serve them rightly, made so that one method holds one way to be wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import torch
from torch import Tensor

from draftwood import InvalidInput, StateBackend, UnsupportedModel
from draftwood.backends.nodes.validation import as_nodes, as_rows, check_path, check_paths, remaining_rows

VOCAB, WIDTH, LONGEST = 11, 16, 512


class Attention(torch.nn.Module):
    """One layer of one head.

    `window` is how many tokens a token sees, itself counted; `cap` bounds the logits softly.
    """

    def __init__(self, window: int = LONGEST, cap: float | None = None) -> None:
        super().__init__()
        chance = torch.Generator().manual_seed(1)
        self.window, self.cap = window, cap
        self.tokens = torch.randn(VOCAB, WIDTH, generator=chance)
        self.positions = torch.randn(LONGEST, WIDTH, generator=chance)
        self.query, self.key, self.value = torch.randn(3, WIDTH, WIDTH, generator=chance) / WIDTH**0.5
        self.head = torch.randn(WIDTH, VOCAB, generator=chance)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.logits_of(self.after(self.before(input_ids)))

    def features(self, tokens: list[int], layers: Sequence[int]) -> Tensor:
        """Returns the layer's inputs (0) and outputs (1) for a whole text."""
        read = self.before(torch.tensor([tokens]))
        return torch.cat([(read, self.after(read))[layer][0] for layer in layers], -1)

    def before(self, input_ids: Tensor) -> Tensor:
        return self.tokens[input_ids] + self.positions[: input_ids.shape[1]]

    def after(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1])
        behind = positions.unsqueeze(1) - positions
        scores = (x @ self.query) @ (x @ self.key).mT / WIDTH**0.5
        scores = scores.masked_fill((behind < 0) | (behind >= self.window), -torch.inf)
        return x + scores.softmax(-1) @ (x @ self.value)

    def state(self, seen: Tensor) -> Tensor:
        """Returns the layer's output for the last of the embedded tokens `[n, width]`."""
        scores = (seen @ self.key) @ (seen[-1] @ self.query) / WIDTH**0.5
        return seen[-1] + scores.softmax(-1) @ (seen @ self.value)

    def logits_of(self, states: Tensor) -> Tensor:
        logits = states @ self.head
        return logits if self.cap is None else self.cap * (logits / self.cap).tanh()


class Recurrence(torch.nn.Module):
    """A recurrent layer that forgets slowly."""

    def __init__(self) -> None:
        super().__init__()
        chance = torch.Generator().manual_seed(2)
        self.tokens = torch.randn(VOCAB, WIDTH, generator=chance)
        self.step = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=chance))[0]
        self.head = torch.randn(WIDTH, VOCAB, generator=chance)

    def after(self, state: Tensor, token: int) -> Tensor:
        return torch.tanh(0.9 * (self.step @ state) + self.tokens[token])

    def forward(self, input_ids: Tensor) -> Tensor:
        state, logits = torch.zeros(WIDTH), []
        for token in input_ids[0].tolist():
            state = self.after(state, token)
            logits.append(state @ self.head)
        return torch.stack(logits).unsqueeze(0)


@attrs.define(eq=False)
class Row:
    """The cached values of every committed token, and of every uncommitted node."""

    text: list[Tensor] = attrs.field(factory=list)
    nodes: list[Tensor] = attrs.field(factory=list)
    parents: list[int] = attrs.field(factory=list)
    # Features of the nodes, and of the committed tokens that were not taken yet.
    read: list[Tensor] = attrs.field(factory=list)
    kept: list[Tensor] = attrs.field(factory=list)

    def path(self, node: int) -> list[int]:
        path = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def depth(self, node: int) -> int:
        return len(self.path(node)) - 1


class Rowwise(StateBackend):
    """Keeps rows, refuses malformed calls before it changes anything, and goes node by node."""

    vocab_size, max_length, weight_bytes = VOCAB, LONGEST, 0

    def __init__(self) -> None:
        self.rows: list[Row] = []

    @property
    def lengths(self) -> list[int]:
        return [len(row.text) for row in self.rows]

    def prefill(self, rows: Sequence[Tensor]) -> None:
        for text in as_rows(rows, vocab=VOCAB, longest=LONGEST):
            row = self.joined(text.tolist())
            self.rows.append(row)

    def release(self, rows: Sequence[int] | None = None) -> None:
        self.rows = [self.rows[row] for row in remaining_rows(rows, have=len(self.rows))]

    def extend(self, tokens: Tensor, parents: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        have = [len(row.nodes) for row in self.rows]
        tokens, parents, counts = as_nodes(tokens, parents, counts, have=have, vocab=VOCAB)
        logits = torch.zeros(*tokens.shape, VOCAB)
        for index, (row, count) in enumerate(zip(self.rows, counts, strict=True)):
            for column in range(count):
                row.parents.append(self.parent(row, int(parents[index, column]), start=have[index]))
                logits[index, column] = self.score(row, int(tokens[index, column]))
        return logits

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        check_paths(paths, rows=len(self.rows))
        for index, (row, path) in enumerate(zip(self.rows, paths, strict=True)):
            check_path(path, row.parents, row=index)
        for row, path in zip(self.rows, paths, strict=True):
            row.text += [row.nodes[node] for node in self.accepted(row, path)]
            row.nodes, row.parents = [], []

    def joined(self, text: Sequence[int]) -> Row:
        """A row with a text."""
        raise NotImplementedError

    def score(self, row: Row, token: int) -> Tensor:
        """Logits of the node whose parent was just noted; keeps it."""
        raise NotImplementedError

    def parent(self, row: Row, numbered: int, *, start: int) -> int:
        """Returns the node's place in a call that began after `start` nodes."""
        return numbered

    def accepted(self, row: Row, path: Sequence[int]) -> Sequence[int]:
        """The nodes that a commit of `path` keeps."""
        return path


class Cached(Rowwise):
    """Attention with a cache of embedded tokens."""

    model = Attention()

    def joined(self, text: Sequence[int]) -> Row:
        return Row([self.embedded(token, index) for index, token in enumerate(text)])

    def embedded(self, token: int, position: int) -> Tensor:
        return self.model.tokens[token] + self.model.positions[position]

    def score(self, row: Row, token: int) -> Tensor:
        node = len(row.nodes)
        row.nodes.append(self.embedded(token, self.position(row, node)))
        return self.model.logits_of(self.model.state(self.seen(row, node)))

    def position(self, row: Row, node: int) -> int:
        return len(row.text) + row.depth(node)

    def seen(self, row: Row, node: int) -> Tensor:
        """Returns the tokens that the node's attention sees, itself last."""
        return torch.stack([*row.text, *(row.nodes[index] for index in self.visible(row, node))])

    def visible(self, row: Row, node: int) -> Sequence[int]:
        return row.path(node)


class Featured(Cached):
    """A backend with soft-capped logits and features."""

    model = Attention(cap=6.0)
    hidden_size, feature_layers = WIDTH, 1

    def __init__(self) -> None:
        super().__init__()
        self.layers: list[int] = []
        self.last: int | None = None
        self.through: Callable[[Tensor], Tensor] | None = None

    def keep_features(
        self,
        layers: Sequence[int],
        *,
        last: int | None = None,
        through: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        if not {*layers} <= {0, 1} or self.rows:
            raise InvalidInput(f"The features {[*layers]} cannot be kept.")
        self.layers, self.last, self.through = self.ordered(layers), last, through

    def take_features(self) -> list[Tensor]:
        if not self.layers:
            raise UnsupportedModel("Nothing was kept.")
        found = [self.as_kept(row.kept) for row in self.rows]
        for row in self.rows:
            row.kept = self.left(row)
        return found

    def as_kept(self, features: list[Tensor]) -> Tensor:
        """Features `[2, width]` of tokens as they are handed out."""
        every = torch.stack([torch.zeros(2, WIDTH), *features])[1:]
        states = every[-self.last :] if self.last else every
        states = torch.cat([states[:, layer] for layer in self.layers], -1)
        return self.through(states) if self.through else states

    def input_embeddings(self, tokens: Tensor) -> Tensor:
        return self.model.tokens[tokens]

    def output_head(self, states: Tensor) -> Tensor:
        return self.model.logits_of(states)

    def joined(self, text: Sequence[int]) -> Row:
        row = super().joined(text)
        row.kept = [self.features(row.text[: index + 1]) for index in range(len(text))]
        return row

    def score(self, row: Row, token: int) -> Tensor:
        logits = super().score(row, token)
        row.read.append(self.features([*self.seen(row, len(row.nodes) - 1)]))
        return logits

    def features(self, seen: Sequence[Tensor]) -> Tensor:
        return torch.stack([seen[-1], self.model.state(torch.stack([*seen]))])

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        super().commit(paths)
        for row, path in zip(self.rows, paths, strict=True):
            row.kept += [row.read[node] for node in self.nodes_read(path)]
            row.read = []

    def ordered(self, layers: Sequence[int]) -> list[int]:
        return list(layers)

    def left(self, row: Row) -> list[Tensor]:
        """Returns the part of a row's features that stays when they are taken."""
        return []

    def nodes_read(self, path: Sequence[int]) -> Sequence[int]:
        """The nodes whose features a commit of `path` keeps."""
        return path


class Windowed(Cached):
    """A backend with a sliding window."""

    model = Attention(window=16)

    def seen(self, row: Row, node: int) -> Tensor:
        return super().seen(row, node)[-self.model.window :]


class Recurrent(Rowwise):
    """A recurrent model that keeps the state after every token."""

    model = Recurrence()

    def joined(self, text: Sequence[int]) -> Row:
        row = Row()
        for token in text:
            row.text.append(self.model.after(self.committed(row), token))
        return row

    def committed(self, row: Row) -> Tensor:
        """Returns the state after the committed text."""
        return row.text[-1] if row.text else torch.zeros(WIDTH)

    def score(self, row: Row, token: int) -> Tensor:
        row.nodes.append(self.model.after(self.before(row, len(row.nodes)), token))
        return row.nodes[-1] @ self.model.head

    def before(self, row: Row, node: int) -> Tensor:
        """The state that a node steps from."""
        parent = row.parents[node]
        return row.nodes[parent] if parent >= 0 else self.committed(row)
