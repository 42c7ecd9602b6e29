"""Strategies by name, including strategies of other packages."""

import sys
import tomllib
from pathlib import Path

import pytest

from draftwood import InvalidInput, UnknownStrategy, create
from draftwood.protocols import registry
from draftwood.protocols.registry import names
from draftwood.strategies.policies.dyspec import DySpec


def test_own_strategies_are_registered_and_built_with_options():
    assert {"chain", "dyspec", "fixed-tree"} <= set(names("policies"))
    assert {"greedy", "recursive-rejection"} <= set(names("verifiers"))
    assert {"model", "prompt-lookup", "several"} <= set(names("drafters"))
    assert create("policies", "dyspec", {"budget": 5}) == DySpec(5)


@pytest.mark.parametrize(
    ("kind", "name", "options", "error", "message"),
    [
        ("policies", "dyspek", {}, UnknownStrategy, "no policy 'dyspek'; did you mean 'dyspec'"),
        (
            "policies",
            "cost-aware",
            {"budgets": (0, 8)},
            UnknownStrategy,
            "no strategy 'cost-aware' any more; name 'throughput-dyspec'",
        ),
        ("verifiers", "zzz", {}, UnknownStrategy, "no verifier 'zzz'; known are"),
        ("policies", "dyspec", {"bugdet": 3}, UnknownStrategy, "no option 'bugdet'; did you mean 'budget'"),
        ("policies", "dyspec", {"budget": 0}, InvalidInput, "budget is 0"),
        (
            "verifiers",
            "class-ordered-traversal",
            {"luck": 0.5},
            UnknownStrategy,
            "no longer has the option 'luck': it gained nothing; name the verifier without it",
        ),
        (
            "verifiers",
            "class-ordered-rejection",
            {"phantoms": True},
            UnknownStrategy,
            "no longer has the option 'phantoms': for adaptive trees name 'traversal'",
        ),
        ("drafters", "prompt-lookup", {}, InvalidInput, "needs the option 'vocab_size'"),
    ],
)
def test_unknown_names_and_options_suggest_the_nearest(kind, name, options, error, message):
    with pytest.raises(error, match=message):
        create(kind, name, options)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of installed packages; what is known of them is known anew afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    registry._entries.cache_clear()
    yield tmp_path
    registry._entries.cache_clear()
    sys.modules.pop("elsewhere", None)


def test_an_installed_package_adds_its_strategies_by_name(site):
    (site / "elsewhere.py").write_text("def policy(size: int = 2): return ('theirs', size)\n")
    info = site / "elsewhere-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[draftwood.policies]\ntheirs = elsewhere:policy\n")
    assert create("policies", "theirs", {"size": 3}) == ("theirs", 3)


def test_every_group_that_the_project_declares_is_read():
    declared = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())
    groups = set(declared["project"]["entry-points"]) - {"pytest11"}
    assert groups == registry._GROUPS
