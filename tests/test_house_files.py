"""The files around the code: what they name exists, and what they repeat is the same elsewhere."""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml

import draftwood

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PAGES = ("CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", ".github/pull_request_template.md")


def parsed(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))


def named(text: str) -> set[str]:
    """Files of the project that a text names: a path in `.ci`, `.github`, `docs` or `tests`, or a page."""
    folders = r"(?:\.ci|\.github|docs|tests)/[\w./-]*\w"
    pages = r"(?<![\w/.])[A-Z_]{4,}\.(?:md|cff)|(?<![\w/.-])(?:constraints\.txt|pyproject\.toml)"
    return set(re.findall(rf"{folders}|{pages}", text))


def absent(text: str) -> set[str]:
    """Returns names in a text that do not exist: files, and targets of make in code."""
    commands = set(re.findall(r"(?:^|`)make ([a-z][\w-]*)", text, re.MULTILINE))
    return {path for path in named(text) if not (ROOT / path).exists()} | (commands - targets())


@pytest.mark.parametrize(
    "path", [*FORMS, *WORKFLOWS, *(ROOT / page for page in PAGES)], ids=lambda path: path.name
)
def test_what_a_file_names_is_there(path: Path) -> None:
    assert not absent(path.read_text(encoding="utf-8"))


def test_what_is_not_there_is_seen() -> None:
    text = "`make nothing`, .ci/nothing, docs/nothing.md, NOTHING.md; `make test`, .ci/run, docs/start.md"
    assert absent(text) == {"nothing", ".ci/nothing", "docs/nothing.md", "NOTHING.md"}


def runs(workflow: Any) -> list[str]:
    """Every command line of a workflow, with the values of each row of its matrix filled in."""
    found = []
    for job in workflow["jobs"].values():
        rows = job.get("strategy", {}).get("matrix", {}).get("include", [{}])
        for row in rows:
            for step in job["steps"]:
                line = step.get("run", "")
                for name, value in row.items():
                    line = line.replace("${{ matrix." + name + " }}", str(value))
                found += line.splitlines()
    return found


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_what_there_is(path: Path) -> None:
    workflow = parsed(path)
    assert workflow["permissions"] == {"contents": "read"}
    commands = runs(workflow)
    assert commands
    for command in commands:
        assert "${{" not in command
        first, *rest = command.split()
        if "/" in first:
            assert os.access(ROOT / first, os.X_OK), first
        elif first == "make":
            assert set(rest) <= targets()
        elif "pytest" in rest:
            places = [word for word in rest if word.startswith("tests")]
            assert places
            assert all((ROOT / place).exists() for place in places), command
        elif command.startswith("python -m tests."):
            assert (ROOT / f"{rest[1].replace('.', '/')}.py").is_file(), command
        else:
            assert command.startswith("python -m pip install --constraint constraints.txt"), command
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 360
        assert job["steps"][0]["uses"].startswith("actions/checkout@")


def test_the_workflow_has_every_check_and_every_system() -> None:
    workflow = parsed(ROOT / ".github" / "workflows" / "ci.yml")
    assert {".ci/run", ".ci/release"} <= set(runs(workflow))
    rows = workflow["jobs"]["tests"]["strategy"]["matrix"]["include"]
    systems = {row["system"].partition("-")[0] for row in rows}
    assert systems == {"ubuntu", "macos", "windows"}
    served = {text.rpartition(" ")[2] for text in PROJECT["classifiers"] if "Python :: 3." in text}
    pythons = {row["python"] for row in rows}
    assert all(isinstance(python, str) for python in pythons)  # 3.10 unquoted is the number 3.1
    assert pythons <= served
    assert "3.11" in served
    assert PROJECT["requires-python"] == ">=3.11"
    names = {"macos": "MacOS", "ubuntu": "POSIX :: Linux", "windows": "Microsoft :: Windows"}
    told = {
        text.removeprefix("Operating System :: ") for text in PROJECT["classifiers"] if "System ::" in text
    }
    assert told == {names[system] for system in systems}


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_a_form_is_one(path: Path) -> None:
    form = parsed(path)
    assert set(form) <= {"name", "description", "title", "labels", "body"}
    assert form["name"]
    assert form["description"]
    asked = [part for part in form["body"] if part["type"] != "markdown"]
    assert any(part.get("validations", {}).get("required") for part in asked)
    ids = [part["id"] for part in asked]
    assert len(set(ids)) == len(ids)
    assert len({part["attributes"]["label"] for part in asked}) == len(asked)
    for part in form["body"]:
        assert part["type"] in ("markdown", "textarea", "input", "dropdown", "checkboxes")
        assert part["attributes"]["value" if part["type"] == "markdown" else "label"].strip()
        if part["type"] in ("dropdown", "checkboxes"):
            options = part["attributes"]["options"]
            assert all(
                isinstance(option, dict if part["type"] == "checkboxes" else str) for option in options
            )
            assert len(options) > 1


def test_there_is_a_form_for_every_kind_of_issue() -> None:
    assert {path.stem for path in FORMS} == {"bug", "bias", "strategy", "question"}
    assert len({parsed(path)["name"] for path in FORMS}) == len(FORMS)


def test_the_citation_is_that_of_this_project() -> None:
    cited = parsed(ROOT / "CITATION.cff")
    assert cited["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(cited)
    assert set(cited) <= {
        *("abstract", "authors", "cff-version", "date-released", "keywords", "license", "message"),
        *("title", "type", "version"),
    }
    assert cited["authors"] == [{"name": "The draftwood authors"}]
    assert cited["version"] == PROJECT["version"]
    assert cited["license"] == PROJECT["license"]
    assert cited["keywords"] == PROJECT["keywords"]
    assert PROJECT["name"] in cited["title"]


def test_files_that_the_architecture_names_are_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py)?)`", text))
    assert len(named) > 10
    assert not [path for path in sorted(named) if not (ROOT / path).exists()]
    for owner, attribute in re.findall(r"`([A-Z][A-Za-z]*[a-z][A-Za-z]*)\.([a-z_]+)[`(]", text):
        owned = getattr(draftwood, owner)
        assert hasattr(owned, attribute) or attribute in {field.name for field in attrs.fields(owned)}
