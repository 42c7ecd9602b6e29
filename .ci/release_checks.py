"""What a release must be, beside that it works. `.ci/release` runs this.

    python .ci/release_checks.py version [TAG]   the version against its tag, the changelog and CITATION.cff
    python .ci/release_checks.py files FOLDER    the sdist and the wheel in FOLDER: metadata and contents

Needs packaging alone.
"""

from __future__ import annotations

import re
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

from packaging.metadata import Metadata
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
HOUSE = (
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CITATION.cff",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "README.md",
)
HOUSE += ("SECURITY.md", "constraints.txt", "pyproject.toml", "setup.py")
LARGEST = 100 * 10**6
"""Bytes that indices of packages take in one file."""


def declared(root: Path) -> str:
    """The version, from the one place that decides it."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version: str = project["version"]
    return version


def version_problems(root: Path, tag: str = "") -> list[str]:
    """What is wrong with the version of the project at `root`, whose commit carries `tag` or none."""
    text = declared(root)
    version, found = Version(text), []
    if text != str(version) or version.local or version.epoch or len(version.release) != 3:
        found.append(
            f"The version {text!r} in pyproject.toml is not of the form X.Y.Z, X.Y.ZrcN or X.Y.Z.devN."
        )
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = next(iter(re.findall(r"^## (.+)$", changelog, re.MULTILINE)), "")
    # What comes next stands under "Unreleased: X.Y.Z", what is released under "X.Y.Z (YYYY-MM-DD)".
    unfinished = version.is_devrelease or version.is_prerelease
    wanted = rf"Unreleased: {version.base_version}" if unfinished else rf"{text} \(\d{{4}}-\d\d-\d\d\)"
    if not re.fullmatch(wanted, heading):
        form = f"Unreleased: {version.base_version}" if unfinished else f"{text} (YYYY-MM-DD)"
        found.append(f"The first section of CHANGELOG.md is {heading!r}; for version {text} it is {form!r}.")
    cited = re.findall(r"^version: (.+)$", (root / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    if cited != [text]:
        found.append(f"CITATION.cff names the version {cited}; pyproject.toml has {text!r}.")
    if tag and tag != f"v{text}":
        found.append(f"The commit is tagged {tag!r}; for version {text} the tag is 'v{text}'.")
    if tag and version.is_devrelease:
        found.append(f"A commit of version {text} carries the tag {tag!r}; development versions have none.")
    return found


def metadata_problems(name: str, content: bytes) -> list[str]:
    """What an index would refuse or show badly in the metadata `content` of the file `name`."""
    try:
        found = Metadata.from_email(content, validate=True)
    except ExceptionGroup as errors:
        return [f"{name}: {error}" for error in errors.exceptions]
    problems = []
    if found.description_content_type != "text/markdown" or not (found.description or "").strip():
        problems.append(f"{name}: the description is no Markdown.")
    if not found.summary or not found.license_expression or not found.license_files:
        problems.append(f"{name}: the summary or the licence is missing.")
    if str(found.version) != declared(ROOT):
        problems.append(f"{name}: the version is {found.version}.")
    return problems


def wheel_of(sdist: set[str], config: dict[str, object]) -> set[str]:
    """The modules that a wheel must hold, by their names in it, from the files of the sdist."""
    layers: dict[str, str] = config["tool"]["setuptools"]["package-dir"]  # type: ignore[index]
    found = set()
    for package, folder in layers.items():
        for file in sdist:
            if file.startswith(f"{folder}/") and file.endswith(".py"):
                found.add(package.replace(".", "/") + file.removeprefix(folder))
    return found


def file_problems(folder: Path) -> list[str]:
    """What is wrong with the one sdist and the one wheel in `folder`."""
    sdists, wheels = sorted(folder.glob("*.tar.gz")), sorted(folder.glob("*.whl"))
    if len(sdists) != 1 or len(wheels) != 1:
        return [f"{folder} holds {len(sdists)} sdists and {len(wheels)} wheels; one of each is a release."]
    problems = [
        f"{file.name} has {file.stat().st_size} bytes; at most {LARGEST} are taken."
        for file in (*sdists, *wheels)
        if file.stat().st_size > LARGEST
    ]
    with tarfile.open(sdists[0]) as archive:
        inside = {name.partition("/")[2]: name for name in archive.getnames()}
        info = archive.extractfile(inside["PKG-INFO"])
        assert info is not None
        problems += metadata_problems(sdists[0].name, info.read())
    problems += [f"The sdist lacks {name}." for name in HOUSE if name not in inside]
    with zipfile.ZipFile(wheels[0]) as archive_:
        held = set(archive_.namelist())
        (name,) = [one for one in held if one.endswith(".dist-info/METADATA")]
        problems += metadata_problems(wheels[0].name, archive_.read(name))
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    modules, there = wheel_of(set(inside), config), {name for name in held if name.endswith(".py")}
    if modules != there:
        problems.append(f"The modules of sdist and wheel differ: {sorted(modules ^ there)[:5]}.")
    folders = config["tool"]["setuptools"]["package-dir"].values()
    sources = {path.relative_to(ROOT).as_posix() for one in folders for path in (ROOT / one).rglob("*.py")}
    wanted = wheel_of(sources, config)
    if wanted - there:
        problems.append(f"The wheel lacks {sorted(wanted - there)[:5]}.")
    data = (
        "py.typed",
        "zoo/llama-7m/config.json",
        "zoo/llama-draft/config.json",
        "zoo/tokenizer/tokenizer.json",
    )
    data += ("apps/view/page.html", "apps/bench/papers.toml", "kernels/README.md")
    problems += [f"The wheel lacks draftwood/{one}." for one in data if f"draftwood/{one}" not in held]
    stray = [one for one in (*inside, *held) if re.search(r"(^|/)(\.git|__pycache__|tests)(/|$)|\.pyc$", one)]
    return [*problems, *(f"{one} does not belong there." for one in stray[:5])]


def main(words: list[str]) -> int:
    """Say what is wrong, one line each; the exit code."""
    match words:
        case ["version", *tag] if len(tag) <= 1:
            found = version_problems(ROOT, *tag)
        case ["files", folder]:
            found = file_problems(Path(folder))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    for line in found:
        print(line, file=sys.stderr)
    if not found:
        print(f"draftwood {declared(ROOT)}: {words[0]} as it should be.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
