"""Tree attention against its reference, over trees of every shape, and what it refuses."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftwood.kernels.support import kernels_enabled
from draftwood.kernels.testing import TOLERANCE, TOPOLOGIES, relative_error, visible
from draftwood.kernels.tree_attention import dispatch, reference
from draftwood.kernels.tree_attention.mask import TreeMask, pack, unpack
from draftwood.trees.tree import TokenTree
from tests.kernels import frames

pytestmark = pytest.mark.triton

GROUPS = [(1, 1), (2, 1), (1, 4), (2, 3), (1, 5)]  # heads of keys, and queries that share each


def case(
    device: torch.device,
    dtype: torch.dtype,
    trees: list[list[int]],
    *,
    old: int = 0,
    lengths: list[int],
    gap: int = 0,
    heads: tuple[int, int] = (1, 2),
    dim: int = 16,
    value_dim: int | None = None,
    window: int | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Arguments of a call in which the first `old` nodes of every row came in an earlier one.

    What no query may read is NaN.
    """
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device=device, dtype=dtype)

    rows, (kv_heads, group) = len(trees), heads
    seen = visible(trees)
    columns, start = seen.shape[1], max(lengths) + gap
    depths = seen.sum(2) - 1
    seen = seen[:, old:]
    first = within = None
    if window is not None:
        positions = depths + torch.tensor(lengths).unsqueeze(1)
        first = (positions[:, old:] - window + 1).clamp(min=0)
        within = positions[:, old:, None] - positions[:, None] < window
    counts = torch.tensor([max(len(parents) - old, 0) for parents in trees])
    keys, values = (
        noise(rows, kv_heads, start + columns + 3, d) for d in (dim, dim if value_dim is None else value_dim)
    )
    for row, length in enumerate(lengths):
        for held in (keys, values):
            held[row, :, length:start] = torch.nan
            held[row, :, start + columns :] = torch.nan
    mask = TreeMask.of(
        seen, lengths=torch.tensor(lengths), start=start, first=first, within=within, counts=counts
    )
    return {
        "queries": noise(rows, columns - old, kv_heads * group, dim).transpose(1, 2),
        "keys": keys,
        "values": values,
        "mask": mask.to(device),
        "scale": dim**-0.5,
        "sinks": noise(kv_heads * group),
    }


def error(arguments: dict[str, Any]) -> float:
    """Returns the kernel's error against the reference in fp32; other outputs must still be NaN."""
    with frames.kernel_alone(dispatch, "attend"), frames.guarded():
        found = dispatch.attend(**arguments)
    wanted = reference.attend(**frames.precise(arguments))
    assert found.dtype == arguments["queries"].dtype
    nodes = torch.arange(found.shape[1], device=found.device)
    real = nodes < arguments["mask"].counts.unsqueeze(1)
    assert bool(found[~real].isnan().all())
    return relative_error(found[real], wanted[real])


@pytest.mark.parametrize("dtype", TOLERANCE)
@settings(max_examples=10)
@given(data=st.data())
def test_any_call(data: st.DataObject, device: torch.device, dtype: torch.dtype) -> None:
    chance = random.Random(data.draw(st.integers(0, 10**6)))
    sizes = data.draw(st.lists(st.integers(1, 45), min_size=1, max_size=3))
    arguments = case(
        device,
        dtype,
        [TOPOLOGIES[chance.choice(list(TOPOLOGIES))](n, chance) for n in sizes],
        old=data.draw(st.integers(0, max(sizes) - 1)),
        lengths=[data.draw(st.integers(0, 300)) for _ in sizes],
        gap=data.draw(st.sampled_from([0, 5])),
        heads=data.draw(st.sampled_from(GROUPS)),
        dim=data.draw(st.sampled_from([16, 64, 80])),
        value_dim=data.draw(st.sampled_from([16, 64, 96])),
        window=data.draw(st.sampled_from([None, None, 2, 100])),
        seed=chance.randrange(10**6),
    )
    arguments["softcap"] = data.draw(st.sampled_from([None, 0.8, 50.0]))
    if data.draw(st.booleans()):
        del arguments["sinks"]
    with pytest.MonkeyPatch.context() as patch:
        processors = data.draw(st.sampled_from([1, 64]))
        patch.setattr(dispatch, "_processors", lambda device: processors)
        assert error(arguments) <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize(("nodes", "length"), [(1, 300), (31, 1), (33, 0), (130, 64)])
