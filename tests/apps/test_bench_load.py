"""`draftwood bench --rows` and `--arrivals`: batches, requests that arrive, plots and refusals."""

import csv
import json
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from draftwood import InvalidInput, PassCosts, PassTable, zoo
from draftwood.apps.bench.arrival_figures import arrival_figures
from draftwood.apps.bench.arrivals import Served
from draftwood.apps.bench.grid import batch, cells
from draftwood.apps.bench.patterns import Pattern
from draftwood.apps.bench.plan import BUILT_IN, BenchPlan, data_sets
from draftwood.apps.files.datasets import DataSet, Prompt
from tests.apps.cells import cells as measured

TINY = ("--prompts", 5, "--prompt-length", 12, "--new-tokens", 6, "--strategy", "chain:length=2")


@pytest.fixture(autouse=True)
def few_passes(monkeypatch):
    monkeypatch.setattr("draftwood.apps.bench.measure._SIZES", (1, 2, 4))


@pytest.fixture(scope="module")
def batches(tmp_path_factory):
    """A folder with one text at a time and batches of two, and what the run printed."""
    from draftwood_cli import app
    from typer.testing import CliRunner

    folder = tmp_path_factory.mktemp("rows") / "results"
    words = ["bench", "--to", folder, *TINY, "--rows", "1,2", "--temperature", 0, "--temperature", 1]
    words += ["--strategy", "generate-assisted", "--plots"]
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "80", "NO_COLOR": "1"})
    assert result.exit_code == 0, result.output
    return folder, result


def test_a_batch_takes_the_next_prompts_and_every_contender_writes_it(batches):
    found = [cell for cell in measured(batches[0]) if cell["kind"] == "text" and cell["rows"] == 2]
    greedy = [cell for cell in found if cell["temperature"] == 0 and "refused" not in cell]
    assert {cell["contender"] for cell in greedy} == {"generate", "ordinary", "chain:length=2"}
    assert {cell["prompt"] for cell in greedy} == {0, 1}  # five prompts fill two batches
    assert all(len(cell["tokens"]) == 2 * 6 for cell in greedy)
    tokenizer, model = zoo.tokenizer(), zoo.load("llama-7m")
    texts = [prompt.text for prompt in data_sets(BenchPlan(prompts=5))[BUILT_IN].prompts]
    for number, text in enumerate(texts[:4]):
        prompt = torch.tensor([tokenizer(text)["input_ids"][:12]])
        expected: Any = model.generate(  # type: ignore[operator]
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=6,
            do_sample=False,
            eos_token_id=None,
        )
        first = number % 2 * 6
        for cell in greedy:
            if cell["prompt"] == number // 2:
                assert cell["tokens"][first : first + 6] == expected[0, prompt.shape[1] :].tolist()


def test_figures_of_a_batch_are_of_all_rows_and_of_one(batches):
    folder, result = batches
    content = json.loads((folder / "results.json").read_text())
    rows = [row for row in content["results"] if row["rows"] == 2 and not row["refused"]]
    assert len(rows) == 2 * 3
    for row in rows:
        own = [
            cell
            for cell in measured(folder)
            if (cell["kind"], cell.get("contender")) == ("text", row["contender"])
            and (cell["rows"], cell["temperature"]) == (2, row["temperature"])
        ]
        seconds = sum(cell["seconds"] for cell in own)
        figures = {name: figure["value"] for name, figure in row["figures"].items()}
        assert figures["tokens_per_second"] == pytest.approx(24 / seconds)
        # A user has at least a half of it, and more where the other's text takes longer.
        assert 24 / seconds / 2 <= figures["user_speed"] * (1 + 1e-9) <= 24 / seconds
        assert figures["tokens_per_round"] >= 1
        assert "memory_bound_speed_up" not in figures
        if row["temperature"] == 0:
            assert row["check"]["agreement"] == 1
        if row["contender"] in ("generate", "ordinary"):
            assert figures["tokens_per_round"] == 1
    assert [row["refused"] for row in content["results"] if row["rows"] == 2 and row["refused"]] == [
        "assisted generate is only supported for batch_size = 1"
    ] * 2
    assert "a user" in result.stdout
    assert ", 2 rows" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert (folder / "plots" / "throughput.png").stat().st_size > 10_000
    with (folder / "results.csv").open(newline="") as file:
        assert {line["rows"] for line in csv.DictReader(file)} == {"1", "2"}


