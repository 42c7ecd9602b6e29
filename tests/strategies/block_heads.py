"""Random block drafters and a target for tests, and their forward from scratch, one path at a time."""

from __future__ import annotations

import math
from typing import Any

import torch
import transformers as hf
from torch.nn.functional import silu

from draftwood import load
from draftwood.strategies.blocks.config import BlockConfig
from draftwood.strategies.blocks.head import BlockHead
from draftwood.strategies.drafters.block_drafter import BlockDrafter
from draftwood.testing import DrafterWithTarget
from tests.backends.recurrent_models import features_after

WIDTH, VOCAB, LAYERS = 16, 23, 5


def target_model() -> Any:
    torch.manual_seed(0)
    made = hf.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=24,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        max_position_embeddings=512,
        eos_token_id=0,
        bos_token_id=0,
    )
    model = hf.LlamaForCausalLM(made).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, 0.3)
        model.lm_head.weight.normal_(0.0, 1.5)
    return model


MODEL = target_model()


def config(**changes: Any) -> BlockConfig:
    known: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "intermediate_size": 20,
        "attention_heads": 4,
        "key_value_heads": 2,
        "head_dim": 6,
        "norm_eps": 1e-5,
        "max_positions": 128,
        "target_layers": LAYERS,
        "taps": (1, 3),
        "block_size": 4,
        "mask_token_id": 5,
        "causal": (False, False),
        "windows": (None, None),
        "rope": {"rope_type": "default", "rope_theta": 1000.0},
    }
    return BlockConfig(**{**known, **changes})


KINDS = {
    "dflash": config(),
    "biases": config(attention_bias=True, output_bias=True),
    "jetspec": config(causal=(True, True)),
    "sliding": config(causal=(False, True), windows=(None, 3)),
    "dspark": config(
        markov_rank=3, confidence=WIDTH + 3, root_guesses=True, own_embedding=True, own_head=True
    ),
    "gated": config(markov_rank=3, markov_type="gated", root_guesses=True),
    "rnn": config(markov_rank=3, markov_type="rnn", root_guesses=True, confidence=WIDTH),
    "rnn behind the root": config(markov_rank=3, markov_type="rnn", target_layers=None),
    "map": config(
        **{"draft_vocab_size": 19, "own_head": True, "target_layers": None, "taps": (0, 4)},
        **{"causal": (False, True), "windows": (None, 2), "window_before_root": True},
    ),
    "domino": config(gru=5, gru_inner=6, gru_from=1, root_guesses=True),
    "domino behind the root": config(gru=5, gru_inner=6, gru_from=0),
    "last layer": config(taps=(1, LAYERS)),
    "free": config(target_layers=None, windows=(2, 2), window_before_root=True, markov_rank=2),
}


def random_head(made: BlockConfig) -> BlockHead:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randperm(made.vocab_size, generator=generator)[: made.proposed].sort().values
    head = BlockHead(made, target_ids=ids).double()
    with torch.no_grad():
        for weight in head.parameters():
            weight.normal_(generator=generator).mul_(0.5)
            if weight.dim() == 1:
                weight.add_(1)
    return head.eval()


def beside_llama(head: BlockHead, *, confidence: float = 0.0) -> DrafterWithTarget:
    target = load(MODEL)
    return DrafterWithTarget(target, BlockDrafter(target, head, confidence=confidence))


def normed(weight: Any, states: Any) -> Any:
    return weight * states / torch.sqrt((states * states).mean(-1, keepdim=True) + 1e-5)


