"""The forward of an MTP layer without a cache, by transformers' classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers as hf
from safetensors.torch import load_file
from transformers.modeling_layers import MtpModel

from tests.strategies.latent_layers import written_layer
from tests.strategies.mtp_parts import EXPERTS, PLAIN, WIDTH, Kind


class Plain:
    """The layer's forward over pairs without a cache, by transformers' classes under a causal mask."""

    def __init__(self, kind: Kind, folder: Path, model: Any) -> None:
        self.kind, self.model = kind, model
        self.words, self.output = model.get_input_embeddings(), model.get_output_embeddings()
        if kind.sparse:
            self.written = written_layer(kind, load_file(folder / "model-00002-of-00002.safetensors"), model)
            return
        if not kind.classes[0]:
            whole: Any = hf.AutoModelForCausalLM.from_pretrained(folder, experts_implementation="eager")
            # The numbers of real models' layers stand there.
            whole._keys_to_ignore_on_load_unexpected = [r"model\.layers\.2\."]
            self.reference: Any = MtpModel.from_pretrained(whole).eval().to(model.dtype)
            self.reference.config._experts_implementation = "eager"
            return
        made, (module, prefix) = model.config.get_text_config(), kind.classes
        source = __import__(f"transformers.models.{module}.modeling_{module}", fromlist=["_"])
        layers = len(kind.layer)
        config = type(made)(
            **{
                **PLAIN,
                **kind.options,
                "num_hidden_layers": layers,
                "layer_types": ["full_attention", "moe"][:layers],
                "mlp_layer_types": [kind.mlp],
                "layers_block_type": ["full_attention", "moe"][:layers],
            }
        )
        config._attn_implementation, config._experts_implementation = "eager", "eager"
        stored = load_file(folder / "model-00002-of-00002.safetensors")
        block = getattr(source, prefix + ("Block" if prefix == "NemotronH" else "DecoderLayer"))
        self.blocks = [block(config, place) for place in range(layers)]
        for place, made_block in enumerate(self.blocks):
            own = stacked(
                {
                    name.removeprefix(kind.layer[place]): tensor
                    for name, tensor in stored.items()
                    if name.startswith(kind.layer[place])
                }
            )
            made_block.load_state_dict({name: own[name] for name in made_block.state_dict()})
            made_block.eval().to(model.dtype)
        self.norms = []
        for name in kind.outer[:3]:
            if not name:
                self.norms.append(model.get_decoder().norm)
                continue
            norm: Any = getattr(source, f"{prefix}RMSNorm")(
                WIDTH, eps=getattr(made, "layer_norm_epsilon", None) or made.rms_norm_eps
            )
            norm.load_state_dict({"weight": stored[f"{name}.weight"]})
            self.norms.append(norm.to(model.dtype))
        self.projection = stored[f"{kind.outer[3]}.weight"].to(model.dtype)
        rotary = getattr(source, f"{prefix}RotaryEmbedding", None) or getattr(
            source, f"{prefix}TextRotaryEmbedding", None
        )
        self.rotary = None if rotary is None else rotary(config)

    @torch.no_grad()
    def logits(self, text: list[int], path: list[int]) -> Any:
        """Returns logits after `text` and `path`, whose first token is the root; every pair is read again."""
        body = self.model.get_decoder() if hasattr(self.model, "get_decoder") else self.model.model
        states = body(torch.tensor([text])).last_hidden_state
        if self.kind.before_norm:
            read: list[Any] = []
            hook = body.norm.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
            body(torch.tensor([text]))
            hook.remove()
            states = read[0]
        tokens = [*text[1:], *path]
        while True:
            count = states.shape[1]
            out = self._layer(self.words(torch.tensor([tokens[:count]])), states)
            if count == len(tokens):
                last = out[0, -1]
                return self.output(self.norms[2](last) if self.kind.before_norm else last)
            states = torch.cat([states, out[:, -1:]], 1)

    def _layer(self, embeddings: Any, states: Any) -> Any:
        if self.kind.sparse:
            return self.written(embeddings[0], states[0]).unsqueeze(0)
        positions = torch.arange(states.shape[1]).unsqueeze(0)
        if not self.kind.classes[0]:
            return self.reference.forward_layer(0, states, positions + 1, None, inputs_embeds=embeddings)
        parts = [self.norms[0](embeddings), self.norms[1](states)]
        if self.kind.state_first:
            parts.reverse()
        out = torch.cat(parts, -1) @ self.projection.T
        count = out.shape[1]
        mask = torch.full((count, count), -torch.inf, dtype=out.dtype).triu(1)[None, None]
        turned = {} if self.rotary is None else {"position_embeddings": self.rotary(out, positions)}
        for block in self.blocks:
            out = block(out, attention_mask=mask, position_ids=positions, **turned)
        return out if self.kind.before_norm else self.norms[2](out)


def stacked(tensors: dict[str, Any]) -> dict[str, Any]:
    """With the experts in one tensor each, as transformers' classes have them."""
    for experts_at in ("mlp.experts", "mixer.experts"):
        parts = {
            part: [tensors[f"{experts_at}.{number}.{part}.weight"] for number in range(EXPERTS)]
            for part in ("gate_proj", "up_proj", "down_proj")
            if f"{experts_at}.0.{part}.weight" in tensors
        }
        if not parts:
            continue
        tensors[f"{experts_at}.down_proj"] = torch.stack(parts["down_proj"])
        if "gate_proj" in parts:
            tensors[f"{experts_at}.gate_up_proj"] = torch.stack(
                [torch.cat(pair) for pair in zip(parts["gate_proj"], parts["up_proj"], strict=True)]
            )
        else:
            tensors[f"{experts_at}.up_proj"] = torch.stack(parts["up_proj"])
    return tensors
