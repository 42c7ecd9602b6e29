"""A context of llama.cpp: the keys and values of all sequences, and calls that read tokens into it."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal

import attrs
import numpy as np
from numpy.typing import NDArray

from draftwood.backends.gguf.library import Weights, library
from draftwood.base.errors import InvalidInput, OutOfMemory, UnsupportedModel

KeyType = Literal["float32", "float16", "bfloat16"]
KINDS: dict[str, int] = {"float32": 0, "float16": 1, "bfloat16": 30}
"""llama.cpp's numbers of the types of keys and values."""

SMALLEST = 1024
"""Cells, each of which holds a token, that a context begins with."""

FEWEST_SEQUENCES, MOST_SEQUENCES = 16, 256
"""Sequences that a context begins with, and llama.cpp's own limit."""

_NO_ROOM = (1, -2)
"""llama.cpp's results of a pass for which there are no cells or no memory."""

BATCH, PASS = 2048, 512
"""Tokens of a call, and tokens that llama.cpp computes at once."""


@attrs.frozen
class Settings:
    """Settings of a context.

    Attributes:
        keys: type of keys and values.
        threads: of a pass.
        flash: whether flash attention runs, which rounds float32 to half precision.
        most_cells: cells at most; None: as many as fit into memory.
    """

    keys: KeyType = attrs.field(validator=attrs.validators.in_(KINDS))
    threads: int
    flash: bool = False
    most_cells: int | None = None


@attrs.frozen
class Tokens:
    """Tokens of one call, all fields of one length.

    Attributes:
        tokens: their numbers.
        positions: of each, tokens before it.
        sequences: of each, the sequences that it joins; it sees what the first one holds.
        wanted: of each, whether the logits after it are wanted.
    """

    tokens: Sequence[int]
    positions: Sequence[int]
    sequences: Sequence[Sequence[int]]
    wanted: Sequence[bool]

    def __len__(self) -> int:
        return len(self.tokens)