@torch.no_grad()
def depth_logits(
    head: BlockHead, text: list[int], path: list[int], *, model: Any = None, confidence: float = 0.0
) -> Any:
    """Returns logits `[vocab]` of the last node of `path` after `text`, by an independent forward."""
    made, model = head.config, model or MODEL
    nothing = torch.full((made.vocab_size,), -torch.inf, dtype=torch.float64)
    if not text or len(path) > made.depths:
        return nothing
    every = features_after(model, text)
    if LAYERS in made.taps:  # before the final norm, which transformers does not give
        put_out: list[Any] = []
        with model.model.layers[-1].register_forward_hook(lambda _, __, out: put_out.append(out)):
            model(torch.tensor([text]), use_cache=False)
        every[:, LAYERS] = put_out[0][0]
    features = every[:, made.taps].flatten(1)
    context = normed(head.hidden_norm.weight, features @ head.fc.weight.T)
    table = model.get_input_embeddings().weight if head.embed_tokens is None else head.embed_tokens.weight
    block = table[torch.tensor([path[0]] + [made.mask_token_id] * (made.block_size - 1))]
    n, half = len(text), made.head_dim // 2

    def turned(vector: Any, position: int) -> Any:
        result = vector.clone()
        for k in range(half):
            angle = position * 1000.0 ** (-2 * k / made.head_dim)
            result[k] = vector[k] * math.cos(angle) - vector[half + k] * math.sin(angle)
            result[half + k] = vector[half + k] * math.cos(angle) + vector[k] * math.sin(angle)
        return result

    def projected(projection: Any, rows: slice, state: Any) -> Any:
        made = projection.weight[rows] @ state
        return made if projection.bias is None else made + projection.bias[rows]

    for number, layer in enumerate(head.layers):
        attention: Any = layer.self_attn
        before = normed(layer.input_layernorm.weight, block)  # type: ignore[union-attr]
        read = torch.cat([context, before])
        out = []
        for slot in range(made.block_size):
            heads = []
            for which in range(made.attention_heads):
                part = slice(which * made.head_dim, (which + 1) * made.head_dim)
                shared = which // (made.attention_heads // made.key_value_heads)
                group = slice(shared * made.head_dim, (shared + 1) * made.head_dim)
                query = turned(
                    normed(attention.q_norm.weight, projected(attention.q_proj, part, before[slot])), n + slot
                )
                scores, values = [], []
                for place, state in enumerate(read):
                    far = n + slot - place
                    window = made.windows[number] or 10**6
                    outside = place < n - window if made.window_before_root else far >= window
                    if (made.causal[number] and far < 0) or outside:
                        continue
                    key = normed(attention.k_norm.weight, projected(attention.k_proj, group, state))
                    scores.append(turned(key, place) @ query / made.head_dim**0.5)
                    values.append(projected(attention.v_proj, group, state))
                heads.append(torch.stack(scores).softmax(0) @ torch.stack(values))
            out.append(projected(attention.o_proj, slice(None), torch.cat(heads)))
        block = block + torch.stack(out)
        mlp: Any = layer.mlp
        inner = normed(layer.post_attention_layernorm.weight, block)  # type: ignore[union-attr]
        gated = silu(inner @ mlp.gate_proj.weight.T) * (inner @ mlp.up_proj.weight.T)
        block = block + gated @ mlp.down_proj.weight.T
    slot = len(path) - 1 + (made.block_size - made.depths)
    final = normed(head.norm.weight, block)
    output = model.lm_head.weight if head.lm_head is None else head.lm_head.weight
    if confidence and path_confidence(head, path, final) < confidence:
        return nothing
    logits = output @ final[slot]
    if head.markov_head is not None:
        before = path if made.root_guesses else [path[0], *path]
        logits = logits + head.markov_head.markov_w2.weight @ corrected(head.markov_head, before, final)
    if head.prefix_gru is not None and len(path) > made.gru_from:
        words = table[torch.tensor(path)]
        gru = torch.nn.GRU(WIDTH, made.gru, bias=False, batch_first=True).double()
        gru.load_state_dict(head.prefix_gru.state_dict())
        both = torch.cat([final[slot], gru(words)[0][-1]])
        first, last = (head.get_parameter(f"embed_proj.{place}.weight") for place in (0, 2))
        logits = logits + last @ silu(first @ both)
    nothing[head.target_ids] = logits
    return nothing


def path_confidence(head: BlockHead, path: list[int], final: Any) -> float:
    """The confidence that `path` and one more token are accepted; `final` are the states of the slots."""
    proj: Any = head.confidence_head.proj  # type: ignore[union-attr]
    sure, first = 1.0, head.config.block_size - head.config.depths
    for depth, token in enumerate(path):
        inputs = final[first + depth]
        if proj.in_features > WIDTH:
            inputs = torch.cat([inputs, head.markov_head.markov_w1.weight[token]])  # type: ignore[union-attr]
        sure /= 1 + math.exp(-float(proj.weight[0] @ inputs + proj.bias[0]))
    return sure


def corrected(markov: Any, tokens: list[int], slots: Any) -> Any:
    """The vector of the correction at the last of `tokens`, that of slot k being token k."""
    vectors = markov.markov_w1.weight[torch.tensor(tokens)]
    if markov.kind == "vanilla":
        return vectors[-1]
    if markov.kind == "gated":
        both = torch.cat([slots[len(tokens) - 1], vectors[-1]])
        return torch.sigmoid(markov.gate_proj.weight @ both + markov.gate_proj.bias) * vectors[-1]
    state = torch.zeros(3, dtype=torch.float64)
    for vector, slot in zip(vectors, slots, strict=False):
        joint = markov.joint_proj.weight @ torch.cat([state, vector, slot]) + markov.joint_proj.bias
        gate, new, out = joint.split(3)
        state = torch.sigmoid(gate) * state + (1 - torch.sigmoid(gate)) * torch.tanh(new)
    return torch.tanh(out)