def test_every_topology(dtype: torch.dtype, name: str, nodes: int, length: int, device: torch.device) -> None:
    chance = random.Random(nodes)
    # A second row has half of the nodes and a prefix of its own.
    trees = [TOPOLOGIES[name](n, chance) for n in (nodes, nodes // 2)]
    arguments = case(device, dtype, trees, lengths=[length, length // 3], heads=(1, 1))
    assert error(arguments) <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("dim", [16, 48, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("nodes", [3, 40])
def test_every_head_dim(dtype: torch.dtype, dim: int, nodes: int, device: torch.device) -> None:
    trees = [TOPOLOGIES["binary"](nodes, random.Random())]
    assert error(case(device, dtype, trees, lengths=[70], dim=dim, heads=(1, 2))) <= TOLERANCE[dtype]


def test_large_scores_do_not_overflow(device: torch.device) -> None:
    arguments = case(device, torch.float32, [[-1, 0, 0]], lengths=[300])
    arguments["queries"] *= 1e4
    assert error(arguments) <= TOLERANCE[torch.float32]
    arguments["softcap"] = 30.0
    assert error(arguments) <= TOLERANCE[torch.float32]


@given(
    seed=st.integers(0, 10**6),
    nodes=st.integers(1, 200),
    old=st.integers(0, 70),
    group=st.integers(1, 9),
    lines=st.sampled_from([16, 32, 64]),
)
def test_blocks_are_those_that_hold_anything(seed: int, nodes: int, old: int, group: int, lines: int) -> None:
    chance = random.Random(seed)
    seen = visible([TOPOLOGIES[chance.choice(list(TOPOLOGIES))](nodes + old, chance) for _ in range(2)])
    mask = TreeMask.of(seen[:, old:], lengths=torch.zeros(2), start=0)
    blocks, counts = mask.blocks(group=group, lines=lines)
    tall = seen[:, old:].repeat_interleave(group, 1)
    for row in range(2):
        for tile in range(-(-nodes * group // lines)):
            columns = tall[row, tile * lines : (tile + 1) * lines].any(0).nonzero().flatten()
            wanted = sorted(set((columns // 32).tolist()))
            assert blocks[row, tile, : counts[row, tile]].tolist() == wanted


@given(seed=st.integers(0, 10**6), nodes=st.integers(1, 150))
def test_bits_are_those_of_a_tree(seed: int, nodes: int) -> None:
    chance = random.Random(seed)
    parents = [-1, *(chance.randint(0, node - 1) for node in range(1, nodes))]
    seen = visible([parents])
    assert torch.equal(unpack(pack(seen), nodes), seen)
    tree = TokenTree(tokens=torch.zeros(nodes, dtype=torch.int64), parents=torch.tensor(parents))
    for node, words in enumerate(pack(seen)[0].tolist()):
        bits = {32 * word + bit for word, held in enumerate(words) for bit in range(32) if held >> bit & 1}
        assert bits == set(tree.path(node))


@given(
    start=st.integers(0, 20000),
    programs=st.integers(1, 500),
    processors=st.integers(1, 200),
    step=st.sampled_from([16, 32, 64]),
)
def test_parts_cover_the_prefix_once(start: int, programs: int, processors: int, step: int) -> None:
    parts, slots = dispatch.split(start, programs=programs, processors=processors, step=step)
    assert slots % step == 0
    if parts == 1:
        assert slots >= start
    else:
        # The last part is left to the tree, and the one before has something to do.
        assert (parts - 2) * slots < start <= (parts - 1) * slots
        assert programs * (parts - 1) <= 2 * processors
        assert slots >= min(dispatch.PART // 2, start // 2)


def test_nothing_to_do(device: torch.device) -> None:
    arguments = case(device, torch.float16, [[-1, 0]], lengths=[3])
    empty = TreeMask.of(torch.zeros(1, 0, 2, dtype=torch.bool), lengths=torch.tensor([3]), start=3)
    found = dispatch.attend(**arguments | {"queries": arguments["queries"][:, :, :0], "mask": empty})
    assert found.shape == (1, 0, 2, 16)


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        ([[1, 0], [1, 0]], "Node 1 of row 0 does not see itself; the mask is no tree's."),
        ([[1, 1], [0, 1]], "Node 0 of row 0 sees a node after itself"),
        ([[1, 0, 0], [1, 1, 0], [0, 1, 1]], "Node 2 of row 0 does not see just what its parent sees"),
        ([[1, 0, 0], [0, 1, 0], [1, 1, 1]], "Node 2 of row 0 does not see just what its parent sees"),
    ],
)
def test_a_mask_that_is_no_trees(seen: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TreeMask.of(torch.tensor([seen]).bool(), lengths=torch.tensor([0]), start=0)


def test_masks_that_do_not_fit_themselves() -> None:
    mask = TreeMask.of(visible([[-1, 0]]), lengths=torch.tensor([0]), start=0)
    parts = {name: getattr(mask, name) for name in ("bits", "lengths", "start", "first", "counts")}
    with pytest.raises(ValueError, match="33 columns need 2 words of 32 bits a node, and the mask has 1"):
        TreeMask(**parts, columns=33)
    with pytest.raises(ValueError, match="The last 2 of 1 columns cannot be the 2 new nodes"):
        TreeMask(**parts, columns=1)
    with pytest.raises(ValueError, match=r"lengths is torch.int64 \(1,\), not int32 \(1,\)"):
        TreeMask(**parts | {"lengths": torch.tensor([0])}, columns=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": torch.zeros(1, 1, 9, 32)}, "do not belong together"),
        ({"queries": torch.zeros(1, 2, 3, 16)}, r"The mask is for \(1, 2\) rows and nodes"),
        ({"keys": torch.zeros(1, 1, 4, 16)}, "3 committed slots and 2 columns exceed the 4 slots"),
        ({"sinks": torch.zeros(3)}, r"Sinks \(3,\) must be one per head, \(2,\)"),
        (
            {"keys": torch.zeros(1, 3, 9, 16), "values": torch.zeros(1, 3, 9, 16)},
            "2 heads cannot share 3 heads of keys evenly",
        ),
    ],
)
def test_shapes_that_do_not_belong_together(change: dict[str, Tensor], message: str) -> None:
    arguments = case(torch.device("cpu"), torch.float32, [[-1, 0]], lengths=[3])
    with pytest.raises(ValueError, match=message):
        dispatch.attend(**arguments | change)


@pytest.mark.parametrize(
    ("dim", "change", "reason"),
    [
        (24, lambda held: held, "a head dim of 24 is not a multiple of 16 up to 256"),
        (272, lambda held: held, "a head dim of 272 is not a multiple of 16 up to 256"),
        (16, torch.Tensor.double, "its tensors are torch.float64"),
        (16, lambda held: held.requires_grad_(), "it has no gradient"),
        (16, lambda held: held.mT.contiguous().mT, "queries is not contiguous along its last axis"),
        (
            16,
            lambda held: torch.nn.functional.pad(held, (1, 15))[..., 1:17],
            "queries starts at an address that is not a multiple of 16 bytes",
        ),
        (
            16,
            lambda held: torch.nn.functional.pad(held, (0, 8))[..., :16],
            r"are not multiples of 16",
        ),
    ],
)
def test_the_reference_takes_the_rest(
    dim: int, change: Any, reason: str, device: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    arguments = case(device, torch.float32, [[-1, 0, 0]], lengths=[3], dim=dim)
    tensors = {name: change(arguments[name]) for name in ("queries", "keys", "values")}
    tensors["sinks"] = arguments["sinks"].to(tensors["queries"].dtype)
    with frames.reference_serves(reason, caplog):
        found = dispatch.attend(**arguments | tensors)
    assert found.dtype == tensors["queries"].dtype
    assert relative_error(found, reference.attend(**arguments)) <= 1e-6
    with kernels_enabled(False), frames.reference_serves("kernels are switched off", caplog):
        dispatch.attend(**arguments)
