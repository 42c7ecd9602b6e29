"""The figures of bench: formulas against the loop's own statistics, intervals, and the test of the texts."""

import re
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwood import SamplingParams, SpeculativeDecoder, create, load, zoo
from draftwood.apps.bench import plot_parts, plots, writers
from draftwood.apps.bench.figures import ResultRow, rows, two_sample
from draftwood.apps.bench.intervals import Figure, interval
from draftwood.apps.bench.plan import BenchPlan, Contest
from draftwood.apps.bench.specs import Spec
from draftwood.decoding.metrics import METRICS

RACE = Contest("llama-7m,llama-draft", "d", 0.0, 0, 4)
SPEC = "leviathan:length=3"


def cell(contender, prompt, tokens, *, repetition=0, turn=0, contest=RACE, **figures):
    known = {
        "seconds": 1.0,
        "first_token_seconds": 0.2,
        "first_tokens": 1,
        "rounds": 2,
        "peak_memory": 10,
        "draft_calls": 4,
        "draft_cost": 0.1,
        "drafted": 6,
        "accepted": 3,
        "draft_seconds": 0.1,
        "target_seconds": 0.2,
        "verify_seconds": 0.1,
        "prefill_seconds": 0.1,
        "right": None,
        "prompt_tokens": 5,
    }
    place = {"kind": "text", "contender": contender, "prompt": prompt, "repetition": repetition, "turn": turn}
    return {**attrs.asdict(contest), **place, "tokens": list(tokens), **known, **figures}


def results(*cells, temperature=0.0, repetitions=1):
    plan = BenchPlan(strategies=[SPEC], temperatures=[temperature], new_tokens=[4], repetitions=repetitions)
    return {row.spec.label: row for row in rows(plan, ["d"], {str(i): c for i, c in enumerate(cells)})}


def test_every_figure_is_that_of_the_loop(monkeypatch):
    target, draft = load(zoo.path("llama-7m")), load(zoo.path("llama-draft"))
    recipe = create("recipes", "dyspec", {"budget": 8, "temperature": 0.7})
    decoder = SpeculativeDecoder(
        target, create("drafters", "model", {"backend": draft}), recipe.policy, recipe.verifier
    )
    seen = []
    stream = SpeculativeDecoder.stream

    def watched(*arguments, statistics, **options):
        seen.append(statistics)
        return stream(*arguments, statistics=statistics, **options)

    monkeypatch.setattr(SpeculativeDecoder, "stream", watched)
    sampling = SamplingParams(temperature=0.7)
    prompt = zoo.tokenizer()("It was a cold morning")["input_ids"]
    text = writers.Speculative(decoder, sampling, None).write(prompt, 12, seed=3)
    contest = attrs.evolve(RACE, temperature=0.7)
    own = cell(SPEC, 0, [], contest=contest) | attrs.asdict(text) | {"right": True}
    found = results(own, cell("generate", 0, [1] * 12, contest=contest, seconds=2.0), temperature=0.7)[SPEC]
    (s,) = seen
    assert 0 <= text.first_token_seconds - s.first_token_seconds < 0.01  # the prompt's own reading
    wanted = {
        "tokens_per_round": s.tokens_per_round,
        "acceptance_rate": s.acceptance_rate,
        "path_length": s.figure("path_length"),
        "tree_size": s.figure("tree_size"),
        "rounds": s.target_calls,
        "memory_bound_speed_up": s.figure("memory_bound_speed_up"),
        "time_to_first_token": text.first_token_seconds,
        "tokens_per_second": 12 / text.seconds,
        "seconds_per_token": text.seconds / 12,
        "speed_up": 2.0 / text.seconds,
        "score": 1.0,
    }
    assert {name: found.value(name) for name in wanted} == pytest.approx(wanted)
    # The loop stops its own clock a little earlier than its caller.
    assert found.value("time_per_output_token") == pytest.approx(s.figure("time_per_output_token"), rel=0.1)
    parts = [found.value(f"{part}_seconds") for part in ("draft", "target", "verify", "rest")]
    parts.append(found.value("prefill_seconds") / 12)
    assert sum(parts) == pytest.approx(text.seconds / 12)
    assert min(parts) >= 0


