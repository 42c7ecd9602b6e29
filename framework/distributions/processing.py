"""Logits processors along a tree: every node is processed as a continuation of its row.

In `generate()` a processor is called once per step with the whole batch. Along a tree it is called out of
order and more than once per step. So only functions of prefix and scores are supported.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from random import Random
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwood.base.errors import InvalidInput
from draftwood.base.machine_faults import machine_fault
from draftwood.trees.prefixes import Path, Prefixes, RowText

# transformers' processors that only read the scores.
_PREFIX_FREE = frozenset(
    {
        "EpsilonLogitsWarper",
        "EtaLogitsWarper",
        "InfNanRemoveLogitsProcessor",
        "LogitNormalization",
        "MinPLogitsWarper",
        "SuppressTokensLogitsProcessor",
        "TemperatureLogitsWarper",
        "TopHLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "TypicalLogitsWarper",
    }
)
# Those that read each row's prefix and nothing else, so that the nodes of a level make one batch.
_ROW_BY_ROW = frozenset(
    {
        "ExponentialDecayLengthPenalty",
        "ForcedBOSTokenLogitsProcessor",
        "ForcedEOSTokenLogitsProcessor",
        "MinLengthLogitsProcessor",
        "MinNewTokensLengthLogitsProcessor",
        "NoBadWordsLogitsProcessor",
        "NoRepeatNGramLogitsProcessor",
        "RepetitionPenaltyLogitsProcessor",
        "SequenceBiasLogitsProcessor",
        "SuppressTokensAtBeginLogitsProcessor",
        "WatermarkLogitsProcessor",
    }
)
# Those that depend on the row's number in the batch, and on prefix and scores besides.
_BATCH_BOUND = frozenset(
    {
        "EncoderNoRepeatNGramLogitsProcessor",
        "EncoderRepetitionPenaltyLogitsProcessor",
        "PrefixConstrainedLogitsProcessor",
    }
)
# Those that keep a state from call to call.
_STATEFUL = frozenset(
    {"SynthIDTextWatermarkLogitsProcessor", "UnbatchedClassifierFreeGuidanceLogitsProcessor"}
)
# Those that treat each token's score by itself and leave a forbidden token forbidden.
_SINGLY = frozenset(
    {
        "EncoderNoRepeatNGramLogitsProcessor",
        "EncoderRepetitionPenaltyLogitsProcessor",
        "MinLengthLogitsProcessor",
        "MinNewTokensLengthLogitsProcessor",
        "NoBadWordsLogitsProcessor",
        "NoRepeatNGramLogitsProcessor",
        "PrefixConstrainedLogitsProcessor",
        "RepetitionPenaltyLogitsProcessor",
        "SequenceBiasLogitsProcessor",
        "SuppressTokensAtBeginLogitsProcessor",
        "SuppressTokensLogitsProcessor",
        "TemperatureLogitsWarper",
    }
)


def acts_on_tokens_singly(processor: Any) -> bool:
    """Returns whether a processor gives the same for the tokens that a mask allows before it and after it."""
    return _class_in_transformers(processor) in _SINGLY


def reads_prefix(processor: Any) -> bool:
    """Returns whether a processor may read more than the scores, as any but transformers' own may."""
    return _class_in_transformers(processor) not in _PREFIX_FREE


def process(processors: Sequence[Any], scores: Tensor, prefixes: Prefixes | None) -> Tensor:
    """The scores `[n, vocab]` after all processors, in their order.

    Args:
        processors: `transformers.LogitsProcessor`s.
        scores: the scores of n nodes of one row; they are not changed.
        prefixes: the tokens before each node; needed where a processor reads them.
    """
    if not processors:
        return scores
    if any(map(reads_prefix, processors)):
        count = 0 if prefixes is None else len(prefixes)
        if prefixes is None or count != len(scores):
            raise InvalidInput(
                f"{count} prefixes were given for {len(scores)} nodes; a processor that reads the prefix "
                "needs one per node."
            )
    if prefixes is not None:
        prefixes.text.to(scores.device)
    scores = scores.clone()  # a processor may write into its argument
    for processor in processors:
        if not reads_prefix(processor):
            scores = processor(None, scores)
            continue
        assert prefixes is not None
        processor = _of_row(processor, prefixes.text.row)
        if _class_in_transformers(processor) in _ROW_BY_ROW:
            for nodes, ids in prefixes.levels:
                scores[nodes] = processor(ids, scores[nodes])
        else:
            for node in range(len(scores)):
                scores[node] = _as_in_generate(processor, scores[node], prefixes, node)
    return scores


