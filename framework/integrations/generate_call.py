"""The arguments of a call of transformers' `generate` of which it does not tell a custom loop.

Seen in transformers 5.23 and 5.24: a custom loop gets neither `streamer`, `tokenizer` nor `assistant_model`,
nor the names of the arguments that were given. `generate` passes all of them to one of its methods; `watch`
lets that method note them for our loops. Where a version has no such method, `Call.taken` gives None.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from functools import wraps
from typing import Any

import attrs
from torch import Tensor

_METHOD = "_extract_generation_mode_kwargs"
_PARAMETERS = {"custom_generate", "kwargs", "assistant_model", "streamer"}


@attrs.frozen(eq=False)
class Call:
    """A call of `generate` that is under way.

    Attributes:
        streamer: or None.
        assistant_model: or None.
        tokenizer: or None.
        arguments: further arguments that hold anything, by name.
    """

    streamer: Any = None
    assistant_model: Any = None
    tokenizer: Any = None
    arguments: Mapping[str, Any] = attrs.field(factory=dict, repr=False)

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Call:
        """The call with these keyword arguments."""
        named = ("streamer", "assistant_model", "tokenizer")
        others = {
            name: value for name, value in arguments.items() if name not in named and says_something(value)
        }
        return cls(**{name: arguments.get(name) for name in named}, arguments=others)

    def note(self) -> None:
        """Keep it for the loop that `generate` is about to call in this thread."""
        _noted.set(self)

    @classmethod
    def taken(cls) -> Call | None:
        """The call that was noted last in this thread, once; None where none was."""
        call = _noted.get()
        _noted.set(None)
        return call


_noted: ContextVar[Call | None] = ContextVar("call of generate", default=None)


def says_something(value: Any) -> bool:
    """Returns whether an argument holds anything: not None, and no empty list, mapping or tensor."""
    if isinstance(value, Tensor):
        return value.numel() > 0
    return value is not None and not (isinstance(value, Mapping | Sequence) and not len(value))


def watch(loop: type) -> None:
    """From now on note the arguments of calls of `generate` whose `custom_generate` is a `loop`."""
    from transformers import GenerationMixin

    extract: Any = getattr(GenerationMixin, _METHOD, None)
    if extract is None or hasattr(extract, "_noting"):
        return
    signature = inspect.signature(extract)
    if not signature.parameters.keys() >= _PARAMETERS:
        return

    @wraps(extract)
    def noting(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        call = Call.of(
            {**given["kwargs"], **{name: given.get(name) for name in ("streamer", "assistant_model")}}
        )
        extracted = extract(*args, **kwargs)
        if isinstance(given["custom_generate"], loop):
            call.note()
            if call.tokenizer is not None and isinstance(extracted, dict):
                # `generate` drops it, and then cannot build stop strings.
                extracted = {"tokenizer": call.tokenizer, **extracted}
        return extracted

    noting._noting = True  # type: ignore[attr-defined]
    setattr(GenerationMixin, _METHOD, noting)