def test_at_temperature_0_the_text_of_median_time_counts():
    cells = [cell(SPEC, p, "abcd", repetition=r, seconds=s) for p in (0, 1) for r, s in enumerate((4, 2, 90))]
    plain = [cell("generate", p, "abcd", repetition=r, seconds=8.0) for p in (0, 1) for r in range(3)]
    found = results(*cells, *plain, repetitions=3)
    assert found[SPEC].value("tokens_per_second") == 1
    assert found[SPEC].value("speed_up") == 2
    assert found[SPEC].check.agreement == 1
    assert found["generate"].value("speed_up") == 1


def test_above_0_all_texts_count():
    contest = attrs.evolve(RACE, temperature=1.0)
    cells = [
        cell(SPEC, 0, "abcd", repetition=r, seconds=s, contest=contest) for r, s in enumerate((4, 2, 90))
    ]
    plain = [cell("generate", 0, "abcd", repetition=r, contest=contest) for r in range(3)]
    found = results(*cells, *plain, temperature=1.0, repetitions=3)
    assert found[SPEC].value("tokens_per_second") == pytest.approx(12 / 96)


def test_agreement_counts_the_tokens_before_the_first_difference():
    cells = [cell("generate", p, [1, 2, 3, 4]) for p in (0, 1)]
    found = results(*cells, cell(SPEC, 0, [1, 2, 9, 4]), cell(SPEC, 1, [1, 2, 3, 4]))
    assert found[SPEC].check.agreement == 6 / 8


def test_texts_in_float32_are_compared_where_there_are_such():
    plain, own = cell("generate", 0, [1, 2, 3, 4]), cell(SPEC, 0, [1, 9, 3, 4])
    exact = [{**plain, "kind": "check"}, {**own, "kind": "check", "tokens": [1, 2, 3, 4]}]
    assert results(plain, own)[SPEC].check.agreement == 1 / 4
    check = results(plain, own, *exact)[SPEC].check
    assert (check.agreement, check.precision) == (1, "float32")


def test_what_is_not_known_is_left_out():
    unknown = dict.fromkeys(("draft_calls", "draft_cost", "drafted", "accepted", "draft_seconds"))
    found = results(cell(SPEC, 0, "abcd", **unknown), cell("generate", 0, "abcd"))[SPEC]
    assert found.value("tokens_per_round") == 2
    for name in ("acceptance_rate", "memory_bound_speed_up", "draft_seconds", "rest_seconds", "score"):
        assert found.value(name) is None
    assert found.figures["tokens_per_round"].low is None  # one prompt gives no interval


def test_only_scored_prompts_count_for_the_score():
    cells = [cell(SPEC, p, "abcd", right=right) for p, right in enumerate([True, None, False, True])]
    plain = [cell("generate", p, "abcd") for p in range(4)]
    assert results(*cells, *plain)[SPEC].value("score") == pytest.approx(2 / 3)


def test_a_contest_in_the_middle_is_compared_on_shared_prompts():
    """A contender that is a prompt ahead of `generate` when a run breaks off."""
    found = results(
        cell(SPEC, 0, "abcd"), cell(SPEC, 1, "abcd", seconds=50.0), cell("generate", 0, "abcd", seconds=3.0)
    )
    assert found[SPEC].value("speed_up") == 3


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=12))
def test_an_interval_holds_its_value_between_the_extremes(pairs):
    totals, below = (np.array(values, dtype=float) for values in zip(*pairs, strict=True))
    figure: Any = interval({"a": totals, "b": below}, lambda s: s["a"] / s["b"])
    assert figure.value == pytest.approx(totals.sum() / below.sum())
    least, most = (totals / below).min(), (totals / below).max()
    assert least - 1e-12 <= figure.low <= figure.high <= most + 1e-12


def test_an_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        below = rng.integers(5, 15, size=40).astype(float)
        figure: Any = interval(
            {"a": rng.poisson(2 * below).astype(float), "b": below}, lambda s: s["a"] / s["b"]
        )
        covered += figure.low <= 2 <= figure.high
    # 190 of 200 are expected; a bootstrap over 40 prompts is a little narrow.
    assert 175 <= covered <= 199


