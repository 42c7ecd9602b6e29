"""EAGLE-3 heads as drafters: trees, commits, rows, and the target's law."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood import (
    IncompatibleModels,
    InvalidInput,
    Request,
    SamplingParams,
    SpeculativeDecoder,
    UnsupportedModel,
)
from draftwood.backends.loading.loader import load
from draftwood.strategies.drafters.eagle3 import Eagle3
from draftwood.strategies.heads.config import Latent
from draftwood.strategies.heads.unrolled import unrolled
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.testing import ToyBackend, ToyModel, assert_lossless, check_strategy
from tests.strategies.beside_target import assert_pair_caches_alike, many_rounds
from tests.strategies.feature_heads import (
    beside_llama,
    beside_toy,
    config,
    path_logits,
    random_head,
    target,
)
from tests.thorough import marks_unless

SWITCHES = [
    {},
    {"norm_before_residual": True, "norm_output": True, "query_key_norm": True},
    {"norm_before_fc": True, "own_embedding": True, "draft_vocab_size": 23},
    {"fc_norm": True, "taps": (0, 3), "key_value_heads": 4},
    {"layers": 3, "norm_before_residual": True},
    {"latent": Latent(query_rank=10, rank=8, plain_dim=4, rope_dim=6, value_dim=5), "layers": 2},
    {"latent": Latent(rank=8, plain_dim=0, rope_dim=4, value_dim=6, interleaved=False), "norm_output": True},
]


def named(switches: dict[str, Any]) -> str:
    return "-".join(switches) or "plain"


@pytest.mark.parametrize("switches", SWITCHES, ids=named)
def test_a_tree_is_its_paths_from_scratch(switches: dict[str, Any]) -> None:
    drafter: Any = beside_llama(config(**switches))
    head = drafter.drafter.head
    texts = [[3, 1, 4, 1, 5, 9, 2], [6, 5], [7]]
    drafter.prefill([torch.tensor(text) for text in texts])
    parents, tokens = [-1, 0, 0, 1, 2, 3], [[8, 2, 3, 4, 5, 6], [9, 1, 1, 2, 2, 3], [7, 7, 8, 8, 9, 9]]
    for first, last in ((0, 1), (1, 3), (3, 6)):  # the last call holds a node and its child
        logits = drafter.distributions(
            [Request(torch.tensor(row[first:last]), torch.tensor(parents[first:last])) for row in tokens]
        )
        for row, text in enumerate(texts):
            for column, node in enumerate(range(first, last)):
                path: list[int] = []
                while node >= 0:
                    path.insert(0, tokens[row][node])
                    node = parents[node]
                expected = path_logits(head, target(), text, path)
                torch.testing.assert_close(logits[row, column], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "switches",
    [pytest.param(one, marks=marks_unless(not place)) for place, one in enumerate(SWITCHES)],
    ids=named,
)
def test_it_keeps_what_every_drafter_must(switches: dict[str, Any]) -> None:
    check_strategy(beside_llama(config(**switches)))


@pytest.mark.parametrize("switches", SWITCHES, ids=named)
def test_the_known_text_unrolled_is_what_drafting_gives(switches: dict[str, Any]) -> None:
    head = random_head(config(**switches))
    text = [3, 1, 4, 1, 5, 9, 2, 6]
    taps = head.config.taps or ()
    hidden = target()(torch.tensor([text]), output_hidden_states=True).hidden_states
    states = head.project(torch.cat([hidden[tap] for tap in taps], -1))
    table = target().get_input_embeddings() if head.embed_tokens is None else head.embed_tokens
    embeddings = table(torch.tensor([text[1:]]))
    with torch.no_grad():
        for depth, out in enumerate(unrolled(head, embeddings, states[:, :-1], depths=4)):
            logits = head.target_logits(out)[0]
            for place in range(depth, len(text) - 1):
                begun = place - depth + 1
                expected = path_logits(head, target(), text[:begun], text[begun : place + 2])
                torch.testing.assert_close(logits[place], expected, atol=1e-5, rtol=1e-5)


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_after_many_rounds_the_cache_is_that_of_a_fresh_prefill(data: Any) -> None:
    """Also where rows join and leave, ask for nothing, and take tokens that nobody asked about."""
    made = config(layers=data.draw(st.integers(1, 2)))
    drafter: Any = beside_llama(made)
    fresh: Any = beside_llama(made)
    texts = many_rounds(data, drafter)
    fresh.prefill([torch.tensor(text, dtype=torch.int64) for text in texts])
    assert_pair_caches_alike(drafter.drafter._rows, fresh.drafter._rows, texts)


def test_a_tree_of_more_nodes_than_there_was_room_for() -> None:
    """Scratch slots move when they grow in the middle of a round, and so do the text's slots after them."""
    drafter: Any = beside_llama()
    text = [3, 1, 4, 1, 5]
    drafter.prefill([torch.tensor(text)])
    drafter.distributions([Request(torch.tensor([8]), torch.tensor([-1]))])
    path = [8]
    for depth in range(3):
        wide = 50
        tokens = torch.arange(wide) % 23
        below = 0 if depth == 0 else 1 + 50 * (depth - 1) + path[-1]
        logits = drafter.distributions([Request(tokens, torch.full((wide,), below))])
        path.append(4 + depth)
        expected = path_logits(drafter.drafter.head, target(), text, path)
        torch.testing.assert_close(logits[0, path[-1]], expected, atol=1e-5, rtol=1e-5)
    assert drafter.drafter._rows._cache.scratch > 64


