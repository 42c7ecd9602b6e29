"""Medusa: heads on the target's own hidden state, each guessing one token further."""

from __future__ import annotations

import json
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import attrs
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import silu

from draftwood import IncompatibleModels, InvalidInput, Outcome, StateBackend
from draftwood.base.errors import UnsupportedModel
from draftwood.base.whole_files import write_by, write_json
from draftwood.protocols.model_prompt import ModelPrompt, filled_words
from draftwood.strategies.drafters.depth_marginals import DepthMarginals
from draftwood.strategies.drafters.rotated_target import check_not_rotated
from draftwood.strategies.drafters.target import as_target
from draftwood.strategies.heads.found import described_in, folder_of
from draftwood.strategies.heads.medusa import is_medusa, read_medusa

WEIGHTS, DESCRIPTION = "heads.safetensors", "heads.json"
FORMAT, VERSION = "draftwood-heads", 1


class Heads(torch.nn.Module):
    """`count` heads `U_k (h + SiLU(W_k h + b_k))` from a hidden state to logits, all in one product each.

    Head k, counted from 0, guesses the token k + 2 positions after the one whose state it reads. A new
    module's W and b are zero, so that a head begins as the plain map U.

    Source: Medusa, section 2.1.1 (arXiv 2401.10774), without tying U_k to anything.
    """

    def __init__(self, count: int, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(count, hidden_size, hidden_size))
        self.bias = torch.nn.Parameter(torch.zeros(count, 1, hidden_size))
        self.output = torch.nn.Parameter(torch.zeros(count, vocab_size, hidden_size))

    @property
    def count(self) -> int:
        return len(self.output)

    @property
    def hidden_size(self) -> int:
        return self.output.shape[2]

    @property
    def vocab_size(self) -> int:
        return self.output.shape[1]

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits `[count, n, vocab]` for states `[n, hidden]`."""
        states = hidden.expand(self.count, -1, -1)
        states = states + silu(torch.baddbmm(self.bias, states, self.weight.mT))
        return torch.bmm(states, self.output.mT)

    def guess(self, number: int, hidden: Tensor) -> Tensor:
        """Returns logits `[..., vocab]` of the head `number` for states `[..., hidden]`."""
        states = hidden + silu(hidden @ self.weight[number].mT + self.bias[number, 0])
        logits: Tensor = states @ self.output[number].mT
        return logits

    def taps_in(self, layers: int) -> tuple[int, ...]:
        """Returns the layer whose features the target's output head reads, of a target of `layers` layers."""
        return (layers,)


