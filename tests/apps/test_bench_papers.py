"""The papers' tables: they are copied correctly, can be measured, and are compared with our figures."""

import math
import re
from pathlib import Path

import pytest
from rich.console import Console

from draftwood.apps.bench.figures import ResultRow
from draftwood.apps.bench.intervals import Figure
from draftwood.apps.bench.papers import comparisons, paper, papers, show
from draftwood.apps.bench.plan import BenchPlan, Contest
from draftwood.apps.bench.specs import ORDINARY, parse
from draftwood.base.errors import UnknownStrategy
from draftwood.decoding.metrics import METRICS


@pytest.mark.parametrize("name", papers())
def test_every_table_can_be_measured_in_its_setting(name):
    table = paper(name)
    plan = BenchPlan(**table.fields())
    metrics = {metric.name for metric in METRICS}
    assert set(table.columns) <= metrics
    for data, heat, method, *values in table.rows:
        assert data
        assert heat in plan.temperatures
        labels = [spec.label for spec in plan.contenders(heat)]
        assert parse(table.methods[method]).label in labels
        assert len(values) == len(table.columns)
        assert all(math.isnan(value) or value > 0 for value in values)
    places = [(data, heat, method) for data, heat, method, *_ in table.rows]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("name", [name for name in papers() if name.startswith("rsd")])
def test_rsd_speed_ups_follow_from_their_block_efficiencies(name):
    """MBSU = efficiency / (1 + r L) with one r: a figure that was copied wrongly would not fit."""
    table = paper(name)
    mbsu, efficiency = table.values("memory_bound_speed_up"), table.values("tokens_per_round")
    ratios = []
    for place in mbsu.keys() & efficiency.keys():
        shape = place[2].split()[-1]
        if re.fullmatch(r"\d+x\d+", shape):
            length = int(shape.split("x")[1])
        elif place[2] == "AR":
            continue
        else:
            length = int(place[2].split(":")[0]) if shape == "SD" else len(shape.split("-"))
        ratios.append((efficiency[place] / mbsu[place] - 1) / length)
    assert len(ratios) > 35
    middle = sorted(ratios)[len(ratios) // 2]
    assert all(abs(ratio - middle) < 4e-4 for ratio in ratios)


def test_dynatrees_speed_ups_follow_from_its_speeds():
    table = paper("dynatree-table1")
    said, speeds = table.values("speed_up"), table.values("tokens_per_second")
    for (data, heat, method), value in said.items():
        assert speeds[data, heat, method] / speeds[data, heat, "AR"] == pytest.approx(value, abs=0.006)


def test_speed_ups_are_worked_out_from_latencies():
    values = paper("dyspec-table1").values("speed_up")
    assert values["C4", 0.0, "DySpec"] == pytest.approx(0.02303 / 0.00730)
    assert values["CNN", 0.6, "baseline"] == 1
    # A table without ordinary decoding has no ratio to it.
    assert paper("stree-table3").values("speed_up") == {}


def rows():
    contest = Contest("llama-7m,llama-draft", "mine", 0.0, 128, 128)
    figures = {"tokens_per_round": Figure(2.5, 2.25, 2.75), "speed_up": Figure(1.5, 1.25, 1.75)}
    plain = ResultRow(contest, parse(ORDINARY), {"tokens_per_round": Figure(1.0), "speed_up": Figure(1.0)})
    return [plain, ResultRow(contest, parse("dyspec:budget=64"), figures)]


def test_what_was_measured_stands_beside_the_paper():
    found = {(one.metric, one.temperature): one for one in comparisons(paper("dyspec-table1"), rows())}
    assert set(found) == {(m, t) for m in ("speed_up", "tokens_per_round") for t in (0.0, 0.6)}
    one = found["tokens_per_round", 0.0]
    assert one.theirs["DySpec", "C4"] == 5.25
    assert one.ours["DySpec", "mine"].value == 2.5
    assert found["tokens_per_round", 0.6].ours == {}


@pytest.mark.parametrize("name", papers())
def test_the_comparison_says_what_differs_and_fits_80_columns(name, capsys):
    show(paper(name), rows(), Console(width=80, color_system=None))
    out = capsys.readouterr().out
    assert "Models, text and hardware differ" in " ".join(out.split())
    assert paper(name).models.split()[0] in out
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out
    if name == "dyspec-table1":
        assert "here: mine" in out
        assert "2.50 (2.25-2.75)" in out


def test_every_table_is_listed():
    page = Path(__file__).parents[2] / "docs" / "bench.md"
    named = set(re.findall(r"`([a-z]+-table\d+)`", page.read_text(encoding="utf-8")))
    assert named == set(papers())


def test_a_table_that_there_is_not():
    with pytest.raises(UnknownStrategy, match="did you mean 'dyspec-table1'"):
        paper("dyspec-tabel1")