def test_a_root_behind_a_text_that_fills_its_slots() -> None:
    drafter: Any = beside_llama()
    text = [1 + place % 22 for place in range(257)]
    drafter.prefill([torch.tensor(text)])
    assert drafter.drafter._rows._cache.text == 256
    logits = drafter.distributions([Request(torch.tensor([8]), torch.tensor([-1]))])
    expected = path_logits(drafter.drafter.head, target(), text, [8])
    torch.testing.assert_close(logits[0, 0], expected, atol=1e-5, rtol=1e-5)


LAW = ToyModel(3, seed=5)
PAIRS = [
    (Chain(2), RecursiveRejection()),
    (FixedTree(2, 2, 4), Traversal()),
    (DySpec(3), RecursiveRejection()),
    (FixedTree(3, 1, law="with-replacement"), RecursiveRejection()),
]


@pytest.mark.parametrize(
    ("policy", "verifier", "prompt", "proposed"),
    [
        pytest.param(policy, verifier, prompt, proposed, marks=marks_unless(place == 1 and proposed == 2))
        for place, (policy, verifier) in enumerate(PAIRS)
        for prompt in ((0,), (0, 1))
        for proposed in (2, 3)
    ],
)
def test_the_targets_law_comes_out_whatever_the_weights(
    policy: Any, verifier: Any, prompt: Any, proposed: int
) -> None:
    """Also where the head only proposes two of the three tokens."""
    head = random_head(config(vocab_size=3, draft_vocab_size=proposed), seed=proposed, scale=1.0)
    law = assert_lossless(policy, verifier, target=LAW, drafter=beside_toy(LAW, head), prompt=prompt)
    # The prompt's last token is the root, and before it must stand one that has features.
    assert (law.expected_tokens > 1) == (len(prompt) > 1)


def test_greedy_text_is_that_of_generate() -> None:
    backend = load(target())
    prompts = [[3, 1, 4, 1, 5], [2, 7]]
    plain = [
        target()
        .generate(torch.tensor([ids]), max_new_tokens=30, do_sample=False, eos_token_id=22)[0, len(ids) :]
        .tolist()
        for ids in prompts
    ]
    head = random_head()
    for policy in (FixedTree(3, 2, 12, law="top-k"), LayeredDySpec(12, law="top-k")):
        decoder = SpeculativeDecoder(backend, Eagle3(backend, head), policy, Greedy())
        for rows in ([0], [0, 1]):
            out: Any = decoder.generate(
                [prompts[row] for row in rows],
                max_new_tokens=30,
                eos_token_id=22,
                seed=1,
                return_dict_in_generate=True,
            )
            assert out.tokens == [plain[row] for row in rows]
            assert out.statistics.tokens_per_round > 1


