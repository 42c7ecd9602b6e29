"""The rows of a head that drafts: pairs of the text are kept, and drafted pairs dropped each round."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwood import InvalidInput, Requests
from draftwood.strategies.heads.pair_cache import PairCache
from draftwood.strategies.heads.pairs import PairHead, among, grouped_attention
from draftwood.strategies.padded import widened

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

_TEXT_AT_ONCE = 512
"""Pairs of a text that a pass reads where they attend to each other."""
_PADS, _BEFORE_ROOT, _DRAFTED = range(3)
"""Of a row's states: what pads a pass, that which the root is paired with, and the first of drafted ones."""


@attrs.frozen(eq=False)
class _Slots:
    """Attention of a pass over the slots of `cache`.

    Attributes:
        cache: what is kept.
        rows: of the pass's pairs, `[rows, n]`.
        places: their slots, likewise.
        mask: bool `[rows, n, slots]`, which slots they see; later slots are not read.
    """

    cache: PairCache
    rows: Tensor
    places: Tensor
    mask: Tensor

    def hold(self, keys: Tensor, values: Tensor, layer: int = 0) -> tuple[Tensor, Tensor]:
        heads = slice(layer * keys.shape[1], (layer + 1) * keys.shape[1])
        return self._written(keys, 0, heads), self._written(values, 1, heads)

    def _written(self, new: Tensor, part: int, heads: slice) -> Tensor:
        held = self.cache.write(new.transpose(1, 2), part, self.rows, self.places, heads=heads)
        return held[:, :, : self.mask.shape[2]]

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        return grouped_attention(queries, keys, values, self.mask, scale=scale)

    @property
    def seen(self) -> Tensor:
        return self.mask

    def hold_index(self, keys: Tensor) -> Tensor:
        return self._written(keys.unsqueeze(1), 2, slice(None))[:, 0]

    def attend_to(
        self, chosen: Tensor, queries: Tensor, keys: Tensor, values: Tensor, scale: float
    ) -> Tensor:
        return grouped_attention(queries, keys, values, among(self.mask, chosen), scale=scale)


