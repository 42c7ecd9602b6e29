"""The flows of race verification on the device, by their definition and compared with the plain
verifier's."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from draftwood import CounterRandomness, TreeBuilder, WithoutReplacement
from draftwood.kernels.race_flows import offered
from draftwood.kernels.race_flows import reference as race_flows
from draftwood.kernels.tree_plan.arrays import TreeArrays
from draftwood.kernels.tree_race import dispatch, rounds
from draftwood.strategies.verifiers.orders import race_flows as production
from draftwood.strategies.verifiers.orders.race_laws import Arrival, Pair
from tests.kernels.judged_trees import distributions, tape_of
from tests.kernels.race_cases import small
from tests.kernels.tree_cases import case_of, on_device
from tests.strategies.set_flows import chances, received

pytestmark = pytest.mark.triton

MOST = dispatch.MOST


@dataclass(frozen=True, eq=False)
class Node:
    """A node with a draft and a target, fp32 `[vocab]`, its drawn tokens, and its waits `[MOST + 1]`."""

    draft: Tensor
    target: Tensor
    tokens: list[int]
    waits: Any

    @classmethod
    def of(cls, seed: int, *, vocab: int, count: int, draft: str = "smooth", target: str = "near") -> Node:
        chance = torch.Generator().manual_seed(seed)
        p, other = (distributions(kind, 1, vocab, chance)[0] for kind in (draft, "smooth"))
        tokens = CounterRandomness.seeded(seed).without_replacement(p, count)
        own = {"the draft": 1.0, "near": 0.7}.get(target, 0.0)
        return cls(
            p, own * p + (1 - own) * other, tokens, np.random.default_rng(seed).exponential(size=MOST + 1)
        )

    @property
    def factor(self) -> float:
        """By which weights are multiplied, in float64 from its own sums."""
        rest = self.draft.double().clone()
        rest[self.tokens] = 0
        left = float(rest.sum()) + np.append(self.draft.double().numpy()[self.tokens][::-1].cumsum()[::-1], 0)
        return float(1 / left[0] if len(self.tokens) == 2 else (self.waits[: len(left)] / left).sum())

    def law(self) -> Any:
        """Returns the law of the plain verifier."""
        if len(self.tokens) == 2:
            return Pair(self.draft.double(), float(self.draft.double().sum()))
        return Arrival(self.draft.double(), len(self.tokens), self.factor)


def allowed_on_device(nodes: Sequence[Node], device: torch.device) -> list[tuple[race_flows.Flows, Tensor]]:
    """Returns the kernels' results for nodes that are roots, at allowance 1, and for the drawn children."""
    cases, waits = [], np.zeros((len(nodes), 1 + MOST, MOST + 1))
    for row, node in enumerate(nodes):
        tree = TreeBuilder(0)
        tree.add_children(0, node.tokens, WithoutReplacement(node.draft))
        targets = node.target.expand(1 + len(node.tokens), -1).contiguous()
        cases.append(on_device(case_of(tree.finish(), targets, tape_of(20, row)), device))
        waits[row, 0] = node.waits
    trees = TreeArrays.of(cases)
    kernels = {one.kernel.split(":")[1]: one for one in dispatch.CONFIGURATIONS}
    made = rounds.DeviceTrees.of(trees, waits[:, : trees.tokens.shape[1]], kernels=kernels)
    made.offer()
    made.allow()
    found = []
    for slot in range(len(nodes)):
        tokens, places = made.held["tokens"][slot].cpu(), made.held["places"][slot].cpu()
        flows, allowances, last = made.held["flows"][slot].cpu()
        order = places.argsort()
        order = order[tokens[order] >= 0]
        of = race_flows.Flows(tokens[order], flows[order], allowances[order], last[order])
        found.append((of, made.held["numbers"][slot, 1 : 1 + len(nodes[slot].tokens), 0].cpu()))
    return found


def flows_on_device(nodes: Sequence[Node], device: torch.device) -> list[race_flows.Flows]:
    """Returns only the flows."""
    return [flows for flows, _ in allowed_on_device(nodes, device)]


NODES = [(seed, count) for seed in range(2) for count in (2, 3, 4)]


@pytest.mark.parametrize("whole", [16, 8], ids=["all offered", "half of them offered"])
def test_every_token_receives_its_flow_and_no_more_than_its_target(whole: int, device: torch.device) -> None:
    vocab = 12
    nodes = [
        Node.of(seed, vocab=vocab, count=count, draft=("smooth", "sharp")[seed], target="near")
        for seed, count in NODES
    ]
    with small(8, whole=whole):
        found = flows_on_device(nodes, device)
    for node, flows in zip(nodes, found, strict=True):
        got, expected, target = (
            received(chances(node.law()), flows, vocab),
            np.zeros(vocab),
            node.target.double(),
        )
        expected[flows.tokens] = flows.flows
        assert len(flows.tokens) == min(whole, vocab)
        assert np.abs(got - expected).max() <= 1e-12
        assert (expected <= target.numpy() * (1 + 1e-14)).all()
        assert expected.sum() > 0.3


