"""`draftwood strategies`: everything installed, and what cannot be loaded says why."""

import json

import pytest

from draftwood import registry
from draftwood.apps.strategies import Entry, entries


@pytest.fixture
def third_party(monkeypatch, tmp_path):
    """Install a package with one working and one broken policy, on the search path alone."""
    (tmp_path / "acme.py").write_text(
        "from draftwood import TreePolicy, WithReplacement\n"
        "class Bushy(TreePolicy):\n"
        "    laws = frozenset({WithReplacement})\n"
        "    source = 'Acme 2026'\n"
        "    def __init__(self, width: int = 3) -> None: ...\n"
    )
    (tmp_path / "acme_broken.py").write_text("import no_such_module\n")
    info = tmp_path / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[draftwood.policies]\nbushy = acme:Bushy\nbroken = acme_broken:Broken\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    registry._entries.cache_clear()
    yield
    registry._entries.cache_clear()


def by_name(found: list[Entry]) -> dict[str, Entry]:
    return {entry.name: entry for entry in found}


def test_every_registered_strategy_has_a_row(draftwood):
    result = draftwood("strategies")
    assert result.exit_code == 0
    for kind in registry.KINDS:
        for name in registry.names(kind):
            assert f" {name} " in result.stdout
    assert "cannot be loaded" not in result.stdout


def test_json_holds_laws_losslessness_options_and_source(draftwood):
    found = {row["name"]: row for row in json.loads(draftwood("strategies", "--json").stdout)}
    assert found["greedy"]["lossless"] is True
    assert len(found["recursive-rejection"]["laws"]) == 5
    assert found["dyspec"]["options"]["budget"] == "32"
    assert found["dyspec"]["source"].startswith("DySpec")
    assert found["dyspec"]["lossless"] is None
    assert found["typical"]["lossless"] is False
    assert found["recursive-rejection"]["trees"] == "any"
    assert found["optimal-iid"]["trees"] == "not adaptive"
    assert found["block"]["trees"] == "chains"
    assert found["prompt-lookup"]["options"]["vocab_size"] is None
    for row in found.values():
        assert row["source"]
        assert row["problem"] is None
        assert row["kind"] != "policies" or row["laws"]


def test_laws_that_depend_on_an_option_are_found():
    found = by_name(entries())
    assert found["dyspec"].laws == ("WithoutReplacement", "Deterministic")
    assert set(found["chain"].laws) == {
        "Deterministic",
        "WithReplacement",
        "WithoutReplacement",
        "TopThenSample",
        "PerChild",
    }


def test_third_parties_have_rows_too_and_a_broken_one_says_why(draftwood, third_party, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")  # a narrow table breaks sentences
    found = by_name(entries())
    assert found["bushy"].laws == ("WithReplacement",)
    assert found["bushy"].options == {"width": "3"}
    assert found["bushy"].source == "Acme 2026"
    assert "no_such_module" in (found["broken"].problem or "")
    result = draftwood("strategies")
    assert result.exit_code == 0
    assert "cannot be loaded" in result.stdout
    assert "dyspec" in result.stdout
