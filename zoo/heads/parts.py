"""A head without one of its parts: what a part adds, by how likely the target's tokens are without it.

A part that was trained makes the target's tokens likelier. One whose weights are damaged or another head's
makes them less likely, long before the head guesses no more than chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.nn import Module

from draftwood.strategies.blocks.head import BlockHead
from draftwood.strategies.drafters.medusa import Heads
from draftwood.strategies.heads.eagle3 import Eagle3Head
from draftwood.strategies.heads.hydra import HydraHead
from draftwood.strategies.heads.peagle import PEagleHead
from draftwood.strategies.mtp.head import MtpHead

from ..distil.rows import Rows
from .known_text import known_text
from .loading import CheckedHead, depths_of
from .misstored import with_weights
from .settings import judged, mean_and_error

_LEAST = 0.01  # nats a token, within which a part adds nothing
_ERRORS = 2.0  # standard errors from prompt to prompt, within which it does not harm
_WEAKER = 0.5  # of what a part adds, tried to tell weights of the wrong size
_OF_SIZE, _ERRORS_OF_SIZE = 0.05, 2.5  # nats a token and standard errors, by which that must be better
_RIGHT = 0.02  # of tokens, likewise: a head that is only too sure of itself guesses the same ones


@attrs.frozen(eq=False)
class Part:
    """A part of a head that adds something to its states or logits.

    Attributes:
        name: in words.
        head: the head that is run.
        modules: of it, whose outputs are what the part adds; they put out zeros without it.
        half: the head with half of the part, where no module puts that out.
    """

    name: str
    head: CheckedHead
    modules: Sequence[Module] = ()
    half: CheckedHead | None = None

    @property
    def sized(self) -> bool:
        """Whether half of the part can be tried: what it adds is not normed after it."""
        tried = bool(self.modules) or self.half is not None
        return tried and self.name not in ("embeddings", "the target's states")


@attrs.frozen(kw_only=True)
class Added:
    """The use of a part.

    Attributes:
        name: of the part.
        by_depth: shares of the target's tokens that the head guesses without the part, by their place in the
            draft.
        gain: by how much the log-likelihood of the target's tokens is higher with the part, in nats a token.
        error: its standard error, from prompt to prompt.
        weaker: by how much it is higher with half of the part than with all of it.
        weaker_error: its standard error.
        weaker_right: by how much the share of right tokens is higher so.
    """

    name: str
    by_depth: tuple[float, ...]
    gain: float
    error: float
    weaker: float = 0.0
    weaker_error: float = 0.0
    weaker_right: float = 0.0

    @property
    def idle(self) -> bool:
        """Whether the head is no better with the part."""
        return self.gain < _LEAST

    @property
    def harms(self) -> bool:
        """Whether the head is better without the part, by more than chance."""
        return self.gain < -max(_LEAST, _ERRORS * self.error)

    @property
    def too_strong(self) -> bool:
        """Whether the head is better with half of the part, by more than chance."""
        likelier = self.weaker > max(_OF_SIZE, _ERRORS_OF_SIZE * self.weaker_error)
        return likelier and self.weaker_right > _RIGHT


def parts_of(head: CheckedHead, depths: int) -> Iterator[Part]:
    """Yields the parts of a head that its first `depths` guesses use, from its inputs to its output."""
    if isinstance(head, Heads):
        yield from _of_medusa(head, depths)
        return
    if isinstance(head, MtpHead):
        named = [("embeddings", head.embedding_norm), ("the target's states", head.state_norm)]
        named += [one for number, block in enumerate(head.blocks) for one in _of_block(number, block)]
    elif isinstance(head, HydraHead):
        named = _of_hydra(head, depths)
    else:
        named = _of_layers(head.head if isinstance(head, PEagleHead) else head)
    yield from (Part(name, head, [module]) for name, module in named)


def _of_layers(head: Eagle3Head | BlockHead) -> list[tuple[str, Module]]:
    named: list[tuple[str, Module]] = []
    if isinstance(head, Eagle3Head):
        named.append(("embeddings", head.midlayer.input_layernorm))
        layers: list[Any] = [head.midlayer, *head.more]
    else:
        layers = list(head.layers)
    named.append(("the target's states", head.fc))
    for number, layer in enumerate(layers):
        named.append((f"the attention of layer {number}", layer.self_attn.o_proj))
        named.append((f"the MLP of layer {number}", layer.mlp.down_proj))
    if isinstance(head, BlockHead):
        if head.markov_head is not None:
            named.append(("the correction", head.markov_head.markov_w2))
        if head.embed_proj is not None:
            named.append(("the correction", head.embed_proj))
    return named


def _of_block(number: int, block: Any) -> list[tuple[str, Module]]:
    """Returns the parts of one of transformers' blocks: a decoder layer, or one of Nemotron-H's mixers."""
    if hasattr(block, "mixer"):
        return [(f"block {number}", block.mixer)]
    return [(f"the attention of layer {number}", block.self_attn), (f"the MLP of layer {number}", block.mlp)]


def _of_medusa(heads: Heads, depths: int) -> Iterator[Part]:
    if not heads.weight.any():
        return  # published without residual blocks

    def scaled(number: int, factor: float) -> Heads:
        kept = torch.ones(heads.count, 1, 1, dtype=heads.weight.dtype, device=heads.weight.device)
        kept[number] = factor
        changed = {name: getattr(heads, name).detach() * kept for name in ("weight", "bias")}
        found: Heads = with_weights(heads, changed)
        return found

    for number in range(depths):
        half = scaled(number, _WEAKER)
        yield Part(f"the residual block of head {number}", scaled(number, 0.0), half=half)


def _of_hydra(head: HydraHead, depths: int) -> list[tuple[str, Module]]:
    layers: list[Any] = [] if head.prefix is None else [head.prefix]
    blocks: list[Any] = list(head.heads)[:depths]
    return [
        *(("the attention before the heads", layer.self_attn.o_proj) for layer in layers),
        *(("the MLP before the heads", layer.mlp.down_proj) for layer in layers),
        *((f"the projection of head {number}", own[0].res_connection) for number, own in enumerate(blocks)),
    ]


@contextmanager
def _scaled(part: Part, factor: float) -> Iterator[None]:
    """Within it the modules of `part` put out `factor` of their states."""

    def hook(module: Module, inputs: Any, out: Any) -> Any:
        states = out if isinstance(out, Tensor) else out[0]
        # Zeros also of states that are not finite.
        states = states * factor if factor else torch.zeros_like(states)
        return states if isinstance(out, Tensor) else (states, *out[1:])

    hooks = [module.register_forward_hook(hook) for module in part.modules]
    try:
        yield
    finally:
        for handle in hooks:
            handle.remove()


@torch.no_grad()
def added_by_parts(target: Any, head: CheckedHead, prompts: Sequence[Rows], *, depths: int) -> list[Added]:
    """Returns the use of every part on the target's own text after each of `prompts`."""
    depths = depths_of(head, depths)
    layers = int(target.config.get_text_config(decoder=True).num_hidden_layers)
    texts = [known_text(target, rows.tokens, head.taps_in(layers)) for rows in prompts]

    def sums(part: Part, factor: float) -> tuple[Tensor, Tensor, Tensor]:
        """Returns shares of right tokens by depth, those and log-likelihoods a token by prompt."""
        with _scaled(part, factor):
            right, likely, total = judged(target, part.head, prompts, texts, depths=depths)
        each = total.sum(1).clamp(min=1)
        return right.sum(0) / total.sum(0).clamp(min=1), right.sum(1) / each, likely.sum(1) / each

    _, right, whole = sums(Part("nothing", head), 1)
    found: list[Added] = []
    for part in parts_of(head, depths):
        shares, _, without = sums(part, 0)
        gain, error = mean_and_error(whole - without)
        half = part if part.half is None else Part(part.name, part.half)
        _, right_with_half, with_half = sums(half, _WEAKER) if part.sized else (shares, right, whole)
        weaker, weaker_error = mean_and_error(with_half - whole)
        found.append(
            Added(
                name=part.name,
                by_depth=tuple(shares.tolist()),
                gain=float(gain),
                error=float(error),
                weaker=float(weaker),
                weaker_error=float(weaker_error),
                weaker_right=float((right_with_half - right).mean()),
            )
        )
    return found
