"""Every mistake of a backend or drafter is caught by a named check, and said to be what it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from draftwood.testing import checks_for
from tests.mutations import backends, drafters
from tests.mutations.mistake import Mistake
from tests.thorough import every

MISTAKES = [*backends.MISTAKES, *drafters.MISTAKES]

# The first check that fails, and what the report says among other things.
CAUGHT = {
    "the logits are at another temperature": ("one-tree", "the logits are 1.429 times the right ones"),
    "the logits are rounded to bfloat16": ("one-tree", "rounded to bfloat16"),
    "positions end at 64": ("large-trees", "a plain chain of 65 in all is wrong too"),
    "a fifth row has the answers of the fourth": ("many-rows", "row 4 continues the text of row 3"),
    "all earlier nodes are visible": ("one-tree", "the tree mask is not applied: node 1 sees node 0"),
    "siblings are visible": ("one-tree", "node 1 sees node 0, its sibling"),
    "positions count nodes": ("one-tree", "positions count nodes, not depths"),
    "a commit keeps first children": ("one-tree", "another path was committed"),
    "a commit keeps the last but one node twice": ("one-tree", "token 7 of the 8 committed ones is not seen"),
    "a commit keeps the first nodes": ("one-tree", "another path was committed"),
    "a commit keeps one node too few": ("one-tree", "kept more or fewer nodes than its path names"),
    "an empty path keeps the root": ("one-tree", "kept more or fewer nodes than its path names"),
    "another row is released": ("rows-come-and-go", "another row than the named one was released"),
    "rows behind a released one do not move up": ("rows-come-and-go", "sees the text of a row that was"),
    "a bad path is found half way": ("bad-calls-leave-the-state", "a call that raises has changed the state"),
    "tokens that are none go through": ("bad-calls-leave-the-state", "beyond the vocabulary goes through"),
    "parents count from the call's first node": ("one-tree", "parents are counted from this call"),
    "an empty row starts with padding": ("empty-rows", "a plain chain of 1 in all is wrong too"),
    "joining rows get the first rows' logits": ("rows-come-and-go", "first_logits() of row"),
    "equal rows share a state": ("many-rows", "rows are mixed up or share a state"),
    "a sliding window is one token short": ("rounds-of-trees", "of the 21 committed ones is not seen"),
    "only the last 128 tokens are seen": ("long-texts", "of the 251 committed ones is not seen"),
    "the first tree of a shape is replayed": ("children-far-behind-their-parents", "node 1"),
    "padding takes places": ("rounds-of-trees", "another path was committed"),
    "positions count the padding at the left": ("rounds-of-trees", "look at padding, positions"),
    "a new row finds what a released one left": ("rows-come-and-go", "the text of a row that was released"),
    "a mask holds 64 nodes": ("large-trees", "does not see node 65 on its path"),
    "ancestors are followed for 32 steps": ("large-trees", "node 32 does not see node 0 on its path"),
    "a node has its parent's logits": ("one-tree", "has the logits of node 3, its parent"),
    "lengths count uncommitted nodes": ("one-tree", "nodes are counted before they are committed"),
    "extend writes to the parents it is given": ("one-tree", "writes to the tokens or parents"),
    "new rows stand in front": ("empty-rows", "rows are appended after the others"),
    "a node steps from the state before it": ("one-tree", "the tree mask is not applied"),
    "a commit leaves the state of the last node": ("one-tree", "[1, 5] instead of [0, 3, 4]"),
    "committed states are kept in bfloat16": ("one-tree", "remains of earlier calls"),
    "later calls step from the committed state": ("rounds-of-trees", "its ancestors are forgotten"),
    "features are those of the first nodes": (
        "features",
        "they belong to node 0, and node 1 was accepted",
    ),
    "features are those of the parents": ("features", "they belong to node 0, and node 1 was accepted"),
    "the prompt has no features": ("features", "the prompt's features are left out"),
    "the last features are given twice": ("features", "take_features() must forget what it has given"),
    "layers are put in their order": ("features", "the layers are in the order [0, 1]"),
    "all features are given, not the last": ("features", "`last` is ignored"),
    "the output head leaves out the soft-cap": ("output-head", "a scale or soft-cap of the logits"),
    "the draft's logits are at another temperature": ("tree", "1.667 times the right ones"),
    "the next root is committed twice": ("commit", "it is the next root"),
    "the root is not committed": ("commit", "the commit forgot the last node of the path [0]"),
    "nothing but the root is committed": ("commit", "forgot the last node of the path [0, 1]"),
    "accepted paths are cut at four tokens": ("many-rounds", "another path was committed: [0, 1, 2, 3]"),
    "rejected nodes stay in the state": ("commit", "kept all 4 nodes instead of the path [0]"),
    "only the last 64 tokens are kept": ("many-rounds", "only the last 64 tokens of the text are kept"),
    "parents count from the request": ("tree", "parents are counted from this call"),
    "nodes see what stands before them": ("tree", "the tree mask is not applied"),
    "all rows are answered as the first": ("rows", "row 1 continues the text of row 0"),
    "a fifth row is answered as the fourth": ("rows", "row 4 continues the text of row 3"),
    "rows that ask for nothing are left out": ("rows", "row 2 has the answer of row 4"),
    "the last rows are released": ("rows", "row 1 continues the text of a row that was released"),
    "the logits have noise": ("deterministic", "it draws at random"),
    "parents of a request are shifted in place": ("tree", "writes to the tokens or parents of a request"),
    "commits are one round late": ("commit", "the commit forgot the last node of the path [0]"),
    "a leaf that was never asked about is lost": ("commit", "forgot the last node of the path [0, 2, 3, 4]"),
    "the draft model scores the tree as a chain": ("tree", "the tree mask is not applied"),
    "rows learn into one table": ("rows", "off by"),
    "what was learnt outlives its row": ("tree", "something is remembered beyond release()"),
}
CAUGHT_BY_PART = {
    ("one buffer is returned by all calls", "backend"): ("one-tree", "a buffer is returned"),
    ("one buffer is returned by all calls", "drafter"): ("tree", "a buffer is returned"),
}
RIGHTS: dict[Callable[[], object], Mistake] = {}
for _mistake in MISTAKES:
    RIGHTS.setdefault(_mistake.right, _mistake)


@pytest.mark.parametrize("mistake", every(2, MISTAKES), ids=lambda one: f"{one.part}: {one.name}")
def test_a_mistake_is_caught_and_named(mistake: Mistake) -> None:
    check, message = CAUGHT_BY_PART.get((mistake.name, mistake.part)) or CAUGHT[mistake.name]
    caught = mistake.caught()
    assert caught is not None, "it slips past all checks"
    assert caught.check == check
    assert message in caught.message


@pytest.mark.parametrize("mistake", RIGHTS.values(), ids=lambda one: f"{one.part}: without {one.name}")
def test_nothing_is_caught_without_the_mistake(mistake: Mistake) -> None:
    assert mistake.clean() is None


def test_a_wrong_number_says_by_how_much() -> None:
    (temperature,) = (one for one in MISTAKES if one.name == "the logits are at another temperature")
    caught = temperature.caught()
    assert caught is not None
    assert caught.error is not None
    assert caught.error > 1


def test_a_wrong_answer_comes_with_tree_text_and_what_it_should_be() -> None:
    (wrong,) = (one for one in MISTAKES if one.name == "siblings are visible")
    assert wrong.wrong is not None
    checks = dict(checks_for(wrong.wrong()))
    with pytest.raises(AssertionError) as raised:
        checks["one-tree"]()
    for part in ("node 1 of row 0 (after [", "committed tokens and the nodes", "came [", "should be ["):
        assert part in str(raised.value), part
