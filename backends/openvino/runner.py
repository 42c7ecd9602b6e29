"""Passes of a backend, run by OpenVINO."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwood.backends.model.model_pass import ModelPass
from draftwood.backends.model.runner import AsItIs, Runner
from draftwood.backends.model.weight_values import WeightValues
from draftwood.backends.nodes.pass_inputs import PassInputs
from draftwood.backends.nodes.region import Ints
from draftwood.backends.openvino.conversion import Converted, Weights, compressed, converted, described
from draftwood.backends.openvino.levels import LevelsCall, LevelsSizes
from draftwood.backends.openvino.requests import (
    SHAPES,
    SLOTS,
    Bound,
    Request,
    RequestShape,
    nodes_of,
    slots_of,
)
from draftwood.backends.recurrent.states import States
from draftwood.base.errors import UnsupportedModel
from draftwood.base.machine_faults import machine_fault
from draftwood.kernels.lru_tree.traced import DEEPEST
from draftwood.trees.level_plan import LevelPlan

log = logging.getLogger(__name__)

RECENT = 3
"""Passes whose nodes are remembered: after as many, padding has cost more than a change of shape."""

COLUMNS = 65
"""Uncommitted nodes that recurrent layers may see: the delta rule inverts a matrix of that size per head."""

SLACK = 8
"""Nodes of padding that may take less time than a change of shape."""


class OpenVinoRunner(Runner):
    """Runs passes by OpenVINO, over the buffers of the backend as they are in memory.

    The first pass, which shows what layers keep, runs as it is. The pass is then converted, and once more
    when other features are read.

    Attributes:
        conversions: how many there were.
    """

    def __init__(
        self,
        model_pass: ModelPass,
        *,
        model: Any,
        vocab: int,
        longest: int | None,
        weights: Weights | None = None,
        kept_in: torch.dtype | None = None,
    ) -> None:
        """Run `model_pass` of `model`.

        Args:
            model_pass: the function that is converted.
            model: that it is a pass of.
            vocab: of its logits.
            longest: where the model's context ends, if it does.
            weights: bits that the weights are rounded to; None: as they are.
            kept_in: dtype of keys and values; None: what layers give.
        """
        self.conversions = 0
        self._weights, self._kept_in = weights, kept_in
        self._model, self._pass, self._as_it_is = model, model_pass, AsItIs(model_pass)
        self._vocab, self._longest = vocab, longest
        self._converted: Converted | None = None
        self._values: WeightValues | None = None  # of which the engine holds copies
        self._reader: Any = None
        self._requests: OrderedDict[Any, Any] = OrderedDict()
        self._reading: Request | None = None  # of the last prompt
        self._bound: Bound | None = None
        self._recent: deque[int] = deque(maxlen=RECENT)
        self._by_level = False  # since a call over all levels cannot be converted
        # A request for other buffers is a new one, and its first call takes several times as long.
        model_pass.cache.kept = True

    def make_room(self, *, rows: int, text: int, stop: int) -> None:
        """Have buffers of few sizes, as tight as these allow: all of them is read.

        Buffers one size larger stay: the last text grew into them, and this one may too.
        """
        plan, slots = self._pass.cache.plan, slots_of(max(text, stop))
        if rows == plan.rows and plan.slots == slots + SLOTS:
            slots = plan.slots
        self._pass.cache.lay_out(rows=rows, slots=slots)

    def run(self, inputs: PassInputs) -> tuple[Tensor, Tensor | None]:
        """One pass, as `Runner.run` says.

        Raises:
            UnsupportedModel: the pass cannot be converted.
        """
        cache, exact = self._pass.cache, inputs.shape
        if inputs.more_than_tokens:
            if self._weights is not None:
                raise UnsupportedModel(
                    "Rows whose prompt has positions of several axes, or inputs besides tokens, are not run "
                    "by OpenVINO with rounded weights; load the model without weights=."
                )
            return self._as_it_is.run(inputs)
        states = self._pass.states
        if states is not None and not self._converts(states, inputs):
            return self._as_it_is.run(inputs)
        settled = cache.settled or not self._pass.kinds
        if not settled or inputs.staged.columns is not None or not inputs.on_host:
            found = self._as_it_is.run(inputs)
            if self._kept_in is not None:
                cache.keep_as(self._kept_in)
            if self._weights is None:
                return found
            # Other weights than the model's: its pass only shows what layers keep.
            cache.settle(slots=inputs.stop)
        one = self._current()
        bound = self._bound_to(inputs, rows=exact.rows, stop=inputs.stop)
        reads = inputs.texts is not None
        # Padding takes as long as tokens do, and prompts seldom have the same length.
        nodes = exact.nodes if reads else self._steady(nodes_of(exact.nodes))
        wanted = inputs.wanted if inputs.wanted or inputs.wanted is None else [exact.nodes - 1]
        # A prompt has nothing before it, and attention over slots that nobody sees takes long.
        slots = cache.plan.slots if inputs.start and self._pass.kinds else 0
        old = 0 if states is None else max(exact.old, 1)  # OpenVINO multiplies no empty matrices
        shape = RequestShape(exact.rows, nodes, slots, nodes if wanted is None else len(wanted), old)
        new = partial(Request, one, shape, vocab=self._vocab, width=one.width)
        request = self._reading_request(shape, new) if reads else self._request(shape, new)
        request.fill(inputs, longest=self._longest)
        logits, features = request.run(bound, wanted, states=states)
        if states is not None and not inputs.keep:
            states.forget()
        request.keep(bound, start=inputs.start, stop=inputs.stop)
        if nodes != exact.nodes:
            logits = logits if wanted is not None else logits[:, : exact.nodes]
            features = None if features is None else features[:, : exact.nodes]
        return logits, features

    @staticmethod
    def _converts(states: States, inputs: PassInputs) -> bool:
        """Whether the converted pass runs these inputs of recurrent layers: trees, and no text."""
        is_tree = inputs.texts is None and inputs.shape.columns <= COLUMNS
        return is_tree and states.shown and int(inputs.staged.depths.max()) < DEEPEST

    @property
    def grows(self) -> bool:
        """Whether all levels can run in one call, which reads no features and has no recurrent layers."""
        one = self._pass
        return one.cache.settled and one.states is None and one.reader is None and not self._by_level

    def grow(
        self,
        inputs: PassInputs,
        plan: LevelPlan,
        *,
        widths: Sequence[int],
        temperature: float,
        first: dict[str, Ints | None],
    ) -> Tensor | None:
        """Run all levels in one call, as `Runner.grow` says."""
        one, rows = self._current(), self._pass.cache.plan.rows
        bound = self._bound_to(inputs, rows=rows, stop=inputs.stop + sum(widths[1:]))
        # A draft reads one token or two that it has not read, as it has those that it expanded.
        nodes = max(nodes_of(inputs.shape.nodes), 2)
        sizes = LevelsSizes(rows, nodes, plan, tuple(widths), temperature)

        def new() -> LevelsCall:
            return LevelsCall(
                one.function, sizes, vocab=self._vocab, dtype=self._model.dtype, weights=self._weights
            )

        try:
            call = self._request(sizes, new)
        except Exception as error:  # a converter may fail in many ways
            if machine_fault(error) is not None:
                raise
            self._by_level = True
            log.warning(
                "Levels drafted by %s run one by one, as OpenVINO does not run them in one call: %s.",
                type(self._model).__name__,
                described(error),
            )
            return None
        positions = inputs.positions[:, -1:] + np.arange(len(widths))
        found: Tensor = call.run(inputs, bound, positions=positions, first=first, longest=self._longest)
        return found

    def joined(self, rows: int) -> None:
        """Nothing to do: the next pass looks at all again."""

    def outdated(self) -> bool:
        """Returns whether weights have changed in place, as `Runner.outdated` says."""
        return self._values is not None and self._values.changed()

    def _steady(self, nodes: int) -> int:
        """Returns the width of a pass over `nodes`: a recent pass's width, where that takes little more.

        A pass over other nodes than the last one's takes half as long again.
        """
        widest = max(self._recent, default=0)
        self._recent.append(nodes)
        return widest if nodes < widest <= max(2 * nodes, nodes + SLACK) else nodes

    def _current(self) -> Converted:
        """The pass as it is converted, with the features that are read now."""
        reader = self._pass.reader
        if self._converted is None or reader is not self._reader:
            self._requests.clear()
            self._reading = None
            self._converted = None  # its weights go before there are others
            self._converted = converted(
                self._model, self._pass, reader=reader, vocab=self._vocab, longest=self._longest
            )
            if self._weights is not None:
                self._converted = compressed(self._converted, self._weights, dtype=self._model.dtype)
            self._reader, self._values = reader, WeightValues(self._model)
            self.conversions += 1
        return self._converted

    def _bound_to(self, inputs: PassInputs, *, rows: int, stop: int) -> Bound:
        """The buffers of `rows` rows from the first of a pass on, which needs `stop` slots."""
        cache = self._pass.cache
        if stop > cache.plan.slots:
            cache.lay_out(rows=cache.plan.rows, slots=slots_of(stop))
        if self._bound is None or not self._bound.is_of(cache, above=inputs.above, rows=rows):
            self._bound = Bound(cache, above=inputs.above, rows=rows)
        # The cache keeps what has been written when its buffers are made anew.
        cache.write(inputs.above, inputs.above + inputs.shape.rows, start=inputs.start, stop=stop)
        return self._bound

    def _reading_request(self, shape: RequestShape, new: Callable[..., Request]) -> Request:
        """The request for a prompt. Only the last one is kept: they are large, and lengths seldom repeat."""
        if self._reading is None or self._reading.shape != shape:
            former, self._reading = self._reading, None
            self._reading = new(former=former, any_size=True)
        return self._reading

    def _request(self, shape: Any, new: Callable[[], Any]) -> Any:
        """The request for a shape; the one that was longest unused goes where there are many."""
        request = self._requests.get(shape)
        if request is None:
            if len(self._requests) >= SHAPES:
                self._requests.popitem(last=False)
            request = self._requests[shape] = new()
        else:
            self._requests.move_to_end(shape)
        return request
