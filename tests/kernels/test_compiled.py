"""Every configuration that can be chosen at run time compiles, spills nothing and keeps its promises.

All of them take minutes. `make test` compiles every kernel with every tile for sm_80, which has less shared
memory, and leaves out bf16, which has the tiles of fp16; one operation for both.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from draftwood.kernels import compiled
from draftwood.kernels.compiled import SHARED_PER_MULTIPROCESSOR, TABLE, occupancy
from draftwood.kernels.configuration import Configuration
from tests.thorough import some_of

# A process of its own: this one may be under Triton's interpreter.
COMPILING = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "draftwood.kernels.compiled", *arguments],
        env=COMPILING,
        capture_output=True,
        text=True,
    )


def keeps_its_promises(one: dict[str, Any], configuration: Configuration) -> None:
    assert one["spilled"] == 0, one
    assert one["shared"] + 1024 <= SHARED_PER_MULTIPROCESSOR[one["capability"]], one
    assert (one["matrix"] > 0) == configuration.matrix, one
    assert one["occupancy"] > 0, one


# By the command itself, for every capability.
AS_PRINTED = ["kv_commit"]


@pytest.mark.parametrize("operation", some_of(compiled.operations(), AS_PRINTED))
def test_every_configuration_compiles(operation: str) -> None:
    done = run(operation, "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    declared = {
        (one.kernel.split(":")[1], one.name, capability): one
        for one in compiled.configurations(operation)
        for capability in SHARED_PER_MULTIPROCESSOR
    }
    assert [(one["kernel"], one["name"], one["capability"]) for one in found] == list(declared)
    for one, configuration in zip(found, declared.values(), strict=True):
        keeps_its_promises(one, configuration)


def of_another_type(configuration: Configuration) -> bool:
    """Whether nothing but the type, bf16 for fp16, tells it from another configuration."""
    return "bf16" in configuration.name


# One process, as loading Triton takes as long as compiling some kernels.
TILES = """
import dataclasses, json, sys
from draftwood.kernels import compiled
for operation, places in json.load(sys.stdin).items():
    for place in places:
        one = compiled.configurations(operation)[place]
        found = dataclasses.asdict(compiled.compile_for(one, 80))
        if operation in ("kv_commit", "tree_traversal"):
            found["ptx"] = compiled.build(one, 80).asm["ptx"]
        print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def tiles() -> list[tuple[Configuration, dict[str, Any]]]:
    """Every tile, and what became of it."""
    chosen = {
        operation: {
            place: one
            for place, one in enumerate(compiled.configurations(operation))
            if not of_another_type(one)
        }
        for operation in compiled.operations()
    }
    done = subprocess.run(
        [sys.executable, "-c", TILES],
        input=json.dumps({operation: list(places) for operation, places in chosen.items()}),
        env=COMPILING,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    declared = [one for places in chosen.values() for one in places.values()]
    return list(zip(declared, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.thorough
def test_every_tile_compiles(tiles: list[tuple[Configuration, dict[str, Any]]]) -> None:
    assert {one.kernel for one, _ in tiles} == {
        one.kernel for operation in compiled.operations() for one in compiled.configurations(operation)
    }
    for configuration, found in tiles:
        assert (found["operation"], found["name"]) == (configuration.operation, configuration.name)
        keeps_its_promises(found, configuration)


def test_the_table_holds_what_is_declared() -> None:
    rows = re.findall(r"^## (.*)$|^\| (\w+) \| (.*?) \| sm_(\d+) \|", TABLE.read_text(encoding="utf-8"), re.M)
    found, operation = set(), ""
    for heading, kernel, name, capability in rows:
        operation = heading or operation
        if not heading:
            found.add((operation, kernel, name, int(capability)))
    assert found == {
        (operation, one.kernel.split(":")[1], one.name, capability)
        for operation in compiled.operations()
        for one in compiled.configurations(operation)
        for capability in SHARED_PER_MULTIPROCESSOR
    }


@pytest.mark.thorough
def test_moves_are_read_by_all_threads_before_any_is_written(
    tiles: list[tuple[Configuration, dict[str, Any]]],
) -> None:
    """All threads read before any writes; the interpreter, which runs one thread, cannot check this."""
    kernels = [found["ptx"] for one, found in tiles if one.operation == "kv_commit"]
    assert kernels
    for kernel in kernels:
        assert "bar.sync" in kernel[kernel.rindex("ld.global") : kernel.index("st.global")]


@pytest.mark.thorough
def test_the_last_program_sees_what_the_others_wrote(
    tiles: list[tuple[Configuration, dict[str, Any]]],
) -> None:
    """The last program sees all writes; the interpreter, with one program at a time, cannot check this."""
    start, step, *_ = [found["ptx"] for one, found in tiles if one.operation == "tree_traversal"]
    for kernel in (start, step):
        before, arrives, after = kernel.partition("atom.global.gpu.acq_rel.add")
        assert arrives
        # All threads have written before one counts the program in, and all wait for the count.
        assert "bar.sync" in before[before.rindex("st.global") :]
        assert "bar.sync" in after[: after.index("ld.global")]
    # What other programs wrote in this launch is not read through the first-level cache.
    assert "ld.volatile.global" in step


def test_the_interpreter_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "interpreted", lambda: True)
    with pytest.raises(SystemExit, match="TRITON_INTERPRET is set"):
        compiled.main(["kv_commit"])


@pytest.mark.parametrize(
    ("capability", "registers", "shared", "warps", "part"),
    [
        (80, 32, 0, 4, 1.0),
        (80, 32, 0, 1, 0.5),  # 32 programs at most
        (80, 128, 0, 4, 0.25),
        (80, 129, 0, 4, 0.1875),  # registers come in units of 8 a thread
        (80, 32, 100 * 1024, 8, 0.125),
        (90, 32, 100 * 1024, 8, 0.25),
    ],
)
def test_occupancy(capability: int, registers: int, shared: int, warps: int, part: float) -> None:
    assert occupancy(capability, registers=registers, shared=shared, warps=warps) == part
