"""`python -m benchmarks kernels`: its gate, its rows and its file, at sizes that the interpreter can do."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from draftwood.errors import DraftwoodError
from draftwood.kernels.configuration import Configuration
from draftwood.kernels.switch import switched

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module `benchmarks.kernels`."""
    monkeypatch.syspath_prepend(str(ROOT))
    # FlexAttention means the same without its compiler, which takes minutes here.
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    from benchmarks import kernels

    yield kernels
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        del sys.modules[name]


def small(bench: Any, device: torch.device) -> list[Any]:
    """Every timed case, with little in it."""
    return [
        *bench.attention_cases.trees(device, sizes=(33,), heads=2, dim=16),
        *bench.attention_cases.behind_a_prefix(
            device, nodes=9, prefix=40, rows=(2,), heads=4, kv_heads=2, dim=16
        ),
        *bench.scan_cases.scans(device, depths=(3,), heads=2, dim=16, size=16),
        bench.round_cases.commit(device, layers=2, rows=2, kv_heads=1, dim=16, prefix=20, nodes=16, path=3),
        bench.round_cases.judged(device, rows=2, nodes=9, vocab=40),
        bench.round_cases.drawn(device, nodes=2, vocab=40, count=3),
    ]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_all_results_agree_and_every_contender_has_its_rows(
    bench: Any, device: torch.device, tmp_path: Path
) -> None:
    cases = small(bench, device)
    right, left_out = bench.gate(cases)
    assert not left_out
    assert right == sum(contender.judged for case in cases for contender in case.contenders)
    calls: list[bool] = []

    def timer(call: Callable[[], Any], cold: bool) -> list[float]:
        calls.append(cold)
        return [1.0, 3.0, 2.0]

    limits = bench.Card(2000, {"fp16": 500.0})
    without = {(cases[0].size, "FlexAttention"): "as the gate said"}
    rows = [
        row for case in cases for row in bench.measured(case, timer=timer, limits=limits, left_out=without)
    ]
    assert len(rows) == 2 * (sum(len(case.contenders) for case in cases) - 1) == len(calls)
    ours = rows[0]
    assert (ours["cache"], ours["median_ms"], ours["repetitions"]) == ("cold", 2.0, 3)
    # Bytes in 2 ms at 2000 GB/s, operations at 500 TFLOP/s.
    assert ours["of_bandwidth"] == pytest.approx(cases[0].bytes / 2e-3 / 2000e9)
    assert ours["of_arithmetic"] == pytest.approx(cases[0].operations / 2e-3 / 500e12)
    seen = cases[0].wanted.keywords["mask"].visible()
    assert cases[0].operations == 4 * 2 * 16 * int(seen.sum())
    making = [row for row in rows if row["contender"].startswith("making")]
    assert making
    assert all(row["of_bandwidth"] is None and row["operations"] is None for row in making)
    file = tmp_path / "rows.csv"
    bench.write(rows, file)
    with file.open(newline="", encoding="utf-8") as read:
        found = list(csv.DictReader(read))
    assert [row["contender"] for row in found] == [row["contender"] for row in rows]
    assert float(found[0]["median_ms"]) == 2.0
    assert {row["of_bandwidth"] for row in found if row["contender"].startswith("making")} == {""}
    assert "1.00" in bench.printed(rows[:2])[1]


def test_what_is_only_judged_covers_every_operation(bench: Any, device: torch.device) -> None:
    cases = [
        *bench.attention_cases.ragged(device, nodes=20, prefix=40),
        *bench.scan_cases.ragged(device)[:2],
        *bench.round_cases.ragged(device),
    ]
    right, left_out = bench.gate(cases)
    assert right == sum(len(case.contenders) for case in cases if case.operation != "ordered_draws") + 4
    assert not left_out


@pytest.mark.parametrize("operation", ["tree_attention", "mamba2_tree", "kv_commit", "tree_rejection"])
def test_a_wrong_kernel_turns_the_gate_red(
    bench: Any, device: torch.device, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    launch = Configuration.launch

    def wrong(self: Configuration, grid: tuple[int, ...], **arguments: Any) -> None:
        if operation == "kv_commit":
            return
        launch(self, grid, **arguments)
        if "out" in arguments:
            arguments["out"][..., -1] += 1
            arguments["out"][..., 3] += 1

    monkeypatch.setattr(Configuration, "launch", wrong)
    cases = [case for case in small(bench, device) if case.operation == operation]
    with pytest.raises(DraftwoodError, match=rf"^No times, because the gate is red: {operation}, .*kernel"):
        bench.gate(cases)


def test_a_reference_in_place_of_a_kernel_turns_the_gate_red(bench: Any, device: torch.device) -> None:
    with switched(False), pytest.raises(DraftwoodError, match="no kernel ran, a reference did"):
        bench.gate(bench.scan_cases.scans(device, depths=(3,), heads=2, dim=16, size=16))


def test_a_contender_that_fails_is_left_out_with_its_reason(
    bench: Any, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: Any, **options: Any) -> Any:
        raise RuntimeError("no compiler\nsecond line")

    monkeypatch.setattr(torch, "compile", broken)
    cases = bench.attention_cases.trees(device, sizes=(5,), heads=2, dim=16)
    _, left_out = bench.gate(cases)
    assert {name: why for (_, name), why in left_out.items()} == {
        "FlexAttention": "RuntimeError: no compiler"
    }


@pytest.mark.parametrize(
    ("gpu", "sentence"),
    [
        (False, "Kernels are timed on a CUDA GPU, and torch finds none here."),
        (True, "TRITON_INTERPRET is set, and the interpreter's times say nothing; unset it."),
    ],
)
def test_where_nothing_can_be_timed_it_says_so_in_a_sentence(
    bench: Any, monkeypatch: pytest.MonkeyPatch, gpu: bool, sentence: str
) -> None:
    from benchmarks.__main__ import app

    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    done = CliRunner().invoke(app, ["kernels"])
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", f"Error: {sentence}\n")
