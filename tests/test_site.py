"""The sources of the documentation site: no dead link, no page out of sight, no figure that is not there.

`make site` builds them with every warning an error; that needs mkdocs, and these tests do not.
"""

import csv
import importlib.util
import json
import re
import shutil
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import yaml

from draftwood.apps.bench.plan import from_document
from draftwood.base import errors
from draftwood.protocols import registry

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("kernels/*.md"), *ROOT.glob("kernels/*/*.md")]
)


def load(name):
    """Returns a module of docs/_site, which is no package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "_site" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


ENGINES, TABLES, FILLED = load("engine_tables"), load("tables"), load("pages")


def text_of(page):
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page):
    """Returns the anchors that the site makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    words = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"[-\s]+", "-", word) for word in words}


def dead_links(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        readme = target / "README.md" if target.is_dir() else target
        if not readme.exists() or (anchor and anchor not in anchors(readme)):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_is_dead(page):
    assert not list(dead_links(page))


def test_a_dead_link_is_seen(tmp_path):
    (tmp_path / "there.md").write_text("# One heading: *two*\n")
    page = tmp_path / "page.md"
    page.write_text("[a](there.md#one-heading-two) [b](not.md) [c](there.md#three) [d](https://semver.org)")
    assert list(dead_links(page)) == ["not.md", "there.md#three"]


def site_only(text):
    """Yields what only the site renders and a repository shows as raw text, and tables without rows."""
    unfenced = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"`[^`\n]+`", "", unfenced)
    yield from re.findall(r"^ *(?:!!!|\?\?\?\+?|===|:::) .*", prose, re.MULTILINE)
    yield from re.findall(r"(?:--8<--|\{:?\s*[.#][\w-]+[^}\n]*\}|\bmarkdown=|\[TOC\]).*", prose)
    yield from re.findall(r"^\|[ |:-]+\|(?=\n(?!\|)|\Z)", unfenced, re.MULTILINE)
    yield from re.findall(r"<!-- table: \w+ -->\s*<!-- end -->", unfenced)
    yield from re.findall(r"\]\(/[^)]*\)", prose)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.parent.name != "reference"],  # these are made from docstrings
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_a_page_is_plain_markdown_with_no_empty_table(page):
    assert not list(site_only(page.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "text",
    [
        "!!! note\n    text\n",
        '=== "Tab"\n',
        "::: draftwood.laws\n",
        "# Title {#anchor}\n",
        "[link](page.md){ .button }\n",
        '--8<-- "file"\n',
        "| a | b |\n|---|---|\n\nText\n",
        "| a | b |\n|---|---|",
        "<!-- table: methods -->\n\n<!-- end -->\n",
        "[rooted](/docs/page.md)\n",
    ],
)
def test_syntax_of_the_site_and_empty_tables_are_seen(text):
    assert list(site_only(text))
    assert not list(site_only("Text `{.a}`\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"))


def test_every_page_is_in_the_navigation():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    named = set(re.findall(r"[\w/-]+\.md", str(site["nav"])))
    there = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert there <= named, f"mkdocs.yml lacks {sorted(there - named)}"
    assert site["strict"] is True


def plain(text):
    return " ".join(text.split()).strip("… ")


def test_troubleshooting_quotes_what_the_errors_say():
    said = [plain(text) for _, text in TABLES.messages()]
    quoted = re.findall(
        r"^### `(.+)`$", (DOCS / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(quoted) >= 15
    for message in quoted:
        assert any(plain(message) in one for one in said), message


def test_every_kind_of_error_has_its_messages():
    listed = TABLES.all_messages()
    kinds = {name for name, kind in TABLES.CLASSES.items() if kind is not errors.DraftwoodError}
    assert {name for name in kinds if f"## {name}\n" in listed} == kinds


@pytest.mark.parametrize(("page", "least"), [("docs/choose.md", 10), ("README.md", 24)])
def test_the_figures_of_a_summary_are_measured_ones(page, least):
    names = ("heads.md", "verifiers.md", "engines.md", "results/index.md", "results/methods.md")
    measured = "".join((DOCS / name).read_text(encoding="utf-8") for name in names)
    text = (ROOT / page).read_text(encoding="utf-8")
    figures = set(re.findall(r"\d\.\d\d(?: \(\d\.\d\d-\d\.\d\d\))?(?![\d.])", text))
    assert len(figures) > least
    assert not {figure for figure in figures if figure not in measured}


def test_every_method_has_its_source_law_and_command():
    page = TABLES.recipes()
    for name in registry.names("recipes"):
        (section,) = re.findall(rf"^### {name}\n(.*?)(?=^### |\Z)", page, re.DOTALL | re.MULTILINE)
        for label in ("source", "law", "made of", "settings"):
            assert re.search(rf"^\| {label} \| \S.+ \|$", section, re.MULTILINE), (name, label)
        assert f"`draftwood generate --recipe {name}" in section


def test_the_committed_pages_hold_their_tables():
    """`make pages` writes them."""
    assert not [page.relative_to(ROOT).as_posix() for page, _ in FILLED.stale()]


def test_every_table_is_in_a_page():
    pages = "".join(page.read_text(encoding="utf-8") for page in FILLED.PAGES)
    asked = re.findall(r"<!-- table: (\w+) -->", pages)
    assert set(asked) == set(TABLES.TABLES)
    assert len(asked) == pages.count("<!-- end -->")


def test_a_changed_table_is_written_anew():
    page = "a\n<!-- table: families_counts -->\nold\n<!-- end -->\nb\n"
    assert "old" not in FILLED.filled(page)
    assert "| supported |" in FILLED.filled(page) or "| served |" in FILLED.filled(page)
    assert FILLED.filled(FILLED.filled(page)) == FILLED.filled(page)
    assert FILLED.written_by_hand(page) == "a\n\nb\n"


def test_engines_are_compared_by_their_fastest_setting(tmp_path, monkeypatch):
    seconds = {
        "generate()": 8.0,
        "OpenVINO GenAI, plain": 4.0,
        "OpenVINO GenAI, its draft of 4": 2.0,
        "draftwood, eager, 0 nodes": 10.0,
        "draftwood, openvino, 0 nodes": 8.0,
        "draftwood, openvino, 8 nodes": 4.0,
        "llama.cpp, Q8_0, its draft of 4": 2.0,
        "draftwood, openvino, int8, 4 nodes": 1.0,
        "draftwood, gguf F32, 4 nodes": 8.0,
        "draftwood, gguf Q8_0, 4 nodes": 4.0,
    }
    # Another run of the target adds an engine that the first one leaves out, and replaces nothing.
    more = {
        "generate()": 16.0,
        "OpenVINO GenAI, plain": 1.0,
        "llama.cpp, F32, plain": 10.0,
        "draftwood, openvino, 8 nodes": 16.0,
    }
    about = ""
    for file, times in (("run.csv", seconds), ("more.csv", more)):
        passes = {name: 4 if "," in name else 0 for name in times}
        lines = ["contender,repetition,prompt,seconds,cpu,tokens,passes,noise,equal"]
        lines += [
            f'"{name}",{repetition},{prompt},{each},{2 * each},16,{passes[name]},0.001,{prompt == 0}'
            for name, each in times.items()
            for repetition in range(2)
            for prompt in range(3)
        ]
        (tmp_path / file).write_text("\n".join(lines) + "\n", encoding="utf-8")
        about += f'[[run]]\nfile = "{file}"\ntarget = "7M"\nmachine = "A machine"\ncommand = "make it"\n'
    (tmp_path / "engines.toml").write_text(about, encoding="utf-8")
    monkeypatch.setattr(ENGINES, "DATA", tmp_path)
    monkeypatch.setattr(ENGINES, "RUNS", tmp_path / "engines.toml")
    assert ENGINES.summary().splitlines() == [
        "| | 7M | 7M, int8 |",
        "|---|---|---|",
        "| generate() | 1 |  |",
        "| OpenVINO GenAI | 4.00 (4.00-4.00) |  |",
        "| draftwood, torch | 0.80 (0.80-0.80) |  |",
        "| draftwood, OpenVINO | 2.00 (2.00-2.00) | 8.00 (8.00-8.00) |",
        "| llama.cpp | 1.60 (1.60-1.60) | 4.00 (4.00-4.00) |",
        "| draftwood, llama.cpp | 1.00 (1.00-1.00) | 2.00 (2.00-2.00) |",
        "",
        "Best of draftwood over the best of all others: 0.50 (0.50-0.50) (7M, OpenVINO GenAI); "
        "2.00 (2.00-2.00) (7M, int8, llama.cpp).",
    ]
    shown = ENGINES.every_run()
    assert shown.startswith(
        "**7M.** A machine; 3 held-out prompts, 16 tokens each, 2 times. `make it`\n\n| |"
    )
    assert ENGINES.summary().splitlines()[-1] in shown
    assert "| generate() | 2.0 | 1 | 1.0 |  | 2 of 6 |" in shown
    assert "| draftwood, openvino, 8 nodes | 4.0 | 2.00 (2.00-2.00) | 2.0 | 4.00 | 2 of 6 |" in shown


def test_every_file_of_engines_is_listed():
    listed = [run["file"] for run in tomllib.loads(ENGINES.RUNS.read_text(encoding="utf-8"))["run"]]
    assert sorted(listed) == sorted(file.name for file in ENGINES.DATA.glob("engines-*.csv"))
    for run in ENGINES.runs():
        assert run.contenders()[0] == "generate()"


def word_counts(pages):
    """Returns the words of each page, code included, tables that a command writes excluded."""
    return {
        page.relative_to(DOCS).as_posix(): len(FILLED.written_by_hand(page.read_text("utf-8")).split())
        for page in pages
    }


def test_the_pages_are_short():
    """The list of mistakes is made by a command, and the research log is for looking things up."""
    words = word_counts(DOCS.rglob("*.md"))
    words = {page: count for page, count in words.items() if page not in ("mistakes.md", "research-log.md")}
    assert not {page: count for page, count in words.items() if count >= 1500}
    assert sum(words.values()) <= 28_000, words


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The results that are on the site, and the same worked out anew from their cells."""
    from draftwood_cli import app
    from typer.testing import CliRunner

    found: tuple[list[dict[str, str]], ...] = [], []
    for shown in TABLES.RESULTS:
        folder = tmp_path_factory.mktemp("results") / shown.parent.name
        folder.mkdir()
        for name in ("run.json", "cells.jsonl"):
            shutil.copy(shown.parent / name, folder)
        assert CliRunner().invoke(app, ["bench", "--to", str(folder), "--report"]).exit_code == 0
        for lines, file in zip(found, (shown, folder / "results.csv"), strict=True):
            with file.open(newline="", encoding="utf-8") as content:
                lines.extend(csv.DictReader(content))
    return found


def test_the_results_on_the_site_are_those_of_their_cells(measured):
    shown, anew = measured
    assert len(shown) == len(anew)
    for line, again in zip(shown, anew, strict=True):
        assert line.keys() == again.keys()
        for name, value in line.items():
            try:
                assert float(again[name]) == pytest.approx(float(value)), name
            except ValueError:
                assert again[name] == value


@pytest.mark.parametrize("results", TABLES.RESULTS, ids=lambda results: results.parent.name)
def test_a_run_on_the_site_lost_no_cell_and_ran_none_twice(results):
    run = json.loads((results.parent / "run.json").read_text(encoding="utf-8"))
    plan, names = from_document(run["configuration"])
    with (results.parent / "cells.jsonl").open(encoding="utf-8") as file:
        cells = [json.loads(line) for line in file]
    assert len({cell["key"] for cell in cells}) == len(cells)
    turns = {(c["data"], c["prompt"], c["turn"]) for c in cells if "turn" in c}
    texts = Counter((c["data"], c["temperature"], c["contender"]) for c in cells if c["kind"] == "text")
    wanted = {
        (name, heat, spec.label): plan.repetitions * sum(data == name for data, *_ in turns)
        for name in names
        for heat in plan.temperatures
        for spec in plan.contenders(heat)
    }
    assert texts == wanted
    assert len(names) == 6
    assert {prompt for _, prompt, _ in turns} == set(range(plan.prompts))


def test_tables_of_results_hold_every_contender_and_data_set(measured):
    lines = measured[0]
    for name in ("results_speed", "results_rounds", "results_texts"):
        table = TABLES.TABLES[name]()
        rows = [row for row in table.splitlines() if row.startswith("| `")]
        assert len(rows) * len({line["data"] for line in lines}) == len(lines)
        assert table.count("| temperature ") == len({line["temperature"] for line in lines})
    sampled = [line for line in lines if float(line["temperature"]) > 0 and line["contender"] != "generate"]
    assert TABLES.TABLES["results_together"]().count("| `") == len({line["contender"] for line in sampled})
    first = next(line for line in lines if line["contender"] != "generate")
    shown = f"{float(first['speed_up']):.2f} ({float(first['speed_up_low']):.2f}-"
    assert f"| `{first['contender']}` | {shown}" in TABLES.TABLES["results_speed"]()
    assert lines[0]["device"] in TABLES.TABLES["results_machine"]()


def test_every_file_of_the_strategies_is_in_the_reference():
    page = (DOCS / "reference" / "strategies.md").read_text(encoding="utf-8")
    for kind in ("policies", "verifiers", "drafters"):
        for name in registry.names(kind):
            module = registry.get(kind, name).__module__
            assert f"::: {module}\n" in page, module


def test_every_module_of_the_reference_is_there():
    pages = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    for module in re.findall(r"^::: (\S+)$", pages, re.MULTILINE):
        assert importlib.util.find_spec(module) is not None, module


@pytest.mark.parametrize("name", ["accepted.svg", "round.svg", "residual.svg", "state.svg"])
def test_pictures_have_a_dark_form_and_say_what_they_show(name):
    picture = (DOCS / "images" / name).read_text(encoding="utf-8")
    assert "prefers-color-scheme:dark" in picture
    assert 'role="img" aria-label="' in picture
