"""Tells errors of a sampler from errors of the machine and of random numbers that are not drawn yet."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from traceback import walk_tb
from typing import Any

import torch

from draftwood.base.errors import DraftwoodError, InvalidDistribution, InvalidInput
from draftwood.base.machine_faults import machine_fault
from draftwood.testing.samplers.lazy_numbers import NOT_DRAWN

_OF_FOREIGN_CODE = (TypeError, ValueError, AttributeError, RuntimeError, AssertionError)
"""Errors of code that is given a random number which is not drawn yet."""

_OURS = (
    "coarse_dtypes.py",
    "followed_functions.py",
    "lazy_arrays.py",
    "lazy_dtypes.py",
    "lazy_numbers.py",
    "lazy_orders.py",
    "lazy_tensors.py",
    "number_functions.py",
    "ordered_tensors.py",
    "torch_randomness.py",
    "other_randomness.py",
)

_PLAIN = (
    (re.compile(r"\bLazyNumber\b"), "a random number"),
    (re.compile(r"\bLazy(Tensor|Array)\b"), "random numbers"),
    (re.compile(r"<function \S*<lambda> at 0x[0-9a-fA-F]+>|'[\w.<>]*<lambda>'"), "a function"),
    (re.compile(r"\.__format__\b"), ""),
    (re.compile(r"<(?:[\w<>]+\.)*(\w+) object at 0x[0-9a-fA-F]+>"), r"\1"),
    (re.compile(r"\b_?\w+(\.\w+)*\.<locals>\."), ""),
    (re.compile(r"<(?:built-in |bound )?(?:function|method|class) '?([^\s'>]+)'?[^<>]*>"), r"\1"),
    (re.compile(r" at 0x[0-9a-fA-F]+"), ""),
)
"""Names and addresses of Python's objects, and the words in their place."""

_DEVICE = re.compile(r"cuda|nvidia|rocm|\bxpu\b|\bmps\b|active drivers", re.IGNORECASE)


class RefusedWeights(InvalidDistribution, RuntimeError):
    """Probabilities that torch refuses, told as the error of torch."""


def in_plain_words(error: BaseException) -> str:
    """Returns the kind and the message of an error, on one line, without names of internal objects."""
    return plain(f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": "))


def plain(words: str) -> str:
    """Returns words without addresses and names that only Python's internals have."""
    for internal, told in _PLAIN:
        words = internal.sub(told, words)
    return words


def name_of(sampler: Any) -> str:
    """Returns the name of a sampler in a sentence: that of the function, or of the object's class."""
    inner = getattr(sampler, "func", sampler)  # of a functools.partial
    name = getattr(inner, "__name__", None) or type(inner).__name__
    return "The sampler" if name == "<lambda>" or not name.strip("_") else str(name)


@contextlib.contextmanager
def without_exits() -> Iterator[None]:
    """Within it code that ends the process raises `InvalidInput`; Ctrl-C ends it still."""
    try:
        yield
    except SystemExit as error:
        raise InvalidInput(
            f"The sampler ends the process (sys.exit with {error.code!r}), so there is no verdict; let it "
            "return tokens or raise an error."
        ) from error


def raise_where_it_is_no_fault(error: Exception) -> None:
    """Raise where the machine is the reason of an error: it lacks a package, a device or memory."""
    if isinstance(error, ImportError) or machine_fault(error) is not None:
        raise error
    if not torch.cuda.is_available() and _DEVICE.search(str(error)):
        raise InvalidInput(
            f"The sampler asks for a device that this machine does not have ({type(error).__name__}: "
            f"{error}); run the proof where the device is."
        ) from error


def comes_of_enumeration(error: Exception) -> bool:
    """Returns whether an error is about numbers that are not drawn yet, rather than of the sampler."""
    if isinstance(error, InvalidDistribution):
        return False  # torch refuses such weights too
    if _of_a_package(error):  # numba raises again what it raised once, so that trials would tell nothing
        return True
    files = {frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)}
    ours = any(file.endswith(_OURS) for file in files)
    return ours or "Lazy" in str(error) or NOT_DRAWN in str(error)


def may_come_of_enumeration(error: Exception | None) -> bool:
    """Returns whether an error may be about numbers that are not drawn yet."""
    # torch too refuses weights with nan.
    return isinstance(error, _OF_FOREIGN_CODE) and not isinstance(error, InvalidDistribution)


def _of_a_package(error: Exception) -> bool:
    """Returns whether an installed package defines the error's class, as numba does."""
    module = sys.modules.get(type(error).__module__)
    ours = isinstance(error, DraftwoodError)
    return "site-packages" in (getattr(module, "__file__", None) or "") and not ours
