"""A target that is sharded over two processes: both write the text of a single process, whatever differs."""

import json
import subprocess
import sys
from pathlib import Path
from time import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

from draftwood import UnsupportedModel, load, zoo
from draftwood.backends.kinds.ssm import SSMBackend
from tests import ranks_program

PROGRAM = Path(ranks_program.__file__)
LAUNCHER = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")

pytestmark = [
    pytest.mark.linux,
    pytest.mark.skipif(not dist.is_gloo_available(), reason="needs torch's gloo"),
]


@pytest.fixture(scope="module")
def said() -> list[dict[str, Any]]:
    """Returns the output of each process."""
    done = subprocess.run(
        [*LAUNCHER, str(PROGRAM)], capture_output=True, text=True, timeout=300, cwd=PROGRAM.parents[1]
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_both_write_what_one_process_writes(said: list[dict[str, Any]]) -> None:
    alone = ranks_program.texts(load(zoo.load("llama-7m", torch.float32)), ranks_program.drafter(), seed=3)
    assert [one["seeded"] for one in said] == [alone, alone]


@pytest.mark.parametrize("case", ["unseeded", "other draft", "until"])
def test_what_differs_in_them_is_the_first_ones(said: list[dict[str, Any]], case: str) -> None:
    first, second = (one[case] for one in said)
    assert first == second
    if case == "until":  # the first one's clock has run out at once, the other's never does
        assert {len(text) for texts in first.values() for text in texts} == {1}
    else:
        greedy = {name: texts for name, texts in first.items() if name.endswith(" at 0.0")}
        assert greedy == {name: said[0]["seeded"][name] for name in greedy}


def test_a_process_counts_its_own_weights(said: list[dict[str, Any]]) -> None:
    whole = load(zoo.load("llama-7m", torch.float32)).weight_bytes
    assert all(whole / 2 <= one["bytes"] < 0.7 * whole for one in said)


@pytest.mark.thorough
def test_one_that_dies_ends_the_other() -> None:
    done = subprocess.run(
        [*LAUNCHER, str(PROGRAM), "dies"], capture_output=True, text=True, timeout=120, cwd=PROGRAM.parents[1]
    )
    assert done.returncode != 0
    assert time() - float(done.stdout.strip().splitlines()[-1]) < 30


def test_recurrent_layers_are_not_sharded(tmp_path: Path) -> None:
    if dist.is_initialized():
        pytest.skip("another test's group is open")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    try:
        model: Any = zoo.load("mamba2-5m")
        mesh = init_device_mesh("cpu", (1,))
        weight = model.backbone.norm_f.weight
        model.backbone.norm_f.weight = torch.nn.Parameter(distribute_tensor(weight.data, mesh, [Replicate()]))
        # One process has all of it, and is served.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(mesh), "size", lambda *_: 2)
            with pytest.raises(
                UnsupportedModel, match="sharded over processes, .* load it without a tp_plan"
            ):
                SSMBackend(model)
    finally:
        dist.destroy_process_group()