class PairRows:
    """Rows of texts x_0 to x_(n-1), with a state for each of their tokens: the head's view of the features.

    Pair i is state i with token i + 1. The text has n - 1 of them, whose keys and values are cached; the
    last state waits for the root, x_n. What is drafted lies in scratch slots, by request number, and is
    written over in the next round: accepted tokens are paired with the target's features and read anew.
    """

    def __init__(self, head: PairHead, embed: Callable[[Tensor], Tensor]) -> None:
        """No rows yet.

        Args:
            head: the head, with its weights where passes are to run.
            embed: from tokens `[...]` to their embeddings `[..., width]`.
        """
        self._head, self._embed = head, embed
        self._lengths = np.zeros(0, dtype=np.int64)  # of the texts
        self._cache = self._new_cache(0)
        self._states = self._blank(0)
        self._begin()

    def __len__(self) -> int:
        return len(self._lengths)

    def _blank(self, rows: int) -> Tensor:
        """States of rows by `_BEFORE_ROOT`, and from `_DRAFTED` on by request number."""
        return self._head.like.new_zeros(rows, _DRAFTED + self._cache.scratch, self._head.width)

    def _new_cache(self, rows: int) -> PairCache:
        return PairCache(rows, kept=self._head.kept, like=self._head.like)

    def _begin(self) -> None:
        """Forget what the round asked for."""
        rows, scratch = len(self), self._cache.scratch
        # By request number; entries after a row's requests mean nothing.
        self._requested = np.zeros(rows, dtype=np.int64)
        self._depths = np.zeros((rows, scratch), dtype=np.int64)
        self._above = np.zeros((rows, scratch, scratch), dtype=np.bool_)  # each node's path, but for the root
        self._text: Tensor | None = None  # of the text's pairs, with the root's, [rows, 1, slots]

    @torch.no_grad()
    def join(self, texts: Sequence[Sequence[int]], states: Sequence[Tensor]) -> None:
        """Append rows with these texts, and the states `[length, width]` of their tokens."""
        first = len(self)
        self._lengths = np.concatenate([self._lengths, np.zeros(len(texts), dtype=np.int64)])
        self._cache.join(self._new_cache(len(texts)))
        self._states = torch.cat([self._states, self._blank(len(texts))])
        self._append({first + row: text for row, text in enumerate(texts)}, dict(enumerate(states, first)))
        self._begin()

    def release(self, rows: Sequence[int] | None) -> None:
        """Forget these rows, or all."""
        removed = set(range(len(self)) if rows is None else rows)
        keep = [row for row in range(len(self)) if row not in removed]
        for name in ("lengths", "states", "requested", "depths", "above"):
            setattr(self, f"_{name}", getattr(self, f"_{name}")[keep])
        self._cache.keep(keep)
        self._text = None
        if not keep:
            self._cache = self._new_cache(0)
            self._states = self._blank(0)

    @torch.no_grad()
    def commit(self, tokens: Sequence[Sequence[int]], states: Sequence[Tensor]) -> None:
        """Append what every row accepted, root first, and the states of these tokens; begin a new round."""
        self._append(dict(enumerate(tokens)), dict(enumerate(states)))
        self._begin()

    def _append(self, tokens: dict[int, Sequence[int]], states: dict[int, Tensor]) -> None:
        """Read the pairs that these tokens, and the states of these tokens, complete, of all rows at once."""
        longer = [row for row, new in tokens.items() if len(new)]
        for row in longer:
            if len(states[row]) != len(tokens[row]):
                raise InvalidInput(
                    f"Row {row} has committed {len(tokens[row])} token(s), and its target gives features of "
                    f"{len(states[row])}; give the drafter a backend whose features no other drafter takes."
                )
        if not longer:
            return
        before = {row: int(self._lengths[row]) for row in longer}
        # State i comes before token i + 1, so a row's old last state comes first, and its new one waits.
        read: list[int] = []
        beside: list[Tensor] = []
        of_row: list[int] = []
        at: list[int] = []
        for row in longer:
            started = before[row] > 0
            read += tokens[row] if started else tokens[row][1:]
            beside += [self.waiting[row : row + 1], states[row][:-1]] if started else [states[row][:-1]]
            places = range(max(before[row] - 1, 0), before[row] + len(tokens[row]) - 1)
            of_row += [row] * len(places)
            at += places
            self._lengths[row] = before[row] + len(tokens[row])
        device = self._states.device
        if read:
            self._cache.reserve(scratch=0, text=max(at) + 1)
            pairs = torch.tensor([read, of_row, at]).to(device, non_blocking=True)
            embeddings, paired = self._embed(pairs[0]).to(device), torch.cat(beside)
            if self._head.text_attends:
                self._attend_to_text(embeddings, paired, of_row, at)
            else:
                kept = self._head.keys_values(embeddings.unsqueeze(0), paired.unsqueeze(0), pairs[2:])
                for part, new in enumerate(kept):
                    self._cache.write(new[0], part, pairs[1], pairs[2] + self._cache.scratch)
        rows = torch.tensor(longer).to(device, non_blocking=True)
        self._states[rows, _BEFORE_ROOT] = torch.cat([states[row][-1:] for row in longer])

    def _attend_to_text(
        self, embeddings: Tensor, states: Tensor, of_row: Sequence[int], at: Sequence[int]
    ) -> None:
        """Keep the pairs of a text in all layers of a head, of which each reads what the one before made.

        Args:
            embeddings: of the pairs of all rows, one row after the other, `[pairs, width]`.
            states: likewise.
            of_row: their rows.
            at: their places in the texts, ascending in every row.
        """
        rows, scratch = np.array(of_row), self._cache.scratch
        first = np.searchsorted(rows, np.arange(len(self)))
        inside = np.arange(len(rows)) - first[rows]
        longest = int(inside.max()) + 1
        pair = np.full((len(self), longest), -1, dtype=np.int64)
        pair[rows, inside] = np.arange(len(rows))
        places = np.where(pair < 0, 0, np.array(at)[pair])
        for begin in range(0, longest, _TEXT_AT_ONCE):
            part = pair[:, begin : begin + _TEXT_AT_ONCE]
            place = places[:, begin : begin + _TEXT_AT_ONCE]
            # What pads a row is written to the first scratch slot, which is the only one that it sees.
            last = np.where(part < 0, 0, scratch + place)
            columns = np.arange(int(last.max()) + 1)
            text = (columns >= scratch) & (columns <= last[..., None])
            seen = np.where(part[..., None] < 0, columns == 0, text)
            chosen = self._sent(np.maximum(part, 0))
            slots = _Slots(
                self._cache,
                self._sent(np.broadcast_to(np.arange(len(self))[:, None], part.shape).copy()),
                self._sent(last),
                self._sent(seen),
            )
            self._head.step(embeddings[chosen], states[chosen], self._sent(place), slots)

    @property
    def waiting(self) -> Tensor:
        """States `[rows, width]` that the roots are paired with; zeros of a row that has none."""
        return self._states[:, _BEFORE_ROOT]

    @property
    def levels(self) -> int:
        """Levels of nodes of which distributions were asked in this round; the root is one."""
        asked = np.arange(self._depths.shape[1]) < self._requested[:, None]
        return int((self._depths + 1)[asked].max(initial=0))

    @torch.no_grad()
    def ask(self, requests: Requests) -> Tensor:
        """Logits `[rows, nodes, vocab_size]` of these nodes; -inf in rows without a token before the root."""
        counts = np.array(requests.counts, dtype=np.int64)
        width, first = requests.tokens.shape[1], self._requested
        self._reserve(int(first.max(initial=0)) + width)
        numbers = first[:, None] + np.arange(width)
        asked = np.arange(width) < counts[:, None]
        parents = np.where(asked, requests.parents.numpy(), -1)
        self._requested = first + counts
        # A request may hold a node and its child, which is drafted from what came of the node.
        ready, out = asked & (parents < first[:, None]), None
        done = np.zeros_like(asked)
        while (now := ready & ~done).any():
            new = self._pass(requests.tokens, parents, numbers, now)
            out = new if out is None else torch.where(self._sent(now).unsqueeze(2), new, out)
            done |= now
            inside = np.clip(parents - first[:, None], 0, width - 1)
            ready |= asked & np.take_along_axis(done, inside, 1)
        if out is None:
            out = self._states.new_zeros(len(self), width, self._head.width)
        logits = self._head.target_logits(out)
        if not self._lengths.all():
            logits.masked_fill_(self._sent(self._lengths == 0)[:, None, None], -torch.inf)
        return logits

    def _pass(self, tokens: Tensor, parents: Numbers, numbers: Numbers, fed: Flags) -> Tensor:
        """Returns the head's outputs for the `fed` nodes `[rows, nodes, width]`; the others' are undefined.

        Args:
            tokens: `[rows, nodes]`.
            parents: their request numbers, likewise; -1 for the root.
            numbers: of the nodes.
            fed: which are to be read; what they were drafted from is known.
        """
        row, scratch = np.arange(len(self))[:, None], self._cache.scratch
        root = parents < 0
        above = np.maximum(parents, 0)
        depths = np.where(root, 0, self._depths[row, above] + 1)
        self._depths[row, numbers] = np.where(fed, depths, self._depths[row, numbers])
        # The root's pair belongs to the text.
        seen = self._above[row, above]
        np.put_along_axis(seen, numbers[..., None], True, 2)
        seen &= ~root[..., None]
        self._above[row, numbers] = np.where(fed[..., None], seen, self._above[row, numbers])
        last = np.maximum(self._lengths - 1, 0)[:, None]
        # Its scratch slot takes what pads the pass.
        slots = np.where(fed & (self._lengths > 0)[:, None], np.where(root, scratch + last, numbers), 0)
        paired = np.where(root, _BEFORE_ROOT, above + _DRAFTED)
        becomes = np.where(fed, numbers + _DRAFTED, _PADS)
        sent = (tokens.cpu().numpy(), row, paired, becomes, last + depths, slots, last + 1)
        numbers_there, seen_there = self._sent_together(
            np.stack([np.broadcast_to(each, parents.shape) for each in sent]), seen
        )
        fed_tokens, rows, paired_with, become, positions, places, ends = numbers_there.unbind()
        if self._text is None:
            places_of_text = torch.arange(int(last.max()) + 1, device=ends.device)
            self._text = places_of_text < ends[:, :1].unsqueeze(2)
        mask = torch.cat([seen_there, self._text.expand(-1, parents.shape[1], -1)], 2)
        embeddings = self._embed(fed_tokens).to(ends.device)
        attention = _Slots(self._cache, rows, places, mask)
        out = self._head.step(embeddings, self._states[rows, paired_with], positions, attention)
        self._states[rows, become] = self._head.recycled(out)
        return out

    def _sent(self, some: Flags | Numbers) -> Tensor:
        return torch.from_numpy(some).to(self._states.device, non_blocking=True)

    def _sent_together(self, numbers: Numbers, flags: Flags) -> tuple[Tensor, Tensor]:
        """Both on the device, by one copy."""
        sent = np.concatenate([numbers.reshape(-1).view(np.uint8), flags.reshape(-1).view(np.uint8)])
        there = torch.from_numpy(sent).to(self._states.device, non_blocking=True)
        ints, bools = there.split([numbers.nbytes, flags.nbytes])
        return ints.view(torch.int64).view(numbers.shape), bools.view(torch.bool).view(flags.shape)

    def _reserve(self, nodes: int) -> None:
        """Have room for so many nodes, and for the root's pair."""
        before = self._cache.scratch
        self._cache.reserve(scratch=nodes, text=int(self._lengths.max(initial=0)))
        more = self._cache.scratch - before
        if more:
            self._depths = widened(self._depths, self._cache.scratch)
            self._above = np.pad(self._above, ((0, 0), (0, more), (0, more)))
            self._states = torch.nn.functional.pad(self._states, (0, 0, 0, more))
