"""Criteria that look at a whole batch, against the loop of `generate`, whatever the rows' pace."""

import pytest
import torch
import transformers as hf
from hypothesis import given
from hypothesis import strategies as st

from draftwood.decoding.stopping import CriteriaBatch, RowStops

PAD, EOS = 99, 7


class AtToken(hf.StoppingCriteria):
    """Ends a row at a token that depends on its place, and must then see padding for rows that have ended."""

    def __init__(self, rows, eos):
        self.ended, self.eos = torch.zeros(rows, dtype=torch.bool), eos

    def __call__(self, input_ids, scores, **kwargs):
        last = input_ids[:, -1]
        assert not self.eos or (last[self.ended] == PAD).all()
        self.ended |= last % 5 == torch.arange(len(input_ids)) % 5
        return self.ended


class Remembers(hf.StoppingCriteria):
    """Ends a row at the second token that divides by 4, and must see every step once and in order."""

    def __init__(self, rows, eos):
        self.seen, self.length = [0] * rows, None

    def __call__(self, input_ids, scores, **kwargs):
        assert self.length in (None, input_ids.shape[1] - 1)
        self.length = input_ids.shape[1]
        for row, token in enumerate(input_ids[:, -1].tolist()):
            self.seen[row] += token % 4 == 0
        return torch.tensor([count >= 2 for count in self.seen])


class Longest(hf.StoppingCriteria):
    def __init__(self, length):
        self.length = length

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids.shape[1] >= self.length


class BatchLooksAlike(hf.StoppingCriteria):
    """Looks across rows, padding included."""

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1].sum().expand(len(input_ids)) % 6 == 0


KINDS = {
    "token": AtToken,
    "remembers": Remembers,
    "longest": lambda rows, eos: Longest(6),
    "alike": lambda rows, eos: BatchLooksAlike(),
}


def as_generate(prompts, texts, criteria, *, eos, limit):
    """The steps of transformers' `_sample`, over texts that are already known."""
    ids = prompts
    running = torch.ones(len(texts), dtype=torch.long)
    for step in range(limit):
        token = torch.tensor([text[step] for text in texts])
        if eos:
            token = token * running + PAD * (1 - running)
        ids = torch.cat([ids, token.unsqueeze(1)], 1)
        done = torch.zeros(len(texts), dtype=torch.bool)
        for criterion in criteria:
            done |= torch.as_tensor(criterion(ids, None))
        if eos:
            done |= token == EOS
        done |= torch.tensor(step + 1 == limit)
        running = running & ~done
        if not running.any():
            break
    return ids


@given(st.data())
def test_criteria_end_rows_as_in_generate(data):
    rows = data.draw(st.integers(1, 4))
    limit = data.draw(st.integers(1, 12))
    token = st.integers(0, 20)
    texts = [data.draw(st.lists(token, min_size=limit, max_size=limit)) for _ in range(rows)]
    prompts = torch.tensor([[3, 1]] * rows)
    names = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=2, unique=True))
    eos = data.draw(st.booleans())
    expected = as_generate(prompts, texts, [KINDS[name](rows, eos) for name in names], eos=eos, limit=limit)

    batch = CriteriaBatch([KINDS[name](rows, eos) for name in names], range(rows), prompts, PAD, eos)
    ends = frozenset([EOS] if eos else [])
    stops = [RowStops(row, ends, limit, criteria=batch) for row in range(rows)]
    written, running = [list[int]() for _ in range(rows)], set(range(rows))
    while running:
        for row in sorted(running):
            count = data.draw(st.integers(1, 4))
            new, reason = stops[row].take(texts[row][len(written[row]) :][:count])
            written[row] += new
            if reason is not None:
                running.discard(row)
        for cut in batch.ask():
            assert cut.length <= len(written[cut.row])
            del written[cut.row][cut.length :]
            running.discard(cut.row)
    width = max(map(len, written))
    padded = torch.tensor([row + [PAD] * (width - len(row)) for row in written])
    assert torch.equal(torch.cat([prompts, padded], 1), expected)


@pytest.mark.parametrize("count", range(1, 6))
def test_end_of_text_is_found_anywhere_in_a_round(count):
    stops = RowStops(0, frozenset([EOS]), 10)
    new = [1] * (count - 1) + [EOS, 2]
    assert stops.take(new) == (tuple(new[:count]), "eos")
    assert stops.room == 10 - count
