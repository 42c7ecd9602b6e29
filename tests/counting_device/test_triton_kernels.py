"""Triton kernels on the stand-in: counted, given none of the CPU's tensors, and the same by reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood import TokenTree, Verifier, WithoutReplacement, draw_children
from draftwood.kernels import support
from draftwood.kernels.configuration import Configuration
from draftwood.kernels.gated_delta_tree import dispatch as gated_delta_tree
from draftwood.kernels.kv_commit import dispatch as kv_commit
from draftwood.kernels.lru_tree import dispatch as lru_tree
from draftwood.kernels.mamba1_tree import dispatch as mamba1_tree
from draftwood.kernels.mamba2_tree import dispatch as mamba2_tree
from draftwood.kernels.ordered_draws import dispatch as ordered_draws
from draftwood.kernels.support import kernels_enabled
from draftwood.kernels.testing import relative_error, visible
from draftwood.kernels.tree_attention import dispatch as tree_attention
from draftwood.kernels.tree_attention.mask import TreeMask
from draftwood.kernels.tree_conv import dispatch as tree_conv
from draftwood.laws.randomness import Streams
from draftwood.strategies.verifiers.class_ordered_traversal import ClassOrderedTraversal
from draftwood.strategies.verifiers.race_traversal import RaceTraversal
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.traversal import Traversal
from tests.counting_device.counts import Kind
from tests.counting_device.device import counting_device
from tests.counting_device.tensor import DeviceTensor, held

pytestmark = pytest.mark.triton

NODES = 5
TREE = visible([[-1, 0, 0, 1, 2]])
PATH = torch.tensor([[True, True, False, True, False]])


def normal(*shape: int) -> Any:
    """Numbers on the device, of which the same shape has the same."""
    chance = torch.Generator().manual_seed(sum(shape))
    return DeviceTensor(torch.randn(shape, generator=chance))


def probabilities(rows: int, vocab: int = 40) -> Any:
    return normal(rows, vocab).softmax(-1)


def seen() -> Any:
    return DeviceTensor(TREE)


def attention() -> Any:
    lengths = DeviceTensor(torch.tensor([3]))
    return tree_attention.attend(
        queries=normal(1, 2, NODES, 16),
        keys=normal(1, 1, 12, 16),
        values=normal(1, 1, 12, 16),
        mask=TreeMask.of(seen(), lengths=lengths, start=4),
        scale=0.25,
    )


def scan(*, queries: bool) -> dict[str, Any]:
    columns = {
        "keys": normal(1, NODES, 1, 16),
        "values": normal(1, NODES, 2, 16),
        "decay": -normal(1, NODES, 2).abs(),
        "state": normal(1, 2, 16, 16),
    }
    return columns | ({"queries": normal(1, NODES, 1, 16)} if queries else {})


def delta() -> Any:
    columns = scan(queries=True) | {"deltas": normal(1, 0, 2, 16), "rates": normal(1, NODES, 2).sigmoid()}
    columns["keys"] = torch.nn.functional.normalize(columns["keys"], dim=-1)
    return gated_delta_tree.attend(**columns, visible=seen())


def mamba1(**options: Any) -> dict[str, Any]:
    return options | {
        "keys": normal(1, NODES, 1, 16),
        "values": normal(1, NODES, 24),
        "steps": normal(1, NODES, 24).abs(),
        "rates": -normal(24, 16).exp(),
        "state": normal(1, 24, 16),
    }


def conv() -> Any:
    window = tree_conv.windows(visible=seen(), width=4)
    given = {"inputs": normal(1, NODES, 24), "state": normal(1, 3, 24)}
    return tree_conv.attend(**given, weight=normal(24, 4), bias=normal(24), window=window)


def lru() -> Any:
    given = {
        "values": normal(1, NODES, 24),
        "outputs": normal(1, 0, 24),
        "decay": -normal(1, NODES, 24).abs(),
    }
    return lru_tree.attend(**given, state=normal(1, 24), paths=mamba1_tree.Paths(seen()))


def moved() -> Any:
    arena = normal(2, 1, 1, 8, 16).clone()
    kv_commit.move(arenas=[arena], rows=[0, 0], sources=[5, 7], targets=[2, 3])
    return arena


def drawn() -> Any:
    rng = Streams.seeded(1).draft
    draws = draw_children(WithoutReplacement, probabilities(3), count=[2, 0, 4], rng=rng)
    return [(one.tokens, one.chances) for one in draws]


def judged(verifier: Verifier) -> Any:
    law = WithoutReplacement(probabilities(1)[0])
    tree = TokenTree(
        torch.tensor([0, 3, 5, 7, 2]), torch.tensor([-1, 0, 0, 1, 2]), dict.fromkeys(range(3), law)
    )
    streams = [Streams.seeded(seed).verify for seed in (1, 2)]
    outcomes = verifier.verify_rows([tree, tree], [probabilities(NODES)] * 2, streams)
    return [(list(one.path), one.extra, one.bonus) for one in outcomes]


CALLS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "tree_attention": (attention, ["tree_attention:attend"]),
    "mamba2_tree": (lambda: mamba2_tree.attend(**scan(queries=True), visible=seen()), ["mamba2_tree:attend"]),
    "mamba2_tree, commit": (
        lambda: mamba2_tree.replay(**scan(queries=False), kept=DeviceTensor(PATH)),
        ["mamba2_tree:replay"],
    ),
    "gated_delta_tree": (delta, ["gated_delta_tree:solve", "mamba2_tree:attend"]),
    "mamba1_tree": (
        lambda: mamba1_tree.attend(
            **mamba1(queries=normal(1, NODES, 1, 16), paths=mamba1_tree.Paths(seen()))
        ),
        ["mamba1_tree:attend"],
    ),
    "mamba1_tree, commit": (
        lambda: mamba1_tree.replay(**mamba1(kept=DeviceTensor(PATH))),
        ["mamba1_tree:replay"],
    ),
    "tree_conv": (conv, ["tree_conv:attend"]),
    "tree_conv, commit": (
        lambda: tree_conv.replay(
            inputs=normal(1, NODES, 24), state=normal(1, 3, 24), kept=DeviceTensor(PATH)
        ),
        ["tree_conv:replay"],
    ),
    "lru_tree": (lru, ["lru_tree:attend"]),
    "kv_commit": (moved, ["kv_commit:move"]),
    "ordered_draws": (drawn, ["ordered_draws:draw"]),
    "tree_race": (
        lambda: judged(RaceTraversal()),
        [f"tree_race:{kernel}" for kernel in ("look", "weigh", "allow", "spare", "walk", "leave", "choose")],
    ),
    "tree_rejection": (lambda: judged(RecursiveRejection()), ["tree_rejection:walk"]),
    "tree_traversal": (lambda: judged(Traversal()), ["tree_traversal:start", "tree_traversal:step"]),
    "tree_traversal, class order": (
        lambda: judged(ClassOrderedTraversal()),
        ["tree_traversal:start", "tree_traversal:step"],
    ),
}


def test_every_operation_is_tried() -> None:
    folders = Path(str(support.__file__)).parent.glob("*/dispatch.py")
    assert {name.split(",")[0] for name in CALLS} == {path.parent.name for path in folders}


@pytest.mark.parametrize("operation", CALLS)
def test_references_and_interpreter_agree(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, kernels = CALLS[operation]
    function, run = Configuration.function, list[bool]()
    found, events = [], []
    for interpret in (False, True):

        def noted(self: Configuration, interpret: bool = interpret) -> Any:
            run.append(interpret)
            return function(self)

        monkeypatch.setattr(Configuration, "function", noted)
        with counting_device(interpret=interpret) as device, kernels_enabled(True):
            found.append(held(call()))
            events.append({(event.kind, event.operation): n for event, n in device.counts.events.items()})
    # What launches without asking may be interpreted both times.
    assert set(run) == {True} or (True in run and operation.startswith("tree_rejection"))
    assert events[0] == events[1]
    assert [one.operation for one in device.counts.events if ":" in one.operation] == kernels
    assert _close(*found)


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return relative_error(one, other) < 1e-5
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_close, one, other))
    return bool(one == pytest.approx(other))


def test_kernels_that_are_switched_off_are_not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    call, kernels = CALLS["tree_attention"]
    results = {}
    for switches in ("on", "off", "no interpreter"):
        if switches == "no interpreter":
            monkeypatch.setattr(support, "interpreted", lambda: False)
            # A build of torch for CUDA would launch: its kernels run on this device.
            monkeypatch.setattr(support, "_device_objection", lambda device: "the kernels are made for CUDA")
        with counting_device() as device, kernels_enabled(switches != "off"):
            results[switches] = call().cpu()
        launched = [one.operation for one in device.counts.events if ":" in one.operation]
        assert launched == (kernels if switches == "on" else [])
        assert device.counts.of(Kind.LAUNCH) > 1
    assert _close(results["on"], results["off"])
    assert torch.equal(results["off"], results["no interpreter"])


def test_a_kernel_takes_no_tensor_of_the_cpu() -> None:
    configuration: Configuration = ordered_draws.CONFIGURATIONS[0]
    with counting_device() as device, kernels_enabled(True):
        with pytest.raises(ValueError, match="Pointer argument probs cannot be accessed from Triton"):
            configuration.launch((1,), probs=torch.ones(1, 4), out=normal(1, 2, 1))
        assert device.counts.of() == 0
