"""llama.cpp as a contender: its passes by llama-cpp-python, plain and under chains of its draft.

Its own programs are not driven, since they read one prompt each; the loop here is theirs: the draft proposes,
one pass of the target scores, and the tokens up to the first other one are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.engines.contenders import AS_THEY_ARE, Contender, Writer, Written
from draftwood.backends.gguf.library import library, model_options
from draftwood.base.errors import InvalidInput

CHAINS = (4,)
"""Tokens that its draft proposes per target pass."""

KINDS = {"float32": 0, "bfloat16": 30}
"""llama.cpp's numbers of the types of keys and values; its Python package does not name the second."""

LONGEST = 1024
"""Tokens of a prompt and a text."""


def contenders(target: Path, draft: Path, *, weights: str, dtype: str, threads: int) -> list[Contender]:
    """Plain decoding, and chains of a draft.

    Args:
        target: a GGUF file.
        draft: that of the draft.
        weights: bits of the target's weights, or AS_THEY_ARE.
        dtype: "float32" or "bfloat16", that of keys and values.
        threads: of the engine.
    """
    label = f"llama.cpp, {target.stem.split('-')[-1]}"
    ways = dict[str, Writer]()
    for flash in (False, True):
        model = Context(target, dtype=dtype, threads=threads, flash=flash)
        small = Context(draft, dtype="float32", threads=1, flash=flash)
        with_flash = ", flash attention" if flash else ""
        ways[f"{label}, plain{with_flash}"] = by_chains(model, small, chain=0)
        for chain in CHAINS:
            ways[f"{label}, its draft of {chain}{with_flash}"] = by_chains(model, small, chain=chain)
    texts = texts_of(target, weights=weights)
    return [Contender(name, write, weights=weights, texts=texts) for name, write in ways.items()]


def texts_of(target: Path, *, weights: str) -> str:
    """Returns `Contender.texts` of a GGUF file: rounded weights are another model."""
    return "the model" if weights == AS_THEY_ARE else f"llama.cpp, {target.stem.split('-')[-1]}"


class Context:
    """A model of llama.cpp with the keys and values of one text."""

    def __init__(self, file: Path, *, dtype: str, threads: int, flash: bool) -> None:
        """Read the GGUF file; with flash attention, which is llama.cpp's default, or without."""
        self._lib = llama_cpp = library()
        self._model = llama_cpp.llama_model_load_from_file(str(file).encode(), model_options())
        if not self._model:
            raise InvalidInput(f"llama.cpp does not read {file}; write it again with engine-folders.")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = LONGEST, LONGEST, LONGEST
        options.n_threads = options.n_threads_batch = threads
        options.type_k = options.type_v = KINDS[dtype]
        options.flash_attn_type = int(flash)
        self._context = llama_cpp.llama_init_from_model(self._model, options)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(LONGEST, 0, 1)
        self.length = 0

    def keep(self, length: int) -> None:
        """Forget all tokens after the first `length`."""
        self._lib.llama_memory_seq_rm(self._memory, 0, length, -1)
        self.length = length

    def likeliest(self, tokens: Sequence[int], *, last: int) -> list[int]:
        """Returns the most likely token after each of the `last` ones of `tokens`, which it reads."""
        batch, count = self._batch, len(tokens)
        batch.n_tokens = count
        for place, token in enumerate(tokens):
            batch.token[place], batch.pos[place] = token, self.length + place
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
            batch.logits[place] = place >= count - last
        if self._lib.llama_decode(self._context, batch):
            raise InvalidInput(f"llama.cpp does not read {count} tokens; give shorter prompts.")
        self.length += count
        found = []
        for place in range(count - last, count):
            logits = self._lib.llama_get_logits_ith(self._context, place)
            found.append(int(np.ctypeslib.as_array(logits, (self._vocab,)).argmax()))
        return found


def by_chains(target: Context, draft: Context, *, chain: int) -> Writer:
    """Chains of `chain` tokens of the draft; 0: one token per pass."""

    def write(prompt: list[int], count: int) -> Written:
        target.keep(0)
        draft.keep(0)
        text, passes = [*prompt, *target.likeliest(prompt, last=1)], 1
        if chain:
            draft.likeliest(prompt, last=1)
        while len(text) < len(prompt) + count:
            proposed = list[int]()
            if chain:
                proposed += draft.likeliest(text[draft.length :], last=1)
                while len(proposed) < chain:
                    proposed += draft.likeliest(proposed[-1:], last=1)
            scored = target.likeliest([text[-1], *proposed], last=len(proposed) + 1)
            passes += 1
            right = 0
            while right < len(proposed) and proposed[right] == scored[right]:
                right += 1
            text += scored[: right + 1]
            target.keep(len(text) - 1)
            draft.keep(min(draft.length, len(text) - 1))
        return Written(text[len(prompt) :][:count], passes)

    return write
