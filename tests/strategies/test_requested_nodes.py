"""Requests to a drafting model at the end of its context, and for more nodes than there was room for."""

from __future__ import annotations

import pytest
import torch

from draftwood import Requests
from draftwood.strategies.drafters.requested_nodes import CAPACITY, RequestedNodes


def requests(*rows: list[int]) -> Requests:
    """Nodes with these parents, by request number, padded with roots."""
    width = max(map(len, rows))
    parents = torch.tensor([row + [-1] * (width - len(row)) for row in rows])
    return Requests(torch.arange(width).repeat(len(rows), 1), parents, [len(row) for row in rows])


def fed(nodes: RequestedNodes, *rows: list[int], lengths: list[int], room: int | None = 8) -> list[int]:
    return nodes.take(requests(*rows), lengths=lengths, room=room).counts.tolist()


def test_a_row_feeds_nothing_beyond_the_context() -> None:
    nodes = RequestedNodes()
    nodes.join([[], []])
    assert fed(nodes, [-1], [-1], lengths=[5, 4]) == [1, 1]
    assert fed(nodes, [0, 0], [0], lengths=[5, 4]) == [2, 1]
    # A node and its child in one request.
    assert fed(nodes, [2, 3], [1], lengths=[5, 4]) == [0, 1]
    assert fed(nodes, [], [2], lengths=[5, 4]) == [0, 1]
    assert fed(nodes, [0], [3], lengths=[5, 4]) == [0, 0]
    nodes.commit([[], []])
    assert fed(nodes, [-1], [-1], lengths=[7, 7]) == [1, 1]


def test_pending_tokens_count_as_text() -> None:
    nodes = RequestedNodes()
    nodes.join([[7, 7]])
    assert fed(nodes, [-1], lengths=[5]) == [3]
    assert fed(nodes, [0], lengths=[5]) == [0]


def test_as_many_nodes_are_known_as_were_asked_for() -> None:
    nodes = RequestedNodes()
    nodes.join([[]])
    count = CAPACITY + 10
    assert fed(nodes, [-1], lengths=[5], room=None) == [1]
    for number in range(count):
        assert fed(nodes, [number], lengths=[5], room=None) == [1]
    assert nodes.commit([[0] * count]) == [list(range(count))]


@pytest.mark.parametrize("pending", [[[], []], [[], [8, 9]]], ids=["nothing pending", "one row has"])
def test_logits_are_those_of_the_nodes_asked_for(pending: list[list[int]]) -> None:
    nodes = RequestedNodes()
    nodes.join([list(tokens) for tokens in pending])
    asked = requests([-1, 0], [-1])
    call = nodes.take(asked, lengths=[5, 4], room=None)
    width = call.tokens.shape[1]
    logits = torch.arange(2.0 * width * 3).view(2, width, 3)
    expected, first = logits.tolist(), len(pending[1])
    found = call.asked(logits).tolist()
    assert found[0] == expected[0][:2]
    assert found[1][:1] == expected[1][first : first + 1]


def test_a_row_without_room_gets_no_proposal() -> None:
    nodes = RequestedNodes()
    nodes.join([[], []])
    call = nodes.take(requests([-1], [-1]), lengths=[9, 4], room=8)
    assert call.asked(torch.ones(2, 1, 3)).tolist() == [[[-torch.inf] * 3], [[1.0] * 3]]