def texts(rng, weights, count, *, sticky=0.5):
    """Texts whose tokens depend on each other: each repeats the one before with chance `sticky`."""
    found = []
    for _ in range(count):
        drawn = rng.choice(len(weights), p=weights, size=30)
        for i in range(1, 30):
            if rng.random() < sticky:
                drawn[i] = drawn[i - 1]
        found.append(drawn.tolist())
    return found


def test_p_is_uniform_where_texts_come_from_one_distribution(monkeypatch):
    monkeypatch.setattr("draftwood.apps.bench.figures._PERMUTATIONS", 200)
    rng = np.random.default_rng(2)
    found = []
    for _ in range(150):
        # Prompts differ from each other, and tokens within a text hang together: neither may count.
        pairs = []
        for prompt in range(6):
            weights = rng.dirichlet(np.ones(8))
            pairs += [(prompt, *texts(rng, weights, 2)) for _ in range(2)]
        p_value = two_sample(pairs)
        assert p_value is not None
        found.append(p_value)
    assert 0.4 < np.mean(found) < 0.6
    assert np.mean(np.array(found) <= 0.1) < 0.18


def test_p_is_small_where_the_distributions_differ():
    rng = np.random.default_rng(3)
    ours, theirs = [0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]
    pairs = [(p, *texts(rng, ours, 1), *texts(rng, theirs, 1)) for p in range(12)]
    p_value = two_sample(pairs)
    assert p_value is not None
    assert p_value < 0.01


def test_too_few_texts_tell_nothing():
    assert two_sample([(p, [1, 2], [3, 4]) for p in range(3)]) is None


def test_every_metric_has_a_name_of_its_own():
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_every_metric_is_explained():
    docs = Path(__file__).parents[2] / "docs"
    pages = "".join((docs / name).read_text(encoding="utf-8") for name in ("bench.md", "many-users.md"))
    rows = set(re.findall(r"^\| `([a-z_]+)` \|", pages, re.MULTILINE))
    assert {metric.name for metric in METRICS} <= rows


@pytest.mark.parametrize("plot", ["_speed", "_temperature"])
def test_no_panel_cuts_what_another_one_shares_its_axis_with(plot):
    """Panels share an axis, and the last one may hold the largest value."""
    found = []
    for data, value in (("a", 1.0), ("b", 1.5), ("c", 4.0)):
        figures = {name: Figure(value, value - 0.5, value + 2) for name in ("speed_up", "tokens_per_round")}
        contest = attrs.evolve(RACE, data=data)
        found += [ResultRow(contest, Spec("leviathan", (f"length={n}",), n), figures) for n in (2, 4)]
        found.append(ResultRow(contest, Spec("generate-assisted"), figures))
    picture = getattr(plots, plot)("pair", found, plot_parts.method_styles(found))
    assert all(axis.get_ylim()[1] > 6 for axis in picture.axes)
    assert all(axis.get_ylim()[0] < 1 for axis in picture.axes)


def test_texts_of_all_data_sets_are_tested_together():
    heat = attrs.evolve(RACE, temperature=1.0)
    contests = [attrs.evolve(heat, data=data) for data in ("d", "e")]
    plan = BenchPlan(strategies=[SPEC], temperatures=[1.0], new_tokens=[4])

    def checks(tokens, names, prompts=3):
        written = {"generate": [1] * 20, SPEC: tokens}
        cells = [
            cell(label, prompt, written[label], contest=contest)
            for contest in contests
            for label in written
            for prompt in range(prompts)
        ]
        found = rows(plan, names, {str(number): one for number, one in enumerate(cells)})
        return [row.check for row in found if row.spec.label == SPEC]

    # Of the 2^6 ways to hand out the texts behind six prompts, that one and its mirror lie so far apart.
    other = checks([2] * 20, ["d", "e"])
    assert len(other) == 2
    assert all(check.p_value is None and 0.02 < check.p_together < 0.045 for check in other)
    assert [check.p_together for check in checks([1] * 20, ["d", "e"])] == [1.0, 1.0]
    (alone,) = checks([2] * 20, ["d"], prompts=6)
    assert alone.p_value < 0.045
    assert alone.p_together is None