class Context:
    """Cells for tokens, and sequences of them, which grow in number as they are needed."""

    def __init__(self, weights: Weights, settings: Settings) -> None:
        """Hold no tokens yet.

        Raises:
            OutOfMemory: there is no room for the smallest context.
            UnsupportedModel: a model that keeps no keys and values.
        """
        self._lib = library()
        self._weights, self._settings = weights, settings
        self._cells = self._sequences = 0
        self._memory: Any = None
        self._free: Any = None
        self.reserve(cells=1, sequences=1)
        if not self._memory:
            raise UnsupportedModel(
                "llama.cpp keeps no keys and values for this model, so it writes no text; use a decoder-only "
                "language model."
            )

    def reserve(self, *, cells: int, sequences: int) -> None:
        """Make room for so many tokens in all, and sequences, those that are held included.

        Raises:
            InvalidInput: more than `Settings.most_cells`.
            OutOfMemory: they do not fit; the context is as it was.
        """
        if cells <= self._cells and sequences <= self._sequences:
            return
        most = self._settings.most_cells
        if most is not None and cells > most:
            raise InvalidInput(
                f"All rows together hold {cells} tokens, and this model's rotations change beyond {most}; "
                "use fewer rows or shorter prompts."
            )
        cells = max(self._cells, SMALLEST, _power_of_two(cells))
        cells = cells if most is None else min(cells, most)
        sequences = max(self._sequences, FEWEST_SEQUENCES, _power_of_two(sequences))
        handle = self._made(cells, sequences)
        if self._cells:
            self._copy_to(handle)
            self._free()
        self._handle, self._cells, self._sequences = handle, cells, sequences
        self._memory = self._lib.llama_get_memory(handle)
        self._free = weakref.finalize(self, _free, handle, self._weights)

    def decode(self, call: Tokens) -> NDArray[np.float32]:
        """Read tokens into their sequences.

        Returns:
            Logits `[wanted, vocab]`, a view that the next call overwrites.

        Raises:
            OutOfMemory: a pass does not fit; some tokens may have been read.
            UnsupportedModel: llama.cpp refuses the pass.
        """
        counts = np.fromiter(map(len, call.sequences), np.int32, len(call))
        flat = np.fromiter(chain.from_iterable(call.sequences), np.int32, int(counts.sum()))
        # For every token the address of its first sequence.
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts[:-1], dtype=np.int64)])
        addresses = (flat.ctypes.data + offsets * flat.itemsize).astype(np.uintp)
        tokens, positions = np.asarray(call.tokens, np.int32), np.asarray(call.positions, np.int32)
        wanted = np.asarray(call.wanted, np.int8)
        found = list[NDArray[np.float32]]()
        for start in range(0, len(call), BATCH):
            part = slice(start, start + BATCH)
            arrays: list[Any] = [tokens[part], positions[part], counts[part], addresses[part], wanted[part]]
            batch = _batch(self._lib, *arrays)
            failure = self._lib.llama_decode(self._handle, batch)
            if failure and failure not in _NO_ROOM:
                raise UnsupportedModel(
                    f"llama.cpp does not run a pass over {len(arrays[0])} tokens (its error {failure}); load "
                    "the original model with transformers."
                )
            if failure:
                raise OutOfMemory(
                    f"llama.cpp could not read {len(arrays[0])} tokens (its error {failure}); use fewer "
                    "rows, a smaller tree budget or a shorter prompt."
                )
            if outputs := int(arrays[-1].sum()):
                logits = self._lib.llama_get_logits(self._handle)
                found.append(np.ctypeslib.as_array(logits, (outputs, self._weights.vocab_size)))
                if start + BATCH < len(call):
                    found[-1] = found[-1].copy()
        if not found:
            return np.empty((0, self._weights.vocab_size), np.float32)
        return found[0] if len(found) == 1 else np.concatenate(found)

    def copy(self, source: int, to: int, *, length: int) -> None:
        """Let the first `length` tokens of a sequence belong to another one too."""
        if length:
            self._lib.llama_memory_seq_cp(self._memory, source, to, 0, length)

    def cut(self, sequence: int, *, length: int) -> None:
        """Keep the first `length` tokens of a sequence; with 0 it is empty, and free."""
        self._lib.llama_memory_seq_rm(self._memory, sequence, length or -1, -1)

    def _made(self, cells: int, sequences: int) -> Any:
        options = self._lib.llama_context_default_params()
        options.n_ctx = cells
        options.n_batch, options.n_ubatch = min(cells, BATCH), min(cells, PASS)
        options.n_seq_max = sequences
        # One set of cells for all sequences, which share them.
        options.kv_unified = True
        # Cells before an attention window stay, for paths that a commit drops.
        options.swa_full = True
        options.n_threads = options.n_threads_batch = self._settings.threads
        options.type_k = options.type_v = KINDS[self._settings.keys]
        options.flash_attn_type = int(self._settings.flash)
        options.no_perf = True
        handle = self._lib.llama_init_from_model(self._weights.handle, options)
        if not handle:
            raise OutOfMemory(
                f"llama.cpp could not make room for {cells} tokens; use fewer rows, shorter prompts or a "
                "half-precision dtype."
            )
        return handle

    def _copy_to(self, handle: Any) -> None:
        """Copy all cells into another context."""
        lib = self._lib
        size = lib.llama_state_get_size(self._handle)
        buffer = (ctypes.c_uint8 * size)()
        written = lib.llama_state_get_data(self._handle, buffer, size)
        if lib.llama_state_set_data(handle, buffer, written) != written:
            _free(handle, self._weights)
            raise OutOfMemory(
                f"llama.cpp could not move {self._cells} tokens into a larger context; use fewer rows or "
                "shorter prompts."
            )


def _power_of_two(count: int) -> int:
    """The smallest one that is not below `count`."""
    return 1 << (count - 1).bit_length()


def _free(handle: Any, weights: Weights) -> None:
    """Free a context; `weights`, which it reads, are there until then."""
    library().llama_free(handle)


def _batch(
    lib: Any,
    tokens: NDArray[np.int32],
    positions: NDArray[np.int32],
    counts: NDArray[np.int32],
    addresses: NDArray[np.uintp],
    wanted: NDArray[np.int8],
) -> Any:
    """llama.cpp's record over these arrays, which must outlive it."""

    def pointer(array: NDArray[Any], kind: Any) -> Any:
        return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))

    batch = lib.llama_batch()
    batch.n_tokens = len(tokens)
    batch.token = pointer(tokens, ctypes.c_int32)
    batch.pos = pointer(positions, ctypes.c_int32)
    batch.n_seq_id = pointer(counts, ctypes.c_int32)
    batch.seq_id = pointer(addresses, ctypes.POINTER(ctypes.c_int32))
    batch.logits = pointer(wanted, ctypes.c_int8)
    return batch