def save_heads(heads: Heads, folder: str | PathLike[str], *, target: str) -> None:
    """Write `heads.safetensors` (dtype as it is) and `heads.json` into `folder`; `target` names the model."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    description = {
        "format": FORMAT,
        "version": VERSION,
        "heads": heads.count,
        "hidden_size": heads.hidden_size,
        "vocab_size": heads.vocab_size,
        "target": target,
    }
    weights = {name: weight.detach().contiguous() for name, weight in heads.named_parameters()}
    write_by(folder / WEIGHTS, lambda part: save_file(weights, part))
    write_json(folder / DESCRIPTION, description)


def load_heads(folder: str | PathLike[str]) -> Heads:
    """Returns the heads in a folder, in the dtype in which they are stored.

    Args:
        folder: one that `save_heads` wrote, or published heads (FasterDecoding's or vLLM's files).

    Raises:
        InvalidInput: a file that is missing or corrupt, or weights that do not fit the description.
    """
    folder = Path(folder)
    if is_medusa(folder):
        published = read_medusa(folder)
        with torch.device("meta"):
            count, vocabulary, width = published["output"].shape
            heads = Heads(count, width, vocabulary)
        heads.load_state_dict(published, assign=True)
        return heads
    for name in (DESCRIPTION, WEIGHTS):
        if not (folder / name).is_file():
            raise InvalidInput(f"There is no {name} in {str(folder)!r}; name a folder with trained heads.")
    try:
        description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        _check_version(folder, description)
        sizes = [int(description[name]) for name in ("heads", "hidden_size", "vocab_size")]
        stored = load_file(folder / WEIGHTS)
    except InvalidInput:
        raise
    except (ValueError, KeyError, TypeError, OSError, RecursionError, SafetensorError) as error:
        raise InvalidInput(
            f"The heads in {str(folder)!r} cannot be read ({type(error).__name__}: {_one_line(error)}); "
            "train or copy them again."
        ) from error
    if min(sizes) < 1:
        raise InvalidInput(
            f"{DESCRIPTION} in {str(folder)!r} names the sizes {sizes}; each must be 1 or more."
        )
    with torch.device("meta"):
        heads = Heads(*sizes)
    expected = {name: tuple(weight.shape) for name, weight in heads.named_parameters()}
    shapes = {name: tuple(weight.shape) for name, weight in stored.items()}
    if shapes != expected:
        raise InvalidInput(
            f"The weights in {str(folder)!r} have the shapes {shapes}, but its {DESCRIPTION} says "
            f"{expected}; train or copy the heads again."
        )
    heads.load_state_dict(stored, assign=True)
    return heads


def _check_version(folder: Path, description: Any) -> None:
    """Raise `InvalidInput` for heads of another format; the first ones were written without a word of it."""
    stated = {"format": FORMAT, "version": 1, **description}
    if (stated["format"], stated["version"]) != (FORMAT, VERSION):
        raise InvalidInput(
            f"{DESCRIPTION} in {str(folder)!r} says {stated['format']!r:.40} of version "
            f"{stated['version']!r:.40}, and this draftwood reads {FORMAT!r} of version {VERSION}; train the "
            "heads again with `python -m draftwood.zoo.train medusa`."
        )


def _as_heads(heads: Any) -> Heads:
    return load_heads(folder_of(heads)) if isinstance(heads, str | PathLike) else heads


@attrs.define(eq=False)
class MedusaHeads(DepthMarginals):
    """Guesses several tokens ahead by heads on the target's last hidden state, without a draft pass.

    A node's distribution depends only on its depth: at depth d it is head d's. Below the last head, and
    where no token precedes the root, nothing is proposed.

    It reads the features of `target` that its output head reads, and must be the only one who takes them;
    `target` must be the backend that the decoder drives. By itself it keeps the round's logits and no text.

    Attributes:
        target: a backend that declares its `feature_layers`. It must have no rows yet.
        heads: a folder that `save_heads` wrote, a folder or hub name with published heads, or the module; it
            goes to the target's device and dtype.
        rotation: `"none"` for heads that were trained on this very target though that is rotated.

    Raises:
        UnsupportedModel: the target declares that it gives no features, or is rotated.
        IncompatibleModels: heads for another width or vocabulary than the target's.
        InvalidInput: heads that cannot be read.

    Source: Medusa (Cai et al. 2024, arXiv 2401.10774), sections 2.1.1 and 2.2.1 (Medusa-1).
    """

    target: StateBackend = attrs.field(converter=as_target, repr=False)
    heads: Heads = attrs.field(converter=_as_heads, repr=False)
    rotation: str | None = attrs.field(default=None, kw_only=True)
    # Every row's state after its last committed token, [hidden]; None where there is none.
    _hidden: list[Tensor | None] = attrs.field(factory=list, init=False, repr=False)
    source = "Medusa (Cai et al. 2024), section 2.1.1"

    def __attrs_post_init__(self) -> None:
        if not self.target.feature_layers:
            raise UnsupportedModel(
                f"{type(self.target).__name__} declares no features (its feature_layers is 0), which Medusa "
                "heads read; draft with a model or by prompt lookup."
            )
        for what, ours, theirs in (
            ("hidden states of width", self.heads.hidden_size, self.target.hidden_size),
            ("a vocabulary of", self.heads.vocab_size, self.target.vocab_size),
        ):
            if ours != theirs:
                raise IncompatibleModels(
                    f"The heads were made for {what} {ours}, but the target's is {theirs}; train heads on "
                    "this target."
                )
        check_not_rotated(self.target, self.rotation, kind="Medusa heads")
        self.target.keep_features([self.target.feature_layers], last=1)

    @staticmethod
    def reads(head: Any) -> bool:
        """Returns whether `head` is one for it, readable or not: a module, a folder or a hub name."""
        return isinstance(head, Heads) or (isinstance(head, str | PathLike) and is_medusa(described_in(head)))

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return self.heads.vocab_size

    @property
    def weight_bytes(self) -> int:  # type: ignore[override]
        return sum(weight.numel() * weight.element_size() for weight in self.heads.parameters())

    def prefill(self, rows: Sequence[Tensor]) -> None:
        self._check_target(list(map(len, rows)))
        self._hidden += [None for _ in rows]
        super().prefill(rows)

    def prefill_prompt(self, prompt: ModelPrompt, rows: Sequence[int]) -> None:
        # The target has features of all columns, images and embeddings among them.
        lengths = self.target.lengths[len(self._hidden) :]
        self.prefill(filled_words(prompt, rows, lengths=lengths, vocab_size=self.vocab_size))

    def _forget(self, kept: Sequence[int]) -> None:
        self._hidden = [self._hidden[row] for row in kept]

    def _read(self, outcomes: Sequence[Outcome] | None) -> None:
        if outcomes is not None:
            self._hidden = [
                None if outcome.tokens else states
                for outcome, states in zip(outcomes, self._hidden, strict=True)
            ]
        for row, states in enumerate(self.target.take_features()):
            if len(states):
                if states.shape[1] != self.heads.hidden_size:
                    raise InvalidInput(
                        f"The heads read states of width {self.heads.hidden_size}, but their target keeps "
                        f"features of width {states.shape[1]}; give MedusaHeads a separate backend."
                    )
                self._hidden[row] = states[-1]
                self.heads.to(states)
        if any(
            states is None and outcome.tokens
            for states, outcome in zip(self._hidden, outcomes or (), strict=False)
        ):
            raise InvalidInput(
                f"Row {self._hidden.index(None)} has committed tokens, but its target gives no features of "
                "them; give MedusaHeads a backend whose features no other drafter takes."
            )

    def _guess(self, roots: Sequence[int | None]) -> Tensor:
        blank = self.heads.bias.new_zeros(self.heads.hidden_size)
        states = [blank if state is None else state for state in self._hidden]
        logits: Tensor = self.heads(torch.stack(states)).transpose(0, 1).contiguous()
        logits[[row for row, state in enumerate(self._hidden) if state is None]] = -torch.inf
        return logits

    def _check_target(self, lengths: list[int]) -> None:
        """The target holds the same rows, or it is not the one that is being decoded."""
        committed = self.target.lengths
        if len(committed) != len(self._hidden) + len(lengths) or committed[len(self._hidden) :] != lengths:
            raise InvalidInput(
                f"The heads' target holds {len(committed)} row(s), not the {len(lengths)} that join here; "
                "give MedusaHeads the same backend object as the decoder."
            )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:160].rstrip(".")
