"""`python -m benchmarks kernels`: its gate, its rows and its file, at sizes that the interpreter can do."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from draftwood.base.errors import DraftwoodError
from draftwood.kernels.compiled import operations
from draftwood.kernels.configuration import Configuration
from draftwood.kernels.support import kernels_enabled

pytestmark = pytest.mark.triton


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of `python -m benchmarks kernels`."""
    # FlexAttention means the same without its compiler, which takes minutes here.
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    from benchmarks.kernels import command

    return command


SIZES = {
    "mamba1_tree": {"channels": 16, "size": 16, "groups": 1},
    "gated_delta_tree": {"heads": 2, "groups": 1, "dim": 16, "size": 16},
    "tree_conv": {"channels": 16, "width": 4},
    "lru_tree": {"channels": 16},
}


def small(bench: Any, device: torch.device) -> list[Any]:
    """Every timed case, with little in it."""
    replays = bench.replay_cases
    models = [
        replays.mamba_1(layers=2, channels=16),
        replays.mamba_2(layers=2, heads=2, dim=16, size=16),
        replays.deltas(layers=2, heads=2, groups=1, dim=16, size=16),
        replays.convolution(layers=2, channels=16),
        replays.units(layers=2, channels=16),
    ]
    with kernels_enabled(False):  # the interpreted kernel would draw the same trees, and slowly
        judged = [
            bench.round_cases.judged(device, rows=2, nodes=9, vocab=40),
            bench.round_cases.judged(device, rows=2, nodes=9, vocab=40, leaf_first=True),
            bench.round_cases.raced(device, rows=2, nodes=9, vocab=40),
        ]
    return [
        *bench.attention_cases.trees(device, sizes=(33,), heads=2, dim=16),
        *bench.attention_cases.behind_a_prefix(
            device, nodes=9, prefix=40, rows=(2,), heads=4, kv_heads=2, dim=16
        ),
        *bench.scan_cases.scans(device, depths=(2, 3), heads=2, dim=16, size=16),
        *bench.tree_cases.scans(device, depths=(3,), sizes=SIZES),
        *replays.replays(device, models=models, depth=3),
        bench.round_cases.commit(device, layers=2, rows=2, kv_heads=1, dim=16, prefix=20, nodes=16, path=3),
        *judged,
        bench.round_cases.drawn(device, nodes=2, vocab=40, count=3),
    ]


