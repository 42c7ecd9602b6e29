"""Right samplers in other forms: vectorised, as classes, with keys, padded, ragged; `rest=False` is wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np
import torch

from draftwood.testing import SamplerCase


def _residuals(case: SamplerCase, rest: bool) -> torch.Tensor:
    """The weights of the token after a rejection at every row, and after the last one."""
    left = case.target_probs.clone()
    if rest:
        left[..., :-1, :] = (left[..., :-1, :] - case.draft_probs).clamp(min=0)
    empty = left.sum(-1, keepdim=True) == 0
    return torch.where(empty, case.target_probs, left)


def _ratios(case: SamplerCase) -> torch.Tensor:
    at = case.draft_tokens.unsqueeze(-1)
    n = at.shape[-2]
    return (case.target_probs[..., :n, :].gather(-1, at) / case.draft_probs.gather(-1, at)).squeeze(-1)


def numpy_vectorised(case: SamplerCase, rest: bool) -> Any:
    """Coins of all rows, a cumulative product, and the inverse of all rows' cumulative sums."""
    rng = np.random.default_rng()
    tokens, vocab = case.draft_tokens.numpy(), case.target_probs.shape[-1]
    p, q = case.target_probs.numpy()[:-1], case.draft_probs.numpy()
    pt = np.take_along_axis(p, tokens[:, None], axis=1)[:, 0]
    qt = np.take_along_axis(q, tokens[:, None], axis=1)[:, 0]
    length = int(np.cumprod(rng.random(len(tokens)) * qt < pt).sum())
    heights = np.cumsum(_residuals(case, rest).numpy()[length])
    last = int((heights <= rng.random() * heights[-1]).sum())
    return np.concatenate([tokens[:length], [min(last, vocab - 1)]])


def gumbel_by_exponentials(case: SamplerCase, rest: bool) -> torch.Tensor:
    """Gumbel noise as the negative logarithm of `exponential_`, for every row at once."""
    length = int((torch.rand_like(_ratios(case)) < _ratios(case)).long().cumprod(0).sum())
    weights = _residuals(case, rest)
    noise = -torch.empty_like(weights).exponential_().log()
    return torch.cat([case.draft_tokens[:length], (weights.log() + noise).argmax(-1)[length : length + 1]])


def _alias_table(weights: np.ndarray[Any, Any]) -> tuple[list[float], list[int]]:
    """Vose's table: the part of every column that is its own, and whose the rest is."""
    n = len(weights)
    heights, other = list(weights / weights.sum() * n), list(range(n))
    small = [i for i in range(n) if heights[i] < 1]
    large = [i for i in range(n) if heights[i] >= 1]
    while small and large:
        low, high = small.pop(), large[-1]
        other[low] = high
        heights[high] = heights[high] + heights[low] - 1
        if heights[high] < 1:
            small.append(large.pop())
    return [1.0 if i in (*small, *large) else heights[i] for i in range(n)], other


def alias_tables(case: SamplerCase, rest: bool) -> list[int]:
    """A table of every row, made before anything is drawn."""
    tables = [_alias_table(row.numpy()) for row in _residuals(case, rest)]
    length = 0
    while length < len(case.draft_tokens) and np.random.rand() < float(_ratios(case)[length]):
        length += 1
    heights, other = tables[length]
    column = int(np.random.randint(len(heights)))
    token = column if np.random.rand() < heights[column] else other[column]
    return [*case.draft_tokens[:length].tolist(), token]


@attrs.define
class WithStatistics:
    """A sampler that keeps its acceptance rate; the wrong one makes use of it."""

    rest: bool
    tried: int = 0
    accepted: int = 0

    def __call__(self, case: SamplerCase) -> list[int]:
        rate = self.accepted / self.tried if self.tried else 0.0
        lenient = 1.0 if self.rest else 1.0 + rate
        out = list[int]()
        for place, token in enumerate(case.draft_tokens.tolist()):
            self.tried += 1
            if not random.random() < float(_ratios(case)[place]) * lenient:
                weights = _residuals(case, True)[place].tolist()
                return [*out, random.choices(range(len(weights)), weights)[0]]
            self.accepted += 1
            out.append(token)
        weights = case.target_probs[-1].tolist()
        return [*out, random.choices(range(len(weights)), weights)[0]]


RIGHT_STATISTICS, WRONG_STATISTICS = WithStatistics(rest=True), WithStatistics(rest=False)


def of_a_class(case: SamplerCase, rest: bool) -> list[int]:
    return (RIGHT_STATISTICS if rest else WRONG_STATISTICS)(case)


MASK = 2**64 - 1