def test_a_sampled_row_does_not_depend_on_the_rows_beside_it() -> None:
    backend = load(target())
    decoder = SpeculativeDecoder(backend, Eagle3(backend, random_head()), DySpec(8), RecursiveRejection())
    options: dict[str, Any] = {
        "max_new_tokens": 24,
        "sampling": SamplingParams(temperature=0.8),
        "eos_token_id": (),
        "return_dict_in_generate": True,
    }
    prompts = [[3, 1, 4, 1, 5], [2, 7], [9] * 30]
    generate: Any = decoder.generate
    together = generate(prompts, seed=[4, 5, 6], max_rows=2, **options).tokens
    assert together == [
        generate([prompt], seed=[4 + row], **options).tokens[0] for row, prompt in enumerate(prompts)
    ]


def test_weights_follow_the_target_and_positions_stay_in_float32() -> None:
    half = target().to(torch.bfloat16)
    try:
        backend = load(half)
        head = random_head()
        drafter = Eagle3(backend, head)
    finally:
        target().double()
    assert {weight.dtype for weight in head.parameters()} == {torch.bfloat16}
    assert drafter.head.inverse.dtype == torch.float32
    table = random_head(config(own_embedding=True))
    both = sum(weight.numel() for weight in table.parameters())
    wide = Eagle3(load(target()), table)
    assert wide.weight_bytes == 8 * (both - 23 * 16)  # of a table of words, a few rows are read


def test_targets_and_heads_that_do_not_fit() -> None:
    with pytest.raises(UnsupportedModel, match=r"ToyBackend declares no features .*feature_layers is 0"):
        Eagle3(ToyBackend(LAW), random_head())
    with pytest.raises(InvalidInput, match=r"target is 'llama-7m', a model; .*draftwood.load"):
        Eagle3("llama-7m", random_head())
    for changes, sentence in (
        (
            {"target_hidden_size": 17, "own_embedding": True},
            "made for features of width 17, but the target's is 16",
        ),
        ({"vocab_size": 24}, "made for a vocabulary of 24, but the target's is 23"),
    ):
        with pytest.raises(IncompatibleModels, match=sentence):
            Eagle3(load(target()), random_head(config(**changes)))
    for taps in ((1, 2, 5), (-1, 2, 3)):
        with pytest.raises(InvalidInput, match=r"taps the layers .*this target has 4, 0 to 4"):
            Eagle3(load(target()), random_head(config(taps=taps)))
    with pytest.raises(InvalidInput, match="taps names 2 layers, but the head reads 3"):
        Eagle3(load(target()), random_head(), taps="1,2")
    assert Eagle3(load(target()), random_head(), taps="3,1,2").taps == (1, 2, 3)


def test_the_usual_taps_are_those_of_the_literature() -> None:
    usual = attrs.evolve(config(), taps=None)
    assert usual.taps_in(32) == (2, 16, 29)
    assert usual.taps_in(8) == (2, 4, 5)
    with pytest.raises(InvalidInput, match=r"taps the layers -1, 1, 2"):
        usual.taps_in(2)


def test_a_head_whose_features_somebody_else_takes() -> None:
    backend = load(target())
    drafter = Eagle3(backend, random_head())
    backend.prefill([torch.tensor([1, 2, 3])])
    backend.take_features()
    with pytest.raises(
        InvalidInput, match=r"Row 0 has committed 3 .*features of 0; .*no other drafter takes"
    ):
        drafter.prefill([torch.tensor([1, 2, 3])])
    other = Eagle3(load(target()), random_head())
    with pytest.raises(InvalidInput, match=r"target holds 0 row\(s\), not the 1 that join"):
        other.prefill([torch.tensor([1, 2, 3])])


def test_a_text_is_read_in_pieces_where_layers_attend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several rows at once, with others between them that are not longer."""
    monkeypatch.setattr("draftwood.strategies.heads.pair_rows._TEXT_AT_ONCE", 3)
    drafter: Any = beside_llama(config(layers=2))
    texts = [[3, 1, 4, 1, 5, 9, 2, 6], [7], [5, 3, 5, 8, 9]]
    drafter.prefill([torch.tensor(text) for text in texts])
    root = Request(torch.tensor([8]), torch.tensor([-1]))
    logits = drafter.distributions([root] * 3)
    for row, text in enumerate(texts):
        expected = path_logits(drafter.drafter.head, target(), text, [8])
        torch.testing.assert_close(logits[row, 0], expected, atol=1e-5, rtol=1e-5)
