"""`WindowedPasses`: passes over drafted nodes that read a part of the text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.backends.nodes import validation
from draftwood.backends.passes.packed_passes import PackedPasses
from draftwood.base.errors import InvalidInput


class WindowedPasses(PackedPasses):
    """Abstract: runs drafted nodes through the model over a part of the keys and values that it holds."""

    def extend_in_window(
        self,
        tokens: Int[Tensor, "rows nodes"],
        parents: Int[Tensor, "rows nodes"],
        counts: Sequence[int] | None = None,
        *,
        sinks: int,
        window: int,
    ) -> Float[Tensor, "rows nodes vocab"]:
        """Extend by drafted nodes, as `StateBackend.extend_in_window` says.

        Each layer copies the slots that it reads, unless they are the whole text.

        Returns:
            Logits `[rows, nodes, vocab]` in the model's dtype; rows beyond `counts` are undefined.

        Raises:
            InvalidTree: a token outside the vocabulary or a parent not before its child.
            InvalidInput: a node beyond `max_length`, uncommitted nodes, or a number that is too small.
            OutOfMemory: the pass does not fit. After any error the state is as it was.
            UnsupportedModel: recurrent layers, a captured backend, an engine, or several processes.
        """
        if not self.reads_windows:
            super().extend_in_window(tokens, parents, counts, sinks=sinks, window=window)
        if sinks < 0 or window < 1:
            raise InvalidInput(f"sinks is {sinks} and window {window}; give at least 0 and 1.")
        if self._region.counts.any():
            raise InvalidInput(
                "Nodes cannot be drafted while there are uncommitted ones; commit or drop those first."
            )
        before = self._region if self._drafted is None else self._drafted
        tokens, parents, valid = validation.padded_nodes(
            tokens, parents, counts, have=before.counts, vocab=self.vocab_size
        )
        rows, n = tokens.shape
        with self._guard:
            if not rows or not n:
                return torch.empty(rows, n, self.vocab_size, dtype=self.model.dtype, device=self.device)
            staged = before.stage(parents.numpy(), valid)
            after = before.accept(staged)
            inputs = self._tree_inputs(tokens, staged, before).in_window(sinks=sinks, window=window)
            logits, _ = self._runner.run(inputs)
            if not self._cache.plan.gathered:
                self._cache.settle(slots=inputs.stop)
            self._drafted = after
        return logits
