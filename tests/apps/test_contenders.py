"""The race: turns, medians, ratios and agreement, on contenders whose times are made up."""

import attrs
import pytest
import torch

from draftwood import zoo
from draftwood.apps.contenders import (
    ASSISTED,
    DYSPEC,
    ORDINARY,
    PLANS,
    Contender,
    Heat,
    Sample,
    contenders,
    race,
    result,
    unassisted,
    until,
)
from draftwood.apps.demo import verdict
from draftwood.apps.machine import PassCost, widened_pair
from draftwood.apps.prompts import PROMPTS, interleaved


@attrs.define
class Fake(Contender):
    name: str

    def write(self, prompt, tokens):
        return Sample(list(range(tokens)), 1.0, tokens)


def heat(contender: str, prompt: int, seconds: float, tokens=(1, 2, 3, 4), rounds=4, domain="d") -> Heat:
    return Heat(contender, domain, prompt, Sample(list(tokens), seconds, rounds, 0.5, 0.1))


def test_contenders_take_turns_and_everyone_begins_once():
    heats = list(race([Fake("a"), Fake("b")], [("x", [1]), ("y", [2])], tokens=3, repetitions=2))
    assert [h.contender for h in heats] == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert [h.domain for h in heats] == ["x", "x", "y", "y"] * 2
    assert [h.prompt for h in heats] == [0, 0, 1, 1] * 2


def test_a_race_that_is_late_ends_with_the_prompt_at_hand():
    entrants, prompts = [Fake("a"), Fake("b")], [("x", [1]), ("y", [2])]
    late = list(until(0, race(entrants, prompts, tokens=3)))
    assert [h.prompt for h in late] == [0, 0]
    assert len(list(until(60, race(entrants, prompts, tokens=3)))) == 4


def test_a_prompt_counts_with_its_median_time():
    heats = [heat(ORDINARY, p, s) for p in (0, 1) for s in (4.0, 2.0, 90.0)]
    heats += [heat(DYSPEC, p, s, rounds=2) for p in (0, 1) for s in (1.0, 50.0, 2.0)]
    found = result(heats, DYSPEC)
    assert found.ratio == (4 + 4) / (2 + 2)
    assert found.tokens_per_second == 8 / 4
    assert found.tokens_per_round == 2
    assert found.acceptance == 0.5
    assert found.overhead == pytest.approx(0.1)
    assert found.equal


def test_a_domain_is_measured_against_its_own_baseline():
    heats = [heat(ORDINARY, 0, 4.0, domain="a"), heat(ORDINARY, 1, 9.0, domain="b")]
    heats += [heat(DYSPEC, 0, 2.0, domain="a"), heat(DYSPEC, 1, 3.0, domain="b")]
    assert [result(heats, DYSPEC, domain).ratio for domain in ("a", "b", None)] == [2, 3, 13 / 5]


def test_agreement_counts_the_tokens_before_the_first_difference():
    heats = [heat(ORDINARY, 0, 1.0), heat(ORDINARY, 1, 1.0)]
    heats += [heat(DYSPEC, 0, 1.0, tokens=(1, 2, 9, 4)), heat(DYSPEC, 1, 1.0)]
    found = result(heats, DYSPEC)
    assert found.agreement == 6 / 8
    assert not found.equal


def test_the_zoo_pair_writes_equally_in_every_way():
    target, draft = zoo.load("llama-7m"), zoo.load("llama-draft")
    entrants = contenders(target, draft)
    assert [one.name for one in entrants] == [ORDINARY, ASSISTED, *PLANS]
    # Behind this text the model ends it; contenders write on, all of them equally far.
    ended = zoo.tokenizer()("Question: What is 40 + 2?\nAnswer: 40 + 2 = 42\n#### 42")["input_ids"]
    samples = {one.name: one.write(ended, 12) for one in entrants}
    assert all(sample.tokens == samples[ORDINARY].tokens for sample in samples.values())
    assert len(samples[ORDINARY].tokens) == samples[ORDINARY].rounds == 12
    assert 0 in samples[ORDINARY].tokens
    assert samples[ASSISTED].rounds < 12
    assert samples[DYSPEC].rounds < 12


@pytest.mark.parametrize(
    ("target", "draft"),
    [("mamba2-draft", "llama-draft"), ("llama-draft", "mamba2-draft"), ("llama-draft", "llama-draft")],
)
def test_assisted_generation_is_left_out_where_transformers_refuses_it(target, draft):
    model, assistant = zoo.load(target), zoo.load(draft)
    given = {"attention_mask": torch.ones(1, 3, dtype=torch.int64), "max_new_tokens": 4, "do_sample": False}
    try:
        model.generate(torch.tensor([[5, 6, 7]]), assistant_model=assistant, **given)
        refused = False
    except ValueError:
        refused = True
    assert refused == (unassisted(model, assistant) is not None)
    assert refused != (ASSISTED in [one.name for one in contenders(model, assistant)])


def test_a_pair_takes_the_precision_in_which_a_tree_is_cheapest():
    target, draft = zoo.load("llama-7m"), zoo.load("llama-draft")
    pair = widened_pair(target, draft, parameters=1e6, nodes=4)
    best, other = pair.tried
    assert {best.dtype, other.dtype} == {torch.float32, torch.bfloat16}
    assert best.tree <= other.tree
    assert pair.target.dtype == pair.draft.dtype == pair.cost.dtype == best.dtype
    asked = widened_pair(target, draft, parameters=1e6, nodes=4, dtype=torch.float32)
    assert asked.tried == ()
    assert asked.target.dtype == torch.float32


def test_verdict_says_plainly_where_speculation_does_not_pay():
    heats = [heat(ORDINARY, 0, 1.0), heat(DYSPEC, 0, 0.5, rounds=2)]
    quick = PassCost(torch.bfloat16, 8, 0.050, 0.055)
    (sentence,) = verdict([result(heats, name) for name in (ORDINARY, DYSPEC)], quick)
    assert "2.00 times as fast" in sentence

    heats[1] = heat(DYSPEC, 0, 1.25, rounds=2, tokens=(1, 2, 3, 9))
    slow = PassCost(torch.float32, 8, 0.050, 0.150)
    pays, differs = verdict([result(heats, name) for name in (ORDINARY, DYSPEC)], slow)
    assert "does not pay on this machine" in pays
    assert "0.80 times" in pays
    assert "3.0 times as long" in pays
    assert "float32" in pays
    assert "so close" in differs


def test_prompts_of_all_domains_take_turns():
    assert len(PROMPTS) >= 3
    domains = [domain for domain, _ in interleaved()]
    assert domains == [*PROMPTS] * (len(domains) // len(PROMPTS))
    assert len(interleaved(2)) == 2
