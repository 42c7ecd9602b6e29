"""Make a block drafter for a target, and train it on what the target writes.

In every step blocks begin at places of the target's text that are drawn anew. A slot learns from the target's
own distribution at its place, which hangs on tokens that the slot does not see; of DSpark, on the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Generator, Tensor

from draftwood.base.errors import InvalidInput
from draftwood.strategies.blocks.config import BlockConfig
from draftwood.strategies.blocks.files import save_block
from draftwood.strategies.blocks.head import BlockHead
from draftwood.strategies.blocks.over_text import blocks_at

from ..distil.rows import Rows, ends_of_text, position_weights
from ..distil.steps import Trained, stepped
from ..distil.training import SEEDS, TrainingOptions, batch
from .known_text import known_text
from .place_loss import place_loss


@attrs.frozen(kw_only=True)
class BlockOptions(TrainingOptions):
    """Options for a block drafter; see `TrainingOptions`, and:

    Attributes:
        decay: the weight of a slot's loss over the weight of the slot before it.
        share: of the places of a step at which a block begins.
    """

    steps: int = 4000
    learning_rate: float = 1e-3
    temperatures: tuple[float, ...] = (1.0,)
    variation: float = 1.0
    divergence: float = 1.0
    decay: float = 0.8
    share: float = 0.25


def new_block_config(
    target: Any,
    *,
    layers: int = 1,
    depths: int = 5,
    markov_rank: int = 0,
    intermediate: int | None = None,
    taps: Sequence[int] | None = None,
) -> BlockConfig:
    """A block drafter's sizes for `target`: its own, apart from those that are given.

    It has as many heads of keys as of queries: the text reaches its slots only through values.

    Args:
        target: a causal language model.
        layers: of the drafter.
        depths: tokens that a block guesses.
        markov_rank: of DSpark's correction by the token before; 0: DFlash, which has none.
        intermediate: width of its MLPs.
        taps: layers of the target whose input is read; default: one in the middle, and the last two.

    Raises:
        InvalidInput: taps that the target does not have.
    """
    text = target.config.get_text_config(decoder=True)
    vocabulary, width = target.get_output_embeddings().weight.shape
    count, heads = int(text.num_hidden_layers), int(text.num_attention_heads)
    chosen = tuple(sorted(taps)) if taps else (count // 2 - 1, count - 2, count - 1)
    if not all(1 <= tap < count for tap in chosen):
        raise InvalidInput(
            f"A block drafter taps the layers {', '.join(map(str, chosen))} of its target, as inputs; its "
            f"format can name 1 to {count - 1} of this target, so give others with --taps."
        )
    mask = getattr(text, "pad_token_id", None)
    rope = getattr(text, "rope_parameters", None) or {}
    return BlockConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=intermediate or int(text.intermediate_size),
        attention_heads=heads,
        key_value_heads=heads,
        head_dim=int(getattr(text, "head_dim", None) or width // heads),
        norm_eps=float(getattr(text, "rms_norm_eps", 1e-6)),
        max_positions=int(getattr(text, "max_position_embeddings", None) or 32768),
        target_layers=count,
        taps=chosen,
        # DSpark's root guesses too.
        block_size=depths + (markov_rank == 0),
        # A token that texts do not hold, where there is one.
        mask_token_id=vocabulary - 1 if mask is None else int(mask),
        causal=(False,) * layers,
        windows=(None,) * layers,
        # What rotations of long texts do to the target is nothing that a small drafter must repeat.
        rope={"rope_type": "default", "rope_theta": float(rope.get("rope_theta", 10000.0))},
        root_guesses=markov_rank > 0,
        markov_rank=markov_rank,
    )


def new_block(target: Any, config: BlockConfig, *, seed: int) -> BlockHead:
    """A block drafter in float32 on the target's device.

    Its layers begin as the target's last ones, where these are like Llama's; other weights are drawn from
    `seed`.
    """
    torch.manual_seed(seed)
    head = BlockHead(config)
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.02)
        if head.markov_head is not None:
            head.markov_head.markov_w1.weight.normal_(0.0, 0.3)
            head.markov_head.markov_w2.weight.zero_()
        _begin_as_last(head, target)
        norm = getattr(getattr(target, "model", None), "norm", None)
        if norm is not None and norm.weight.shape == head.norm.weight.shape:
            head.norm.weight.copy_(norm.weight.detach().float())
        # The highest tap is nearest to what the output head reads.
        last = (len(config.taps) - 1) * config.hidden_size
        head.fc.weight[:, last:] += torch.eye(config.hidden_size)
    return head.to(target.device)


def _begin_as_last(head: BlockHead, target: Any) -> None:
    """Copy what fits of the target's last layers; heads of keys that queries share become one for each."""
    theirs = list(getattr(getattr(target, "model", None), "layers", ()))[-len(head.layers) :]
    if len(theirs) < len(head.layers):
        return
    config = head.config
    for mine, their in zip(head.layers, theirs, strict=True):
        for name, weight in mine.named_parameters():
            try:
                source = their.get_parameter(name).detach().float().cpu()
            except AttributeError:  # a norm of queries and keys, or another kind of layer
                continue
            keys = name.startswith(("self_attn.k_proj", "self_attn.v_proj"))
            if keys and len(source) % config.head_dim == 0:
                shared = source.unflatten(0, (-1, config.head_dim))
                source = shared.repeat_interleave(config.key_value_heads // len(shared), 0).flatten(0, 1)
            elif name.startswith("mlp.") and source.shape != weight.shape:
                source = _strongest(their.mlp, name.split(".")[1], config.intermediate_size)
            if source.shape == weight.shape:
                weight.copy_(source)
    norm = getattr(theirs[-1], "input_layernorm", None)
    if norm is not None and norm.weight.shape == head.hidden_norm.weight.shape:
        head.hidden_norm.weight.copy_(norm.weight.detach().float())


def _strongest(mlp: Any, part: str, width: int) -> Tensor:
    """A projection of the `width` inner units of an MLP that write most."""
    down, up = (projection.weight.detach().float().cpu() for projection in (mlp.down_proj, mlp.up_proj))
    units = (down.norm(dim=0) * up.norm(dim=1)).topk(min(width, len(up))).indices
    weight: Tensor = getattr(mlp, part).weight.detach().float().cpu()
    return weight[:, units] if part == "down_proj" else weight[units]


def trained_block(
    target: Any,
    head: BlockHead,
    shards: Sequence[Rows],
    *,
    options: BlockOptions,
    checkpoint: Path,
    every: int = 200,
) -> Iterator[Trained]:
    """Train `head` in place, as `heads.eagle3.trained_head` trains a head.

    Args:
        target: a causal language model in eval mode. Where it is in bfloat16, the head's passes are too.
        head: in float32 on the same device, without embeddings and output head.
        shards: what the target wrote.
        options: how it learns; a checkpoint is to be of the same.
        checkpoint: the file.
        every: steps between two checkpoints.

    Raises:
        InvalidInput: there is no shard, or a checkpoint that is none of this head.
        OutOfMemory: a step did not fit on the device.
    """
    ends = ends_of_text(target)
    target.requires_grad_(False)

    def loss(step: int) -> tuple[Tensor, int]:
        rows, places = batch(shards, options, step)
        generator = Generator().manual_seed(options.seed * SEEDS + step)
        # Token i + 2 is guessed at place i, the last place being that of the last token.
        places = places[places >= 1] - 1
        begins = places[torch.rand(len(places), generator=generator) < options.share]
        if not len(begins):
            begins = places[:1]
        return _loss(target, head, rows, begins, ends=ends, options=options), rows.tokens.numel()

    yield from stepped(head, loss, options=options, device=target.device, checkpoint=checkpoint, every=every)


def _loss(
    target: Any, head: BlockHead, rows: Rows, begins: Tensor, *, ends: Sequence[int], options: BlockOptions
) -> Tensor:
    """The loss of all slots of the blocks that begin at these places, ascending."""
    text = known_text(target, rows.tokens, head.config.taps)
    device, count = text.logits.device, text.logits.shape[1]
    weights = position_weights(rows, ends=ends, real=1.0)[:, 1:].to(device)
    total = torch.zeros((), device=device)
    mask = torch.tensor(head.config.mask_token_id, device=device)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=target.dtype == torch.bfloat16):
        out = blocks_at(
            head,
            text.embeddings[:, begins.to(device)].float(),
            target.get_input_embeddings()(mask).float(),
            known=head.context(head.project(text.features)),
            places=begins,
        )
        for depth in range(head.config.depths):
            inside = begins[begins + depth < count]
            guess = target.get_output_embeddings()(out[:, : len(inside), depth])
            if head.markov_head is not None:
                before = text.tokens[:, (inside + depth).to(device)]
                guess = guess + head.markov_head(before, out[:, : len(inside), depth], None)[0]
            total = total + options.decay**depth * place_loss(
                guess, text, inside + depth, rows=rows, weights=weights, options=options
            )
    return total


def save_block_head(head: BlockHead, folder: Path) -> None:
    """Write `head` in bfloat16 in z-lab's format."""
    save_block(head.to(torch.bfloat16), folder)