def timing(*, cold: float = 2.0, warm: float = 1.0) -> Callable[..., Any]:
    """A timer by which all calls take as long."""

    from benchmarks.kernels.cuda_timing import Times

    def timer(call: Callable[[], Any], from_memory: bool) -> Any:
        usual = cold if from_memory else warm
        return Times([usual / 2, 2 * usual, usual], host=0.5)

    return timer


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts functions of mamba_ssm, in plain torch, where its own kernels cannot run."""
    if find_spec("mamba_ssm") is not None:
        return

    def selective_state_update(
        state: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor
    ) -> Tensor:
        heads = state.dim() == 4
        assert x.shape == dt.shape == state.shape[:-1]
        assert A.shape == state.shape[1:]
        if heads:
            # Only so does the real one take a step and a rate for a whole head.
            assert dt.stride(-1) == A.stride(-1) == A.stride(-2) == 0
            B, C = (held.repeat_interleave(x.shape[1] // held.shape[1], 1) for held in (B, C))
        wide = (slice(None), slice(None), None) if heads else (slice(None), None)
        state.mul_((dt[..., None] * A).exp()).add_((dt * x)[..., None] * B[wide])
        return (state * C[wide]).sum(-1).to(x.dtype)

    def mamba_chunk_scan_combined(
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        chunk_size: int,
        initial_states: Tensor,
    ) -> Tensor:
        state, found = initial_states.clone(), []
        for t in range(x.shape[1]):
            step = dt[:, t, :, None].expand(x[:, t].shape)
            rate = A[:, None, None].expand(state.shape[1:])
            found.append(selective_state_update(state, x[:, t], step, rate, B[:, t], C[:, t]))
        return torch.stack(found, 1)

    folder = "mamba_ssm.ops.triton"
    for name, function in (
        ("selective_state_update", selective_state_update),
        ("ssd_combined", mamba_chunk_scan_combined),
    ):
        module: Any = ModuleType(f"{folder}.{name}")
        setattr(module, function.__name__, function)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for parent in ("mamba_ssm", "mamba_ssm.ops", folder):
        held: Any = ModuleType(parent)
        held.__path__, held.__spec__ = [], ModuleSpec(parent, None)
        monkeypatch.setitem(sys.modules, parent, held)


@pytest.mark.usefixtures("foreign")
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_all_results_agree_and_every_contender_has_its_rows(
    bench: Any, device: torch.device, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = small(bench, device)
    assert {case.operation for case in cases} == set(operations())
    limits = bench.Card(2000, {"fp16": 500.0, "tf32": 250.0, "fp32": 50.0})
    rows = bench.compared(cases, judged=[], timer=timing(), limits=limits, about={"gpu": "none"})
    contenders = [(case, contender) for case in cases for contender in case.contenders]
    assert [row["contender"] for row in rows[::2]] == [contender.name for _, contender in contenders]
    names = {(case.operation, contender.name) for case, contender in contenders}
    assert {operation for operation, name in names if "selective_state_update" in name} == {
        "mamba1_tree",
        "mamba2_tree",
    }
    ours = rows[0]
    assert (ours["cache"], ours["median_ms"], ours["host_ms"], ours["repetitions"]) == ("cold", 2.0, 0.5, 3)
    # Bytes in 2 ms at 2000 GB/s, operations at 500 TFLOP/s.
    assert ours["of_bandwidth"] == pytest.approx(cases[0].bytes / 2e-3 / 2000e9)
    assert ours["of_arithmetic"] == pytest.approx(cases[0].operations / 2e-3 / 500e12)
    kernels = [row for row in rows if row["contender"] == "kernel"]
    assert all(row["of_bandwidth"] > 0 for row in kernels)
    judging = ("tree_rejection", "tree_traversal", "tree_race")
    moved = ("kv_commit", *judging, "ordered_draws", "tree_conv", "lru_tree")
    assert all(row["of_arithmetic"] or row["operation"] in moved for row in kernels)
    seen = cases[0].expected.keywords["mask"].visible()
    assert cases[0].operations == 4 * 2 * 16 * int(seen.sum())
    making = [row for row in rows if row["contender"].startswith("making")]
    assert {row["operation"] for row in making} == {"tree_attention", "mamba1_tree", "tree_conv", "lru_tree"}
    assert all(row["of_bandwidth"] is None and row["operations"] is None for row in making)
    out = capsys.readouterr().out.splitlines()
    judged = sum(contender.judged for _, contender in contenders)
    assert out[:2] == ["gpu none", f"Gate: {judged} results agree with their references."]
    assert sum(len(line.split()) > 7 and " cold " in line for line in out) == len(contenders)
    file = tmp_path / "rows.csv"
    bench.write(rows, file)
    with file.open(newline="", encoding="utf-8") as read:
        found = list(csv.DictReader(read))
    assert [row["contender"] for row in found] == [row["contender"] for row in rows]
    assert (float(found[0]["median_ms"]), found[0]["gpu"]) == (2.0, "none")
    assert {row["of_bandwidth"] for row in found if row["contender"].startswith("making")} == {""}


def test_what_kernels_are_held_to_has_a_line_each(bench: Any, device: torch.device) -> None:
    trees, _, deep = bench.attention_cases.trees(device, sizes=(5,), heads=2, dim=16) + (
        bench.attention_cases.behind_a_prefix(
            device, nodes=9, prefix=40, rows=(2,), heads=4, kv_heads=2, dim=16
        )
    )
    few, many = bench.scan_cases.scans(device, depths=(2, 3), heads=2, dim=16, size=16)
    took = {
        "kernel": (2.0, 1.0),
        "SDPA, dense mask": (2.5, 1.0),
        "causal flash attention": (1.0, 0.5),
        "reading keys and values once": (1.0, 0.1),
        "kernel, 3 nodes": (1.6, 1.0),
    }
    # 2 rows, 2 heads, 49 slots and 16 numbers of 2 bytes, keys and values, in a millisecond.
    limits = bench.Card(2 * 2 * 2 * 49 * 16 * 2 / 1e6)
    lines = []
    for case in (trees, deep, few, many):
        rows = [
            {"contender": name, "cache": cache, "median_ms": took[name][place]}
            for name in took
            for place, cache in enumerate(("cold", "warm"))
        ]
        lines += [line[line.index("at most") :] for line in bench.requirements(case, rows, limits)]
    once = "reading keys and values once"
    assert lines == [
        "at most 1 of SDPA, dense mask; met: 0.80, by a warm cache 1.00",
        "at most 1.3 of causal flash attention; NOT met: 2.00, by a warm cache 2.00",
        f"at most 1.5 of {once}; NOT met: 2.00, by a warm cache 10.00",
        f"at most 1.5 of {once} at 0 GB/s; NOT met: 2.00, by a warm cache 1.00",
        "at most 1.3 of kernel, 3 nodes; met: 1.25, by a warm cache 1.00",
    ]
    del rows[2:4]
    assert bench.requirements(trees, rows, limits)[0].endswith("at most 1 of SDPA, dense mask; not measured")


def test_paper_sizes_are_timed_by_default(bench: Any) -> None:
    defaults = {
        function.__name__: function.__kwdefaults__
        for function in (bench.attention_cases.trees, bench.attention_cases.behind_a_prefix)
    }
    assert defaults["trees"]["sizes"] == (256, 512, 1024, 2048)
    assert (defaults["behind_a_prefix"]["nodes"], defaults["behind_a_prefix"]["prefix"]) == (64, 8192)
    assert bench.scan_cases.scans.__kwdefaults__["depths"] == (4, 6)


@pytest.mark.thorough
def test_what_is_only_judged_covers_every_operation(bench: Any, device: torch.device) -> None:
    cases = [
        *bench.attention_cases.ragged(device, nodes=20, prefix=40),
        *bench.scan_cases.ragged(device, sizes=((7, 3),)),
        *bench.tree_cases.ragged(device, sizes=((7, 3),)),
        *bench.replay_cases.ragged(device),
        *bench.round_cases.ragged(device),
    ]
    assert {case.operation for case in cases} == set(operations())
    right, left_out = bench.gate(cases)
    assert right == sum(contender.judged for case in cases for contender in case.contenders)
    assert not left_out


@pytest.mark.parametrize("operation", operations())
def test_a_wrong_kernel_turns_the_gate_red_and_no_time_is_printed(
    bench: Any,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    operation: str,
) -> None:
    launch = Configuration.launch

    def wrong(self: Configuration, grid: tuple[int, ...], **arguments: Any) -> None:
        if "out" in arguments:
            launch(self, grid, **arguments)
            arguments["out"][..., -1] += 1
            arguments["out"][..., 3 % arguments["out"].shape[-1]] += 1

    cases = [case for case in small(bench, device) if case.operation == operation]
    monkeypatch.setattr(Configuration, "launch", wrong)
    with pytest.raises(DraftwoodError, match=rf"^No times, because the gate is red: {operation}, .*kernel"):
        bench.compared(cases, judged=[], timer=timing(), limits=bench.Card(2000), about={"gpu": "none"})
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["mamba_1", "mamba_2", "deltas", "convolution", "units"])
def test_a_replay_that_writes_nothing_turns_the_gate_red(
    bench: Any, device: torch.device, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(Configuration, "launch", lambda self, grid, **arguments: None)
    model = getattr(bench.replay_cases, name)(layers=2)
    model = attrs.evolve(model, layers=2)
    cases = bench.replay_cases.replays(device, models=[model], depth=2)
    with pytest.raises(DraftwoodError, match="replay of 2 of 3 nodes, 2 layers .*kernel differs"):
        bench.gate(cases)


def test_the_command_times_what_the_gate_let_through(
    bench: Any, device: torch.device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All of the command but the GPU's own part."""
    from benchmarks.__main__ import app

    gpu = pytest.MonkeyPatch()
    gpu.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(bench.support, "interpreted", lambda: False)
    monkeypatch.setattr(bench.support, "objection_on", lambda device: None)
    monkeypatch.setattr(bench, "event_timer", lambda device: timing())
    monkeypatch.setattr(bench, "ragged", lambda device: [])

    def timed(given: torch.device) -> list[Any]:
        assert given == torch.device("cuda", 0)
        gpu.undo()
        return list(bench.scan_cases.scans(device, depths=(2, 3), heads=2, dim=16, size=16))

    monkeypatch.setattr(bench, "timed", timed)
    file = tmp_path / "rows.csv"
    done = CliRunner().invoke(app, ["kernels", "--csv", str(file)])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert "gpu NVIDIA H200" in lines[0]
    assert "4800 GB/s, of the data sheet, 989.4 TFLOP/s in fp16" in lines[2]
    assert "Required:" in lines
    assert len(file.read_text(encoding="utf-8").splitlines()) == 1 + 2 * (3 + 4)


