"""Make an EAGLE-3 head for a target, and train it on what the target writes.

The head sees its own recycled states while it learns (training-time test, EAGLE-3, arXiv 2503.01840,
section 3): for every place of the text, drafts of one to several tokens that begin before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Generator, Tensor

from draftwood.strategies.heads import formats
from draftwood.strategies.heads.config import Eagle3Config
from draftwood.strategies.heads.eagle3 import Eagle3Head
from draftwood.strategies.mtp.head import MtpHead

from ..distil.rows import Rows, ends_of_text, position_weights
from ..distil.steps import Trained, stepped
from ..distil.training import SEEDS, TrainingOptions, batch
from .known_text import known_text
from .place_loss import place_loss


@attrs.frozen(kw_only=True)
class HeadOptions(TrainingOptions):
    """Options for a head; see `TrainingOptions`, and:

    Attributes:
        depths: how far its own states are recycled; the first depth reads only the target's.
        decay: the weight of a depth's loss over the weight of the depth before it.
        share: of the places of a step at which a depth is judged, drawn anew for each. Logits cost more than
            the head's layer, and other places tell more than all of one text.
    """

    steps: int = 4000
    learning_rate: float = 1e-3
    temperatures: tuple[float, ...] = (1.0,)
    variation: float = 1.0
    divergence: float = 1.0
    depths: int = 5
    decay: float = 0.8
    share: float = 0.35


def tokens_written(shards: Sequence[Rows], vocabulary: int) -> Tensor:
    """Returns the number of times that the target wrote each token, int64 `[vocabulary]`."""
    counts = torch.zeros(vocabulary, dtype=torch.int64)
    for shard in shards:
        counts += shard.tokens[:, shard.prompt :].flatten().bincount(minlength=vocabulary)
    return counts


def new_config(
    target: Any,
    *,
    draft_vocabulary: int | None = None,
    intermediate: int | None = None,
    taps: Sequence[int] | None = None,
) -> Eagle3Config:
    """A head's sizes for `target`: its own, apart from those that are given.

    Raises:
        InvalidInput: a size or tap that it does not allow.
    """
    text = target.config.get_text_config(decoder=True)
    head = target.get_output_embeddings()
    vocabulary, width = head.weight.shape
    layers, heads = int(text.num_hidden_layers), int(text.num_attention_heads)
    rope = getattr(text, "rope_parameters", None) or {}
    config = Eagle3Config(
        hidden_size=width,
        target_hidden_size=width,
        vocab_size=vocabulary,
        draft_vocab_size=min(draft_vocabulary or vocabulary, vocabulary),
        attention_heads=heads,
        key_value_heads=int(getattr(text, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(text, "head_dim", None) or width // heads),
        intermediate_size=intermediate or int(text.intermediate_size),
        norm_eps=float(getattr(text, "rms_norm_eps", 1e-6)),
        # What rotations of long texts do to the target is nothing that a small head must repeat.
        rope={"rope_type": "default", "rope_theta": float(rope.get("rope_theta", 10000.0))},
        max_positions=getattr(text, "max_position_embeddings", None),
        taps=taps,
    )
    config.taps_in(layers)
    return attrs.evolve(config, taps=config.named_taps(layers))


def new_head(target: Any, config: Eagle3Config, counts: Tensor, *, seed: int) -> Eagle3Head:
    """A head in float32 on the target's device, which begins as the target's last layer and output head.

    Args:
        target: the model.
        config: of the head.
        counts: how often each token was written; the head proposes the most frequent ones.
        seed: of its other weights.
    """
    torch.manual_seed(seed)
    ids = None
    if config.draft_vocab_size < config.vocab_size:
        ids = counts.argsort(descending=True, stable=True)[: config.draft_vocab_size].sort().values
    head = Eagle3Head(config, target_ids=ids)
    weight = target.get_output_embeddings().weight.detach().float().cpu()
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.02)
        assert head.lm_head is not None
        head.lm_head.weight.copy_(weight[head.target_ids])
        _begin_as_last_layer(head, getattr(target, "model", None))
        # The highest tap is nearest to what the output head reads.
        for place, width in enumerate(range(config.hidden_size)):
            head.fc.weight[place, (config.tap_count - 1) * config.target_hidden_size + width] += 1
    return head.to(target.device)


def _begin_as_last_layer(head: Eagle3Head, body: Any) -> None:
    """Copy what fits of the last layer and norm of `body`: what they write, the output head can read.

    The state takes the place of the layer's input, the embedding has no part yet. Of a wider MLP the inner
    units of the largest weights are taken.
    """
    layers = getattr(body, "layers", None)
    last = layers[-1] if layers is not None and len(layers) else None
    own, width = head.midlayer, head.config.hidden_size
    for norm, name, part in (
        (head.norm, "norm", body),
        (own.hidden_norm, "input_layernorm", last),
        (own.post_attention_layernorm, "post_attention_layernorm", last),
    ):
        scale = _scale(getattr(part, name, None), width)
        if scale is not None:
            norm.weight.copy_(scale)
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        weight = getattr(getattr(getattr(last, "self_attn", None), name, None), "weight", None)
        # Of queries, keys and values the second half of the columns reads the state.
        into = getattr(own.self_attn, name).weight[:, 0 if name == "o_proj" else width :]
        if weight is not None and weight.shape == into.shape:
            into.copy_(weight)
    gate, up, down = (
        getattr(getattr(getattr(last, "mlp", None), name, None), "weight", None)
        for name in ("gate_proj", "up_proj", "down_proj")
    )
    inner = head.config.intermediate_size
    if down is not None and up is not None and gate is not None and down.shape[1] >= inner:
        most = (down.norm(dim=0) * up.norm(dim=1)).topk(inner).indices
        own.mlp.gate_proj.weight.copy_(gate[most])
        own.mlp.up_proj.weight.copy_(up[most])
        own.mlp.down_proj.weight.copy_(down[:, most])


def _scale(norm: Any, width: int) -> Tensor | None:
    """Returns the factors of an RMS norm for each of `width` numbers; some norms keep them less one."""
    weight = getattr(norm, "weight", None)
    if weight is None or weight.shape != (width,) or getattr(norm, "bias", None) is not None:
        return None
    scale: Tensor = norm(torch.ones(1, width, dtype=weight.dtype, device=weight.device))[0]
    return scale


def trained_head(
    target: Any,
    head: Eagle3Head | MtpHead,
    shards: Sequence[Rows],
    *,
    options: HeadOptions,
    checkpoint: Path,
    every: int = 200,
) -> Iterator[Trained]:
    """Train `head` in place, as `distil.training.trained` trains a draft.

    Args:
        target: a causal language model in eval mode. Where it is in bfloat16, the head's passes are too.
        head: in float32 on the same device.
        shards: what the target wrote.
        options: how it learns; a checkpoint is to be of the same.
        checkpoint: the file.
        every: steps between two checkpoints.

    Raises:
        InvalidInput: there is no shard, or a checkpoint that is none of this head.
        OutOfMemory: a step did not fit on the device.
    """
    ends, taps = ends_of_text(target), head.taps_in(int(target.config.num_hidden_layers))

    def loss(step: int) -> tuple[Tensor, int]:
        rows, places = batch(shards, options, step)
        generator = Generator().manual_seed(options.seed * SEEDS + step)
        # Token i + 2 is guessed at place i, and its weight is one place further.
        places = places[places >= 1] - 1
        chosen = [
            places[torch.rand(len(places), generator=generator) < options.share]
            for _ in range(options.depths)
        ]
        return _loss(target, head, rows, chosen, taps, ends=ends, options=options), rows.tokens.numel()

    yield from stepped(head, loss, options=options, device=target.device, checkpoint=checkpoint, every=every)


def _loss(
    target: Any,
    head: Eagle3Head | MtpHead,
    rows: Rows,
    chosen: Sequence[Tensor],
    taps: Sequence[int],
    *,
    ends: Sequence[int],
    options: HeadOptions,
) -> Tensor:
    """The loss of all depths, each at its own `chosen` places, ascending."""
    text = known_text(target, rows.tokens, taps)
    device = text.logits.device
    weights = position_weights(rows, ends=ends, real=1.0)[:, 1:].to(device)
    total = torch.zeros((), device=device)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=target.dtype == torch.bfloat16):
        for depth, (out, some) in enumerate(
            zip(text.drafted(head, depths=options.depths), chosen, strict=True)
        ):
            places = some[some >= depth]
            total = total + options.decay**depth * place_loss(
                head.logits(out[:, places.to(device)]),
                text,
                places,
                rows=rows,
                weights=weights,
                options=options,
                target_ids=None if head.all_tokens else head.target_ids,
            )
    return total


def save_head(head: Eagle3Head, folder: Path, *, target: str) -> None:
    """Write `head` in bfloat16 in the format of SafeAILab and SpecForge; `target` names its model.

    One that taps the embedding, which that format cannot name, goes into speculators' format.
    """
    kind: formats.Format = "speculators" if 0 in (head.config.taps or ()) else "safeailab"
    formats.save_head(head.to(torch.bfloat16), folder, target=target, format=kind)
