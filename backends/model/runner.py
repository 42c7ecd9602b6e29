"""`Runner`, the protocol of what runs passes, and the runner that runs them as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from draftwood.backends.model.model_pass import ModelPass
from draftwood.backends.nodes.pass_inputs import PassInputs
from draftwood.backends.nodes.region import Ints
from draftwood.backends.nodes.staging import send
from draftwood.backends.recurrent.states import Chosen
from draftwood.base.errors import UnsupportedModel
from draftwood.trees.level_plan import LevelPlan


class Runner(Protocol):
    """Runs the passes of one backend.

    A pass is a function: `ModelPass`. It takes the inputs that `PassInputs` describes (tokens, positions, and
    what every node sees) and the state of all rows, and gives logits and what the new nodes add to the state.
    A runner decides how that function runs: as it is, compiled, replayed, or converted by another engine.

    Your runner needs one file. It gets the `ModelPass`, converts or compiles it, and has three
    methods. In `run`:

    - `inputs.arrays(masks)` gives all arrays that the device reads; with a `Shape`, padded to that.
    - The keys and values of every layer are `cache.layers[i].keys` and `.values`, each `[rows, kv_heads,
      slots, head_dim]`. A row's committed text is in slots `[0, length)`, so it is one contiguous piece, and
      uncommitted nodes are in slots `[base, start)`. Read them in place.
    - Write the keys and values of the new nodes into slots `[inputs.start, inputs.stop)` of the rows from
      `inputs.above` on. A backend forgets nodes by writing over them, and a commit moves slots itself.
    - Buffers are made when a first pass has shown what layers keep. Let `AsItIs` run that pass. It can also
      run the passes over prompts, whose `inputs.texts` is not None, those that `ModelPass.reader` takes
      features from, and passes whose rows are given more than tokens (`inputs.more_than_tokens`).

    Laws: `run` gives what `AsItIs.run` gives, up to rounding. A call that raises leaves all slots before
    `inputs.start` as they were. A runner need not look for changes of the model: a backend whose model has
    changed is made anew, and so is its runner. Only one that holds copies of weights says whether their
    values have changed (`outdated`).
    """

    @property
    def grows(self) -> bool:
        """Whether `grow` runs all levels of a plan in one pass, as things are now."""
        return False

    def make_room(self, *, rows: int, text: int, stop: int) -> None:
        """Have buffers for more text, before rows join; on failure nothing has changed.

        Args:
            rows: how many there will be.
            text: slots of the longest text.
            stop: slots that the next pass needs.
        """

    def run(self, inputs: PassInputs) -> tuple[Tensor, Tensor | None]:
        """Run one pass.

        Returns:
            Logits `[rows, nodes, vocab]` in the order of the call, or of `inputs.wanted` only; features
            `[rows, nodes, width]` in column order where `ModelPass.reader` takes them, else None.
        """

    def joined(self, rows: int) -> None:
        """The passes over new rows have ended, and there are so many rows now; buffers may be others."""

    def grow(
        self,
        inputs: PassInputs,
        plan: LevelPlan,
        *,
        widths: Sequence[int],
        temperature: float,
        first: dict[str, Ints | None],
    ) -> Tensor | None:
        """Run all levels of `plan` in one pass; see `LevelsShape`. Only called where it `grows`.

        Returns:
            The candidates, as `GrowingLevels.packed`; None where it turns out that such a pass cannot be had.
        """
        raise UnsupportedModel(
            f"{type(self).__name__} runs one level of a tree at a time; ask for its levels one by one."
        )

    def outdated(self) -> bool:
        """Whether values of weights have changed in place of which the runner holds a copy."""
        return False

    def replayed(self, chosen: Chosen) -> Sequence[Tensor] | None:
        """Recurrent states after a commit of these columns, or None to have them computed as they are."""
        return None


class RunnerMaker(Protocol):
    """Makes the runner of a backend."""

    def __call__(self, model_pass: ModelPass, *, model: Any, vocab: int, longest: int | None) -> Runner:
        """Returns what runs `model_pass`.

        Args:
            model_pass: the pass.
            model: that it is a pass of.
            vocab: width of its logits.
            longest: where its context ends, if it does.
        """


class AsItIs(Runner):
    """Runs the function itself, in the exact shape of every pass."""

    def __init__(self, model_pass: ModelPass) -> None:
        self._pass = model_pass

    def make_room(self, *, rows: int, text: int, stop: int) -> None:
        """Have `rows` of buffers with `stop` slots, and some to spare."""
        self._pass.cache.reserve(rows=rows, slots=stop)

    def run(self, inputs: PassInputs) -> tuple[Tensor, Tensor | None]:
        """One pass, as `Runner.run` says."""
        one, shape = self._pass, inputs.shape
        rows, nodes = shape.rows, shape.nodes
        cache, states = one.cache, one.states
        # The tree kernel reads a text from its beginning.
        masks, reads = (one.masks, None) if inputs.reads is None else (one.numbers, inputs.slots_read)
        kept, arrays = None, inputs.arrays(masks, there=one.device.type == "cpu")
        if inputs.wanted is not None:
            if not inputs.wanted or list(inputs.wanted) == [nodes - 1]:
                kept = 1  # of the last ones
            else:
                arrays["wanted"] = np.array(inputs.wanted, np.int64)
        tensors = send(arrays, one.device)
        if "tokens" not in tensors:
            tokens = inputs.tokens
            tensors["tokens"] = tokens if tokens.is_cpu else inputs.device_tokens(tensors, one.device)
        start, stop = inputs.base + shape.old, inputs.base + shape.columns
        cache.write(inputs.above, inputs.above + rows, start=start, stop=stop, reads=reads)
        if states is not None:
            if inputs.texts is not None:
                states.prefill(inputs.texts, nodes, one.device)
            else:
                states.extend(tensors["seen"], prompts=tensors["prompts"], keep=inputs.keep)
        given = inputs.given
        constants, source = (None, None) if given is None else (given.options(nodes), given.source)
        with masks.attention if one.reader is None else one.around(masks):
            logits, *features = one(
                tensors, shape, masks, kept=tensors.get("wanted", kept), constants=constants, source=source
            )
        if "to call" in tensors:
            logits = inputs.in_call(logits, tensors)
        return logits, (features[0] if features else None)

    def joined(self, rows: int) -> None:
        """Nothing to do: the next pass looks at all again."""
