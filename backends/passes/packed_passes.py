"""`PackedPasses`: passes of a model over prompts and over trees, and what all rows are held in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
from torch import Tensor

from draftwood.backends.attention.kv import RowCache
from draftwood.backends.model.features import Pieces
from draftwood.backends.model.model_backend import ModelBackend
from draftwood.backends.model.model_pass import ModelPass
from draftwood.backends.model.runner import AsItIs, Runner, RunnerMaker
from draftwood.backends.nodes.pass_inputs import PassInputs
from draftwood.backends.nodes.region import Region, Staged, chain
from draftwood.backends.nodes.row_inputs import RowInputs
from draftwood.backends.passes.capture import Capture, Captured
from draftwood.backends.recurrent.states import States
from draftwood.backends.structure.forward import guarded_pass
from draftwood.backends.structure.layers import count_layers
from draftwood.backends.structure.masks import Reach
from draftwood.backends.weights.streamed import read_ahead


@attrs.frozen
class PackedRow:
    """One row, apart from its keys, values and recurrent states.

    Attributes:
        length: committed tokens.
        fresh: whether the next token is the last one of its prompt.
        features: of its tokens since `take_features`, pieces of `[length, width]`, where they are kept.
    """

    length: int
    fresh: bool = True
    features: Pieces = attrs.field(default=(), eq=False, repr=False)


class PackedPasses(ModelBackend):
    """Abstract: the model over a chunk of prompts or over new nodes.

    A pass only leaves keys, values and states. Which rows there are, their nodes and what of them is
    committed is up to the subclass.

    Attributes:
        captured: what runs captured passes; None where they run as they are.
    """

    def __init__(
        self,
        model: Any,
        module: Any,
        *,
        kinds: dict[str, Reach],
        states: States | None,
        chunk: int,
        capture: Capture = "off",
        runner: RunnerMaker | None = None,
        whole_prompts: bool = False,
    ) -> None:
        """Serve `model`; see `ModelBackend`.

        Args:
            model: a transformers model, which is not changed.
            module: what runs: `model`, or a copy of its structure over the same weights.
            kinds: the kinds of its attention layers.
            states: of its recurrent layers; None for a model without any.
            chunk: tokens a prefill pass takes at once.
            capture: whether and how passes over trees are captured; see `capture`.
            runner: makes what runs passes, where they are not captured; None: they run as they are.
            whole_prompts: whether windows hold for written tokens only, and tokens of a prompt see all before
                them.

        Raises:
            UnsupportedModel: passes that cannot be captured.
        """
        super().__init__(model, chunk=chunk)
        self._module, self._states, self._kinds = module, states, kinds
        self._prompt_kinds = dict.fromkeys(kinds, Reach()) if whole_prompts else kinds
        read_ahead(module, layers=count_layers(model))
        self._cache = RowCache(standing=capture != "off")
        self._pass = ModelPass(
            model, module, kinds=tuple(kinds), cache=self._cache, states=states, device=self.device
        )
        self.captured: Captured | None = None
        if capture != "off":
            name = type(model).__name__
            self.captured = Captured(self._pass, name=name, capture=capture, longest=self.max_length)
            self._options["capture"] = capture
        self._runner: Runner = self.captured or AsItIs(self._pass)
        if runner is not None:
            self._runner = runner(self._pass, model=model, vocab=self.vocab_size, longest=self.max_length)
            self._options["runner"] = runner
        self._region = Region.empty(0)
        # Nodes that read a window of the text, in the slots that the next nodes of the region will take.
        self._drafted: Region | None = None
        self.reads_windows = states is None and capture == "off" and runner is None and self.ranks is None
        # What the rows' passes are given besides tokens; None where they only hold tokens.
        self._given: RowInputs | None = None
        self._rows, self._guard = list[PackedRow](), guarded_pass(0)
        self._hold([])
        # Where features are kept, one `[rows, nodes, width]` for every pass over uncommitted nodes.
        self._uncommitted: list[Tensor] = []

    @property
    def _columns(self) -> int:
        """Columns that are taken, by the region or by drafted nodes; never by both."""
        return self._region.columns or (0 if self._drafted is None else self._drafted.columns)

    def _hold(self, rows: list[PackedRow], *, drafted: Region | None = None) -> None:
        """Let these be the rows, and `drafted` their drafted nodes; None: they have none."""
        if len(rows) != len(self._rows):
            self._guard = guarded_pass(len(rows))
        self._rows = rows
        self._drafted = drafted
        lengths = [row.length for row in rows]
        self._lengths = np.array(lengths, np.int64)
        # The slot of column 0. Uncommitted nodes stay in the slots that they have.
        if not self._region.columns and (drafted is None or not drafted.columns):
            self._base = max(lengths, default=0)
        # Whether any row ends before that slot.
        self._ragged = min(lengths, default=0) < self._base

    def _outdated(self) -> bool:
        return self._runner.outdated()

    def _read_chunk(
        self,
        padded: Tensor,
        start: int,
        lengths: Sequence[int],
        features: list[Pieces],
        first: dict[int, Tensor] | None,
    ) -> None:
        """Run one pass over `padded[:, start : start + chunk]`, rows that follow the present ones.

        Adds the features of the text of these `lengths` in it, where they are kept, to every row's features,
        and puts the logits `[vocab]` after texts that end in it into `first`, by row, where they are wanted.
        """
        tokens = padded[:, start : start + self.chunk]
        n = tokens.shape[1]
        ends = {row: length - 1 - start for row, length in enumerate(lengths) if 0 < length - start <= n}
        wanted = sorted(set(ends.values())) if first is not None else []
        inputs = PassInputs.of(
            tokens,
            # Padding follows a row's text, so no token of the text sees it, and rows are alike.
            chain(n),
            kinds=self._prompt_kinds,
            before=Region.empty(1),
            lengths=np.array([start]),
            base=start,
            ragged=False,
            max_length=None,
            above=len(self._rows),
            texts=[min(max(length - start, 0), n) for length in lengths],
            wanted=wanted,
        )
        if self.model.training != self._training:
            self._refuse_mode()
        logits, read = self._runner.run(inputs)
        if first is not None:
            places = {column: place for place, column in enumerate(wanted)}
            # Not views, which would hold other tokens' logits too.
            first |= {row: logits[row, places[column]].clone() for row, column in ends.items()}
        if self._reader is not None and read is not None:
            kept = self._reader.passed_through(read)
            for row, length in enumerate(lengths):
                last = self._reader.request.last or length
                kept_from = max(length - last - start, 0)
                if kept_from < min(length - start, n):
                    # Not a view, which would hold other rows and padding too.
                    new = kept[row, kept_from : length - start].clone()
                    features[row] = self._reader.trimmed([*features[row], new])

    def _tree_inputs(
        self, tokens: Tensor, staged: Staged, before: Region, *, keep: bool = True, prompt: bool = False
    ) -> PassInputs:
        """The inputs of a pass over `staged` nodes, which follow those `before`.

        All of them are tokens of a prompt if `prompt`. Refuses a model whose mode is another now.
        """
        if self.model.training != self._training:
            self._refuse_mode()
        prompts = None
        if self._states is not None:
            fresh = np.array([row.fresh for row in self._rows])
            prompts = prompt | (fresh[:, None] & (staged.depths == 0))
        return PassInputs.of(
            tokens,
            staged,
            kinds=self._kinds,
            before=before,
            lengths=self._lengths,
            base=self._base,
            ragged=self._ragged,
            max_length=self.max_length,
            prompts=prompts,
            keep=keep,
            given=self._given,
        )
