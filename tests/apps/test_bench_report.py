"""The page and the LaTeX table of a run of `draftwood bench`."""

import importlib.util
import json
import re
import shlex
import shutil
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from draftwood.apps.bench import latex, page, report
from draftwood.apps.bench.plan import BenchPlan, from_document
from draftwood.apps.bench.show import MEANINGS
from draftwood.apps.terminal import shown

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "greedy"
EVIL = "|<b>&`x`\\$%_#\x1b[1m"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed results, smaller, with their report, plots and table."""
    from draftwood_cli import app
    from typer.testing import CliRunner

    to = tmp_path_factory.mktemp("report") / "greedy"
    to.mkdir()
    shutil.copy(RESULTS / "run.json", to)
    lines = (RESULTS / "cells.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if " | gsm8k_test | " in line or '"kind": "passes"' in line]
    (to / "cells.jsonl").write_text("".join(kept), encoding="utf-8")
    result = CliRunner().invoke(app, ["bench", "--report", str(to), "--latex", str(to / "table.tex")])
    assert result.exit_code == 0, result.output
    assert "report.html, report.md" in result.output
    return to


class Tags(HTMLParser):
    """The cells of tables and the sources of images."""

    def __init__(self) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.images: list[str] = []

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        if tag in ("td", "th"):
            self.cells.append("")
        if tag == "img":
            self.images.append(dict(attributes)["src"])

    def handle_data(self, data: str) -> None:
        if self.lasttag in ("td", "th") and self.cells:
            self.cells[-1] += data.strip("\n")


def test_both_pages_hold_every_figure_with_its_interval(folder):
    figures = json.loads((folder / "results.json").read_text())["results"]
    tags = Tags()
    tags.feed((folder / "report.html").read_text(encoding="utf-8"))
    markdown = (folder / "report.md").read_text(encoding="utf-8")
    assert len(figures) == 5
    for one in figures:
        for name in ("speed_up", "tokens_per_round", "block_efficiency"):
            figure = one["figures"][name]
            if (one["contender"], name) == ("generate", "speed_up"):
                continue
            words = "{value:.2f} ({low:.2f}-{high:.2f})".format(**figure)
            assert words in tags.cells
            assert words in markdown
        assert one["contender"] in tags.cells
    of_several = {"a user", "goodput", "requests/s", "first 50", "gap 50"}
    for heading in MEANINGS:
        # In the results, and explained.
        assert tags.cells.count(heading) == (0 if heading in of_several else 2)
    for words in ("AMD EPYC, 2 threads", "torch", "2.13.0+cpu", "seed"):
        assert words in tags.cells


def test_the_page_loads_nothing_and_holds_its_plots(folder):
    text = (folder / "report.html").read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(text)
    plots = sorted(file.name for file in (folder / "plots").iterdir())
    assert "speed.png" in plots
    assert len(tags.images) == len(plots)
    assert all(source.startswith("data:image/png;base64,") for source in tags.images)
    assert "http:" not in text
    assert "https:" not in text
    linked = re.findall(r"\]\((.*?)\)", (folder / "report.md").read_text(encoding="utf-8"))
    assert sorted(linked) == [f"plots/{name}" for name in plots]


def test_the_command_asks_for_the_same_run(folder):
    """All options but the data sets' files, which have lost their folders."""
    configuration = json.loads((folder / "run.json").read_text())["configuration"]
    words = shlex.split(report.command(configuration))
    assert words[:2] == ["draftwood", "bench"]
    fields: dict[str, list[str]] = {}
    for option, value in zip(words[2::2], words[3::2], strict=True):
        fields.setdefault(option, []).append(value)
    assert fields.pop("--data") == list(configuration["data"])
    wanted, _ = from_document(configuration)
    settings = tomllib.loads((RESULTS.parent / "greedy.toml").read_text(encoding="utf-8"))
    assert BenchPlan(**settings) == wanted
    assert fields == {
        "--strategy": ["generate-assisted", "leviathan:length=8", "dyspec"],
        "--budget": ["8", "32"],
        "--new-tokens": ["48"],
        "--prompts": ["20"],
        "--turns": ["1"],
        "--dtype": ["float32"],
        "--widen": ["5e+07"],
    }


def test_the_latex_table_is_whole(folder):
    text = (folder / "table.tex").read_text(encoding="utf-8")
    for one in ("toprule", "midrule", "bottomrule", "begin{tabular}{lrrr}", "end{tabular}", "caption{"):
        assert text.count(f"\\{one}") == 1
    body = text[text.index("midrule") : text.index("bottomrule")]
    lines = [line for line in body.splitlines() if line.endswith("\\\\")]
    assert len(lines) == 6  # the contest, and its five contenders
    assert all(line.count(" & ") == 3 for line in lines[1:])
    assert "gsm8k\\_test" in text
    figures = json.loads((folder / "results.json").read_text())["results"]
    for one in figures[1:]:
        assert "{value:.2f} [{low:.2f}, {high:.2f}]".format(**one["figures"]["speed_up"]) in text


def test_nothing_on_a_page_is_taken_for_its_language():
    markdown, made = page.MarkdownPage(), page.HtmlPage(EVIL)
    for one in (markdown, made):
        one.heading(EVIL, 2)
        one.paragraph(EVIL)
        one.table(["", EVIL], [[EVIL, EVIL]])
        one.code("```\n" + EVIL)
    assert "\x1b" not in markdown.text() + made.text() + latex.escaped(EVIL)
    assert "<b>" not in made.text()
    heading, paragraph, *rows, _ = markdown.text().split("\n\n")
    assert heading == "## " + paragraph
    assert paragraph.startswith("\\|\\<b\\>\\&\\`x\\`")
    for row in rows[0].splitlines():
        assert len(re.findall(r"(?<!\\)\|", row)) == 3
    assert markdown.text().rstrip().endswith(shown.visible(EVIL) + "\n````")
    assert re.sub(r"\\text\w+\{\}|\\[&%$#_{}]", "", latex.escaped("a&%$#_{}~^\\")) == "a"


def test_a_folder_is_named_once(refused, tmp_path):
    assert "add --report, or give --to mine" in refused("bench", "mine")
    assert "no run of bench" in refused("bench", "--report", tmp_path)
    assert "does not exist" in refused("bench", "--report", RESULTS, "--latex", "/no/such/table.tex")


def test_without_matplotlib_the_report_says_that_it_has_no_plots(draftwood, folder, tmp_path, monkeypatch):
    to = tmp_path / "copy"
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns("plots", "report.*"))
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *more: None if name == "matplotlib" else found(name, *more)
    )
    result = draftwood("bench", "--to", to, "--report")
    assert result.exit_code == 0, result.output
    assert "The report has no plots" in result.stderr
    assert "img src" not in (to / "report.html").read_text(encoding="utf-8")
