"""A head over a known text, depth by depth: what it says at every place when it has drafted so far.

Training sees its own recycled states so (training-time test), and a check of a head is the same without the
gradient.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from draftwood.strategies.heads.pairs import PairHead, among, grouped_attention


def unrolled(
    head: PairHead,
    embeddings: Tensor,
    states: Tensor,
    *,
    depths: int,
    shift: int = 0,
    mask: tuple[Tensor, Tensor] | None = None,
) -> Iterator[Tensor]:
    """Yields outputs of `head.step` at each place of a text, for every number of drafted tokens before it.

    At depth d, place i belongs to a draft that began d places before: the pairs up to i - d are the
    text's, and the last d ones hold the head's own recycled states with the text's tokens. So its logits are
    a node's d levels below a root, where the draft is the text itself. Places below d mean nothing.

    Args:
        head: the head.
        embeddings: of the tokens 1 to n of a text, `[rows, n, width]`.
        states: what `head.project` makes of the target's features of the tokens 0 to n - 1, likewise.
        depths: how many; the first is 0.
        shift: added to the positions of drafted pairs, for checks.
        mask: of a P-EAGLE head the embedding of the mask token and the state that is paired with it, each
            `[width]`, which are read in place of drafted tokens and recycled states.

    Yields:
        `[rows, n, width]` a depth, for `head.logits`.

    Source: EAGLE-3 (arXiv 2503.01840), section 3.2, figure 6.
    """
    count = states.shape[1]
    places = torch.arange(count, device=states.device)
    attention = _Unrolled()
    for depth in range(depths):
        attention.depth = depth
        out = head.step(embeddings, states, (places + (shift if depth else 0)).unsqueeze(0), attention)
        yield out
        if mask is None:
            states = pad(head.recycled(out)[:, :-1], (0, 0, 1, 0))
        else:
            embeddings, states = (one.to(states).expand_as(states) for one in mask)


class _Unrolled:
    """Attention of a depth: the text's keys up to where the draft began, and the draft's own.

    A place sees one key of each earlier depth, one step nearer each time, so drafted keys are elementwise
    products rather than a matrix.
    """

    def __init__(self) -> None:
        self.depth = 0
        self._layer = 0
        # By layer, of each depth.
        self._keys: dict[int, list[Tensor]] = {}
        self._values: dict[int, list[Tensor]] = {}
        self._index: list[Tensor] = []

    def hold(self, keys: Tensor, values: Tensor, layer: int = 0) -> tuple[Tensor, Tensor]:
        self._layer, self._held = layer, keys
        return keys, values

    @property
    def seen(self) -> Tensor:
        """The keys of all depths, one depth after the other."""
        places = torch.arange(self._held.shape[2], device=self._held.device)
        text = places <= (places - self.depth).clamp(min=0)[:, None]
        own = [places == (places - self.depth + step)[:, None] for step in range(1, self.depth + 1)]
        return torch.cat([text, *own], 1).unsqueeze(0)

    def hold_index(self, keys: Tensor) -> Tensor:
        del self._index[self.depth :]
        self._index.append(keys)
        return torch.cat(self._index, 1)

    def attend_to(
        self, chosen: Tensor, queries: Tensor, keys: Tensor, values: Tensor, scale: float
    ) -> Tensor:
        all_keys, all_values = self._with(queries, keys, values)
        own = among(self.seen, chosen).expand(len(queries), -1, -1)
        return grouped_attention(queries, torch.cat(all_keys, 2), torch.cat(all_values, 2), own, scale=scale)

    def _with(self, queries: Tensor, keys: Tensor, values: Tensor) -> list[list[Tensor]]:
        """Returns keys and values of every depth, this one included, a head for each of `queries`."""
        group = queries.shape[1] // keys.shape[1]
        known = [some.setdefault(self._layer, []) for some in (self._keys, self._values)]
        for some, new in zip(known, (keys, values), strict=True):
            del some[self.depth :]
            some.append(new.repeat_interleave(group, 1))
        return known

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        all_keys, all_values = self._with(queries, keys, values)
        count = queries.shape[2]
        queries = queries * scale
        scores = queries @ all_keys[0].mT
        places = torch.arange(count, device=queries.device)
        hidden = places > (places - self.depth).clamp(min=0)[:, None]
        parts = [scores.masked_fill(hidden, -torch.inf)]
        drafted = range(1, self.depth + 1)
        for step in drafted:
            own = _moved(all_keys[step], self.depth - step)
            parts.append((queries * own).sum(-1, keepdim=True))
        weights = torch.cat(parts, -1).softmax(-1)
        out = weights[..., :count] @ all_values[0]
        for step in drafted:
            column = count + step - 1
            out = out + weights[..., column : column + 1] * _moved(all_values[step], self.depth - step)
        return out.transpose(1, 2)


def _moved(states: Tensor, places: int) -> Tensor:
    """`[rows, heads, n, dim]` moved towards the end of the text."""
    return pad(states, (0, 0, places, 0))[:, :, : states.shape[2]] if places else states
