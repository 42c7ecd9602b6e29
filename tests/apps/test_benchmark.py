"""`python -m benchmarks`: the gate before any figure, the table, and the file."""

import json
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from draftwood.apps import contenders as ways
from draftwood.apps.failures import plainly

ROOT = Path(__file__).resolve().parents[2]
TINY = ["--prompts", "1", "--tokens", "5", "--repetitions", "1", "--parameters", "1e6"]


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.decode import decode

    app = typer.Typer()
    app.command()(plainly(decode))
    yield lambda *arguments: CliRunner().invoke(app, [*TINY, *map(str, arguments)])
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        del sys.modules[name]


def test_a_run_prints_the_table_and_writes_all_figures(bench, tmp_path):
    file = tmp_path / "figures.json"
    result = bench("--budget", 2, "--budget", 3, "--all", "--json", file)
    assert result.exit_code == 0, result.output
    names = ["generate()", "assisted generation", "chain", "fixed tree", "DySpec, 2 nodes", "DySpec, 3 nodes"]
    assert [line[:32].rstrip() for line in result.stdout.splitlines()[3:]] == names
    assert "In float32 all 3 texts of 5 tokens are those of generate()." in result.stdout
    found = json.loads(file.read_text(encoding="utf-8"))
    assert set(found["versions"]) >= {"torch", "transformers"}
    assert found["device"]
    assert [one["contender"] for one in found["contenders"]] == names
    assert set(found["contenders"][-1]["ratios"]) == {"maths", "code", "prose"}
    assert 0 < found["contenders"][-1]["overhead"] < 1
    assert len(found["samples"]) == 3 * len(names)
    assert found["plans"]["DySpec, 3 nodes"]["options"]["budget"] == 3


@pytest.mark.parametrize(
    ("target", "draft", "refused"),
    [
        ("mamba2-5m", "llama-draft", "Mamba2"),
        ("bamba-6m", "mamba2-draft", "Bamba"),
        ("llama-7m", "llama-draft", None),
    ],
)
def test_any_target_and_draft_race(bench, tmp_path, target, draft, refused):
    file = tmp_path / "figures.json"
    result = bench("--target", target, "--draft", draft, "--budget", 2, "--dtype", "float32", "--json", file)
    assert result.exit_code == 0, result.output
    found = json.loads(file.read_text(encoding="utf-8"))
    assert (found["target"], found["draft"]) == (target, draft)
    names = [one["contender"] for one in found["contenders"]]
    if refused is None:
        assert names == ["generate()", "assisted generation", "DySpec, 2 nodes"]
    else:
        assert names == ["generate()", "DySpec, 2 nodes"]
        assert f"No assisted generation: transformers refuses it with {refused}ForCausalLM" in result.stdout


def test_no_figure_is_printed_where_a_text_differs(bench, monkeypatch):
    write = ways.Speculative.write

    def wrong(self, prompt, tokens):
        sample = write(self, prompt, tokens)
        sample.tokens[2] += 1
        return sample

    monkeypatch.setattr(ways.Speculative, "write", wrong)
    result = bench()
    assert result.exit_code == 1
    assert "leaves the text of generate() after 40.0%" in result.stderr
    assert result.stdout == ""


def test_prompts_from_files(bench, tmp_path):
    (tmp_path / "gsm8k_test.jsonl").write_text('{"question": "What is 2 + 3?"}\n')
    (tmp_path / "humaneval.jsonl").write_text('{"prompt": "def f(x):\\n"}\n')
    (tmp_path / "wikitext2_test.txt").write_text("The town lies on the river. " * 30 + "\n")
    result = bench("--data", tmp_path, "--dtype", "float32")
    assert result.exit_code == 0, result.output
    assert "gsm8k" in result.stdout
    assert "wikitext2" in result.stdout
    assert "float32: a pass" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--data", "/no/such"], "cannot be read"),
        (["--budget", "0"], "budget is 0"),
        (["--law", "topk"], "did you mean 'top-k'"),
        (["--json", "/no/such/figures.json"], "does not exist"),
        (["--target", "mamba2-6m"], "the zoo has no model 'mamba2-6m'; did you mean 'mamba2-5m'"),
    ],
)
def test_bad_input_is_one_sentence(bench, arguments, part):
    result = bench(*arguments)
    assert result.exit_code == 1
    (sentence,) = result.stderr.splitlines()
    assert part in sentence


def test_packed_trees_compute_less_and_hold_one_state(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.packed import packed

    app = typer.Typer()
    app.command()(plainly(packed))
    few = ["--target", "mamba2-draft", "--context", "9", "--repetitions", "2"]
    result = CliRunner().invoke(app, few)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()[2:]]
    counts = [tuple(map(int, line[3:5])) for line in lines if line[0] == "depth"]
    # Packed, with snapshots, recomputing, and by paths.
    assert counts == [
        *[(15, 1), (15, 16), (15, 1), (32, 8)],
        *[(31, 1), (31, 32), (31, 1), (80, 16)],
        *[(63, 1), (63, 64), (63, 1), (192, 32)],
    ]
    assert all(float(line[3].rstrip("x")) > 2 for line in lines if line[0] != "depth")
    monkeypatch.setattr("benchmarks.packed.CLOSE", 0.0)
    result = CliRunner().invoke(app, [*few, "--deepest", "4"])
    assert result.exit_code == 1
    assert "Packed and unrolled logits of mamba2-draft differ by" in result.stderr
