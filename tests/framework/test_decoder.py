"""The loop and the decoder: greedy equality, exact ends, streams, recovery. Driven by toy models."""

import attrs
import pytest
import torch
import transformers

from draftwood import (
    Deterministic,
    IncompatibleModels,
    IncompatibleStrategy,
    InvalidDistribution,
    InvalidInput,
    InvalidTree,
    SamplingParams,
    SpeculativeDecoder,
    TokenTree,
    TreePolicy,
    registry,
)
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from draftwood.strategies.drafters.several import Several
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.testing import ToyBackend, ToyModel

TARGET = ToyModel(5, seed=1)
# Contexts of two tokens repeat, so that the draft is often right without being the target.
DRAFT = ToyModel(5, seed=1, order=2, sharpness=1.0)
PROMPTS = [[1, 2, 3], [0], [4, 4, 1, 2, 0, 3]]


def drafter(model=DRAFT, max_length=None):
    return ModelDrafter(ToyBackend(model, max_length=max_length))


def decoder(policy=None, verifier=None, draft=None, target=None):
    return SpeculativeDecoder(
        target or ToyBackend(TARGET),
        draft or drafter(),
        policy or DySpec(6),
        verifier or RecursiveRejection(),
    )


def sequentially(prompt, count):
    """The oracle: greedy decoding one token at a time."""
    text = list(prompt)
    for _ in range(count):
        text.append(int(TARGET.logits(text).argmax()))
    return text[len(prompt) :]


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
    again = one.generate(
        PROMPTS[1:], max_new_tokens=15, sampling=sampling, seed=2, return_dict_in_generate=True
    )
    assert again.tokens == other.tokens[1:]  # row i of a call draws from seed + i


@pytest.mark.parametrize("count", range(1, 9))
def test_the_token_limit_is_exact(count):
    out = decoder().generate(PROMPTS, max_new_tokens=count, return_dict_in_generate=True)
    assert [len(new) for new in out.tokens] == [count] * 3
    assert out.finish_reasons == ["length"] * 3


def test_the_context_ends_a_row_before_its_limit():
    out = decoder(target=ToyBackend(TARGET, max_length=10)).generate(
        PROMPTS, max_new_tokens=50, return_dict_in_generate=True
    )
    assert [len(p) + len(new) for p, new in zip(PROMPTS, out.tokens, strict=True)] == [10] * 3
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
        wanted = sequentially(prompt, 30)
        if eos in wanted:
            wanted, expected = wanted[: wanted.index(eos) + 1], "eos"
        else:
            expected = "length"
        assert (new, reason) == (wanted, expected)


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
    wanted = [sequentially(p, 30) for p in PROMPTS]
    eos = wanted[0][2]  # ends the first row early
    out = decoder(Chain(2)).generate(
        PROMPTS, max_new_tokens=30, eos_token_id=eos, return_dict_in_generate=True
    )
    rows = [len(r.rows) for r in out.statistics.rounds]
    assert rows == sorted(rows, reverse=True)
    assert rows[0] == 3
    assert [w[: len(new)] for w, new in zip(wanted, out.tokens, strict=True)] == out.tokens


def test_the_stream_commits_what_generate_returns():
    one = decoder()
    seen = [[] for _ in PROMPTS]
    for finished in one.stream(PROMPTS, max_new_tokens=12):
        for record in finished.rows:
            seen[record.row] += record.tokens
    assert seen == one.generate(PROMPTS, max_new_tokens=12, return_dict_in_generate=True).tokens


def test_an_abandoned_stream_releases_its_rows():
    one = decoder()
    next(one.stream(PROMPTS, max_new_tokens=12))
    assert one.generate(PROMPTS[:1], max_new_tokens=5)[0, 3:].tolist() == sequentially(PROMPTS[0], 5)


def test_two_streams_on_one_backend_are_refused():
    one = decoder()
    running = one.stream(PROMPTS, max_new_tokens=12)
    next(running)
    with pytest.raises(InvalidInput, match="already decoding 3 row"):
        one.generate(PROMPTS, max_new_tokens=5)
    assert len(list(running)) > 0