def test_passes_are_timed_with_every_number_of_requests_there_may_be(draftwood, tmp_path, monkeypatch):
    timed, texts = [], []

    def measure(*_: Any, rows: tuple[int, ...], tokens: list[int], **__: Any) -> PassCosts:
        timed.append(rows)
        texts.append(tokens)
        table = PassTable.of(lambda nodes, rows, _: 1 + nodes * rows, nodes=(1, 9), rows=rows)
        return PassCosts(table, table)

    monkeypatch.setattr("draftwood.apps.models.costs.measure_costs", measure)
    words = ("--rows", 6, "--arrivals", "poisson:50", "--requests", 2, "--strategy", "throughput-dyspec")
    run = draftwood("bench", "--to", tmp_path, *TINY, *words)
    assert run.exit_code == 0, run.output
    assert set(timed) == {(1, 2, 4, 6)}
    # A policy knows what rounds of such texts take: a rejected node takes more time than an accepted one.
    prompts = [prompt.text for prompt in data_sets(BenchPlan(prompts=5))[BUILT_IN].prompts]
    read = [token for row in zoo.tokenizer()(prompts)["input_ids"] for token in row]
    assert texts == [read] * len(texts)
    assert BenchPlan(rows=(6,)).rows_in_passes == (6,)


def test_generate_times_passes_on_the_prompts_it_was_given(draftwood, monkeypatch):
    texts = []

    def measure(*_: Any, tokens: list[int], **__: Any) -> PassCosts:
        texts.append(tokens)
        return PassCosts(PassTable([(1, 1, 0, 1.0)]))

    monkeypatch.setattr("draftwood.apps.models.costs.measure_costs", measure)
    words = ("--target", "llama-7m", "--drafter", "llama-draft", "--policy", "throughput-dyspec")
    run = draftwood("generate", *words, "--max-new-tokens", 2, "--prompt", "One", "--prompt", "Two three")
    assert run.exit_code == 0, run.output
    assert texts == [[token for row in zoo.tokenizer()(["One", "Two three"])["input_ids"] for token in row]]


def test_requests_arrive_are_answered_and_shown_again(draftwood, tmp_path):
    more = ("--rows", 2, "--arrivals", "poisson", "--load", "0.5,2", "--requests", 6, "--promise", 0.5)
    run = draftwood("bench", "--to", tmp_path / "run", *TINY, *more, "--strategy", "generate-assisted")
    assert run.exit_code == 0, run.output
    found = measured(tmp_path / "run")
    (capacity,) = (cell for cell in found if cell["kind"] == "capacity")
    answered = [cell for cell in found if cell["kind"] == "arrivals" and "refused" not in cell]
    assert {(cell["contender"], cell["load"]) for cell in answered} == {
        (contender, load) for contender in ("ordinary", "chain:length=2") for load in (0.5, 2)
    }
    full = capacity["requests"] / capacity["seconds"]
    for cell in answered:
        assert cell["rate"] == pytest.approx(cell["load"] * full)
        assert len(cell["arrived"]) == len(cell["first"]) == len(cell["ended"]) == 6
        assert all(
            arrived < first <= ended
            for arrived, first, ended in zip(cell["arrived"], cell["first"], cell["ended"], strict=True)
        )
        assert len(cell["tokens"]) == 36
    slow, fast = (next(cell["arrived"] for cell in answered if cell["load"] == load) for load in (0.5, 2))
    assert slow == pytest.approx([4 * time for time in fast])  # the same gaps, scaled
    refused = {cell["refused"] for cell in found if "refused" in cell}
    assert refused == {
        "generate() of transformers has no queue that a request can join while others are written."
    }
    assert "at 50% of capacity" in run.stdout
    assert "first 95" in run.stdout
    content = json.loads((tmp_path / "run" / "results.json").read_text())
    assert content["units"]["goodput"] == "tokens/s"
    chains = [row for row in content["results"] if row["contender"] == "chain:length=2"]
    assert [row["check"]["agreement"] for row in chains] == [1, 1]
    again = draftwood("bench", "--report", tmp_path / "run", "--latex", tmp_path / "table.tex")
    assert again.exit_code == 0, again.output
    assert "Goodput" in (tmp_path / "table.tex").read_text()
    report = (tmp_path / "run" / "report.md").read_text()
    assert "--rows 2 --arrivals poisson --load 0.5 --load 2 --requests 6 --promise 0.5" in report
    assert (tmp_path / "run" / "plots" / "goodput.png").exists()


def served(**changed: Any) -> dict[str, Any]:
    """Two texts of four tokens: one user has the text 2 s after the request, the other 5 s."""
    known = Served([0.0, 1.0], [1.0, 3.0], [2.0, 6.0], [0.5, 0.5, 3.0], [1] * 8, 6, 4, 2, 2)
    return attrs.asdict(known) | {"rate": 1.0} | changed


