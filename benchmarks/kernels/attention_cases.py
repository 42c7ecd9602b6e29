"""Tree attention compared with attention with a dense mask, FlexAttention, and attention without a tree."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.kernels.cases import Bound, Case, Contender
from benchmarks.research.blocks import random_tree
from benchmarks.research.orders import depth_first
from draftwood import TokenTree
from draftwood.kernels.testing import TOLERANCE, TOPOLOGIES, visible
from draftwood.kernels.tree_attention import dispatch, reference
from draftwood.kernels.tree_attention.mask import TreeMask


def ragged(device: torch.device, *, nodes: int = 70, prefix: int = 300) -> list[Case]:
    """Rows of differing length and shape, heads that share keys, in two dtypes; only ours."""
    chance, cases = random.Random(0), []
    trees = [
        TOPOLOGIES[name](n, chance) for name, n in (("random", nodes), ("chain", nodes // 2), ("star", 1))
    ]
    for dtype in (torch.float32, torch.float16):
        mask = TreeMask.of(visible(trees), lengths=torch.tensor([37, 0, prefix]), start=prefix).to(device)
        arguments = {
            **_tensors(
                rows=3,
                heads=4,
                kv_heads=2,
                nodes=nodes,
                slots=prefix + nodes,
                dim=64,
                dtype=dtype,
                device=device,
            ),
            "mask": mask,
        }
        ours = Contender("kernel", partial(dispatch.attend, **arguments), kernel=True)
        expected = partial(_precise, **arguments)
        cases.append(Case("tree_attention", f"ragged rows, {dtype}", expected, [ours], TOLERANCE[dtype]))
    return cases


def trees(
    device: torch.device, *, sizes: Sequence[int] = (256, 512, 1024, 2048), heads: int = 64, dim: int = 128
) -> list[Case]:
    """Random trees without a prefix, as grown and depth-first, as in DySpec's table 5."""
    chance, cases = random.Random(0), []
    for nodes in sizes:
        tree = random_tree(nodes, chance)
        for name, order in (("as grown", list(range(nodes))), ("depth-first", depth_first(tree))):
            cases.append(
                _case(
                    f"{nodes} nodes {name}, {heads} heads of {dim}",
                    _seen(tree, order),
                    prefix=0,
                    heads=heads,
                    kv_heads=heads,
                    dim=dim,
                    device=device,
                )
            )
    return cases


def behind_a_prefix(
    device: torch.device,
    *,
    nodes: int = 64,
    prefix: int = 8192,
    rows: Sequence[int] = (1, 8),
    heads: int = 32,
    kv_heads: int = 8,
    dim: int = 128,
) -> list[Case]:
    """A random tree after a long prefix, with the heads of Llama 3 8B."""
    tree = random_tree(nodes, random.Random(1))
    seen = _seen(tree, depth_first(tree))
    return [
        _case(
            f"{nodes} nodes after {prefix} tokens, rows: {count}, {heads} heads of {dim} on {kv_heads}",
            seen.expand(count, -1, -1),
            prefix=prefix,
            heads=heads,
            kv_heads=kv_heads,
            dim=dim,
            device=device,
        )
        for count in rows
    ]


def _seen(tree: TokenTree, order: Sequence[int]) -> Tensor:
    """Returns which nodes see which in that order, `[1, nodes, nodes]`."""
    return tree.ancestor_mask[order][:, order][None]


