"""Drafters: every distribution is that of the node's own text, round after round."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood import IncompatibleModels, InvalidInput, Outcome, Request
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from draftwood.strategies.drafters.several import Several
from draftwood.testing import ToyBackend, ToyModel

MODEL = ToyModel(4, seed=3)


def outcome(tokens, extra=0):
    return Outcome(range(len(tokens)), tokens, extra=extra, bonus=True, drafted=5)


@st.composite
def rounds(draw):
    """Per row and round: some requests over a random tree, and an accepted path through or beyond it."""
    script = []
    for _ in range(draw(st.integers(1, 4))):
        tokens, parents, requests = [draw(st.integers(0, 3))], [-1], list[Any]()
        for _ in range(draw(st.integers(0, 3))):
            start = 0 if not requests else len(tokens)
            for _ in range(draw(st.integers(1 if requests else 0, 3))):
                parents.append(draw(st.integers(0, start - 1 if start else 0)))
                tokens.append(draw(st.integers(0, 3)))
            # Siblings of one token are one text; a policy may still ask for both.
            requests.append((start, len(tokens)))
        asked = requests[-1][1] if requests else 0
        node: int | None = 0
        path = [tokens[0]]
        for _ in range(draw(st.integers(0, 4))):
            below = [v for v in range(asked) if parents[v] == node]
            if node is not None and below and draw(st.booleans()):
                node = draw(st.sampled_from(below))
                path.append(tokens[node])
            else:
                node = None
                path.append(draw(st.integers(0, 3)))
                break  # a token that was proposed but never asked about: a leaf
        script.append((tokens, parents, requests, path))
    return script


@given(st.lists(rounds(), min_size=1, max_size=3), st.data())
def test_a_model_drafter_answers_for_the_nodes_own_text(scripts, data):
    drafter = ModelDrafter(ToyBackend(MODEL))
    texts = [data.draw(st.lists(st.integers(0, 3), max_size=3)) for _ in scripts]
    drafter.prefill([torch.tensor(text, dtype=torch.int64) for text in texts])
    for step in range(max(map(len, scripts))):
        now = [script[step] if step < len(script) else ([0], [-1], [], [0]) for script in scripts]
        for call in range(max(len(requests) for _, _, requests, _ in now)):
            asks = list[Any]()
            for tokens, parents, requests, _ in now:
                if call < len(requests):
                    a, b = requests[call]
                    asks.append(Request(torch.tensor(tokens[a:b]), torch.tensor(parents[a:b])))
                else:
                    asks.append(None)
            logits = drafter.distributions(asks)
            for row, ask in enumerate(asks):
                if ask is None:
                    continue
                tokens, parents, requests, _ = now[row]
                for index, node in enumerate(range(*requests[call])):
                    path = []
                    while node >= 0:
                        path.append(tokens[node])
                        node = parents[node]
                    assert torch.equal(logits[row, index], MODEL.logits(texts[row] + path[::-1]))
        drafter.commit([outcome(path) for _, _, _, path in now])
        for text, (_, _, _, path) in zip(texts, now, strict=True):
            text += path


class Counted(ToyBackend):
    fed = 0

    def extend(self, tokens, parents, counts=None):
        self.fed += sum(counts)
        return super().extend(tokens, parents, counts)


def test_a_model_drafter_computes_no_token_twice():
    backend = Counted(MODEL)
    drafter = ModelDrafter(backend)
    drafter.prefill([torch.tensor([1])])
    drafter.distributions([Request(torch.tensor([2]), torch.tensor([-1]))])
    drafter.distributions([Request(torch.tensor([3, 0]), torch.tensor([0, 0]))])
    drafter.commit([outcome([2, 3, 1])])  # root, a node it knows, a leaf it was not asked about
    drafter.distributions([Request(torch.tensor([0]), torch.tensor([-1]))])
    assert backend.fed == 3 + 2
    assert backend.lengths == [3]


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=40),
    st.integers(1, 4),
    st.lists(st.integers(0, 2), max_size=3),
)
def test_prompt_lookup_counts_what_followed_the_longest_match(text, longest, tail):
    drafter = PromptLookup(3, longest=longest)
    drafter.prefill([torch.tensor(text[:-1], dtype=torch.int64)])
    path = [text[-1], *tail]
    request = Request(torch.tensor(path), torch.arange(-1, len(path) - 1))
    got = drafter.distributions([request])[0].exp()
    known = text[:-1]
    for index in range(len(path)):
        context = known + path[: index + 1]
        expected = [0, 0, 0]
        for n in range(min(longest, len(context)), 0, -1):
            for start in range(len(known) - n):
                if known[start : start + n] == context[-n:]:
                    expected[known[start + n]] += 1
            if any(expected):
                break
        assert got[index].round().tolist() == expected


def test_prompt_lookup_learns_the_committed_text():
    drafter = PromptLookup(5)
    drafter.prefill([torch.tensor([1, 2])])
    drafter.distributions([Request(torch.tensor([3]), torch.tensor([-1]))])
    drafter.commit([outcome([3, 1], extra=2)])
    got = drafter.distributions([Request(torch.tensor([2]), torch.tensor([-1]))])[0, 0].exp()
    assert got.tolist() == [0, 0, 0, 1, 0]


def test_several_drafters_need_one_vocabulary():
    with pytest.raises(IncompatibleModels, match=r"\[4, 5\] tokens"):
        Several([PromptLookup(4), PromptLookup(5)])
    with pytest.raises(InvalidInput, match="1 drafter"):
        Several([PromptLookup(4)])


@pytest.mark.parametrize(
    ("options", "message"),
    [({"longest": 0}, "longest is 0"), ({"shortest": 4}, "shortest is 4; it must not exceed longest, 3")],
)
def test_prompt_lookup_refuses_empty_windows(options, message):
    with pytest.raises(InvalidInput, match=message):
        PromptLookup(5, **options)
