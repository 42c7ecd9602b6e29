"""The versions that `make test-versions` installs; the tests that it runs exist."""

import tomllib
from pathlib import Path

import pytest

from tests.versions import CHOSEN, COUNTING, installed_by, lowest, requirements

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize(
    ("requirement", "pinned"),
    [
        ("numpy>=2.0", "numpy==2.0"),
        ("mkdocs>=1.6,<2", "mkdocs==1.6"),
        ("triton>=3.3; platform_system == 'Linux'", "triton==3.3; platform_system == 'Linux'"),
        ("mkdocstrings[python]>=0.29", "mkdocstrings[python]==0.29"),
    ],
)
def test_a_lower_bound_becomes_the_version(requirement: str, pinned: str) -> None:
    assert lowest(requirement) == pinned


@pytest.mark.parametrize("requirement", ["numpy", "numpy<3", "numpy==2.0"])
def test_a_requirement_without_a_lower_bound_is_refused(requirement: str) -> None:
    with pytest.raises(ValueError, match="has no lower bound"):
        lowest(requirement)


def test_the_lowest_environment_pins_every_requirement_of_the_project() -> None:
    (*pins, option, own) = installed_by("lowest")
    assert len(pins) == len(PROJECT["dependencies"]) + len(PROJECT["optional-dependencies"]["test"])
    assert all("==" in pin and ">" not in pin for pin in pins)
    assert (option, own) == ("--editable", ".[test]")


def test_the_newest_environment_has_no_bound_but_those_of_pyproject() -> None:
    assert not any("=" in argument for argument in installed_by("newest"))


def test_the_extra_contains_those_that_change_what_decoding_does() -> None:
    there = set(requirements(PROJECT))
    for extra in ("bench", "grammar"):
        assert set(PROJECT["optional-dependencies"][extra]) <= there


@pytest.mark.parametrize("path", [*CHOSEN, *COUNTING])
def test_a_chosen_test_is_there(path: str) -> None:
    assert (ROOT / path).is_file()
