"""Processors along a tree, compared with a separate call, as `generate` makes it, for each node."""

import itertools

import pytest
import torch
import transformers as hf
from hypothesis import given
from hypothesis import strategies as st

from draftwood import InvalidInput
from draftwood.distributions.processing import check_processors, process
from draftwood.trees.prefixes import Prefixes, RowText, paths_of
from tests.generate_fuzz import processors as own

VOCAB = 53
PROCESSORS = {
    "penalty": lambda rows: hf.RepetitionPenaltyLogitsProcessor(1.7),
    "padded penalty": lambda rows: hf.RepetitionPenaltyLogitsProcessor(1.7, torch.arange(rows)),
    "ngram": lambda rows: hf.NoRepeatNGramLogitsProcessor(2),
    "bias": lambda rows: hf.SequenceBiasLogitsProcessor([[[3, 4], 2.0], [[5], -1.0]]),
    "length": lambda rows: hf.MinLengthLogitsProcessor(6, 5),
    "top-k": lambda rows: hf.TopKLogitsWarper(9),
    "own length": lambda rows: own.FavoursByLength(),
    "own row": lambda rows: own.FavoursByRow(),
    "own tensor": own.HoldsATensorARow,
    "prefix function": lambda rows: hf.PrefixConstrainedLogitsProcessor(own.allowed, 1),
    "encoder": lambda rows: hf.EncoderRepetitionPenaltyLogitsProcessor(
        1.5,
        torch.arange(rows * 2).view(rows, 2),  # type: ignore[arg-type]
    ),
}


@given(st.data())
def test_every_node_is_processed_as_its_own_rows_continuation(data):
    rows = data.draw(st.integers(1, 3))
    row = data.draw(st.integers(0, rows - 1))
    names = data.draw(st.lists(st.sampled_from(sorted(PROCESSORS)), min_size=1, max_size=3))
    token = st.integers(0, VOCAB - 1)
    text = data.draw(st.lists(token, min_size=1, max_size=6))
    later = data.draw(st.lists(token, max_size=20))
    tokens = data.draw(st.lists(token, min_size=1, max_size=8))
    parents = [-1] + [data.draw(st.integers(0, node - 1)) for node in range(1, len(tokens))]
    paths = paths_of(tokens, parents)
    scores = torch.randn(len(paths), VOCAB, generator=torch.Generator().manual_seed(len(later)))

    standing = RowText.of(torch.tensor(text), row=row, rows=rows)
    for one in later:
        standing.append([one])
    given_scores = scores.clone()
    actual = process([PROCESSORS[name](rows) for name in names], given_scores, Prefixes(standing, paths))
    assert torch.equal(given_scores, scores)

    for node, path in enumerate(paths):
        # In `generate` all rows have one length; what stands in the others must not matter.
        batch = torch.randint(VOCAB, (rows, len(text) + len(later) + len(path)))
        batch[row] = torch.tensor([*text, *later, *path])
        expected = torch.randn(rows, VOCAB)
        expected[row] = scores[node]
        for name in names:
            expected = PROCESSORS[name](rows)(batch, expected)
        torch.testing.assert_close(actual[node], expected[row])


class Remembers(hf.LogitsProcessor):
    """Keeps a state, of which nothing shows in its scores before the hundredth call."""

    def __init__(self):
        self.past = []

    def __call__(self, input_ids, scores):
        self.past.append(int(input_ids[0, -1]))
        return scores + (len(self.past) > 100)


class Iterates(hf.LogitsProcessor):
    def __init__(self):
        self.calls = itertools.count()

    def __call__(self, input_ids, scores):
        next(self.calls)
        return scores


def closure():
    seen = [0]

    def processor(input_ids, scores):
        seen[0] += 1
        return scores

    return processor


@pytest.mark.parametrize("made", [own.Counts, Remembers, Iterates, closure])
def test_a_processor_with_a_state_is_refused_by_name_and_left_as_it_was(made):
    processor = made()
    name = type(processor).__name__
    with pytest.raises(InvalidInput, match=f"The processor {name} .*as a constraint "):
        check_processors([processor], [RowText.of(torch.tensor([1, 2]))], vocab_size=VOCAB)
    if made is own.Counts:
        assert processor.calls == 0


class KnowsSomeTexts(hf.LogitsProcessor):
    """Fails on a text that no one would write."""

    def __call__(self, input_ids, scores):
        if int(input_ids[0, -1]) == 0:
            raise KeyError("no such text")
        return scores


@pytest.mark.parametrize("made", [own.NoOp, own.FavoursByRow, KnowsSomeTexts, lambda: hf.TopKLogitsWarper(3)])
def test_a_processor_without_a_state_is_taken(made):
    check_processors([made()], [RowText.of(torch.tensor([1, 2]), rows=2)], vocab_size=VOCAB)


@pytest.mark.parametrize("length", [10, 20_000])
def test_a_node_does_not_copy_the_text(length):
    text = RowText.of(torch.arange(length))
    seen = []

    def look(input_ids, scores):
        seen.append(input_ids)
        return scores

    process([look], torch.zeros(3, 4), Prefixes(text, [(), (1,), (1, 2)]))
    assert [one.shape[1] - length for one in seen] == [0, 1, 2]
    assert len({one.untyped_storage().data_ptr() for one in seen[1:]}) == 1