def test_padding_is_as_transformers_users_expect():
    ids = torch.tensor([[9, 9, 1], [0, 1, 2]]) % 5
    mask = torch.tensor([[0, 0, 1], [1, 1, 1]])
    one = decoder()
    out = one.generate(ids, mask, max_new_tokens=4, pad_token_id=0)
    assert out.shape == (2, 7)
    assert out[0, :2].tolist() == [0, 0]
    assert out[0, 2:].tolist() == [1, *sequentially([1], 4)]
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


@attrs.define(eq=False)
class Failing(ModelDrafter):
    """Raises in the third call, then behaves."""

    error: BaseException = attrs.field(default=RuntimeError("no luck"), kw_only=True)
    calls: int = 0

    def distributions(self, requests):
        self.calls += 1
        if self.calls == 3:
            raise self.error
        return super().distributions(requests)


def test_after_an_error_the_decoder_is_usable_again():
    one = decoder(draft=Failing(ToyBackend(DRAFT)))
    with pytest.raises(RuntimeError, match="no luck"):
        one.generate(PROMPTS, max_new_tokens=20)
    out = one.generate(PROMPTS, max_new_tokens=20, return_dict_in_generate=True)
    assert out.tokens == [sequentially(p, 20) for p in PROMPTS]


def test_ctrl_c_keeps_what_was_generated():
    one = decoder(Chain(2), draft=Failing(ToyBackend(DRAFT), error=KeyboardInterrupt()))
    out = one.generate(PROMPTS, max_new_tokens=20, return_dict_in_generate=True)
    assert out.finish_reasons == ["interrupted"] * 3
    for prompt, new in zip(PROMPTS, out.tokens, strict=True):
        assert 0 < len(new) < 20
        assert new == sequentially(prompt, 20)[: len(new)]


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
    @attrs.define
    class Grows(TreePolicy):
        """Drafts one token more after every round that accepted all it drafted."""

        length: int = 1
        laws = frozenset({Deterministic})
        learns = True

        def grow(self, root, rng):
            return Chain(self.length, "top-k").grow(root, rng)

        def observe(self, outcome):
            self.length = self.length + 1 if outcome.accepted == outcome.drafted else 1

    policy = Grows()
    one = decoder(policy)
    batch = one.generate(PROMPTS, max_new_tokens=20, return_dict_in_generate=True)
    for row, prompt in enumerate(PROMPTS):
        alone = one.generate([prompt], max_new_tokens=20, return_dict_in_generate=True)
        drafted = [r.outcome.drafted for round_ in alone.statistics.rounds for r in round_.rows]
        assert max(drafted) > 1
        assert drafted == [
            r.outcome.drafted for round_ in batch.statistics.rounds for r in round_.rows if r.row == row
        ]
    assert policy.length == 1


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
    assert stats.accepted_length == accepted / len(records)
    assert stats.tree_depth == sum(r.depth for r in records) / len(records)
    assert stats.depth_share == pytest.approx(accepted / sum(r.depth for r in records))
    assert 0 < stats.first_token_seconds <= stats.seconds
    assert 0 <= stats.overhead <= 1
    assert stats.peak_memory > 1e6
    assert set(stats.summary()) >= {"memory_bound_speedup", "tokens_per_second", "seconds_per_token"}


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
            above, place = [], tree.parents[node]
            while place > 0:
                above.append(tree.tokens[place])
                place = tree.parents[place]
            context = text + above[::-1]
            assert tree.target_probs[node] == float(int(TARGET.logits(context).argmax()) == tree.tokens[node])
        text += record.tokens


def test_memory_bound_speedup_is_rsds():
    out = decoder(Chain(4)).generate(PROMPTS[:1], max_new_tokens=30, return_dict_in_generate=True)
    stats = out.statistics
    stats.draft_cost = 0.1
    calls = stats.draft_calls / len(stats.rounds)
    assert stats.memory_bound_speedup == pytest.approx(stats.tokens_per_round / (1 + 0.1 * calls))


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "No prompt"),
        ([[1], []], "prompt of row 1 is empty"),
        ([[1, 2, 5]], "token 5, outside the vocabulary of 5"),
        ([[1, -1]], "token -1"),
        ([[1] * 10], "has 10 tokens and the target's context holds 10"),
    ],
)
def test_unusable_prompts_are_refused(prompts, message):
    with pytest.raises(InvalidInput, match=message):
        decoder(target=ToyBackend(TARGET, max_length=10)).generate(prompts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"seed": [1, 2]}, "2 seeds were given for 1 rows"),
        ({"seed": -3}, "seed is -3"),
        ({"stop_strings": "x"}, "needs the tokenizer"),
    ],
)
def test_unusable_options_are_refused(options, message):
    with pytest.raises(InvalidInput, match=message):
        decoder().generate([[1]], **options)


