"""P-EAGLE: an EAGLE-3 head guesses a block of tokens in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from draftwood import InvalidInput, Outcome
from draftwood.protocols.model_prompt import ModelPrompt, filled_words
from draftwood.strategies.drafters.eagle3 import as_taps, tapped
from draftwood.strategies.drafters.feature_marginals import FeatureMarginals
from draftwood.strategies.drafters.rotated_target import undo_rotation
from draftwood.strategies.heads.found import described_in, folder_of
from draftwood.strategies.heads.peagle import Known, PEagleHead, is_peagle, load_peagle


@attrs.define(eq=False)
class PEagle(FeatureMarginals):
    """Drafts with a P-EAGLE head: one pass gives the distributions of all depths.

    The head reads a token with the target's features of the token before it, and at places that are not
    drafted yet a mask with a learnt state. A node's distribution depends only on its depth. Before a text's
    second token there are no features, and nothing is proposed.

    It reads the features of `target`, and must be the only one who takes them; `target` must be the backend
    that the decoder drives.

    Attributes:
        target: a backend that declares its `feature_layers`. It must have no rows yet.
        head: a folder or hub name, in speculators' or SpecForge's format, or the module, which goes to the
            target's device and dtype.
        depths: tokens that a pass guesses; None: as many as its file says.
        mask_token_id: the token of what is not drafted yet, where the folder does not say it.
        taps: layers of the target to read instead of those that the head names, as numbers or as text such as
            `"2,16,29"`.
        rotation: `"none"` for a head that was trained on this very target though that is rotated, or a file
            of safetensors with the rotation; None for what the files of the target say.

    Raises:
        UnsupportedModel: the target declares that it gives no features, or its rotation cannot be undone.
        IncompatibleModels: a head for another width or vocabulary than the target's.
        InvalidInput: a head that cannot be read, or one that taps layers which the target does not have.

    Source: P-EAGLE, as speculators trains it.
    """

    head: Any = attrs.field(repr=False)
    depths: int | None = attrs.field(default=None, kw_only=True)
    mask_token_id: int | None = attrs.field(default=None, kw_only=True)
    taps: tuple[int, ...] | None = attrs.field(default=None, converter=as_taps, kw_only=True)
    rotation: str | None = attrs.field(default=None, kw_only=True)
    # Of every row the keys and values of its pairs, by layer, and the state that waits for its root.
    _known: list[Known] = attrs.field(factory=list, init=False, repr=False)
    _last: list[Tensor | None] = attrs.field(factory=list, init=False, repr=False)
    _joined: list[list[int]] = attrs.field(factory=list, init=False, repr=False)
    source = "P-EAGLE (speculators)"

    def __attrs_post_init__(self) -> None:
        if isinstance(self.head, str | PathLike):
            self.head = load_peagle(folder_of(self.head), mask_token_id=self.mask_token_id, taps=self.taps)
        config = tapped(self.head.config.head, self.taps)
        if self.depths is not None and self.depths < 1:
            raise InvalidInput(f"depths is {self.depths}; a pass guesses 1 or more tokens.")
        self._begin(
            "the head",
            width=config.target_hidden_size,
            vocabulary=config.vocab_size,
            taps=config.taps_in,
            through=self.head.head.project,
        )
        self.head.to(self.target.input_embeddings(torch.zeros(1, dtype=torch.int64)))
        self.head.requires_grad_(False)
        if self.head.head.lm_head is None:
            self.head.head.borrow(self.target.output_head)
        undo_rotation(self.head.head, self.target, self.rotation)

    @staticmethod
    def reads(head: Any) -> bool:
        """Returns whether `head` is one for it, readable or not: a module, a folder or a hub name."""
        return isinstance(head, PEagleHead) or (
            isinstance(head, str | PathLike) and is_peagle(described_in(head))
        )

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return int(self.head.config.head.vocab_size)

    @property
    def weight_bytes(self) -> int:  # type: ignore[override]
        table = {id(weight) for weight in (self.head.head.embed_tokens or torch.nn.Identity()).parameters()}
        return sum(
            weight.numel() * weight.element_size()
            for weight in self.head.parameters()
            if id(weight) not in table
        )

    def prefill(self, rows: Sequence[Tensor]) -> None:
        self._check_rows(rows, held=len(self._known))
        self._known += [[] for _ in rows]
        self._last += [None] * len(rows)
        self._joined = [row.tolist() for row in rows]
        super().prefill(rows)

    def prefill_prompt(self, prompt: ModelPrompt, rows: Sequence[int]) -> None:
        # The target has features of all columns, images and embeddings among them.
        lengths = self.target.lengths[len(self._known) :]
        self.prefill(filled_words(prompt, rows, lengths=lengths, vocab_size=self.vocab_size))

    def _forget(self, kept: Sequence[int]) -> None:
        self._known = [self._known[row] for row in kept]
        self._last = [self._last[row] for row in kept]

    @torch.no_grad()
    def _read(self, outcomes: Sequence[Outcome] | None) -> None:
        taken = self._taken(self.head.config.head.hidden_size)
        if outcomes is None:
            held = len(self._known) - len(self._joined)
            tokens = [*([] for _ in range(held)), *self._joined]
        else:
            tokens = [list(outcome.tokens) for outcome in outcomes]
        pairs: dict[int, tuple[list[int], Tensor]] = {}
        for row, (states, new) in enumerate(zip(taken, tokens, strict=True)):
            if len(states) != len(new):
                raise InvalidInput(
                    f"Row {row} has committed {len(new)} token(s), and its target gives features of "
                    f"{len(states)}; give PEagle a backend whose features no other drafter takes."
                )
            if not new:
                continue
            # State i precedes token i + 1: a row's old last state comes first, and its new one waits.
            last = self._last[row]
            beside = states[:-1] if last is None else torch.cat([last.unsqueeze(0), states[:-1]])
            if len(beside):
                pairs[row] = (new[len(new) - len(beside) :], beside)
            self._last[row] = states[-1]
        if pairs:
            self._append(pairs)

    def _append(self, pairs: dict[int, tuple[list[int], Tensor]]) -> None:
        """Read these tokens with these states, all rows at once."""
        counts = [len(tokens) for tokens, _ in pairs.values()]
        padded = torch.zeros(len(pairs), max(counts), dtype=torch.int64)
        for line, (tokens, _) in enumerate(pairs.values()):
            padded[line, : len(tokens)] = torch.tensor(tokens)
        states = pad_sequence([beside for _, beside in pairs.values()], batch_first=True)
        embeddings = self._embedded(padded.to(states.device), self.head.head)
        _, new = self.head.read(embeddings, states, [self._known[row] for row in pairs], counts)
        for row, layers in zip(pairs, new, strict=True):
            known = self._known[row]
            self._known[row] = (
                [
                    (torch.cat([keys, more_keys]), torch.cat([values, more_values]))
                    for (keys, values), (more_keys, more_values) in zip(known, layers, strict=True)
                ]
                if known
                else layers
            )

    def _guess(self, roots: Sequence[int | None]) -> Tensor:
        config, head = self.head.config, self.head.head
        count = self.depths or config.depths
        masked = self.head.masked()
        first = torch.stack([torch.zeros_like(masked) if last is None else last for last in self._last])
        states = masked.expand(len(roots), count, -1).clone()
        states[:, 0] = first
        tokens = torch.full((len(roots), count), config.mask_token_id, device=states.device)
        tokens[:, 0] = torch.tensor([root or 0 for root in roots], device=states.device)
        embeddings = self._embedded(tokens, head)
        out, _ = self.head.read(embeddings, states, self._known, [count] * len(roots))
        logits: Tensor = head.target_logits(out)
        logits[[row for row, last in enumerate(self._last) if last is None]] = -torch.inf
        return logits
