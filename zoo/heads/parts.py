"""A head without one of its parts: what a part adds, by how likely the target's tokens are without it.

A part that was trained makes the target's tokens likelier. One whose weights are damaged or another head's
makes them less likely, long before the head guesses no more than chance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.nn import Linear, Module

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

_EMBEDDINGS, _STATES, _CORRECTION = "embeddings", "the target's states", "the correction"
_EVERY = slice(None)
_LEAST = 0.01  # nats a token, within which a part adds nothing
_ERRORS = 2.0  # standard errors from prompt to prompt, within which it does not harm
_WEAKER = (0.5, 0.25)  # of what a part adds, tried to tell weights of the wrong size
_OF_SIZE, _ERRORS_OF_SIZE = 0.05, 2.5  # nats a token and standard errors, by which that must be better
_RIGHT = 0.02  # of tokens, likewise: a head that is only too sure of itself guesses the same ones
_OF_PIECE = 0.02  # nats a token, by which a head must be better without a piece to be called weak
_OF_OTHER_HALF = 0.1  # of what the other half adds: training leaves neither half with less


@attrs.frozen(eq=False)
class Part:
    """A part of a head that adds something to its states or logits.

    Attributes:
        name: in words.
        head: the head that is run.
        modules: of it, whose outputs are what the part adds; they put out zeros without it.
        weaker: the head with less of the part, by `_WEAKER`, where no module puts that out.
        share: the number of the equal share of these outputs that counts, and the number of shares.
        reads: whether the part is what the modules read, in place of what they put out.
        piece: whether it is a piece of another part, which may add nothing in a head that is right.
        half_of: what it is one half of, where training makes both halves add something; empty elsewhere.
    """

    name: str
    head: CheckedHead
    modules: Sequence[Module] = ()
    weaker: Sequence[CheckedHead] = ()
    share: tuple[int, int] = (0, 1)
    reads: bool = False
    piece: bool = False
    half_of: str = ""

    @property
    def sized(self) -> bool:
        """Whether less of the part can be tried: what it adds is not normed after it."""
        tried = (bool(self.modules) or bool(self.weaker)) and not self.piece
        return tried and self.name not in (_EMBEDDINGS, _STATES)


@attrs.frozen(kw_only=True)
class Added:
    """The use of a part.

    Attributes:
        name: of the part.
        by_depth: shares of the target's tokens that the head guesses without the part, by their place in the
            draft.
        gain: by how much the log-likelihood of the target's tokens is higher with the part, in nats a token.
        error: its standard error, from prompt to prompt.
        weaker: by how much it is higher with less of the part than with all of it.
        weaker_error: its standard error.
        weaker_right: by how much the share of right tokens is higher so.
        better: by how much that share is higher without the part, or the chance that a drafted token is
            accepted at temperature 1, whichever is more.
        piece: whether it is a piece of another part.
        other_half: the gain of the other half, of a piece that is one half.
        other_error: its standard error.
    """

    name: str
    by_depth: tuple[float, ...]
    gain: float
    error: float
    weaker: float = 0.0
    weaker_error: float = 0.0
    weaker_right: float = 0.0
    better: float = 0.0
    piece: bool = False
    other_half: float = 0.0
    other_error: float = 0.0

    @property
    def idle(self) -> bool:
        """Whether the head is no better with the part."""
        return self.gain < _LEAST and not self.piece

    @property
    def harms(self) -> bool:
        """Whether the head is better without the part, by more than chance."""
        if self.piece:
            # There are many pieces, and to leave one out makes a head that is too sure of itself less sure.
            return -self.gain > max(_OF_SIZE, _ERRORS_OF_SIZE * self.error) and self.better > _RIGHT
        return self.gain < -max(_LEAST, _ERRORS * self.error)

    @property
    def lopsided(self) -> bool:
        """Whether it is a half that adds next to nothing, by more than chance, where the other adds much."""
        most = self.gain + _ERRORS_OF_SIZE * self.error
        other = self.other_half - _ERRORS_OF_SIZE * self.other_error
        return other > _OF_SIZE and most < _OF_OTHER_HALF * other

    @property
    def too_strong(self) -> bool:
        """Whether the head is better with less of the part, by more than chance."""
        return self._weaker_is_likelier and self.weaker_right > _RIGHT

    @property
    def doubtful(self) -> bool:
        """Whether the head seems better without the piece, or with less of the part."""
        if self.piece:
            return -self.gain > max(_OF_PIECE, _ERRORS_OF_SIZE * self.error)
        return self._weaker_is_likelier and self.weaker_right > 0

    @property
    def _weaker_is_likelier(self) -> bool:
        return self.weaker > max(_OF_SIZE, _ERRORS_OF_SIZE * self.weaker_error)


def parts_of(head: CheckedHead, depths: int) -> Iterator[Part]:
    """Yields the parts of a head that its first `depths` guesses use, from its inputs to its output.

    Pieces of these parts follow, for a file may hold another head's weights in half of a matrix, or wrong
    ones where another part still makes up for them.
    """
    if isinstance(head, Heads):
        yield from _of_medusa(head, depths)
        return
    if isinstance(head, MtpHead):
        named = [(_EMBEDDINGS, head.embedding_norm), (_STATES, head.state_norm)]
        named += [one for number, block in enumerate(head.blocks) for one in _of_block(number, block)]
    elif isinstance(head, HydraHead):
        named = _of_hydra(head, depths)
    else:
        named = _of_layers(head.head if isinstance(head, PEagleHead) else head)
    parts = [Part(name, head, [module]) for name, module in named]
    for words in ("attention", "MLP"):
        every = [module for name, module in named if name.startswith(f"the {words} of layer")]
        if len(every) > 1:
            parts.append(Part(f"the {words} of all layers", head, every))
    yield from parts
    for part in parts:
        if part.sized or (part.name == _STATES and not isinstance(head, MtpHead)):
            yield from _halves(part)
    keys = [module for name, module in head.named_modules() if name.endswith("k_proj")]
    for number, module in enumerate(keys):
        # Without keys attention takes the mean of all that it sees.
        yield Part(f"the keys of attention {number}", head, [module], piece=True)


def _halves(part: Part) -> Iterator[Part]:
    # The halves of a correction are frequent and rare tokens, of which one may add all.
    whole = "" if part.name == _CORRECTION else part.name
    inner, units = _read(part)
    for number, words in enumerate(("first", "second")):
        share = (number, 2)
        name = f"the {words} half of {part.name}"
        yield attrs.evolve(part, name=name, share=share, piece=True, half_of=whole)
        if inner:
            name = f"the {words} half of {units}"
            yield Part(name, part.head, inner, share=share, reads=True, piece=True, half_of=units)


def _read(part: Part) -> tuple[list[Module], str]:
    """Returns the projections that end an MLP or attention, and what they read in words; else nothing."""
    for name, kind, words in (("down_proj", "MLP", "inner units"), ("o_proj", "attention", "heads")):
        last = [getattr(one, name, one if kind in part.name else None) for one in part.modules]
        if part.modules and all(isinstance(one, Linear) for one in last):
            return [one for one in last if one is not None], f"the {words} of {part.name}"
    return [], ""


def _of_layers(head: Eagle3Head | BlockHead) -> list[tuple[str, Module]]:
    named: list[tuple[str, Module]] = []
    if isinstance(head, Eagle3Head):
        named.append((_EMBEDDINGS, head.midlayer.input_layernorm))
        layers: list[Any] = [head.midlayer, *head.more]
    else:
        layers = list(head.layers)
    named.append((_STATES, head.fc))
    for number, layer in enumerate(layers):
        named.append((f"the attention of layer {number}", layer.self_attn.o_proj))
        named.append((f"the MLP of layer {number}", layer.mlp.down_proj))
    if isinstance(head, BlockHead):
        if head.markov_head is not None:
            named.append((_CORRECTION, head.markov_head.markov_w2))
        if head.embed_proj is not None:
            named.append((_CORRECTION, head.embed_proj))
    return named


def _of_block(number: int, block: Any) -> list[tuple[str, Module]]:
    """Returns the parts of one of transformers' blocks: a decoder layer, or one of Nemotron-H's mixers."""
    if hasattr(block, "mixer"):
        return [(f"block {number}", block.mixer)]
    return [(f"the attention of layer {number}", block.self_attn), (f"the MLP of layer {number}", block.mlp)]


def _of_medusa(heads: Heads, depths: int) -> Iterator[Part]:
    if not heads.weight.any():
        return  # published without residual blocks

    def with_block(number: int, factor: float, rows: slice = _EVERY, columns: slice = _EVERY) -> Heads:
        weight, bias = heads.weight.detach().clone(), heads.bias.detach().clone()
        weight[number, rows, columns] *= factor
        if columns == _EVERY:
            bias[number, :, rows] *= factor
        found: Heads = with_weights(heads, {"weight": weight, "bias": bias})
        return found

    blocks = [(number, f"the residual block of head {number}") for number in range(depths)]
    for number, block in blocks:
        weaker = [with_block(number, factor) for factor in _WEAKER]
        yield Part(block, with_block(number, 0.0), weaker=weaker)
    middle = heads.hidden_size // 2
    for number, block in blocks:
        for words, half in (("first", slice(middle)), ("second", slice(middle, None))):
            without = with_block(number, 0.0, half)
            yield Part(f"the {words} half of {block}", without, piece=True, half_of=block)
            without, read = with_block(number, 0.0, columns=half), f"the inputs of {block}"
            yield Part(f"the {words} half of {read}", without, piece=True, half_of=read)


def _of_hydra(head: HydraHead, depths: int) -> list[tuple[str, Module]]:
    layers: list[Any] = [] if head.prefix is None else [head.prefix]
    blocks: list[Any] = list(head.heads)[:depths]
    return [
        *(("the attention before the heads", layer.self_attn.o_proj) for layer in layers),
        *(("the MLP before the heads", layer.mlp.down_proj) for layer in layers),
        *((f"the projection of head {number}", own[0].res_connection) for number, own in enumerate(blocks)),
    ]


@contextmanager
def scaled(part: Part, factor: float) -> Iterator[None]:
    """Within it the modules of `part` put out, or read, `factor` of its share of their states."""
    number, count = part.share

    def changed(states: Tensor) -> Tensor:
        shares = list(states.tensor_split(count, -1))
        # Zeros also of states that are not finite.
        shares[number] = shares[number] * factor if factor else torch.zeros_like(shares[number])
        return torch.cat(shares, -1)

    def of_outputs(module: Module, inputs: Any, out: Any) -> Any:
        return changed(out) if isinstance(out, Tensor) else (changed(out[0]), *out[1:])

    def of_inputs(module: Module, inputs: Any) -> Any:
        return changed(inputs[0]), *inputs[1:]

    hooks: list[Any] = [
        module.register_forward_pre_hook(of_inputs)
        if part.reads
        else module.register_forward_hook(of_outputs)
        for module in part.modules
    ]
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

    def sums(part: Part, factor: float, known: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns shares of right tokens by depth, and by prompt these, log-likelihoods and acceptance."""
        with scaled(part, factor):
            right, likely, accepted, total = judged(
                target, part.head, prompts, texts, depths=depths, known=known
            )
        each = total.sum(1).clamp(min=1)
        of_prompts = right.sum(1) / each, likely.sum(1) / each, accepted.sum(1) / each
        return right.sum(0) / total.sum(0).clamp(min=1), *of_prompts

    _, right, whole, accepted = sums(Part("nothing", head), 1)
    found: list[Added] = []
    halves: dict[str, list[int]] = defaultdict(list)
    for part in parts_of(head, depths):
        if part.half_of:
            halves[part.half_of].append(len(found))
        shares, right_without, without, accepted_without = sums(part, 0, whole)
        read = len(without)
        gain, error = mean_and_error(whole[:read] - without)
        less = [(right, whole)]
        for number, factor in enumerate(_WEAKER if part.sized else ()):
            one = Part(part.name, part.weaker[number]) if part.weaker else part
            less.append(sums(one, factor)[1:3])
        # The most likely, except for all of the part.
        right_with_less, with_less = max(less[1:] or less, key=lambda one: float(one[1].mean()))
        weaker, weaker_error = mean_and_error(with_less - whole)
        found.append(
            Added(
                name=part.name,
                by_depth=tuple(shares.tolist()),
                gain=float(gain),
                error=float(error),
                weaker=float(weaker),
                weaker_error=float(weaker_error),
                weaker_right=float((right_with_less - right).mean()),
                better=float(
                    max(
                        (right_without - right[:read]).mean(),
                        (accepted_without - accepted[:read]).mean(),
                    )
                ),
                piece=part.piece,
            )
        )
    for first, second in halves.values():
        found[first], found[second] = (
            attrs.evolve(half, other_half=twin.gain, other_error=twin.error)
            for half, twin in ((found[first], found[second]), (found[second], found[first]))
        )
    return found
