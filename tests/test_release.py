"""Refusals of `.ci/release`; it builds and installs, and these tests do not."""

import importlib.util
import re
import shutil
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
CONFIG: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
VERSION: str = CONFIG["project"]["version"]


@pytest.fixture(scope="module")
def checks() -> ModuleType:
    """`.ci/release_checks.py`, which is no module of anything."""
    spec = importlib.util.spec_from_file_location("release_checks", ROOT / ".ci" / "release_checks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def project(folder: Path, version: str, heading: str, cited: str | None = None) -> Path:
    (folder / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\n', encoding="utf-8")
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n## {heading}\n\n## 0.0.1 (2020-01-01)\n", "utf-8")
    (folder / "CITATION.cff").write_text(f"title: a\nversion: {cited or version}\n", encoding="utf-8")
    return folder


def test_this_commit_could_be_released(checks: ModuleType) -> None:
    assert not checks.version_problems(ROOT)


@pytest.mark.parametrize(
    ("version", "heading", "tag", "problem"),
    [
        ("0.2.0", "0.2.0 (2030-01-31)", "v0.2.0", None),
        ("0.2.0", "0.2.0 (2030-01-31)", "", None),
        ("0.2.0.dev0", "Unreleased: 0.2.0", "", None),
        ("0.2.0rc1", "Unreleased: 0.2.0", "v0.2.0rc1", None),
        ("0.2.0", "0.2.0 (2030-01-31)", "v0.2", "the tag is 'v0.2.0'"),
        ("0.2.0", "0.2.0 (2030-01-31)", "0.2.0", "the tag is 'v0.2.0'"),
        ("0.2.0", "Unreleased: 0.2.0", "v0.2.0", "first section of CHANGELOG.md is 'Unreleased: 0.2.0'"),
        ("0.2.0", "0.1.0 (2030-01-31)", "v0.2.0", "for version 0.2.0 it is '0.2.0 \\(YYYY-MM-DD\\)'"),
        ("0.2.0.dev0", "Unreleased: 0.1.0", "", "it is 'Unreleased: 0.2.0'"),
        ("0.2.0.dev0", "Unreleased: 0.2.0", "v0.2.0.dev0", "development versions have none"),
        ("0.2", "0.2 (2030-01-31)", "", "not of the form X.Y.Z"),
        ("0.2.0+here", "0.2.0+here (2030-01-31)", "", "not of the form X.Y.Z"),
    ],
)
def test_version_tag_and_changelog_go_together(
    checks: ModuleType, tmp_path: Path, version: str, heading: str, tag: str, problem: str | None
) -> None:
    found = checks.version_problems(project(tmp_path, version, heading), tag)
    assert (len(found) == 0) if problem is None else any(re.search(problem, one) for one in found), found


def test_another_version_in_the_citation_is_seen(checks: ModuleType, tmp_path: Path) -> None:
    (found,) = checks.version_problems(project(tmp_path, "0.2.0", "0.2.0 (2030-01-31)", "0.1.0"))
    assert "CITATION.cff names the version ['0.1.0']" in found


METADATA = f"""Metadata-Version: 2.4
Name: draftwood
Version: {VERSION}
Summary: A sentence.
License-Expression: Apache-2.0
License-File: LICENSE
Description-Content-Type: text/markdown

# draftwood
"""


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("", "", None),
        ("text/markdown", "text/plain", "no Markdown"),
        ("# draftwood", "", "no Markdown"),
        ("License-Expression: Apache-2.0\n", "", "licence is missing"),
        ("Summary: A sentence.", "Summary: ", "summary"),
        (f"Version: {VERSION}", "Version: 9.9", "the version is 9.9"),
        (f"Version: {VERSION}", "Version: nine", "invalid"),
        ("Name: draftwood\n", "", "name"),
        ("Apache-2.0", "Apache-Twenty", "invalid"),
    ],
)
def test_metadata_that_an_index_would_refuse_is_seen(
    checks: ModuleType, old: str, new: str, problem: str | None
) -> None:
    found = checks.metadata_problems("a file", METADATA.replace(old, new).encode())
    assert (not found) if problem is None else (found and problem in " ".join(found)), found


def built(folder: Path, house: tuple[str, ...], *, left_out: str = "", stray: str = "") -> Path:
    """An sdist and a wheel of this project as they would be, but for the files' contents."""
    layers: dict[str, str] = CONFIG["tool"]["setuptools"]["package-dir"]
    source = folder / "draftwood-0"
    source.mkdir()
    wheel = {"draftwood-0.dist-info/METADATA"}
    for package, layer in layers.items():
        for path in (ROOT / layer).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".safetensors":
                wheel.add(f"{package.replace('.', '/')}/{path.relative_to(ROOT / layer).as_posix()}")
                if path.suffix == ".py":
                    there = source / path.relative_to(ROOT)
                    there.parent.mkdir(parents=True, exist_ok=True)
                    there.touch()
    for name in house:
        (source / name).touch()
    (source / "PKG-INFO").write_text(METADATA, encoding="utf-8")
    if (source / left_out).is_file():
        (source / left_out).unlink()
    dist = folder / "dist"
    dist.mkdir()
    with tarfile.open(dist / "draftwood-0.tar.gz", "w:gz") as archive:
        archive.add(source, source.name)
    with zipfile.ZipFile(dist / "draftwood-0-py3-none-any.whl", "w") as archive_:
        for name in sorted(wheel - {left_out} | ({stray} if stray else set())):
            archive_.writestr(name, METADATA if name.endswith("METADATA") else "")
    shutil.rmtree(source)
    return dist


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, None),
        ({"left_out": "SECURITY.md"}, "The sdist lacks SECURITY.md."),
        ({"left_out": "framework/trees/tree.py"}, "differ: ['draftwood/trees/tree.py']"),
        ({"left_out": "draftwood/trees/tree.py"}, "The wheel lacks ['draftwood/trees/tree.py']"),
        (
            {"left_out": "draftwood/zoo/tokenizer/tokenizer.json"},
            "lacks draftwood/zoo/tokenizer/tokenizer.json",
        ),
        ({"left_out": "draftwood/apps/view/page.html"}, "lacks draftwood/apps/view/page.html"),
        ({"stray": "tests/test_tree.json"}, "tests/test_tree.json does not belong there"),
    ],
)
def test_what_is_missing_in_a_release_is_seen(
    checks: ModuleType, tmp_path: Path, options: dict[str, str], problem: str | None
) -> None:
    found = checks.file_problems(built(tmp_path, checks.HOUSE, **options))
    assert (not found) if problem is None else (found and problem in " ".join(found)), found


def test_a_folder_with_an_older_release_is_refused(checks: ModuleType, tmp_path: Path) -> None:
    dist = built(tmp_path, checks.HOUSE)
    (dist / "draftwood-0.0.0.tar.gz").touch()
    assert "holds 2 sdists and 1 wheels" in checks.file_problems(dist)[0]


def test_the_sdist_ships_the_pages_beside_the_readme(checks: ModuleType) -> None:
    manifest = (ROOT / "MANIFEST.in").read_text(encoding="utf-8")
    (names,) = re.findall(r"^include (.+)$", manifest, re.MULTILINE)
    by_itself = {"LICENSE", "README.md", "pyproject.toml", "setup.py"}  # setuptools takes these anyway
    assert set(names.split()) | by_itself == set(checks.HOUSE)
    assert all((ROOT / name).exists() for name in checks.HOUSE)