def test_goodput_counts_the_texts_that_kept_the_promise():
    """Their speeds are 4 tokens in 2 s and 4 in 5 s; all was written in 6 s."""
    for promise, tokens in ((0.5, 8), (0.8, 8), (0.9, 4), (2.0, 4), (2.1, 0)):
        assert arrival_figures([served()], promise)["goodput"].value == pytest.approx(tokens / 6)
    found = arrival_figures([served()], 0)
    assert "goodput" not in found
    assert found["tokens_per_second"].value == pytest.approx(8 / 6)
    assert found["user_speed"].value == pytest.approx(8 / 7)
    assert found["first_token_p50"].value == pytest.approx(1.5)
    assert found["gap_p95"].value == pytest.approx(np.percentile([0.5, 0.5, 3.0], 95))
    assert found["tokens_per_round"].value == pytest.approx(1)
    assert found["acceptance_rate"].value == pytest.approx(0.5)


def test_patterns():
    times = Pattern.parse("poisson").times(4000, rate=5.0, seed=0)
    gaps = np.diff(times)
    assert times[0] == 0
    assert gaps.mean() == pytest.approx(1 / 5, rel=0.06)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.06)
    burst = Pattern.parse("burst:2:3")
    assert burst.times(5, rate=burst.rate, seed=0) == pytest.approx([0, 0, 3, 3, 6])
    assert Pattern.parse("burst:4").times(8, rate=2.0, seed=0) == [0] * 4 + [2] * 4
    for word in ("", "poisson:", "poisson:0", "poisson:-1", "poisson:nan", "poisson:inf", "poisson:1:2"):
        with pytest.raises(InvalidInput, match=r"are none; give poisson, poisson:RATE"):
            Pattern.parse(word)
    for word in ("burst", "burst:0", "burst:1.5", "burst:2:0", "burst:2:x", "burst:2:3:4", "uniform:3"):
        with pytest.raises(InvalidInput, match=r"are none; give poisson, poisson:RATE"):
            Pattern.parse(word)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rows": (0,)}, "rows holds 0; give a list of whole numbers >= 1"),
        ({"rows": ()}, "rows is empty"),
        ({"loads": (0.5,)}, "--load and --promise are of requests that arrive"),
        ({"promise": 3.0}, "--load and --promise are of requests that arrive"),
        ({"arrivals": ("poisson",)}, "poisson gives no rate; add one"),
        ({"arrivals": ("poisson:2",), "loads": (0.5,)}, "'poisson:2' has its own rate"),
        ({"arrivals": ("poisson",), "loads": (0.0,)}, "--load holds 0"),
        ({"arrivals": ("poison:2",)}, "The arrivals 'poison:2' are none"),
    ],
)
def test_plans_that_cannot_be(fields, words):
    with pytest.raises(InvalidInput, match=words):
        BenchPlan(**fields)


def test_refused_in_one_sentence(draftwood, tmp_path):
    turns = tmp_path / "turns.jsonl"
    turns.write_text(json.dumps({"turns": ["one", "two"]}) + "\n")
    for words, said in (
        (("--strategy", "cost-aware"), "any more; name 'throughput-dyspec', which reads measured costs"),
        (("--rows", "two"), "--rows is 'two'; give whole numbers with commas between."),
        (("--arrivals", "poisson", "--load", "much"), "--load is 'much'; give numbers with commas between."),
        (("--arrivals", "poisson:2", "--ray", "auto"), "leave --ray out"),
        (("--rows", "2", "--spec-bench"), "leave --rows and --arrivals out"),
        (("--rows", "2", "--data", turns, "--prompts", 1), "give --turns 1"),
    ):
        result = draftwood("bench", "--to", tmp_path / "none", *words)
        assert result.exit_code == 1
        assert said in " ".join(result.output.split())


def test_prompts_repeat_only_where_a_batch_is_larger_than_their_number():
    data_set = DataSet("d", "text", tuple(Prompt(text) for text in "abcde"))
    assert [batch(data_set, 2, number) for number in (0, 1)] == [[0, 1], [2, 3]]
    assert batch(data_set, 7, 0) == [0, 1, 2, 3, 4, 0, 1]
    plan = BenchPlan(rows=(1, 2, 8), strategies=())
    texts = [cell for cell in cells(plan, {"d": data_set}) if cell.kind == "text"]
    counts = {rows: sum(cell.contest.rows == rows for cell in texts) for rows in plan.rows}
    assert counts == {1: 5 * 2, 2: 2 * 2, 8: 1 * 2}


def test_a_run_of_single_texts_is_described_as_before():
    """So that a folder of an earlier draftwood goes on."""
    described = BenchPlan().document()
    assert not {"rows", "arrivals", "loads", "requests", "promise"} & described.keys()
    (first, *_) = cells(BenchPlan(), data_sets(BenchPlan(prompts=1)))
    assert "rows" not in first.key
