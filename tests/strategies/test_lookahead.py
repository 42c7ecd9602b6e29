"""`Lookahead`: the pool of n-grams, what it proposes, and the law of texts that it drafts."""

import torch

from draftwood import Request, SamplingParams, SpeculativeDecoder
from draftwood.drafters import Lookahead
from draftwood.policies import Chain, LayeredDySpec
from draftwood.protocols.scored_nodes import ScoredNodes
from draftwood.testing import ToyBackend, ToyModel, assert_lossless
from draftwood.testing.checks.strategy_checks import checks_for
from draftwood.verifiers import RecursiveRejection

TARGET = ToyModel(12, seed=1, order=2, sharpness=2.0)


def one_hot(*tokens: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor([tokens]), 12).float()


def asked(drafter: Lookahead, tokens: list[int], parents: list[int]) -> list[list[int]]:
    """Proposed tokens after every node, the likeliest first."""
    logits = drafter.distributions([Request(torch.tensor(tokens), torch.tensor(parents))])[0]
    counts = (logits > -torch.inf).sum(-1).tolist()
    return [row.topk(count).indices.tolist() for row, count in zip(logits, counts, strict=True)]


def test_rejected_nodes_fill_the_pool_and_the_longest_context_decides() -> None:
    drafter = Lookahead(12, context=2, kept=2)
    drafter.prefill([torch.tensor([9, 1])])
    # Root 2 with children 3 and 4, of which one at most is accepted; the target thinks 3, then 5, then 6.
    nodes = ScoredNodes(torch.tensor([[2, 3, 4]]), torch.tensor([[-1, 0, 0]]), [3], one_hot(3, 5, 6))
    drafter.scored(nodes)
    # After (1, 2) comes 3, after (2, 3) 5, after (2, 4) 6; the token 4 by itself knows 6 too.
    assert asked(drafter, [2, 3, 4], [-1, 0, 0]) == [[3], [5], [6]]
    # (7, 4) was never seen, 4 was; 8 was not.
    assert asked(drafter, [7, 4, 8], [-1, 3, 3]) == [[], [6], []]
    newer = ScoredNodes(torch.tensor([[4]]), torch.tensor([[-1]]), [1], one_hot(8))
    drafter.scored(newer)
    drafter.scored(ScoredNodes(torch.tensor([[4]]), torch.tensor([[-1]]), [1], one_hot(10)))
    assert asked(drafter, [7, 4], [-1, 6]) == [[], [10, 8]]  # the newest first, two at most


def test_it_writes_the_targets_text_and_learns_from_it() -> None:
    drafter = Lookahead(12)
    decoder = SpeculativeDecoder(
        ToyBackend(TARGET), drafter, LayeredDySpec(6, law="top-k"), RecursiveRejection()
    )
    texts = [[1], [2, 5, 1]]
    rounds = list(
        decoder.stream(
            texts, max_new_tokens=60, sampling=SamplingParams(temperature=0.0), seed=2, eos_token_id=[]
        )
    )
    for prompt in range(2):
        text = [*texts[prompt], *(t for one in rounds for r in one.rows if r.row == prompt for t in r.tokens)]
        expected = list(texts[prompt])
        while len(expected) < len(text):
            expected.append(int(TARGET.logits(expected).argmax()))
        assert text == expected
    accepted = [record.outcome.accepted for one in rounds for record in one.rows]
    assert sum(accepted[-6:]) > sum(accepted[:6])


def test_it_keeps_the_targets_law_whatever_the_pool_holds() -> None:
    drafter = Lookahead(4, kept=2)
    drafter.prefill([torch.tensor([0])])
    logits = torch.randn(1, 4, 4, generator=torch.Generator().manual_seed(1))
    drafter.scored(ScoredNodes(torch.tensor([[0, 1, 2, 3]]), torch.tensor([[-1, 0, 1, 2]]), [4], logits))
    drafter.release()
    for policy in (Chain(2), LayeredDySpec(3), LayeredDySpec(3, law="top-k")):
        assert_lossless(
            policy,
            RecursiveRejection(),
            target=ToyModel(4, seed=3, sharpness=2.0),
            drafter=drafter,
            prompt=(0, 1),
            tokens=3,
            rounds=1,
            tolerance=1e-7,  # its probabilities are of float32
        )


def test_it_passes_the_checks_of_drafters() -> None:
    for _, check in checks_for(Lookahead(6)):
        check()
