"""A real-gated linear recurrence along a tree: the kernel against its reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftwood.kernels.lru_tree import dispatch, reference
from draftwood.kernels.mamba1_tree.reference import Paths
from draftwood.kernels.testing import relative_error
from tests.kernels import frames, scans

pytestmark = pytest.mark.triton


def drawn(device: torch.device, dtype: torch.dtype, tree: scans.Ragged, channels: int) -> dict[str, Tensor]:
    """Gated inputs, older columns and a state; some steps forget everything."""
    rows, normal = len(tree.names), scans.noise(tree.seed)
    decay = normal(rows, tree.new, channels)
    held = {
        "values": normal(rows, tree.new, channels),
        "outputs": normal(rows, tree.old, channels),
        "decay": torch.where(decay > 1.5, -torch.inf, -decay.abs()),
        "state": normal(rows, channels),
    }
    return scans.laid(device, {name: tensor.to(dtype) for name, tensor in held.items()})


@pytest.mark.parametrize("dtype", scans.KINDS)
@settings(max_examples=3)
@given(tree=scans.ragged(old=9, new=9), channels=st.sampled_from([1, 48, 150]))
@example(tree=scans.Ragged(["binary", "star", "random"], old=0, new=33), channels=16)
@example(tree=scans.Ragged(scans.EVERY, old=5, new=16), channels=150)
@example(tree=scans.Ragged(["chain", "star"], old=0, new=1), channels=16)  # a row without nodes
def test_any_tree(dtype: torch.dtype, device: torch.device, tree: scans.Ragged, channels: int) -> None:
    visible, kept = tree.on(device)
    paths = Paths(visible)
    held = drawn(device, dtype, tree, channels)
    with frames.guarded() as launched:
        out = dispatch.attend(**held, paths=paths)
        outputs = torch.cat([held["outputs"], out], 1)
        state = dispatch.replay(outputs=outputs, state=held["state"], kept=kept)
    assert [one.operation for one in launched] == ["lru_tree", "tree_conv"]
    assert out.dtype == dtype
    frames.agree(out, reference.attend(**frames.precise(held), paths=paths), dtype)
    assert torch.equal(state, reference.replay(outputs=outputs, state=held["state"], kept=kept))


@pytest.mark.parametrize("nodes", scans.LONG)
def test_a_long_chain(nodes: int, device: torch.device) -> None:
    tree = scans.Ragged(["chain"], old=0, new=nodes)
    held, paths = drawn(device, torch.float32, tree, 1), Paths(tree.on(device)[0])
    found = dispatch.attend(**held, paths=paths)
    assert relative_error(found, reference.attend(**held, paths=paths)) < 1e-5


def test_every_configuration_is_launched(device: torch.device) -> None:
    tree = scans.Ragged(["random"], old=2, new=7, seed=3)
    paths = Paths(tree.on(device)[0])
    with frames.every_configuration_of(dispatch):
        for dtype in frames.DTYPES:
            held = drawn(device, dtype, tree, 16)
            found = dispatch.attend(**held, paths=paths)
            frames.agree(found, reference.attend(**frames.precise(held), paths=paths), dtype)


def test_one_launch_commits_all_layers_that_lie_alike(device: torch.device) -> None:
    _, kept = scans.Ragged(["random", "binary", "chain"], old=5, new=20, seed=4).on(device)
    layers = []
    for seed, channels in enumerate((41, 41, 24)):
        held = drawn(device, torch.float32, scans.Ragged(["chain"] * 3, old=25, new=0, seed=seed), channels)
        layers.append({name: held[name] for name in ("outputs", "state")})
    scans.replays(dispatch, reference, layers, kept, launches=2)


def some(device: torch.device) -> tuple[dict[str, Tensor], Paths]:
    tree = scans.Ragged(["chain", "random"], old=2, new=3)
    return drawn(device, torch.float32, tree, 16), Paths(tree.on(device)[0])


def test_layouts_that_no_kernel_reads(device: torch.device, caplog: pytest.LogCaptureFixture) -> None:
    held, paths = some(device)
    scans.layouts_left_to_the_reference(
        dispatch.attend, reference.attend, {**held, "paths": paths}, caplog=caplog
    )


def test_the_reference_takes_the_rest(device: torch.device, caplog: pytest.LogCaptureFixture) -> None:
    held, paths = some(device)
    held["state"] = held["state"].double()
    scans.left_to_the_reference(
        dispatch.attend,
        reference.attend,
        {**held, "paths": paths},
        reason="its tensors are torch.float32 and torch.float64",
        caplog=caplog,
    )


@pytest.mark.parametrize("name", ["values", "outputs", "decay", "state"])
def test_shapes_that_do_not_fit(name: str, device: torch.device) -> None:
    held, paths = some(device)
    with pytest.raises(ValueError, match=r"The shape of \w+ is"):
        dispatch.attend(**held | {name: held[name][..., 1:]}, paths=paths)
    fewer = {**held, "paths": Paths(paths.visible[:, 1:])}
    frames.misfit(dispatch.attend, fewer, "The shape of the mask is (2, 2, 5)")


def test_no_nodes(device: torch.device) -> None:
    tree = scans.Ragged(["chain", "star"], old=5, new=0)
    with frames.guarded() as launched:
        found = dispatch.attend(**drawn(device, torch.float32, tree, 16), paths=Paths(tree.on(device)[0]))
    assert found.shape == (2, 0, 16)
    assert not launched
