"""`draftwood strategies`: everything installed, and what cannot be loaded says why."""

import json
from collections import Counter

import pytest

from draftwood.apps.strategies import Entry, entries
from draftwood.protocols import registry


@pytest.fixture
def third_party(monkeypatch, tmp_path):
    """Install a package with one working and one broken policy, only on the search path."""
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
        "[draftwood.kernels]\nfast = acme:fast\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    registry._entries.cache_clear()
    yield
    registry._entries.cache_clear()


def of_kind(kind: str) -> dict[str, Entry]:
    return {entry.name: entry for entry in entries() if entry.kind == kind}


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 40)])
def test_all_names_fit_on_one_screen(draftwood, monkeypatch, columns, rows):
    monkeypatch.setenv("COLUMNS", str(columns))
    result = draftwood("strategies")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) < rows  # a line is left for the prompt
    assert max(map(len, lines)) <= columns
    words = Counter(word for line in lines if line.startswith("  ") for word in line.split())
    names = Counter(name for kind in registry.KINDS for name in registry.names(kind))
    assert words - names == {"typical*": 1}
    assert names - words == {"typical": 1}


@pytest.mark.parametrize("kind", registry.KINDS)
def test_a_kind_has_a_line_for_each_of_its_strategies(draftwood, monkeypatch, kind):
    monkeypatch.setenv("COLUMNS", "80")
    lines = draftwood("strategies", kind).stdout.splitlines()
    assert [line.split()[0] for line in lines] == registry.names(kind)
    assert len(lines) < 40
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if "(lossy)" in line] == ["typical"] * (kind == "verifiers")
    assert {row["kind"] for row in json.loads(draftwood("strategies", kind, "--json").stdout)} == {kind}


def test_one_strategy_is_shown_in_full(draftwood, refused):
    shown = draftwood("strategies", "rsd-s").stdout
    for line in (
        "rsd-s, a recipe",
        "  made of: StochasticBeam, RecursiveRejection, model",
        "  laws: WithoutReplacement",
        "  lossless: yes",
        "  -o width=6",
    ):
        assert f"{line}\n" in shown
    assert "..." not in shown
    both = draftwood("strategies", "dyspec").stdout
    assert "dyspec, a policy\n" in both
    assert "dyspec, a recipe\n" in both
    assert "  -o index: must be given\n" in draftwood("strategies", "retrieval").stdout
    assert "  -o head=None\n" in draftwood("strategies", "mtp").stdout  # of the target, if left out
    assert [row["kind"] for row in json.loads(draftwood("strategies", "block", "--json").stdout)] == [
        "verifiers",
        "recipes",
    ]
    assert "did you mean 'dyspec'?" in refused("strategies", "dispec")


def test_json_holds_laws_losslessness_options_and_source(draftwood):
    rows = json.loads(draftwood("strategies", "--json").stdout)
    found = {(row["kind"], row["name"]): row for row in rows}
    verifiers, policies, recipes = (
        {name: row for (of, name), row in found.items() if of == kind}
        for kind in ("verifiers", "policies", "recipes")
    )
    assert verifiers["greedy"]["lossless"] is True
    assert verifiers["recursive-rejection"]["laws"] == ["Proposal"]
    assert policies["dyspec"]["options"]["budget"] == "32"
    assert policies["dyspec"]["source"].startswith("DySpec")
    assert policies["dyspec"]["lossless"] is None
    assert verifiers["typical"]["lossless"] is False
    assert verifiers["recursive-rejection"]["trees"] == "any"
    assert verifiers["optimal-iid"]["trees"] == "not adaptive"
    assert verifiers["block"]["trees"] == "chains"
    assert found["drafters", "prompt-lookup"]["options"]["vocab_size"] is None
    assert recipes["rsd-s"]["parts"] == ["StochasticBeam", "RecursiveRejection", "model"]
    assert recipes["rsd-s"]["laws"] == ["WithoutReplacement"]
    assert recipes["rsd-s"]["options"] == {"width": "6", "depth": "5"}
    assert recipes["rsd-s"]["settings"].startswith("appendix D.3")
    assert "temperature" not in recipes["rsd-c"]["options"]
    for row in rows:
        assert row["source"]
        assert row["problem"] is None
        drafts = row["kind"] in ("policies", "recipes") and row["name"] != "ordinary"
        assert bool(row["laws"]) or not drafts


def test_laws_that_depend_on_an_option_are_found():
    found = of_kind("policies")
    assert found["dyspec"].laws == ("WithoutReplacement", "Deterministic")
    assert set(found["chain"].laws) == {
        "FixedTimeSet",
        "Deterministic",
        "WithReplacement",
        "WithoutReplacement",
        "TopThenSample",
        "PerChild",
    }


def test_third_parties_have_rows_too_and_a_broken_one_says_why(draftwood, third_party, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")  # a narrow table breaks sentences
    found = of_kind("policies")
    assert found["bushy"].laws == ("WithReplacement",)
    assert found["bushy"].options == {"width": "3"}
    assert found["bushy"].source == "Acme 2026"
    assert "no_such_module" in (found["broken"].problem or "")
    for arguments in (("strategies",), ("strategies", "policies")):
        result = draftwood(*arguments)
        assert result.exit_code == 0
        assert "cannot be loaded: ModuleNotFoundError" in result.stdout
        assert "dyspec" in result.stdout


def test_a_group_that_is_not_read_is_named_with_its_package(third_party, draftwood):
    result = draftwood("strategies", "--json")
    (sentence,) = result.stderr.splitlines()
    assert sentence.startswith(
        "acme registers 'fast' in the group draftwood.kernels, which this draftwood does not read; "
    )
    json.loads(result.stdout)