def _case(
    size: str, seen: Tensor, *, prefix: int, heads: int, kv_heads: int, dim: int, device: torch.device
) -> Case:
    rows, nodes, _ = seen.shape
    slots, dtype = prefix + nodes, torch.float16
    arguments = _tensors(
        rows=rows,
        heads=heads,
        kv_heads=kv_heads,
        nodes=nodes,
        slots=slots,
        dim=dim,
        dtype=dtype,
        device=device,
    )
    queries, keys, values = arguments["queries"], arguments["keys"], arguments["values"]
    lengths = torch.full((rows,), prefix)
    mask = TreeMask.of(seen, lengths=lengths, start=prefix).to(device)
    there, sizes = seen.to(device), lengths.to(device)
    dense = mask.visible()[:, None]
    group = heads // kv_heads

    def packed() -> Tensor:
        made = TreeMask.of(there, lengths=sizes, start=prefix)
        return made.blocks(group=group, lines=64)[0]

    def without_mask() -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return scaled_dot_product_attention(
                queries, keys, values, is_causal=not prefix, enable_gqa=group > 1
            )

    def with_mask() -> Tensor:
        # As transformers does: no fused kernel takes a mask together with shared keys.
        spread = keys, values
        if group > 1:
            spread = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        return scaled_dot_product_attention(queries, spread[0], spread[1], attn_mask=dense)

    flex, block_mask = _flex(queries, keys, values, dense[:, 0], group)
    pairs = int(dense.sum())
    floor = "causal flash attention" if not prefix else "flash attention, no mask"
    floor_pairs = rows * (nodes * (nodes + 1) // 2 if not prefix else nodes * slots)
    # What is read once can be read no faster; the largest of both shows how near to it memory comes.
    reading, bound = [], None
    if prefix:
        name = "reading keys and values once"
        both = torch.stack([keys, values]).flatten()
        reading = [Contender(name, both.amax, judged=False, operations=0, at_most=1.5)]
        bound = Bound(name, both.numel() * both.element_size(), 1.5)
    return Case(
        operation="tree_attention",
        size=size,
        expected=partial(_precise, **arguments, mask=mask),
        contenders=[
            Contender("kernel", partial(dispatch.attend, **arguments, mask=mask), kernel=True),
            Contender("SDPA, dense mask", with_mask, read=_nodes_first, at_most=None if prefix else 1.0),
            Contender("FlexAttention", flex, read=_nodes_first),
            Contender(
                floor,
                without_mask,
                judged=False,
                operations=4 * heads * dim * floor_pairs,
                at_most=None if prefix else 1.3,
            ),
            *reading,
            Contender("making the kernel's mask", packed, judged=False, operations=0),
            Contender("making FlexAttention's mask", block_mask, judged=False, operations=0),
        ],
        allowed=TOLERANCE[dtype],
        bytes=2 * (2 * queries.numel() + keys.numel() + values.numel()) + 4 * mask.bits.numel(),
        operations=4 * heads * dim * pairs,
        bound=bound,
    )


def _flex(
    queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor, group: int
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """FlexAttention with its mask made, compiled at the first call; and the making of that mask.

    Args:
        queries: `[rows, heads, nodes, dim]`.
        keys: `[rows, kv_heads, slots, dim]`.
        values: as the keys.
        seen: bool `[rows, nodes, slots]`.
        group: heads that share keys.
    """
    rows, nodes, slots = seen.shape
    made: list[Any] = []

    def sees(row: Tensor, head: Tensor, query: Tensor, slot: Tensor) -> Tensor:
        return seen[row, query, slot]

    def block_mask() -> Any:
        return create_block_mask(sees, rows, None, nodes, slots, device=seen.device)

    def attend() -> Any:
        if not made:
            made.append(partial(_compiled(), block_mask=block_mask(), enable_gqa=group > 1))
        return made[0](queries, keys, values)

    return attend, block_mask


@cache
def _compiled() -> Any:
    # Every size is compiled for itself, which is more often than torch allows by itself.
    torch._dynamo.config.recompile_limit = 64
    return torch.compile(flex_attention, dynamic=False)


def _tensors(
    *,
    rows: int,
    heads: int,
    kv_heads: int,
    nodes: int,
    slots: int,
    dim: int,
    dtype: torch.dtype,
    device: torch.device,
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    return {
        "queries": noise(rows, heads, nodes, dim),
        "keys": noise(rows, kv_heads, slots, dim),
        "values": noise(rows, kv_heads, slots, dim),
        "scale": dim**-0.5,
    }


def _precise(*, queries: Tensor, keys: Tensor, values: Tensor, mask: TreeMask, scale: float) -> Tensor:
    """The reference, row by row so that its scores find room, and in fp32 to the end."""
    outputs = []
    for row in range(len(queries)):
        one = slice(row, row + 1)
        alone = TreeMask(
            mask.bits[one], mask.lengths[one], mask.start, mask.columns, mask.first[one], mask.counts[one]
        )
        outputs.append(
            reference.attend(
                queries=queries[one].float(), keys=keys[one], values=values[one], mask=alone, scale=scale
            )
        )
    return torch.cat(outputs)


def _nodes_first(outputs: Tensor) -> Tensor:
    return outputs.transpose(1, 2)
