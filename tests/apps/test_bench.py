"""`draftwood bench` on the zoo's pairs: cells, resuming, tables, files, plots, and folders it refuses."""

import csv
import errno
import json
import os
import signal
import struct
import time
import zlib
from collections import Counter
from importlib.metadata import version
from typing import Any

import pytest
import torch

from draftwood import zoo
from draftwood.apps.bench import writers
from draftwood.decoding.metrics import METRICS
from tests.apps.cells import cells

TINY = ["--prompts", 2, "--prompt-length", 24]
CONTENDERS = ["generate", "generate-assisted", "leviathan:length=2", "leviathan:length=4"]
CONTENDERS += ["dyspec:budget=2", "dyspec:budget=4"]


@pytest.fixture(scope="module")
def problems(tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "sums.jsonl"
    rows = [{"question": f"What is {i} + 3?", "answer": f"#### {i + 3}"} for i in range(5)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture(scope="module")
def finished(tmp_path_factory, problems):
    """A folder with a whole run: two temperatures, two budgets, all output; and what it printed."""
    from draftwood_cli import app
    from typer.testing import CliRunner

    folder = tmp_path_factory.mktemp("run") / "results"
    strategies = ["--strategy", "generate-assisted", "--strategy", "leviathan", "--strategy", "dyspec"]
    sweep = ["--budget", 2, "--budget", 4, "--temperature", 0, "--temperature", 0.8, "--repetitions", 3]
    words = [
        "bench",
        "--to",
        folder,
        "--data",
        problems,
        *TINY,
        "--new-tokens",
        6,
        *strategies,
        *sweep,
        "--plots",
    ]
    environment = {"COLUMNS": "80", "NO_COLOR": "1", "DISPLAY": ""}
    result = CliRunner().invoke(app, [str(word) for word in words], env=environment)
    assert result.exit_code == 0, result.output
    return folder, result


@pytest.fixture(autouse=True)
def few_passes(monkeypatch):
    """The whole range of sizes is only timed in the fixture above."""
    monkeypatch.setattr("draftwood.apps.bench.measure._SIZES", (1, 2, 4))


def tiny(folder, *more, new=6):
    words = ["bench", "--to", folder, *TINY, "--new-tokens", new, "--strategy", "leviathan:length=2"]
    return [*words, *more]


def test_contenders_take_turns_and_nothing_is_missing(finished):
    found = [cell for cell in cells(finished[0]) if cell["kind"] == "text" and cell["temperature"] == 0]
    assert len(found) == 6 * 2 * 3
    for turn in range(6):
        own = found[6 * turn : 6 * turn + 6]
        assert len({(cell["prompt"], cell["repetition"]) for cell in own}) == 1
        assert Counter(cell["contender"] for cell in own) == Counter(CONTENDERS)
        assert own[0]["contender"] == CONTENDERS[turn]
    kinds = Counter(cell["kind"] for cell in cells(finished[0]))
    assert kinds == {"text": 6 * 2 * 3 * 2, "pair": 4, "passes": 1}


def test_texts_are_those_of_generate(finished):
    prompt = zoo.tokenizer()("Question: What is 0 + 3?\nAnswer:", return_tensors="pt").input_ids
    model: Any = zoo.load("llama-7m")
    output = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6, do_sample=False, eos_token_id=None
    )
    texts = [cell for cell in cells(finished[0]) if cell["kind"] == "text"]
    greedy = [cell["tokens"] for cell in texts if cell["temperature"] == 0 and cell["prompt"] == 0]
    assert greedy == [output[0, prompt.shape[1] :].tolist()] * 18
    assert all(len(cell["tokens"]) == 6 for cell in texts)
    # Above temperature 0 every repetition is another text, and contenders draw apart.
    drawn = [tuple(cell["tokens"]) for cell in texts if cell["temperature"] > 0 and cell["prompt"] == 0]
    assert len(set(drawn)) > 9


def test_tables_fit_80_columns_without_colour(finished):
    out = finished[1].stdout
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80
    for contender in CONTENDERS:
        (_, *rest) = [line for line in out.splitlines() if line.startswith(contender + " ")]
        assert len(rest) == 3  # two tables a contest, whole words in each
    assert "temperature 0.8" in out
    assert "compared with generate()'s in float32" in " ".join(out.split())
    assert out.count(" equal") >= 5


def test_json_holds_every_figure_with_its_interval(finished):
    content = json.loads((finished[0] / "results.json").read_text())
    assert content["versions"]["torch"] == version("torch")
    assert content["hardware"]["device"]
    assert len(content["results"]) == 12
    for result in content["results"]:
        own = [
            cell
            for cell in cells(finished[0])
            if cell.get("contender") == result["contender"] and cell["temperature"] == result["temperature"]
        ]
        by_rounds = sum(len(cell["tokens"]) - cell["prefill_tokens"] for cell in own)
        whole = by_rounds / sum(cell["rounds"] for cell in own)
        figure = result["figures"]["tokens_per_round"]
        assert figure["value"] == pytest.approx(whole)
        assert figure["low"] <= figure["value"] <= figure["high"]
        assert result["peak_memory"] == max(cell["peak_memory"] for cell in own)
        known = {"tokens_per_second", "speed_up", "time_to_first_token", "time_per_output_token", "score"}
        assert known <= set(result["figures"])
        drafts = {"acceptance_rate", "memory_bound_speed_up", "draft_seconds", "rest_seconds"}
        assert (drafts <= set(result["figures"])) == (not result["contender"].startswith("generate"))
        check = result["check"]
        if result["temperature"] == 0:
            assert (check["agreement"], check["precision"]) == (1, "float32")
        elif result["contender"] != "generate":
            assert 0.001 < check["p_value"] <= 1
    assert content["passes"]["llama-7m,llama-draft"]["target"]["fit"]["constant"] >= 0


def test_csv_has_a_line_for_every_result(finished):
    content = json.loads((finished[0] / "results.json").read_text())
    with (finished[0] / "results.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 12
    for line, result in zip(lines, content["results"], strict=True):
        assert line["contender"] == result["contender"]
        assert line["torch"] == version("torch")
        assert line["device"] == content["hardware"]["device"]
        for metric in METRICS:
            figure = result["figures"].get(metric.name)
            assert line[metric.name] == (str(figure["value"]) if figure else "")
    assert lines[-1]["acceptance_rate_low"] != ""


def test_draft_and_target_along_the_text(finished):
    for cell in (cell for cell in cells(finished[0]) if cell["kind"] == "pair"):
        assert sum(cell["drawn"]) == pytest.approx(6, abs=1e-3)
        assert all(0 <= a <= d + 1e-9 for a, d in zip(cell["accepted"], cell["drawn"], strict=True))
        assert sum(map(sum, cell["target"])) == pytest.approx(6, abs=1e-3)
        if cell["temperature"] == 0:  # the target's probabilities are 0 and 1
            assert all(sum(row[1:-1]) == 0 for row in cell["target"])


def test_plots_need_no_display(finished):
    wanted = ["acceptance", "components", "passes", "speed", "temperature"]
    assert sorted(file.stem for file in (finished[0] / "plots").iterdir()) == wanted
    for name in wanted:
        width, height, colours = png(finished[0] / "plots" / f"{name}.png")
        assert width >= 1000
        assert height >= 500
        assert colours > 20  # something is drawn
    assert "plots/speed.png" in finished[1].stderr


def png(file):
    """Width, height, and how many different bytes the picture holds."""
    content = file.read_bytes()
    assert content.startswith(b"\x89PNG")
    data, place = b"", 8
    while place < len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        if content[place + 4 : place + 8] == b"IDAT":
            data += content[place + 8 : place + 8 + length]
        place += length + 12
    return *struct.unpack(">II", content[16:24]), len(set(zlib.decompress(data)))


def test_a_finished_run_measures_nothing_more(draftwood, finished, problems, monkeypatch):
    before = (finished[0] / "cells.jsonl").read_bytes()
    monkeypatch.setattr("draftwood.apps.bench.measure.load", None)
    result = draftwood("bench", "--to", finished[0], "--report")
    assert result.exit_code == 0, result.output
    assert "dyspec:budget=4" in result.stdout
    content = json.loads((finished[0] / "run.json").read_text())
    file = finished[0].parent / "again.toml"
    own = ("data", "models")
    known = {name: value for name, value in content["configuration"].items() if name not in own}
    lines = [f"{name} = {json.dumps(value)}" for name, value in known.items()]
    file.write_text("\n".join([*lines, f'data = "{problems}"']))
    result = draftwood("bench", "--to", finished[0], "--file", file)
    assert result.exit_code == 0, result.output
    assert (finished[0] / "cells.jsonl").read_bytes() == before


def goes_on(draftwood, folder, words):
    """A run in `folder`, cut off after 4 of 11 cells or more, is finished, and each cell is there once."""
    file = folder / "cells.jsonl"
    kept = file.read_bytes()
    done = kept.count(b"\n") - 1
    assert 4 <= done < 11
    with file.open("ab") as torn:  # a line that was cut in two
        torn.write(b'{"key": "text | llama-7m')
    result = draftwood(*words)
    assert result.exit_code == 0, result.output
    assert f"{done} cells are there already, {11 - done} are missing." in result.stderr
    after = file.read_bytes()
    assert after.startswith(kept[: kept.rfind(b"\n") + 1])
    keys = Counter(cell["key"] for cell in cells(folder))
    assert len(keys) == 2 * 2 * 2 + 2 + 1
    assert set(keys.values()) == {1}


@pytest.fixture
def eleven(tmp_path, problems):
    """Returns a folder and a command that runs 11 cells."""
    folder = tmp_path / "results"
    return folder, tiny(folder, "--data", problems, "--temperature", 0.8, "--repetitions", 2)


@pytest.mark.posix
@pytest.mark.thorough  # the next test cuts a run off without a process of its own
def test_a_run_that_was_killed_goes_on_where_it_stopped(draftwood, start, eleven):
    folder, words = eleven
    process = start(*words)
    file = folder / "cells.jsonl"
    deadline = time.monotonic() + 300
    while not file.exists() or file.read_bytes().count(b"\n") < 5:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    goes_on(draftwood, folder, words)


def test_a_run_that_was_cut_off_goes_on_where_it_stopped(draftwood, eleven, monkeypatch):
    folder, words = eleven
    write = writers.Speculative.write_batch

    def cut_off(self, prompt, tokens, seed):
        if (folder / "cells.jsonl").exists() and len(cells(folder)) >= 4:
            raise KeyboardInterrupt
        return write(self, prompt, tokens, seed)

    with monkeypatch.context() as patch:
        patch.setattr(writers.Speculative, "write_batch", cut_off)
        assert draftwood(*words).exit_code == 130
    goes_on(draftwood, folder, words)


def test_a_cell_is_on_disk_before_the_next_one_begins(draftwood, tmp_path, problems, monkeypatch):
    folder, seen = tmp_path / "results", []
    write = writers.Speculative.write_batch

    def watched(self, prompt, tokens, seed):
        seen.append(len(cells(folder)))
        return write(self, prompt, tokens, seed)

    monkeypatch.setattr(writers.Speculative, "write_batch", watched)
    result = draftwood(*tiny(folder, "--data", problems))
    assert result.exit_code == 0, result.output
    # Passes and generate() come first; the contender warms up once; it begins the second prompt's turn.
    assert seen == [2, 2, 3]


def test_a_full_disk_is_one_sentence_and_the_next_run_goes_on(
    draftwood, refused, tmp_path, problems, monkeypatch
):
    folder, words = tmp_path / "results", ["--data", problems, "--prompts", 1]
    synced = []

    def full(handle):
        synced.append(handle)
        if len(synced) == 5:  # behind the first line, run.json and two cells
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    sentence = refused(*tiny(folder, *words))
    assert "cells.jsonl' cannot be written: No space left on device; make room and repeat" in sentence
    kept = (folder / "cells.jsonl").read_bytes()
    assert draftwood(*tiny(folder, *words)).exit_code == 0
    assert (folder / "cells.jsonl").read_bytes().startswith(kept)


def change(path, **parts):
    content = json.loads(path.read_text())
    for part, value in parts.items():
        content[part] = {**content[part], **value} if isinstance(value, dict) else value
    path.write_text(json.dumps(content))


def test_another_runs_folder_is_refused_with_what_differs(draftwood, refused, tmp_path, problems):
    folder, words = tmp_path / "results", ["--data", problems, "--prompts", 1]
    assert draftwood(*tiny(folder, *words)).exit_code == 0
    before = (folder / "cells.jsonl").read_bytes()
    sentence = refused(*tiny(folder, *words, "--seed", 3, "--budget", 8))
    assert "budgets was [] and is [8]; seed was 0 and is 3" in sentence
    assert "--to" in sentence

    run = (folder / "run.json").read_text()
    first, rest = before.split(b"\n", 1)
    for part, value, words_ in [
        ("hardware", {"device": "an abacus"}, 'device was "an abacus"'),
        ("versions", {"torch": "0.1"}, 'torch was "0.1"'),
        ("format", "something", "was not written by `draftwood bench`"),
        ("version", 99, "is of version 99, and this draftwood reads versions 2 and 3"),
        ("configuration", [], "is damaged (configuration is [])"),
    ]:
        change(folder / "run.json", **{part: value})
        if part in ("hardware", "versions"):
            assert "the first line of cells.jsonl in" in refused(*tiny(folder, *words))
            content = json.loads((folder / "run.json").read_text())
            (folder / "cells.jsonl").write_bytes(json.dumps(content).encode() + b"\n" + rest)
        assert words_ in refused(*tiny(folder, *words))
        (folder / "run.json").write_text(run)
        (folder / "cells.jsonl").write_bytes(before)

    data = problems.read_text()
    try:
        problems.write_text(data.replace("+ 3", "+ 4"))
        assert "data.sums was" in refused(*tiny(folder, *words))
    finally:
        problems.write_text(data)

    (folder / "run.json").write_text(run[:40])
    assert "is damaged" in refused(*tiny(folder, *words))
    (folder / "run.json").write_text(run)
    for line, count, reason in ((b"{}", 2, "key is missing"), (rest.split(b"\n")[0], 3, "it is there twice")):
        wrong = first + b"\n" + line + b"\n" + rest
        (folder / "cells.jsonl").write_bytes(wrong)
        for more in (words, ["--report"]):
            run_again = tiny(folder, *words) if more is words else ["bench", "--to", folder, *more]
            assert f"line {count}: not a cell ({reason})" in refused(*run_again)
        assert (folder / "cells.jsonl").read_bytes() == wrong
    (folder / "cells.jsonl").write_bytes(before)


@pytest.mark.posix
def test_a_folder_that_another_process_writes_to_is_refused(refused, tmp_path):
    import fcntl

    folder = tmp_path / "results"
    folder.mkdir()
    with (folder / "cells.jsonl").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "Another process writes" in refused(*tiny(folder))


def test_lossy_strategies_are_marked(draftwood, tmp_path):
    first = draftwood(*tiny(tmp_path, "--prompts", 1, "--strategy", "chain+typical:length=2"))
    assert first.exit_code == 0, first.output
    again = draftwood("bench", "--to", tmp_path, "--report")
    for shown in (first.stdout, again.stdout):
        marked = {line.split(" (lossy)")[0].strip() for line in shown.splitlines() if " (lossy)" in line}
        assert marked == {"chain+typical:length=2"}
        assert "Lossy: its texts are not distributed as the target's own." in " ".join(shown.split())
    results = json.loads((tmp_path / "results.json").read_text())["results"]
    assert {row["contender"]: row["lossless"] for row in results} == {
        "generate": True,
        "leviathan:length=2": True,
        "chain+typical:length=2": False,
    }


def test_a_run_that_failed_before_its_first_cell_does_not_block_the_next(draftwood, refused, tmp_path):
    assert "exceeds the target's context" in refused(*tiny(tmp_path, "--prompts", 1, new=4000))
    assert draftwood(*tiny(tmp_path, "--prompts", 1)).exit_code == 0
    assert json.loads((tmp_path / "run.json").read_text())["configuration"]["new_tokens"] == [6]


def test_a_run_file_of_somebody_else_is_left_alone(refused, tmp_path):
    (tmp_path / "run.json").write_text("{}")
    assert "was not written by `draftwood bench`" in refused(*tiny(tmp_path))
    assert (tmp_path / "run.json").read_text() == "{}"


def test_a_folder_of_other_files_is_left_alone(refused, tmp_path):
    (tmp_path / "letter.txt").write_text("Dear Sir,")
    (tmp_path / ".run.json-abc").touch()  # a run that was killed before its first cell left it
    assert "other files" in refused(*tiny(tmp_path))
    assert sorted(file.name for file in tmp_path.iterdir()) == [".run.json-abc", "letter.txt"]
    assert "cannot be made" in refused(*tiny(tmp_path / "letter.txt"))
    assert "no run of bench" in refused("bench", "--to", tmp_path, "--report")


def test_what_transformers_refuses_is_said_and_the_rest_runs(draftwood, tmp_path):
    words = ["--pair", "mamba2-draft,mamba2-draft", "--strategy", "generate-assisted"]
    result = draftwood(*tiny(tmp_path / "r", *words, "--prompts", 1, new=3))
    assert result.exit_code == 0, result.output
    assert "generate-assisted did not run: assisted generation is not supported" in result.stdout
    assert [line for line in result.stdout.splitlines() if line.startswith("leviathan:length=2")]


def test_half_precision_is_checked_in_float32(draftwood, tmp_path):
    words = ["--dtype", "bfloat16", "--prompts", 1]
    result = draftwood(*tiny(tmp_path / "r", *words, new=3))
    assert result.exit_code == 0, result.output
    assert Counter(cell["kind"] for cell in cells(tmp_path / "r"))["check"] == 2
    assert "compared with generate()'s in float32" in " ".join(result.stdout.split())
    assert " equal" in result.stdout


def test_a_text_that_differs_is_shown(draftwood, tmp_path, monkeypatch):
    write = writers.Speculative.write_batch

    def wrong(self, prompt, tokens, seed):
        text = write(self, prompt, tokens, seed)
        text.tokens[-1] += 1
        return text

    monkeypatch.setattr(writers.Speculative, "write_batch", wrong)
    result = draftwood(*tiny(tmp_path / "r", "--prompts", 1, new=4))
    assert "75.0% equal" in result.stdout


def test_a_narrow_terminal_loses_nothing(draftwood, finished, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    result = draftwood("bench", "--to", finished[0], "--report")
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 40
