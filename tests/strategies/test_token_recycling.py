"""Drafters that read the target's logits of scored nodes, and `TokenRecycling`, which drafts from them."""

from __future__ import annotations

import attrs
import pytest
import torch

from draftwood import Drafter, InvalidInput, Request, SamplingParams, SpeculativeDecoder
from draftwood.drafters import Named, PromptLookup, SharedTokens, TokenMap, TokenRecycling
from draftwood.policies import Chain, LayeredDySpec
from draftwood.protocols.scored_nodes import ScoredNodes
from draftwood.protocols.vocabulary import fit_vocabulary
from draftwood.testing import ToyBackend, ToyModel, assert_lossless
from draftwood.testing.checks.strategy_checks import checks_for
from draftwood.verifiers import RecursiveRejection

TARGET = ToyModel(12, seed=1, order=1, sharpness=2.0)


@attrs.define(eq=False)
class Reads(PromptLookup):
    """Prompt lookup that keeps what it is told of scored nodes."""

    seen: list[ScoredNodes] = attrs.field(factory=list)
    reads_scores = True

    def scored(self, nodes: ScoredNodes) -> None:
        self.seen.append(attrs.evolve(nodes, logits=nodes.logits.clone()))


def decoded(drafter: Drafter, prompts: list[list[int]], tokens: int, temperature: float = 0.0) -> list:
    decoder = SpeculativeDecoder(
        ToyBackend(TARGET), drafter, LayeredDySpec(6, law="top-k"), RecursiveRejection()
    )
    return list(
        decoder.stream(
            prompts,
            max_new_tokens=tokens,
            sampling=SamplingParams(temperature=temperature),
            seed=2,
            eos_token_id=[],
        )
    )


def test_every_scored_node_is_told_with_the_logits_after_its_path() -> None:
    """Rejected nodes too, and of all rows, of which one has ended."""
    drafter = Reads(12, longest=1)
    prompts = [[1, 2, 3, 1], [4, 5, 4, 5, 4]]
    texts = [list(prompt) for prompt in prompts]
    rounds = [one for one in decoded(drafter, prompts, 16, temperature=1.0) if not one.prefill]
    assert len(drafter.seen) == len(rounds)
    rejected = 0
    for one, nodes in zip(rounds, drafter.seen, strict=True):
        for record, (tokens, parents, logits) in zip(one.rows, nodes, strict=True):
            text = texts[record.row]
            paths: list[list[int]] = []
            for token, parent, found in zip(tokens, parents, logits, strict=True):
                paths.append([*paths[parent], token] if parent >= 0 else text)
                assert torch.allclose(found.double(), TARGET.logits(paths[-1]).double())
            assert len(tokens) == 1 + record.outcome.drafted
            rejected += record.outcome.drafted - record.outcome.accepted
            text += record.tokens
    assert rejected > 0


def test_drafters_that_do_not_ask_are_told_nothing(monkeypatch) -> None:
    monkeypatch.setattr(PromptLookup, "scored", None)
    assert decoded(PromptLookup(12), [[1, 2, 1]], 8)


@pytest.mark.parametrize("wrap", ["named", "narrower", "wider"])
def test_wrapped_drafters_are_told(wrap: str) -> None:
    size = {"named": 12, "narrower": 11, "wider": 13}[wrap]
    inner = Reads(size)
    drafter: Drafter = Named({"words": inner}) if wrap == "named" else fit_vocabulary_of(inner)
    decoded(drafter, [[1, 2, 1]], 8)
    assert inner.seen
    assert inner.seen[0].logits.shape[-1] == size


def fit_vocabulary_of(drafter: Drafter) -> Drafter:
    """The drafter as a decoder of 12 tokens fits it, however little padding a toy vocabulary has."""
    from draftwood.protocols.vocabulary import FittedDrafter

    return fit_vocabulary(FittedDrafter(drafter, 12), 12)


def test_token_recycling_proposes_what_the_target_found_likeliest() -> None:
    drafter = TokenRecycling(12, kept=3)
    drafter.prefill([torch.tensor([1])])
    nodes = torch.tensor([[4, 7, 0], [2, 0, 0]])
    logits = torch.randn(2, 3, 12, generator=torch.Generator().manual_seed(0))
    drafter.scored(ScoredNodes(nodes, torch.tensor([[-1, 0, 0], [-1, -1, -1]]), [2, 1], logits))
    asked = [
        Request(torch.tensor([7, 2]), torch.tensor([-1, 0])),
        Request(torch.tensor([0]), torch.tensor([-1])),
    ]
    found = drafter.distributions(asked)
    for column, of_node in ((0, logits[0, 1]), (1, logits[1, 0])):
        assert found[0, column].topk(3).indices.tolist() == of_node.topk(3).indices.tolist()
        chances = found[0, column].softmax(-1).sort(descending=True).values
        assert torch.allclose(chances[:4], torch.tensor([4, 2, 1, 0]) / 7)
    assert bool((found[1] == -torch.inf).all())  # padding taught nothing


def test_token_recycling_writes_the_targets_text_and_learns() -> None:
    drafter = TokenRecycling(12)
    prompts = [[1], [2, 5, 1]]
    rounds = decoded(drafter, prompts, 60)
    texts = [list(prompt) for prompt in prompts]
    for one in rounds:
        for record in one.rows:
            texts[record.row] += record.tokens
    for prompt, text in zip(prompts, texts, strict=True):
        expected = list(prompt)
        while len(expected) < len(text):
            expected.append(int(TARGET.logits(expected).argmax()))
        assert text == expected
    drafted = [record.outcome.accepted for one in rounds for record in one.rows]
    assert sum(drafted[-6:]) > sum(drafted[:6])


def test_token_recycling_keeps_the_targets_law_whatever_it_remembers() -> None:
    target = ToyModel(4, seed=3, sharpness=2.0)
    drafter = TokenRecycling(4, kept=2)
    logits = torch.randn(1, 4, 4, generator=torch.Generator().manual_seed(1))
    tokens = torch.tensor([[0, 1, 2, 3]])
    drafter.scored(ScoredNodes(tokens, torch.tensor([[-1, 0, 1, 2]]), [4], logits))
    for policy in (Chain(2), LayeredDySpec(3), LayeredDySpec(3, law="top-k")):
        assert_lossless(
            policy,
            RecursiveRejection(),
            target=target,
            drafter=drafter,
            prompt=(0, 1),
            tokens=3,
            rounds=1,
            tolerance=1e-7,  # its probabilities are of float32
        )


def test_token_recycling_passes_the_checks_of_drafters() -> None:
    for _, check in checks_for(TokenRecycling(6)):
        check()


def test_a_draft_of_another_tokenizer_reads_no_logits() -> None:
    words = [str(number) for number in range(12)]
    with pytest.raises(InvalidInput, match="which a draft of another tokenizer cannot"):
        SharedTokens(TokenRecycling(12), TokenMap.of(words, words))