def test_a_mask_must_fit_the_ids():
    with pytest.raises(InvalidInput, match="attention_mask has shape"):
        decoder().generate(torch.tensor([[1, 2]]), torch.ones(1, 3))


def test_strategies_that_do_not_fit_are_refused_at_construction():
    @attrs.frozen
    class TopKOnly(RecursiveRejection):
        laws = frozenset({Deterministic})
        adaptive = False

    with pytest.raises(
        IncompatibleStrategy, match=r"does not verify the law WithoutReplacement.*recursive-rejection"
    ):
        decoder(Chain(3), TopKOnly())
    with pytest.raises(IncompatibleStrategy, match="PerChild"):
        decoder(FixedTree(2, 2, law="per-drafter"))
    with pytest.raises(IncompatibleStrategy, match="temperature 0 alone, not 0.7"):
        decoder(Chain(3), Greedy()).generate([[1]], sampling=SamplingParams(0.7))
    with pytest.raises(IncompatibleModels, match="drafter has 4 tokens and the target 5"):
        decoder(draft=drafter(ToyModel(4)))


def test_a_verifier_that_looks_at_several_siblings_refuses_adaptive_trees():
    @attrs.frozen
    class Transport(RecursiveRejection):
        adaptive = False

    decoder(FixedTree(2, 2), Transport())
    with pytest.raises(IncompatibleStrategy, match="adaptive trees of DySpec"):
        decoder(DySpec(4), Transport())


def test_a_verifier_that_judges_chains_alone_refuses_trees_that_branch():
    @attrs.frozen
    class OnePath(RecursiveRejection):
        branches = False

    decoder(Chain(3), OnePath())
    with pytest.raises(
        IncompatibleStrategy, match="OnePath judges chains alone.* of FixedTree; .*recursive-rejection"
    ):
        decoder(FixedTree(2, 2), OnePath())


def test_the_fitting_verifiers_are_found_whatever_else_is_registered(monkeypatch):
    @attrs.frozen
    class Orderly(RecursiveRejection):
        """Judges adaptive trees with one of its options alone, as its attribute says."""

        order: str = "drawn"

        @property
        def adaptive(self):
            return self.order == "drawn"

    @attrs.frozen
    class Lossy(RecursiveRejection):
        lossless = False

    def needs_an_option(option): ...

    known = {
        "broken": "nothing",
        "lossy": Lossy,
        "needs-an-option": needs_an_option,
        "orderly": Orderly,
        "reordered": lambda: Orderly("other"),
    }
    monkeypatch.setattr(registry, "names", lambda kind: list(known))
    monkeypatch.setattr(registry, "get", lambda kind, name: known[name])
    with pytest.raises(
        IncompatibleStrategy, match=r"adaptive trees of DySpec; verifiers that fit: orderly\."
    ):
        decoder(DySpec(4), Orderly("other"))


def test_a_policy_that_returns_a_broken_tree_is_named():
    @attrs.frozen
    class Broken(TreePolicy):
        tree: object = None
        laws = frozenset({Deterministic})

        def grow(self, root, rng):
            return self.tree
            yield

    with pytest.raises(InvalidTree, match="returned NoneType"):
        decoder(Broken()).generate([[1]])
    bad = TokenTree(torch.tensor([1, 7]), torch.tensor([-1, 0]))
    with pytest.raises(InvalidTree, match="token 7"):
        decoder(Broken(bad)).generate([[1]])


def test_logits_with_nan_stop_the_call_and_leave_the_decoder_usable():
    @attrs.define(eq=False)
    class Once(ToyBackend):
        calls: int = 0

        def extend(self, tokens, parents, counts=None):
            self.calls += 1
            logits = super().extend(tokens, parents, counts)
            return logits * float("nan") if self.calls == 2 else logits

    one = decoder(target=Once(TARGET))
    with pytest.raises(InvalidDistribution, match="nan"):
        one.generate(PROMPTS, max_new_tokens=20)
    assert one.generate(PROMPTS[:1], max_new_tokens=9)[0, 3:].tolist() == sequentially(PROMPTS[0], 9)
