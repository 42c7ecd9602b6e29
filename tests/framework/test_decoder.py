"""The loop and the decoder: greedy equality, exact ends, streams, statistics. Driven by toy models."""

import sys
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from draftwood import (
    InvalidInput,
    SamplingParams,
    SpeculativeDecoder,
)
from draftwood.laws.randomness import row_seeds
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from draftwood.strategies.drafters.several import Several
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.testing import ToyBackend, ToyModel
from tests.framework.decoding import PROMPTS, TARGET, decoder, drafter, sequentially
from tests.framework.learners import Grows

POLICIES = [
    Chain(3),
    Chain(3, law="top-k"),
    FixedTree(3, 2, 20),
    FixedTree(3, 2, 7, 0.1, "top-k"),
    FixedTree(2, 3, 9, law="with-replacement"),
    DySpec(8),
    DySpec(8, "top-k"),
]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("verifier", [Greedy(), RecursiveRejection()], ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("make_drafter", [drafter, lambda: PromptLookup(5)], ids=["model", "lookup"])
def test_greedy_text_is_that_of_sequential_decoding_in_any_batch(policy, verifier, make_drafter):
    one = decoder(policy, verifier, make_drafter())
    batch = one.generate(PROMPTS, max_new_tokens=20, return_dict_in_generate=True)
    for prompt, new in zip(PROMPTS, batch.tokens, strict=True):
        assert new == sequentially(prompt, 20)
        assert one.generate([prompt], max_new_tokens=20)[0, len(prompt) :].tolist() == new


def test_several_drafters_with_one_child_each():
    both = Several([drafter(), drafter(ToyModel(5, seed=1, order=3))])
    one = decoder(FixedTree(2, 2, law="per-drafter"), draft=both)
    assert one.generate(PROMPTS[:1], max_new_tokens=20)[0, 3:].tolist() == sequentially(PROMPTS[0], 20)


@pytest.mark.parametrize("policy", [Chain(3), FixedTree(2, 2), DySpec(5)], ids=str)
def test_law_d_the_same_seed_and_prompt_give_the_same_text_in_any_batch(policy):
    sampling = SamplingParams(1.0)
    one = decoder(policy)
    batch = one.generate(
        PROMPTS, max_new_tokens=15, sampling=sampling, seed=[7, 8, 9], return_dict_in_generate=True
    )
    for prompt, seed, new in zip(PROMPTS, [7, 8, 9], batch.tokens, strict=True):
        alone = one.generate([prompt], max_new_tokens=15, sampling=sampling, seed=seed)
        assert alone[0, len(prompt) :].tolist() == new
    other = one.generate(PROMPTS, max_new_tokens=15, sampling=sampling, seed=1, return_dict_in_generate=True)
    assert other.tokens != batch.tokens
    assert other.seeds[0] == 1
    for prompt, seed, new in zip(PROMPTS, other.seeds, other.tokens, strict=True):
        alone = one.generate([prompt], max_new_tokens=15, sampling=sampling, seed=seed)
        assert alone[0, len(prompt) :].tolist() == new


@given(st.integers(0, 2**40), st.integers(1, 40), st.integers(1, 40))
def test_calls_with_consecutive_seeds_share_no_row(seed, rows, others):
    assert not set(row_seeds(seed, rows)) & set(row_seeds(seed + 1, others))
    assert row_seeds(seed, rows) == row_seeds(seed, 40)[:rows]


@pytest.mark.parametrize("count", range(1, 9))
def test_the_token_limit_is_exact(count):
    out = decoder().generate(PROMPTS, max_new_tokens=count, return_dict_in_generate=True)
    assert [len(new) for new in out.tokens] == [count] * 3
    assert out.finish_reasons == ["length"] * 3


def test_the_context_ends_a_row_before_its_limit():
    out = decoder(target=ToyBackend(TARGET, max_length=10)).generate(
        PROMPTS, max_new_tokens=50, return_dict_in_generate=True
    )
    assert [len(p) + len(new) for p, new in zip(PROMPTS, out.tokens, strict=True)] == [11] * 3
    assert out.finish_reasons == ["context"] * 3


def test_a_drafter_with_a_shorter_context_stops_proposing_and_changes_nothing():
    out = decoder(draft=drafter(max_length=8)).generate(
        PROMPTS, max_new_tokens=20, return_dict_in_generate=True
    )
    assert out.tokens == [sequentially(p, 20) for p in PROMPTS]
    late = [record for r in out.statistics.rounds[-3:] for record in r.rows]
    assert all(record.outcome.drafted == 0 for record in late)


def test_a_drafter_whose_context_the_prompt_exceeds_proposes_nothing():
    out = decoder(draft=drafter(max_length=4)).generate(
        PROMPTS, max_new_tokens=6, return_dict_in_generate=True
    )
    assert out.tokens == [sequentially(p, 6) for p in PROMPTS]


@pytest.mark.parametrize("eos", range(5))
def test_end_of_text_anywhere_in_an_accepted_path_ends_the_row(eos):
    out = decoder(DySpec(12)).generate(
        PROMPTS, max_new_tokens=30, eos_token_id=eos, return_dict_in_generate=True
    )
    for prompt, new, reason in zip(PROMPTS, out.tokens, out.finish_reasons, strict=True):
        tokens = sequentially(prompt, 30)
        if eos in tokens:
            tokens, expected = tokens[: tokens.index(eos) + 1], "eos"
        else:
            expected = "length"
        assert (new, reason) == (tokens, expected)


def test_any_stopping_criterion_is_asked_after_every_token():
    class EndsWithTwoAlike(transformers.StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return (input_ids[:, -1] == input_ids[:, -2]) & (input_ids.shape[1] > 4)

    out = decoder(DySpec(12)).generate(
        PROMPTS, max_new_tokens=40, stopping_criteria=[EndsWithTwoAlike()], return_dict_in_generate=True
    )
    for prompt, new in zip(PROMPTS, out.tokens, strict=True):
        text = prompt + sequentially(prompt, 40)
        end = next(
            (n for n in range(max(5, len(prompt) + 1), len(text) + 1) if text[n - 1] == text[n - 2]),
            len(text),
        )
        assert prompt + new == text[:end]


def test_finished_rows_leave_while_others_run_on():
    tokens = [sequentially(p, 30) for p in PROMPTS]
    eos = tokens[0][2]  # ends the first row early
    out = decoder(Chain(2)).generate(
        PROMPTS, max_new_tokens=30, eos_token_id=eos, return_dict_in_generate=True
    )
    rows = [len(r.rows) for r in out.statistics.rounds]
    assert rows == sorted(rows, reverse=True)
    assert rows[0] == 3
    assert [w[: len(new)] for w, new in zip(tokens, out.tokens, strict=True)] == out.tokens


def test_the_stream_commits_what_generate_returns():
    one = decoder()
    seen = [list[Any]() for _ in PROMPTS]
    for finished in one.stream(PROMPTS, max_new_tokens=12):
        for record in finished.rows:
            seen[record.row] += record.tokens
    assert seen == one.generate(PROMPTS, max_new_tokens=12, return_dict_in_generate=True).tokens


def test_rows_come_back_as_given():
    ids = torch.tensor([[9, 9, 1], [0, 1, 2]]) % 5
    mask = torch.tensor([[0, 0, 1], [1, 1, 1]])
    one = decoder()
    out = one.generate(ids, mask, max_new_tokens=4, pad_token_id=0)
    assert out.shape == (2, 7)
    assert out[0].tolist() == [4, 4, 1, *sequentially([1], 4)]
    assert out[1].tolist() == [0, 1, 2, *sequentially([0, 1, 2], 4)]


def test_a_streamer_gets_the_prompt_and_then_every_commit():
    class Collect:
        def __init__(self):
            self.parts, self.ended = [], False

        def put(self, value):
            self.parts.append(value.flatten().tolist())

        def end(self):
            self.ended = True

    streamer = Collect()
    decoder().generate(PROMPTS[:1], max_new_tokens=10, streamer=streamer)
    assert streamer.ended
    assert streamer.parts[0] == PROMPTS[0]
    assert [token for part in streamer.parts[1:] for token in part] == sequentially(PROMPTS[0], 10)
    with pytest.raises(InvalidInput, match="one row"):
        decoder().generate(PROMPTS, streamer=streamer)


def test_a_processor_that_reads_the_prefix_acts_as_in_sequential_decoding():
    penalty = transformers.RepetitionPenaltyLogitsProcessor(3.0)
    out = decoder(DySpec(10)).generate(
        PROMPTS,
        max_new_tokens=20,
        sampling=SamplingParams(processors=[penalty]),
        return_dict_in_generate=True,
    )
    for prompt, new in zip(PROMPTS, out.tokens, strict=True):
        text = list(prompt)
        for token in new:
            scores = penalty(torch.tensor([text]), TARGET.logits(text).unsqueeze(0))
            assert token == int(scores.argmax())
            text.append(token)


def test_what_a_policy_learns_stays_with_its_row():
    one = decoder(Grows())
    batch = one.generate(PROMPTS, max_new_tokens=20, return_dict_in_generate=True)
    for row, prompt in enumerate(PROMPTS):
        alone = one.generate([prompt], max_new_tokens=20, return_dict_in_generate=True)
        drafted = [r.outcome.drafted for round_ in alone.statistics.rounds for r in round_.rows]
        assert max(drafted) > 1
        assert drafted == [
            r.outcome.drafted for round_ in batch.statistics.rounds for r in round_.rows if r.row == row
        ]
        assert batch.policy_states[row] == alone.policy_states[0]


def test_statistics_count_what_happened():
    out = decoder(FixedTree(2, 2)).generate(
        PROMPTS, max_new_tokens=9, trace=True, return_dict_in_generate=True
    )
    stats = out.statistics
    records = [r for round_ in stats.rounds for r in round_.rows]
    assert stats.new_tokens == 27 == sum(len(r.tokens) for r in records)
    assert stats.target_calls == len(stats.rounds)
    assert stats.tokens_per_round == 27 / len(records)
    accepted = sum(len(r.outcome.path) - 1 for r in records)
    assert stats.acceptance_rate == accepted / sum(len(r.tree.tokens) - 1 for r in records)
    assert stats.figure("path_length") == accepted / len(records)
    assert stats.figure("tree_depth") == sum(r.depth for r in records) / len(records)
    assert stats.figure("depth_share") == pytest.approx(accepted / sum(r.depth for r in records))
    assert 0 < stats.first_token_seconds <= stats.seconds
    assert 0 <= stats.figure("overhead") <= 1
    assert stats.peak_memory > 1e6 or sys.platform == "win32"
    assert set(stats.summary()) >= {"memory_bound_speed_up", "tokens_per_second", "time_per_output_token"}


def test_the_trace_holds_each_tree_with_both_probabilities():
    out = decoder(FixedTree(2, 2, law="top-k")).generate(
        PROMPTS[:1], max_new_tokens=6, trace=True, return_dict_in_generate=True
    )
    text = list(PROMPTS[0])
    for round_ in out.statistics.rounds:
        (record,) = round_.rows
        tree = record.tree
        assert tree.tokens[0] == text[-1]
        for node in range(1, len(tree.tokens)):
            above, above_node = [], tree.parents[node]
            while above_node > 0:
                above.append(tree.tokens[above_node])
                above_node = tree.parents[above_node]
            context = text + above[::-1]
            assert tree.target_probs[node] == float(int(TARGET.logits(context).argmax()) == tree.tokens[node])
        text += record.tokens


def test_memory_bound_speed_up_is_rsds():
    out = decoder(Chain(4)).generate(PROMPTS[:1], max_new_tokens=30, return_dict_in_generate=True)
    stats = out.statistics
    stats.draft_cost = 0.1
    calls = stats.draft_calls / len(stats.rounds)
    assert stats.figure("memory_bound_speed_up") == pytest.approx(stats.tokens_per_round / (1 + 0.1 * calls))


def test_the_target_gets_every_call_before_the_drafter():
    calls = []

    class Target(ToyBackend):
        def prefill(self, rows):
            calls.append(("target", "prefill", len(rows)))
            super().prefill(rows)

        def commit(self, paths):
            calls.append(("target", "commit", len(paths)))
            super().commit(paths)

        def release(self, rows=None):
            calls.append(("target", "release", rows))
            super().release(rows)

    class Lookup(PromptLookup):
        def prefill(self, rows):
            calls.append(("drafter", "prefill", len(rows)))
            super().prefill(rows)

        def commit(self, outcomes):
            calls.append(("drafter", "commit", len(outcomes)))
            super().commit(outcomes)

        def release(self, rows=None):
            calls.append(("drafter", "release", rows))
            super().release(rows)

    one = SpeculativeDecoder(Target(TARGET), Lookup(5), Chain(3), Greedy())
    one.generate(PROMPTS, max_new_tokens=20, eos_token_id=2)
    assert {name for _, name, _ in calls} == {"prefill", "commit", "release"}
    assert [what for what, _, _ in calls] == ["target", "drafter"] * (len(calls) // 2)
    assert all(first[1:] == second[1:] for first, second in zip(calls[::2], calls[1::2], strict=True))


def test_greedy_calls_leave_torchs_generator_alone():
    one, state = decoder(), torch.get_rng_state()
    one.generate([[3, 1, 2]], max_new_tokens=8)
    assert torch.equal(torch.get_rng_state(), state)
    one.generate([[3, 1, 2]], max_new_tokens=8, sampling=SamplingParams(1.0))
    assert not torch.equal(torch.get_rng_state(), state)


def test_stop_iteration_of_a_criterion_comes_out_as_it_is():
    def enough(ids, scores):
        raise StopIteration("enough")

    with pytest.raises(StopIteration, match="enough"):
        decoder().generate([[3, 1, 2]], max_new_tokens=8, stopping_criteria=[enough])
