"""`python -m benchmarks constraints` on a few texts: valid, and those that `generate()` writes."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def measure(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.__main__ import app

    yield lambda *arguments: CliRunner().invoke(app, [*map(str, arguments)])
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        del sys.modules[name]


@pytest.mark.thorough
def test_texts_are_valid_and_those_of_generate(measure):
    few = ["--texts", 2, "--budget", 6, "--recipe", "leviathan"]
    result = measure("constraints", *few)
    assert result.exit_code == 0, result.output
    _, _, *rows = [line.split() for line in result.stdout.splitlines()]
    assert [row[:2] for row in rows] == [
        [engine, heat] for engine in ("xgrammar", "llguidance") for heat in ("0", "0.7")
    ]
    for _, heat, _, valid, equal, tokens, per_round, *_ in rows:
        assert valid == "2/2"
        assert equal == ("2/2" if heat == "0" else "-")
        assert 1 < float(per_round) < int(tokens)


def test_what_is_not_valid_is_counted(measure, monkeypatch):
    from benchmarks.research import constraints

    schemas = constraints.SCHEMAS
    monkeypatch.setattr(constraints, "constrained", lambda *a, own=constraints.constrained: own(*a)[::-1])
    result = measure("constraints", "--texts", 2, "--engine", "llguidance", "--temperature", 0.7)
    assert len(schemas) == 8
    assert " 0/2 " in result.stdout
    assert "not valid: " in result.stdout