def allowed(node: Node, flows: race_flows.Flows) -> tuple[list[float], bool]:
    """The allowances of the drawn children by `flows`, and whether that of the last one differs there."""
    place = {token: index for index, token in enumerate(flows.tokens.tolist())}
    tried = sorted((token for token in node.tokens if token in place), key=place.__getitem__)
    by_token = {token: float(flows.allowances[place[token]]) for token in tried}
    last = float(flows.last_allowances[place[tried[-1]]]) if tried else 0.0
    differs = bool(tried) and abs(last - by_token[tried[-1]]) > 1e-6
    if len(tried) == len(node.tokens):
        by_token[tried[-1]] = last
    return [by_token.get(token, 0.0) for token in node.tokens], differs


@pytest.mark.parametrize("whole", [16, 8], ids=["all offered", "not all children offered"])
def test_the_last_child_has_an_allowance_of_its_own_where_all_are_offered(
    whole: int, device: torch.device
) -> None:
    with small(8, whole=whole):
        nodes = []
        for seed in range(300):
            node = Node.of(seed, vocab=12, count=3, target="far")
            factor = torch.tensor(node.factor, dtype=torch.float64)
            flows = race_flows.flows_of(node.draft, node.target, factor=factor, count=3, allowance=1.0)
            offered_all = set(node.tokens) <= set(flows.tokens.tolist())
            if allowed(node, flows)[1] and offered_all == (whole == 16):
                nodes.append(node)
            if len(nodes) == 2:
                break
        assert nodes
        found = allowed_on_device(nodes, device)
    for node, (flows, children) in zip(nodes, found, strict=True):
        expected, differs = allowed(node, flows)
        assert differs
        assert children.tolist() == pytest.approx(expected, abs=1e-12)


def test_a_nearly_certain_draft(device: torch.device) -> None:
    nodes = []
    for rest in (1e-3, 1e-7, 1e-11):
        p = torch.tensor(
            [1 - rest, 0.5 * rest, 0.3 * rest, 0.15 * rest, 0.05 * rest], dtype=torch.float64
        ).float()
        target = torch.tensor([0.1, 0.2, 0.3, 0.25, 0.15])
        waits = np.random.default_rng(0).exponential(size=MOST + 1)
        nodes += [Node(p, target, tokens, waits) for tokens in ([0, 2], [0, 1, 3])]
    with small(8):
        found = flows_on_device(nodes, device)
    for node, flows in zip(nodes, found, strict=True):
        expected = np.zeros(5)
        expected[flows.tokens] = flows.flows
        assert np.abs(received(chances(node.law()), flows, 5) - expected).max() <= 1e-12
        assert expected.sum() > 0.3


@pytest.mark.parametrize("allowance", [1.0, 0.4])
def test_the_reference_finds_the_flows_of_the_plain_verifier(allowance: float) -> None:
    for seed in range(30):
        chance = random.Random(seed)
        node = Node.of(
            seed,
            vocab=60,
            count=chance.choice([2, 3, 5, 8]),
            draft=chance.choice(["smooth", "sharp"]),
            target=chance.choice(["near", "far", "the draft"]),
        )
        law = node.law()
        plain = production.flows_of(law, node.target, 1 / allowance)
        found = race_flows.flows_of(
            node.draft,
            node.target,
            factor=torch.tensor(law.factor, dtype=torch.float64),
            count=len(node.tokens),
            allowance=allowance,
        )
        assert found.tokens.tolist() == plain.tokens.tolist()
        # The device asks for a little less than the target, so that it settles within a few steps.
        assert np.abs(found.flows.numpy() - plain.flows).max() <= 2 * race_flows.SPARE


@pytest.mark.parametrize("count", [2, 8])
def test_at_a_real_vocabulary_the_flows_come_near_to_those_of_the_plain_verifier(count: int) -> None:
    for seed in range(2):
        chance = torch.Generator().manual_seed(seed)
        logits = 5 * torch.randn(2, 128_000, generator=chance)
        target, draft = (row.softmax(-1) for row in (logits[0], 0.8 * logits[0] + 0.6 * logits[1]))
        tokens = CounterRandomness.seeded(seed).without_replacement(draft, count)
        law = Node(draft, target, tokens, np.random.default_rng(seed).exponential(size=MOST + 1)).law()
        factor = torch.tensor(law.factor, dtype=torch.float64)
        found = race_flows.flows_of(draft, target, factor=factor, count=count, allowance=1.0)
        assert len(found.tokens) == offered.OFFERED
        assert (found.flows <= target[found.tokens] * (1 + 1e-14)).all()
        assert float(found.flows.sum()) >= production.flows_of(law, target).flows.sum() - 2e-3