def test_a_reference_in_place_of_a_kernel_turns_the_gate_red(bench: Any, device: torch.device) -> None:
    with kernels_enabled(False), pytest.raises(DraftwoodError, match="no kernel ran, a reference did"):
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
    monkeypatch.setattr(bench.support, "interpreted", lambda: True)
    done = CliRunner().invoke(app, ["kernels"])
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", f"Error: {sentence}\n")


class FakeGpu:
    """The part of CUDA that the timer uses, with a record; a sleep of 1000 cycles takes a millisecond."""

    L2_cache_size = 2**27

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.now = 0.0

    def sleep(self, cycles: int) -> None:
        self.now += cycles / 1000
        self.notes.append(f"sleep {cycles}")

    def event(self, enable_timing: bool) -> Any:
        assert enable_timing
        event: Any = SimpleNamespace()

        def record() -> None:
            event.time = self.now
            self.notes.append("record")

        event.record = record
        event.synchronize = lambda: self.notes.append("wait")
        event.elapsed_time = lambda other: other.time - event.time
        return event

    def call(self) -> None:
        self.now += 3.0
        self.notes.append("call")


@pytest.mark.parametrize(("cold", "before"), [(True, ["flush"]), (False, [])])
def test_what_is_timed_lies_between_the_events(
    bench: Any, monkeypatch: pytest.MonkeyPatch, cold: bool, before: list[str]
) -> None:
    gpu = FakeGpu()

    class Other:
        def amax(self) -> None:
            gpu.notes.append("flush")

    def zeros(size: int, **options: Any) -> Other:
        # Twice the cache, in numbers of 4 bytes.
        assert (size, options["dtype"]) == (2**26, torch.int32)
        return Other()

    monkeypatch.setattr(torch, "zeros", zeros)
    for name, what in {
        "Event": gpu.event,
        "_sleep": gpu.sleep,
        "synchronize": lambda: gpu.notes.append("synchronize"),
        "get_device_properties": lambda device: gpu,
        "device": lambda device: nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, what)
    times = bench.event_timer(torch.device("cuda", 0))(gpu.call, cold)
    # 150 ms of calls of 3 ms, after what it takes to learn the clock and how long a call is.
    assert times.gpu == pytest.approx([3.0] * 50)
    assert times.host < 100
    launching = gpu.notes.index("synchronize")
    assert gpu.notes[launching : launching + 6] == ["synchronize", "call"] * 3
    one = [*before, "sleep 1000", "record", "call", "record", "wait"]
    assert gpu.notes[launching + 6 :] == one * 53
