"""The demo's contest: turns, ratios and agreement, on contenders whose times are made up."""

from io import StringIO
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch
from rich.console import Console

from draftwood import zoo
from draftwood.apps.bench.writers import Text, Writer
from draftwood.apps.demo.command import verdict
from draftwood.apps.demo.contest import (
    ASSISTED,
    DYSPEC,
    METHODS,
    ORDINARY,
    ContestText,
    contest,
    result,
    until,
    writers,
)
from draftwood.apps.demo.offloaded import contest_offloaded
from draftwood.apps.files.machine import PassCost, widened_pair
from draftwood.apps.models.prompts import PROMPTS, interleaved
from draftwood.apps.tune.command import Found
from draftwood.apps.tune.measure import ContestResult, Estimate
from draftwood.decoding.pass_time import PassTime
from tests.apps.costs import costs_of


@attrs.define
class Fake(Writer):
    def write_batch(self, prompts, tokens, seed):
        return Text(list(range(tokens)), 1.0, 0.1, 1, tokens, 0)


def contest_text(
    contender: str, prompt: int, seconds: float, tokens=(1, 2, 3, 4), rounds=4, drafted=8
) -> ContestText:
    text = Text(list(tokens), seconds, 0.1, 1, rounds, 0, drafted=drafted, accepted=2)
    return ContestText(contender, prompt, text)


def test_contenders_take_turns_and_everyone_begins_once():
    texts = list(contest({"a": Fake(), "b": Fake()}, [[1], [2], [3]], tokens=3))
    assert [h.contender for h in texts] == ["a", "b", "b", "a", "a", "b"]
    assert [h.prompt for h in texts] == [0, 0, 1, 1, 2, 2]


def test_a_contest_that_is_late_ends_with_the_prompt_at_hand():
    entrants, prompts = {"a": Fake(), "b": Fake()}, [[1], [2]]
    late = list(until(0, contest(entrants, prompts, tokens=3)))
    assert [h.prompt for h in late] == [0, 0]
    assert len(list(until(60, contest(entrants, prompts, tokens=3)))) == 4


def test_figures_are_ratios_of_sums_over_prompts():
    texts = [contest_text(ORDINARY, 0, 4.0, drafted=0), contest_text(ORDINARY, 1, 8.0, drafted=0)]
    texts += [contest_text(DYSPEC, 0, 1.0, rounds=2), contest_text(DYSPEC, 1, 3.0, rounds=3, drafted=2)]
    found = result(texts, DYSPEC)
    assert found.speed_up == 12 / 4
    assert found.tokens_per_second == 8 / 4
    assert found.tokens_per_round == 8 / 5
    assert found.acceptance_rate == 4 / 10
    assert found.equal
    assert result(texts, ORDINARY).acceptance_rate is None


def test_agreement_counts_the_tokens_before_the_first_difference():
    texts = [contest_text(ORDINARY, 0, 1.0), contest_text(ORDINARY, 1, 1.0)]
    texts += [contest_text(DYSPEC, 0, 1.0, tokens=(1, 2, 9, 4)), contest_text(DYSPEC, 1, 1.0)]
    found = result(texts, DYSPEC)
    assert found.agreement == 6 / 8
    assert not found.equal


def test_the_zoo_pair_writes_equally_in_every_way():
    target, draft = zoo.load("llama-7m"), zoo.load("llama-draft")
    entrants = writers(target, draft)
    assert list(entrants) == [ORDINARY, ASSISTED, *METHODS]
    # Behind this text the model ends it; contenders write on, all of them equally far.
    ended = zoo.tokenizer()("Question: What is 40 + 2?\nAnswer: 40 + 2 = 42\n#### 42")["input_ids"]
    samples = {name: one.write(ended, 12, seed=0) for name, one in entrants.items()}
    assert all(sample.tokens == samples[ORDINARY].tokens for sample in samples.values())
    assert len(samples[ORDINARY].tokens) == samples[ORDINARY].rounds == 12
    assert 0 in samples[ORDINARY].tokens
    assert samples[ASSISTED].rounds < 12
    assert samples[DYSPEC].rounds < 12


def test_a_pair_takes_the_precision_in_which_a_tree_is_cheapest():
    target, draft = zoo.load("llama-7m"), zoo.load("llama-draft")
    pair = widened_pair(target, draft, parameters=1e6, nodes=4)
    best, other = pair.tried
    assert {best.dtype, other.dtype} == {torch.float32, torch.bfloat16}
    assert best.tree <= other.tree
    assert pair.target.dtype == pair.draft.dtype == pair.cost.dtype == best.dtype


def test_verdict_says_plainly_where_speculation_does_not_pay():
    texts = [contest_text(ORDINARY, 0, 1.0), contest_text(DYSPEC, 0, 0.5, rounds=2)]
    quick = PassCost(torch.bfloat16, 8, 0.050, 0.055)
    (sentence,) = verdict([result(texts, name) for name in (ORDINARY, DYSPEC)], quick)
    assert "2.00 times as fast" in sentence

    texts[1] = contest_text(DYSPEC, 0, 1.25, rounds=2, tokens=(1, 2, 3, 9))
    slow = PassCost(torch.float32, 8, 0.050, 0.150)
    pays, differs = verdict([result(texts, name) for name in (ORDINARY, DYSPEC)], slow)
    assert "does not pay on this machine" in pays
    assert "0.80 times" in pays
    assert "3.0 times as long" in pays
    assert "float32" in pays
    assert "so close" in differs


def test_prompts_of_all_domains_take_turns():
    assert len(PROMPTS) >= 3
    found = interleaved()
    assert sorted(found) == sorted(text for texts in PROMPTS.values() for text in texts)
    assert [next(d for d, texts in PROMPTS.items() if text in texts) for text in found] == [*PROMPTS] * 2
    assert interleaved(2) == found[:2]


ESTIMATE = Estimate(str(DYSPEC), 2, 3.5, 0.5, 16.0, 4.0, 0.01, 0.1, 0.01, 2.0)


@pytest.mark.parametrize("pays", [True, False])
def test_the_offloaded_contest_tells_its_result_or_a_clear_no(pays, monkeypatch):
    asked: list[Any] = []

    def measured(trial, specs, tokens, largest, **rows):
        asked.append((trial.loaded.target.weight_bytes, specs))
        costs = costs_of(PassTime(0.1, 0.001))
        if not pays:
            return Found(specs[0], 0.8, costs, len(specs))
        result = ContestResult(ESTIMATE.label, 1.9, 2, 2, equal=False)
        return Found(specs[0], 1.9, costs, len(specs), [ESTIMATE], [result])

    monkeypatch.setattr("draftwood.apps.demo.offloaded.measure", measured)
    model = zoo.load("llama-draft")
    pair: Any = SimpleNamespace(target=model, draft=model)
    said = StringIO()
    contest_offloaded(Console(file=said, width=400), pair, zoo.tokenizer(), [[1, 2, 3]])
    assert asked
    assert "a pass over one token takes 101 ms" in said.getvalue()
    if pays:
        assert "one over 16 nodes 117 ms" in said.getvalue()
        assert "brings 3.50 tokens a pass, and is 1.90 times as fast" in said.getvalue()
        assert "Some text differs" in said.getvalue()
    else:
        assert "no tree pays: 0.80 times ordinary decoding at best" in said.getvalue()
