"""The measurements are commands that can be called as their callers call them."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.kernels import round as rounds
from benchmarks.kernels.gpu import PARTS, REHEARSAL, Part
from benchmarks.research import calibration, heads_speed, held_out, retokenised, samples, shapes, vocabularies
from benchmarks.research.recipes import build
from benchmarks.research.settings import Setting
from draftwood import SamplingParams
from draftwood.apps.bench.writers import Text
from draftwood.methods.draft_temperature import FACTORS
from draftwood.strategies.policies.shapes import as_shape
from draftwood.strategies.shape_search import SiblingShares, measured_shares

COMMANDS = typer.main.get_command(app)


@pytest.mark.parametrize("part", [*PARTS, *REHEARSAL], ids=lambda part: part.command[:40])
def test_a_part_of_the_gpu_measurement_is_a_command(part: Part, tmp_path: Path) -> None:
    name, *arguments = part.words(tmp_path)
    command = COMMANDS.get_command(None, name)  # type: ignore[attr-defined]
    command.make_context(name, arguments)


def test_the_gpu_measurement_ends_within_ten_minutes() -> None:
    assert sum(part.seconds for part in PARTS) < 600


def test_the_rounds_numbers_are_drawn_where_they_vary(tmp_path: Path) -> None:
    usual = {"vocab": 32_000, "nodes": 64, "rows": 1, "text": 1_000}
    sizes = [usual, usual | {"vocab": 4_000}, usual | {"nodes": 16}]
    rows = [{"pair": "sequoia, traversal", **size, "ms": 1.0 + size["nodes"]} for size in sizes]
    rounds.draw(rows, tmp_path, title="a machine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-nodes.png", "round-vocab.png"]


def test_engines_are_compared_by_the_texts_that_they_write() -> None:
    words = "engines --target llama-draft --engines eager --tokens 5 --prompts 1 --repetitions 1 --depth 2"
    called = CliRunner().invoke(app, [*words.split(), "--budgets", "0,3,4x1", "--threads", "1"])
    assert called.exit_code == 0, called.output
    lines = [line for line in called.output.splitlines() if re.search(r"\d of \d+$", line)]
    assert [line.partition("  ")[0] for line in lines[2:]] == [
        f"draftwood, eager, {trees}"
        for trees in ("one token per pass", "3 nodes of 2 levels", "4 nodes of 1 level")
    ]
    assert all(re.search(r"(\d+) of \1$", line) for line in lines), called.output
    refused = CliRunner().invoke(app, ["engines", "--engines", "tvm"])
    assert refused.exit_code == 1
    assert "The engine 'tvm' is not here; name some of eager, inductor" in " ".join(refused.output.split())
    for options, said in (
        (["--budgets", "4,8x"], "budgets has '8x'"),
        (["--budgets", "4+0x2"], "budgets has '4+0x2'"),
        (["--chains", "4,-1"], "chains has '-1'"),
        (["--calibration"], "without --data"),
    ):
        refused = CliRunner().invoke(app, ["engines", *options])
        assert refused.exit_code == 1
        assert said in " ".join(refused.output.split())


def test_a_plain_round_asks_little_of_the_host() -> None:
    called = CliRunner().invoke(app, ["plain-round", "--rounds", "3"])
    assert called.exit_code == 0, called.output
    # A mixer, a graph or a second form of a pass would be more, and so would what is worked out anew at every
    # level. Comprehensions count up to Python 3.11.
    for layer, most in (("backends", (12, 28, 130)), ("all", (45, 160, 355))):
        found = re.search(rf"^{layer} +(\d+) +(\d+) +(\d+)$", called.output, re.MULTILINE)
        assert found is not None, called.output
        files, functions, calls = map(int, found.groups())
        assert files <= most[0]
        assert functions <= most[1]
        assert calls <= most[2]


def test_a_budget_without_settings_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    called = CliRunner().invoke(
        app, ["recipes", "--data", str(tmp_path), "--to", str(tmp_path / "cells"), "--budget", "17"]
    )
    assert called.exit_code == 1
    assert "budget is 17; take one of 6, 14, 16, 30, 64, 768." in " ".join(called.output.split())


def test_samples_are_ratios_of_sums_by_their_number() -> None:
    shown = [("suffix-decoding", 1.0, 1, 10, 8, 4), ("suffix-decoding", 1.0, 1, 20, 12, 16)]
    shown.append(("suffix-decoding", 1.0, 2, 30, 10, 40))
    line = samples.table([samples.Sample(*one) for one in shown], 2)[-1]
    assert line.split() == ["suffix-decoding,", "T=1", "1.50", "3.00", "2.00", "2.0"]


def test_a_share_of_missing_tokens_is_one_line_over_all_choices() -> None:
    of_one: tuple[Any, ...] = (0.01, 0.0, 0, 0.99, 0.98, 10, 4, 9, 5)
    other: tuple[Any, ...] = (0.01, 0.0, 1, 0.99, 0.96, 30, 8, 11, 5)
    at_one = [vocabularies.Cell(0.01, 1.0, 0, 0.99, 0.5, 4, 1, 3, 2)]
    line = vocabularies.table([vocabularies.Cell(*of_one), vocabularies.Cell(*other), *at_one])[-1]
    assert line.split() == ["1.0%", "0.970", "0.300", "2.00", "0.500", "0.250", "1.50"]


def test_text_for_an_index_is_cut_between_documents_and_its_figures_are_ratios_of_sums() -> None:
    assert retokenised.beginning(["ab", "", "c", "def", "g"], 5) == ["ab", "c"]
    sums = {"tokens": 30.0, "rounds": 20.0, "drafted": 50.0, "accepted": 10.0}
    line = retokenised.table({("own", 0.0): sums, ("own", 1.0): sums | {"tokens": 22.0}})[-1]
    assert line.split() == ["own", "2.50", "1.50", "2.50", "1.10"]


def test_speeds_of_drafters_are_ratios_of_sums_beside_ordinary_decoding(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def texts(seconds: float, rounds: int, tokens: list[int]) -> list[Text]:
        return [Text(tokens, seconds + 1, 1.0, 1, rounds, 0, prefill_tokens=1)] * 3

    plain, same, other = [1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [1, 2, 3, 5, 5]
    found = {
        (0.0, "generate", ""): texts(8.0, 5, plain),
        (0.0, "chain", "head"): texts(2.0, 2, same),
        (0.0, "chain", "draft"): texts(4.0, 4, other),
    }
    heads_speed.show(found, ["head", "draft"])
    _, ordinary, _, head, draft, beside = capsys.readouterr().out.splitlines()
    assert ordinary.split() == ["T=0", "generate()", "0.56"]
    assert re.sub(r" \(.*?\)", "", head).split() == ["head", "2.00", "1.67", "3.00", "4.00", "100.0%"]
    assert re.sub(r" \(.*?\)", "", draft).split() == ["draft", "1.00", "1.00", "1.80", "2.00", "60.0%"]
    assert re.sub(r" \(.*?\)", "", beside).split() == ["head", "vs", "it", "1.67", "2.00"]


@pytest.mark.thorough
def test_the_gpu_measurement_is_rehearsed(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "benchmarks", "gpu", "--rehearse", "--to", str(tmp_path)]
    subprocess.run(words, check=True, timeout=900)
    ended = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))["parts"]
    assert [(part["part"], part["exit"]) for part in ended] == [(part.name, 0) for part in REHEARSAL]


def test_a_setting_has_its_drafts_temperature() -> None:
    for recipe in ("race", "sequoia"):  # the latter has an option of that name
        known = {"temperature": 0.6, "draft_temperature": 0.8}
        assert build(Setting(recipe, {"budget": 4}, 0.8), known).draft_temperature == 0.8
    assert build(Setting("race", {"budget": 4}), {"temperature": 0.6}).draft_temperature is None


def write_prompts(folder: Path) -> None:
    """Two short prompts for every data set."""
    for file in held_out.FILES.values():
        jsonl = '{"prompt": "Count: 1, 2,"}\n{"prompt": "Count: 3, 4,"}\n'
        (folder / file).write_text(jsonl if file.endswith("jsonl") else "Count: 1, 2,\n\nCount: 3, 4,\n")


def test_overlaps_are_shown_by_the_drafts_temperature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_prompts(tmp_path)
    monkeypatch.setattr(calibration, "_CALIBRATION", 1)
    words = ["overlaps", "--data", tmp_path, "--temperature", 0.6, "--prompts", 1, "--tokens", 4]
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "llama-7m with llama-draft, 5 texts of 4 tokens" in result.output
    shown = [line.split() for line in result.output.splitlines()[-len(FACTORS) :]]
    assert [float(temperature) for temperature, _ in shown] == [round(0.6 * factor, 2) for factor in FACTORS]
    overlaps = {float(temperature): float(overlap) for temperature, overlap in shown}
    assert all(0 < overlap <= 1 for overlap in overlaps.values())
    best = float(result.output.split("best at ")[1].split()[0])
    assert overlaps[best] == max(overlaps.values()) or best == 0.6


def test_shapes_are_searched_at_several_temperatures_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []

    def watching(*args: Any, sampling: SamplingParams, **options: Any) -> SiblingShares:
        shares = measured_shares(*args, sampling=sampling, **options)
        measured.append((sampling.temperature, shares))
        return shares

    monkeypatch.setattr(shapes, "measured_shares", watching)
    write_prompts(tmp_path)
    found = tmp_path / "shapes.json"
    words = ["shapes", "--data", tmp_path, "--temperature", 0.6, "--temperature", 1, "--budget", 3]
    words += ["--prompts", 1, "--tokens", 3, "--turns", 1, "--to", found]
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "llama-7m with llama-draft, temperature 0.6 and 1, 5 prompts" in result.output
    [(budget, shape)] = json.loads(found.read_text()).items()
    assert budget == "3"
    assert len(as_shape(shape)) <= 3
    assert {temperature for temperature, _ in measured} == {0.6, 1.0}
    assert all(shares is measured[0][1] for _, shares in measured)
