"""`python -m benchmarks constraints` on a few texts: valid, and those that `generate()` writes."""

import pytest
from typer.testing import CliRunner


@pytest.fixture
def measure():
    from benchmarks.__main__ import app

    return lambda *arguments: CliRunner().invoke(app, [*map(str, arguments)])


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
