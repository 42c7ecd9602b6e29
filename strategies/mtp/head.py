"""An MTP layer as a head over pairs: transformers' own blocks over a projected pair."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn import Embedding, Linear, Module, ModuleList

from draftwood.strategies.heads.pairs import HeadsAndWidth, PairAttention
from draftwood.strategies.heads.rotation import Rotation
from draftwood.strategies.mtp.attention import AsCache, AsMask, Kept
from draftwood.strategies.mtp.layout import Layout

IN_SINGLE = "e_score_correction_bias"
"""A buffer of routers that no half precision may round."""


class MtpHead(Module):
    """The MTP layer of `layout`, to be loaded or trained.

    `step` gives states after its last norm: the output head reads them, and a drafted token's pair holds
    one. The target's own states, which it reads, come after the target's last norm. In families with
    `before_norm` all of these states come before that norm, which `logits` applies.

    Attributes:
        layout: what it is.
        embed_tokens: its own table of words; None where it is the target's.
        lm_head: its own output head; None where it is the target's, see `borrow`.

    Source: DeepSeek-V3 (arXiv 2412.19437), section 2.2, equations 21 to 23.
    """

    all_tokens = True
    """It proposes all tokens of its target."""
    rotation: Rotation | None = None
    """It is in its target's own basis."""

    def __init__(self, layout: Layout, *, own_words: bool = False, own_output: bool = False) -> None:
        super().__init__()
        width = layout.width
        self.layout = layout
        self.embedding_norm, self.state_norm, self.norm = (layout.norm() for _ in range(3))
        self.projection = Linear(2 * width, width, bias=False)
        self.blocks = ModuleList(layout.blocks())
        self.embed_tokens = Embedding(layout.vocab_size, width) if own_words else None
        self.lm_head = Linear(width, layout.vocab_size, bias=False) if own_output else None
        # No modules of this one: angles of far positions need float32, whatever the weights are in, and the
        # target's output head is the target's.
        self._rotary: list[Module] = []  # made when it is first needed, of a layer whose sizes were checked
        # Layers take their cache by this name, from transformers 5.24 on by the first.
        attends: Any = self.blocks[layout.attention_at]
        attends = attends.mixer if hasattr(attends, "mixer") else attends.self_attn
        parameters = signature(attends.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._borrowed: list[Callable[[Tensor], Tensor]] = []
        self._kept: tuple[HeadsAndWidth, ...] | None = None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MtpHead:
        whole = [
            (module, getattr(module, IN_SINGLE)) for module in self.modules() if hasattr(module, IN_SINGLE)
        ]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for module, bias in whole:
            now = getattr(module, IN_SINGLE)
            if now.dtype in (torch.bfloat16, torch.float16) and not bias.is_meta:
                module._buffers[IN_SINGLE] = bias.float().to(now.device)
        for rotary in self._rotary:
            rotary.to(self.like.device)
        return self

    @property
    def width(self) -> int:
        return self.layout.width

    @property
    def vocab_size(self) -> int:
        return self.layout.vocab_size

    @property
    def like(self) -> Tensor:
        return self.projection.weight.detach()

    @property
    def kept(self) -> tuple[HeadsAndWidth, ...]:
        if self._kept is None:
            blank = self.like.new_zeros(1, 1, self.width)
            with torch.no_grad():
                parts = self.keys_values(
                    blank, blank, torch.zeros(1, 1, dtype=torch.int64, device=blank.device)
                )
            self._kept = tuple((part.shape[2], part.shape[3]) for part in parts)
        return self._kept

    @property
    def text_attends(self) -> bool:
        """False: one of its blocks attends."""
        return False

    @property
    def max_positions(self) -> int | None:
        """The number of positions that its model's config names; None where positions do not count."""
        if self.layout.family.rotary is None:
            return None
        return getattr(self.layout.config, "max_position_embeddings", None)

    @property
    def target_ids(self) -> Tensor:
        """The target's tokens that its own stand for."""
        return torch.arange(self.vocab_size, device=self.like.device)

    def borrow(self, output: Callable[[Tensor], Tensor]) -> None:
        """Use the target's output head, from states to logits, where the layer has none."""
        self._borrowed = [output]

    def taps_in(self, layers: int) -> tuple[int, ...]:
        """Returns the layer whose features the target's output head reads, or what precedes the last norm."""
        return (layers + 1,) if self.layout.family.before_norm else (layers,)

    def project(self, features: Tensor) -> Tensor:
        """The target's states, as they are."""
        return features

    def step(self, embeddings: Tensor, states: Tensor, positions: Tensor, attention: PairAttention) -> Tensor:
        """Returns the layer's outputs for pairs; see `PairHead.step`."""
        out = self._joined(embeddings, states)
        options = self._options(out, positions, attention)
        for block in self.blocks:
            out = block(out, **options)
            out = out[0] if isinstance(out, tuple) else out  # GLM-5 also hands on the choice of its indexer
        given: Tensor = out if self.layout.family.before_norm else self.norm(out)
        return given

    def keys_values(self, embeddings: Tensor, states: Tensor, positions: Tensor) -> list[Tensor]:
        """Returns what attention keeps of pairs; see `PairHead.keys_values`."""
        out, kept = self._joined(embeddings, states), Kept()
        options = self._options(out, positions, kept)
        for before in self.blocks[: self.layout.attention_at]:
            out = before(out, **options)
        block: Any = self.blocks[self.layout.attention_at]
        if hasattr(block, "mixer"):
            block.mixer(hidden_states=block.norm(out), **options)
        else:
            block.self_attn(hidden_states=block.input_layernorm(out), **options)
        return kept.parts

    def _joined(self, embeddings: Tensor, states: Tensor) -> Tensor:
        parts = [self.embedding_norm(embeddings), self.state_norm(states)]
        joined: Tensor = self.projection(
            torch.cat(parts[::-1] if self.layout.family.state_first else parts, -1)
        )
        return joined

    def _options(self, out: Tensor, positions: Tensor, attention: Any) -> dict[str, Any]:
        turned = (
            {} if self.layout.family.rotary is None else {"position_embeddings": self._turn(out, positions)}
        )
        return {
            "attention_mask": AsMask(attention) if self.layout.family.indexed else attention,
            self._cache_name: AsCache(attention),
            "position_ids": positions,
            **turned,
        }

    def _turn(self, out: Tensor, positions: Tensor) -> Any:
        if not self._rotary:
            self._rotary = [self.layout.rotary().to(self.like.device)]
        return self._rotary[0](out, positions)

    def logits(self, out: Tensor) -> Tensor:
        """Logits `[..., vocab_size]` of what `step` gave."""
        out = self.norm(out) if self.layout.family.before_norm else out
        logits: Tensor = self._borrowed[0](out) if self.lm_head is None else self.lm_head(out)
        return logits

    def target_logits(self, out: Tensor) -> Tensor:
        """Returns `logits(out)`."""
        return self.logits(out)

    def recycled(self, out: Tensor) -> Tensor:
        """Returns `out` as it is: after the last norm or before it, like the target's states."""
        return out
