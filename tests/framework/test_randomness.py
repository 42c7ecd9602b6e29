"""Randomness: the laws of its draws, and that streams keep to themselves."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood import CounterRandomness, InvalidDistribution, InvalidInput, Streams, TapeRandomness
from draftwood.laws.randomness import NODES_AHEAD, NodeStreams, SpawnedSeeds, row_seeds
from draftwood.testing.proofs.enumerator import Enumerator

weights = st.lists(st.sampled_from([0.0, 1e-30, 0.1, 0.25, 1.0, 3.0]), min_size=1, max_size=8).filter(any)


@given(weights, st.floats(0, 1, exclude_max=True))
def test_choose_inverts_the_distribution_and_never_takes_weight_zero(p, u):
    drawn = TapeRandomness(torch.tensor([u], dtype=torch.float64)).choose(
        torch.tensor(p, dtype=torch.float64)
    )
    assert p[drawn] > 0
    total = sum(p)
    assert sum(p[:drawn]) / total <= u + 1e-12
    assert u <= sum(p[: drawn + 1]) / total + 1e-12


@given(weights, st.integers(0, 9), st.integers(0, 2**32))
def test_draws_without_replacement_are_distinct_and_stop_at_the_support(p, k, seed):
    drawn = CounterRandomness.seeded(seed).without_replacement(torch.tensor(p), k)
    assert len(drawn) == len(set(drawn)) == min(k, sum(x > 0 for x in p))
    assert all(p[token] > 0 for token in drawn)


def test_draws_without_replacement_follow_the_law_of_gumbel_top_k():
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    n = 20_000
    rng = CounterRandomness.seeded(3)
    drawn = torch.tensor([rng.without_replacement(p, 2) for _ in range(n)])
    exponential = torch.empty(n, 4).exponential_(generator=torch.Generator().manual_seed(4))
    noisy = (p.log() - exponential.log()).topk(2).indices
    for pair in ((0, 1), (1, 0), (2, 3), (3, 0)):
        exact = float(p[pair[0]] * p[pair[1]] / (1 - p[pair[0]]))
        sigma = (exact * (1 - exact) / n) ** 0.5
        for sample in (drawn, noisy):
            seen = float((sample == torch.tensor(pair)).all(-1).double().mean())
            assert abs(seen - exact) < 5 * sigma


def test_a_coin_of_zero_does_not_accept_what_has_no_chance():
    zeros = TapeRandomness(torch.zeros(2))
    assert not zeros.accept(0.0)
    assert zeros.accept(1e-300)


def test_the_tail_of_a_large_vocabulary_can_be_drawn():
    # 24-bit uniforms would never reach the last of 2**26 equal steps between them.
    p = torch.full((1000,), 1e-12, dtype=torch.float64)
    p[0] = 1
    u = 1 - 1e-12
    assert TapeRandomness(torch.tensor([u], dtype=torch.float64)).choose(p) == 999


@pytest.mark.parametrize("p", [[0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]])
def test_weights_without_a_sound_total_are_refused(p):
    with pytest.raises(InvalidDistribution):
        CounterRandomness.seeded(0).choose(torch.tensor(p))


def test_a_tape_replays_and_says_when_it_is_used_up():
    tape = TapeRandomness(torch.tensor([0.9, 0.1]))
    assert [tape.accept(0.5), tape.accept(0.5)] == [False, True]
    with pytest.raises(InvalidInput, match="tape of 2"):
        tape.accept(0.5)


def test_draft_and_verification_streams_of_a_seed_differ_and_repeat():
    streams: list[Any] = [Streams.seeded(5), Streams.seeded(5), Streams.seeded(6)]
    first, again, other = streams
    draft, verify = first.draft.uniforms(50), first.verify.uniforms(50)
    assert torch.equal(draft, again.draft.uniforms(50))
    assert torch.equal(verify, again.verify.uniforms(50))
    assert not set(draft.tolist()) & set(verify.tolist())
    assert not set(draft.tolist()) & set(other.draft.uniforms(50).tolist())


def test_a_negative_seed_is_refused():
    with pytest.raises(InvalidInput, match="seed is -1"):
        Streams.seeded(-1)


@given(st.integers(0, 2**32), st.lists(st.integers(0, 40), max_size=4))
def test_numbers_ahead_stay_in_the_stream(seed, steps):
    u = torch.rand(100, dtype=torch.float64)
    for rng in (CounterRandomness.seeded(seed), TapeRandomness(u)):
        ahead, seen = rng.ahead(90), list[float]()
        for n in steps:
            seen += rng.uniforms(min(n, 90 - len(seen))).tolist()
        # One by one the numbers are the same as many at once.
        seen += [float(rng.uniforms(1)) for _ in range(90 - len(seen))]
        assert seen == ahead.tolist()
    assert rng.ahead(90).tolist() == u[90:].tolist()


def test_seeds_taken_one_by_one_are_those_of_a_batch():
    spawned = np.random.SeedSequence(9, spawn_key=(1,)).generate_state(49, np.uint64).tolist()
    seeds = SpawnedSeeds(9)
    assert [seeds.take() for _ in range(50)] == row_seeds(9, 50) == [9, *spawned]
    assert SpawnedSeeds(9).take(4) == 4


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40))
def test_numbers_taken_one_by_one_are_those_of_an_array(seed, used):
    alone, together = CounterRandomness.seeded(seed), CounterRandomness.seeded(seed)
    alone.used = together.used = used
    assert [alone.uniform() for _ in range(5)] == together.uniforms(5).tolist()
    assert alone.used == together.used == used + 5


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, NODES_AHEAD), min_size=3, max_size=3), st.integers(0, 2)),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 2**32),
)
def test_node_streams_of_many_rows_are_those_that_each_row_starts(takes, seed):
    rows = [CounterRandomness.seeded(seed + row) for row in range(3)]
    alone = [CounterRandomness.seeded(seed + row) for row in range(3)]
    streams = NodeStreams(rows)
    for counts, own_draws in takes:
        noise = streams.take(counts)
        for row, count in enumerate(counts):
            for node, stream in enumerate(alone[row].nodes(count)):
                numbers = stream.uniforms(6).tolist()
                assert noise.uniforms(6)[row, node].tolist() == numbers
                assert noise.made[row, node].tolist() == numbers[: noise.made.shape[2]]
        # A policy may draw from a row's stream by itself.
        assert [rows[1].uniform() for _ in range(own_draws)] == [alone[1].uniform() for _ in range(own_draws)]
    assert [row.used for row in rows] == [row.used for row in alone]


def test_node_streams_of_a_tape_take_no_more_than_they_need():
    numbers = torch.rand(5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    tape, same = TapeRandomness(numbers), TapeRandomness(numbers)
    streams = NodeStreams([tape])
    for count in (2, 0, 1, 2):
        noise = streams.take([count])
        wanted = [stream.uniforms(2).tolist() for stream in same.nodes(count)]
        assert noise.uniforms(2)[0, :count].tolist() == wanted
    with pytest.raises(InvalidInput, match="used up at 5"):
        streams.take([1])
    assert NodeStreams.of([tape, Enumerator([])]) is None
