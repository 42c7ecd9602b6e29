"""llama.cpp itself, by llama-cpp-python, and the models that it holds."""

from __future__ import annotations

import importlib.util
import weakref
from functools import cache
from pathlib import Path
from typing import Any

import attrs

from draftwood.base.errors import InvalidInput, UnsupportedModel

UNUSED, CONTROL = 1 << 1, 1 << 3
"""llama.cpp's marks of tokens that only fill the vocabulary up, and of those that stand for no text."""


def is_installed() -> bool:
    """Whether llama-cpp-python can be imported."""
    return importlib.util.find_spec("llama_cpp") is not None


@cache
def library() -> Any:
    """Returns the functions of llama.cpp, which says nothing on the terminal from then on.

    Raises:
        InvalidInput: llama-cpp-python is not installed.
    """
    if not is_installed():
        raise InvalidInput(
            "A GGUF file needs the package llama-cpp-python, which is not installed; run "
            '`pip install "draftwood[gguf]"`, or name the folder of the original model.'
        )
    import llama_cpp

    silent = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(silent, None)
    # The library calls it for as long as it runs.
    llama_cpp.draftwood_log = silent
    llama_cpp.llama_backend_init()
    return llama_cpp


def model_options() -> Any:
    """Returns llama.cpp's options of a model, by which its matrix tiles (AMX) are left out.

    GCC drops a part of the tiles' configuration that llama.cpp writes, so that some builds end the process
    at the first pass over two tokens, where weights have 8 bits or fewer.
    """
    lib = library()
    options = lib.llama_model_default_params()
    # The tiles and other repacked weights are switched together.
    options.use_extra_bufts = options.use_extra_bufts and b"AMX_INT8 = 1" not in lib.llama_print_system_info()
    return options


@attrs.frozen(eq=False)
class Weights:
    """The model of a GGUF file, held by llama.cpp and freed with this object.

    Attributes:
        handle: llama.cpp's pointer to the model.
        vocabulary: its pointer to the vocabulary.
        vocab_size: tokens of the vocabulary.
    """

    handle: Any
    vocabulary: Any
    vocab_size: int

    @classmethod
    def of_file(cls, file: Path, *, on_gpu: bool = False, vocabulary_only: bool = False) -> Weights:
        """Read a file; its weights are mapped into memory.

        Args:
            file: a GGUF file, or the first part of one that was split.
            on_gpu: whether all layers go to the GPU that llama.cpp was built for.
            vocabulary_only: whether the weights are left out.

        Raises:
            InvalidInput: llama-cpp-python is not installed.
            UnsupportedModel: llama.cpp does not read the file.
        """
        lib = library()
        options = model_options()
        options.vocab_only = vocabulary_only
        options.n_gpu_layers = -1 if on_gpu else 0
        handle = lib.llama_model_load_from_file(str(file).encode(), options)
        if not handle:
            raise UnsupportedModel(
                f"llama.cpp does not read {file}; check the file, or install a newer llama-cpp-python."
            )
        vocabulary = lib.llama_model_get_vocab(handle)
        weights = cls(handle, vocabulary, lib.llama_vocab_n_tokens(vocabulary))
        weakref.finalize(weights, lib.llama_model_free, handle)
        return weights

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return int(library().llama_model_size(self.handle))

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """Tokens that end a text."""
        ends = library().llama_vocab_is_eog
        return tuple(token for token in range(self.vocab_size) if ends(self.vocabulary, token))

    @property
    def pad_token(self) -> int | None:
        """The token that pads texts."""
        token = int(library().llama_vocab_pad(self.vocabulary))
        return None if token < 0 else token
