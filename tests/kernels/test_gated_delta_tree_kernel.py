"""The gated delta rule along a tree: the kernels against their reference."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from draftwood.kernels.gated_delta_tree import dispatch, reference
from draftwood.kernels.testing import relative_error
from tests.kernels import frames, scans

pytestmark = pytest.mark.triton


def drawn(device: torch.device, dtype: torch.dtype, tree: scans.Ragged, sizes: Any) -> dict[str, Tensor]:
    """Returns the arguments of `attend` except for the mask."""
    (rows, columns), normal = tree.shape, scans.noise(tree.seed)
    heads, groups, dim, size = sizes
    held = {
        "queries": normal(rows, tree.new, groups, size).to(dtype) / size**0.5,
        "keys": normalize(normal(rows, columns, groups, size), dim=-1).to(dtype),
        "values": normal(rows, tree.new, heads, dim).to(dtype),
        "deltas": normal(rows, tree.old, heads, dim).to(dtype),
        "rates": 2 * normal(rows, tree.new, heads).sigmoid(),
        "decay": -scans.steps(normal(rows, columns, heads)),
        "state": normal(rows, heads, dim, size),
    }
    return scans.laid(device, held)


@pytest.mark.parametrize("dtype", scans.KINDS)
@settings(max_examples=3)
@given(
    tree=scans.ragged(old=40, new=40),
    sizes=st.sampled_from([(2, 1, 16, 16), (1, 1, 48, 80), (2, 2, 16, 48)]),
)
# Tiles of 16 nodes and blocks of 32 columns, the last ones with little in them.
@example(tree=scans.Ragged(scans.EVERY, old=0, new=50), sizes=(1, 1, 16, 16))
# Heads that share one of several groups.
@example(tree=scans.Ragged(["chain", "star"], old=32, new=17, seed=1), sizes=(4, 2, 16, 32))
@example(tree=scans.Ragged(["forest"], old=3, new=1, seed=2), sizes=(1, 1, 48, 80))
def test_any_tree(
    dtype: torch.dtype, device: torch.device, tree: scans.Ragged, sizes: tuple[int, ...]
) -> None:
    visible, kept = tree.on(device)
    held = drawn(device, dtype, tree, sizes)
    with frames.guarded() as launched:
        out, deltas = dispatch.attend(**held, visible=visible)
        nodes = {"keys": held["keys"], "values": torch.cat([held["deltas"], deltas], 1)}
        committed = {"decay": held["decay"], "state": held["state"], "kept": kept}
        state = dispatch.replay(**nodes, **committed)
    assert [one.kernel.split(":")[1] for one in launched] == ["solve", "attend", "replay"]
    assert out.dtype == deltas.dtype == dtype
    wanted, right = reference.attend(**frames.precise(held), visible=visible)
    frames.agree(deltas, right, dtype)
    frames.agree(out, wanted, dtype)
    frames.agree(state, reference.replay(**frames.precise(nodes), **committed), dtype)


def test_repeated_text_keeps_its_digits(device: torch.device) -> None:
    held = drawn(device, torch.float32, scans.Ragged(["chain"], old=0, new=48, seed=3), (1, 1, 16, 16))
    # One key over and over, hardly any decay: powers of the system would grow beyond all digits.
    held["keys"].copy_(held["keys"][:, :1].expand(-1, 48, -1, -1))
    held["decay"].fill_(-1e-3)
    held["rates"].fill_(1.9)
    visible = torch.ones(1, 48, 48, dtype=torch.bool, device=device).tril()
    found, deltas = dispatch.attend(**held, visible=visible)
    wanted, right = reference.attend(
        **{name: tensor.double() for name, tensor in held.items()}, visible=visible
    )
    assert relative_error(deltas, right) < 1e-5
    assert relative_error(found, wanted) < 1e-5


def test_every_configuration_is_launched(device: torch.device) -> None:
    tree = scans.Ragged(["random"], old=2, new=5, seed=1)
    visible, _ = tree.on(device)
    with frames.every_configuration_of(dispatch):
        for dtype in frames.DTYPES:
            held = drawn(device, dtype, tree, (1, 1, 16, 16))
            for found, wanted in zip(
                dispatch.attend(**held, visible=visible),
                reference.attend(**held, visible=visible),
                strict=True,
            ):
                frames.agree(found, wanted, dtype)


def some(device: torch.device) -> dict[str, Tensor]:
    tree = scans.Ragged(["random"], old=2, new=5, seed=1)
    return drawn(device, torch.float32, tree, (2, 2, 16, 16)) | {"visible": tree.on(device)[0]}


def test_layouts_that_no_kernel_reads(device: torch.device, caplog: pytest.LogCaptureFixture) -> None:
    held = some(device)
    held["visible"] = torch.nn.functional.pad(held["visible"], (0, 9))[..., :7]
    # Older columns' deltas are copied, wherever they lie.
    deltas = held.pop("deltas")
    scans.layouts_left_to_the_reference(
        partial(dispatch.attend, deltas=deltas),
        partial(reference.attend, deltas=deltas),
        held,
        caplog=caplog,
        visible="mask",
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda held: {"rates": held["rates"].double()}, "the rates are torch.float64"),
        (lambda held: {"values": held["values"].double()}, "are torch.float32 and torch.float64"),
    ],
)
def test_the_reference_takes_the_rest(
    change: Any, reason: str, caplog: pytest.LogCaptureFixture, device: torch.device
) -> None:
    held = some(device)
    held |= change(held)
    scans.left_to_the_reference(dispatch.attend, reference.attend, held, reason=reason, caplog=caplog)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("deltas", "the shapes are (1, 2, 1, 16) and (1, 5, 2)"),
        ("queries", "The shape of queries is (1, 5, 1, 16)"),
    ],
)
def test_shapes_that_do_not_fit(name: str, message: str, device: torch.device) -> None:
    held = some(device)
    frames.misfit(dispatch.attend, held | {name: held[name][:, :, 1:]}, message)


def test_no_nodes(device: torch.device) -> None:
    held = drawn(device, torch.float32, scans.Ragged(["chain"], old=2, new=0), (2, 1, 16, 16))
    visible = torch.zeros(1, 0, 2, dtype=torch.bool, device=device)
    out, deltas = dispatch.attend(**held, visible=visible)
    assert out.shape == deltas.shape == (1, 0, 2, 16)
