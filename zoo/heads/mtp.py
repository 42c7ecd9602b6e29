"""Make an MTP layer for a target that was trained without one; it learns as an EAGLE-3 head does.

The layer has Nemotron-H's form: one block of attention without positions and one MLP, over the projection
of a token's embedding and of what the target's output head read. So it fits any target.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from draftwood.base.errors import UnsupportedModel
from draftwood.strategies.mtp.checkpoint import save_layer
from draftwood.strategies.mtp.families import TRAINED_DEPTHS
from draftwood.strategies.mtp.head import MtpHead
from draftwood.strategies.mtp.layout import Layout, layout_of


def new_layout(target: Any, *, intermediate: int | None = None, depths: int) -> Layout:
    """A layer's sizes for `target`: its own, apart from those that are given.

    Args:
        target: the model.
        intermediate: width of the layer's MLP; None: the target's.
        depths: how many tokens in a row it learns to draft.
    """
    text = target.config.get_text_config(decoder=True)
    vocabulary, width = target.get_output_embeddings().weight.shape
    heads = int(text.num_attention_heads)
    description = {
        "model_type": "nemotron_h",
        "hidden_size": width,
        "vocab_size": vocabulary,
        "num_attention_heads": heads,
        "num_key_value_heads": int(getattr(text, "num_key_value_heads", None) or heads),
        "head_dim": int(getattr(text, "head_dim", None) or width // heads),
        "intermediate_size": intermediate or int(text.intermediate_size),
        "layer_norm_epsilon": float(getattr(text, "rms_norm_eps", 1e-5)),
        "mlp_hidden_act": "relu2",
        "num_nextn_predict_layers": 1,
        "mtp_layers_block_type": ["full_attention", "mlp"],
        TRAINED_DEPTHS: depths,
    }
    return layout_of(description, where="the new layer")


@torch.no_grad()
def new_layer(target: Any, layout: Layout, *, seed: int) -> MtpHead:
    """A layer in float32 on the target's device, which begins by handing the target's own state on.

    Args:
        target: the model.
        layout: of the layer.
        seed: of its weights.

    Raises:
        UnsupportedModel: the target's logits are not only its output head's.
    """
    torch.manual_seed(seed)
    head = MtpHead(layout)
    for parameter in head.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0.0, 0.02)
    width = layout.width
    head.projection.weight[:, width:] += torch.eye(width)
    probe = torch.arange(8, device=target.device).unsqueeze(0)
    read = target(probe, use_cache=False, output_hidden_states=True)
    states, output = read.hidden_states[-1], target.get_output_embeddings()
    if not torch.allclose(output(states).float(), read.logits.float(), rtol=1e-2, atol=1e-2):
        raise UnsupportedModel(
            f"{type(target).__name__} scales or caps its logits after its output head, which training of "
            "MTP layers does not follow; train an EAGLE-3 head."
        )
    # The target's states have the size that its last norm gives them.
    size = states.float().square().mean().sqrt().item()
    head.norm.get_parameter("weight").mul_(size)
    head.borrow(output)
    return head.to(target.device)


def save_trained(head: MtpHead, folder: Path, *, target: str) -> None:
    """Write `head` in bfloat16 in Nemotron-H's form; `target` names its model."""
    save_layer(head.to(torch.bfloat16), folder, target=target)