def _mixed(key: int) -> int:
    """One step of splitmix64."""
    key = (key + 0x9E3779B97F4A7C15) & MASK
    key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & MASK
    return key ^ (key >> 31)


def split(key: int, count: int = 2) -> list[int]:
    return [_mixed(key ^ _mixed(number + 1)) for number in range(count)]


def uniform(key: int) -> float:
    return (_mixed(key) >> 11) / 2**53


def by_keys(key: int, case: SamplerCase, *, reused: bool) -> list[int]:
    """A pure function of a key and the case, as in JAX; each draw has its own key unless it is reused."""
    out = list[int]()
    weights = case.target_probs[-1]
    for place, token in enumerate(case.draft_tokens.tolist()):
        key, own = split(key)
        if not uniform(own) < float(_ratios(case)[place]):
            weights = _residuals(case, True)[place]
            key = own if reused else key
            break
        out.append(token)
    heights = weights.cumsum(0)
    return [*out, int((heights <= uniform(key) * float(heights[-1])).sum().clamp(max=len(heights) - 1))]


def keys_of_a_call(case: SamplerCase, rest: bool) -> list[int]:
    return by_keys(random.getrandbits(64), case, reused=not rest)


COUNTER = [0]


def keys_of_a_counter(case: SamplerCase, rest: bool) -> list[int]:
    """The key is a counter of calls, so that every call has another one."""
    COUNTER[0] += 1
    return by_keys(_mixed(COUNTER[0]), case, reused=not rest)


def _whole(case: SamplerCase, rest: bool) -> list[int]:
    out = list[int]()
    for token, ratio in zip(case.draft_tokens.tolist(), _ratios(case), strict=True):
        if not torch.rand((), dtype=torch.float64) < ratio:
            break
        out.append(token)
    return [*out, int(torch.multinomial(_residuals(case, rest)[len(out)], 1))]


def padded_list(case: SamplerCase, rest: bool) -> list[int]:
    out = _whole(case, rest)
    return out + [-1] * (len(case.target_probs) - len(out))


def padded_tensor(case: SamplerCase, rest: bool) -> torch.Tensor:
    return torch.tensor(padded_list(case, rest), dtype=torch.int32)


def a_list_of_one_row(case: SamplerCase, rest: bool) -> list[list[int]]:
    return [_whole(case, rest)]


def one_after_the_other(case: SamplerCase, rest: bool) -> Iterator[int]:
    """A generator, which draws while it is read."""
    length = 0
    for token, ratio in zip(case.draft_tokens.tolist(), _ratios(case), strict=True):
        if not torch.rand((), dtype=torch.float64) < ratio:
            break
        length += 1
        yield token
    yield int(torch.multinomial(_residuals(case, rest)[length], 1))


def scalars_of_numpy(case: SamplerCase, rest: bool) -> tuple[Any, ...]:
    return tuple(np.int16(token) for token in _whole(case, rest))


Form = Callable[[SamplerCase, bool], Any]

FORMS: dict[str, Form] = {
    one.__name__: one
    for one in (
        numpy_vectorised,
        gumbel_by_exponentials,
        alias_tables,
        of_a_class,
        padded_list,
        padded_tensor,
        a_list_of_one_row,
        one_after_the_other,
        scalars_of_numpy,
    )
}

KEYS: dict[str, Form] = {one.__name__: one for one in (keys_of_a_call, keys_of_a_counter)}
"""Samplers whose numbers are hashes of a key, so that no outcome can be listed."""


def _rows(case: SamplerCase, rest: bool) -> list[list[int]]:
    """The tokens of every row of a batch, one row after the other."""
    rows = []
    for row in range(len(case.draft_tokens)):
        one = attrs.evolve(
            case,
            draft_tokens=case.draft_tokens[row],
            target_probs=case.target_probs[row],
            draft_probs=case.draft_probs[row],
        )
        rows.append(_whole(one, rest))
    return rows


def _objects(rows: list[list[int]]) -> Any:
    array = np.empty(len(rows), object)
    for place, row in enumerate(rows):
        array[place] = np.array(row)
    return array


BATCHES: dict[str, Form] = {
    "ragged lists": _rows,
    "ragged tensors": lambda case, rest: [torch.tensor(row) for row in _rows(case, rest)],
    "ragged arrays": lambda case, rest: tuple(np.array(row) for row in _rows(case, rest)),
    "ragged arrays of arrays": lambda case, rest: _objects(_rows(case, rest)),
    "padded lists": lambda case, rest: [row + [-1] * (4 - len(row)) for row in _rows(case, rest)],
}
"""Batched samplers by the form of what they return."""