def _as_in_generate(processor: Any, scores: Tensor, prefixes: Prefixes, node: int) -> Tensor:
    """One node in a batch of the shape that the processor was made for, as the row that it is there."""
    rows = prefixes.text.rows
    ids = prefixes.of_node(node).expand(rows, -1)
    processed: Tensor = processor(ids, scores.expand(rows, -1).clone())[prefixes.text.row]
    return processed


def _of_row(processor: Any, row: int) -> Any:
    """Returns the processor for this row only, where transformers gave it one number per row."""
    lengths = getattr(processor, "prompt_ignore_length", None)
    if _class_in_transformers(processor) != "RepetitionPenaltyLogitsProcessor" or not isinstance(
        lengths, Tensor
    ):
        return processor
    alone = copy.copy(processor)
    alone.prompt_ignore_length = int(lengths[row])
    return alone


def _class_in_transformers(processor: Any) -> str | None:
    """The name of a class of transformers itself; None for anyone else's, derived ones too."""
    kind = type(processor)
    return kind.__name__ if kind.__module__.startswith("transformers.") else None


def check_processors(processors: Sequence[Any], texts: Sequence[RowText], *, vocab_size: int) -> None:
    """Refuse processors that keep a state from call to call, which no tree can follow.

    Those that are not transformers' own are tried on a copy: twice on one prefix, once on another
    between.

    Raises:
        InvalidInput: there is such a processor; the message names it and an alternative.
    """
    for processor in processors:
        name = _class_in_transformers(processor)
        if name in _STATEFUL:
            raise _stateful(processor, "is made to be called once per token")
        if name not in _PREFIX_FREE | _ROW_BY_ROW | _BATCH_BOUND:
            _try(processor, texts[0], vocab_size)


def _try(processor: Any, text: RowText, vocab_size: int) -> None:
    try:
        tried = copy.deepcopy(processor)
    except Exception:  # anyone's object may refuse to be copied
        tried = processor
    before = _state(tried)
    logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(0)).to(text.device)

    def scores_behind(path: Path) -> Tensor:
        return _as_in_generate(tried, logits, Prefixes(text, [path]), 0).clone()

    first = scores_behind(())
    with suppress(Exception):  # it may know of texts that no one would write
        scores_behind((0,))
    try:
        again = scores_behind(())
    except Exception as error:  # one that counts its calls may find that they do not fit its text
        if machine_fault(error) is not None:
            raise  # no fault of the processor
        raise _stateful(processor, f"fails when it is called again ({type(error).__name__})") from error
    if not torch.equal(again, first):
        raise _stateful(processor, "gives other scores for the same prefix when it is called again")
    if _state(tried) != before:
        raise _stateful(processor, "changes its own state when it is called")


def _stateful(processor: Any, why: str) -> InvalidInput:
    return InvalidInput(
        f"The processor {type(processor).__name__} {why}, which a tree of drafts cannot follow; write it as "
        "a constraint (LLGuidanceConstraint, XGrammarConstraint or your own draftwood.Constraint), or "
        "decode without draftwood."
    )


def _state(obj: Any, depth: int = 4) -> Any:
    """Returns a comparable copy of an object's state, or the object itself if it has none to inspect."""
    if isinstance(obj, Tensor):
        return tuple(obj.shape), obj.dtype, hash(_bytes(obj))
    if isinstance(obj, np.ndarray):
        return obj.shape, obj.dtype, hash(obj.tobytes())
    if obj is None or isinstance(obj, bool | int | float | complex | str | bytes | count | Random):
        return obj.getstate() if isinstance(obj, Random) else repr(obj)
    if depth == 0 or isinstance(obj, torch.nn.Module | type):
        return id(obj)
    inner = partial(_state, depth=depth - 1)
    if isinstance(obj, Mapping):
        return [(inner(key), inner(value)) for key, value in obj.items()]
    if isinstance(obj, list | tuple | deque):
        return [inner(item) for item in obj]
    if isinstance(obj, set | frozenset):
        return sorted(repr(inner(item)) for item in obj)
    if isinstance(obj, MethodType):
        return inner(obj.__self__)
    if isinstance(obj, FunctionType):
        return [inner(cell.cell_contents) for cell in obj.__closure__ or ()]
    module = type(obj).__module__
    if not hasattr(obj, "__dict__") or module.startswith(("tokenizers", "transformers.tokenization")):
        return id(obj)
    return inner(vars(obj))


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
