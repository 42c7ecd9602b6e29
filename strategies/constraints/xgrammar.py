"""JSON schemas, regular expressions and EBNF grammars by the package xgrammar."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from draftwood.base.errors import InvalidInput
from draftwood.base.validators import as_ints
from draftwood.strategies.constraints.matching import Matcher, MatcherConstraint, ends, package


@attrs.frozen(eq=False)
class _XGrammarMatcher:
    matcher: Any
    bits: np.ndarray[Any, np.dtype[np.int32]]  # [1, words]
    vocab_size: int

    def accept(self, token: int) -> bool:
        return 0 <= token < self.vocab_size and bool(self.matcher.accept_token(token))

    def rollback(self, tokens: int) -> None:
        self.matcher.rollback(tokens)

    def complete(self) -> bool:
        return bool(self.matcher.is_completed())

    def mask(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        self.matcher.fill_next_token_bitmask(self.bits)
        mask: np.ndarray[Any, np.dtype[np.uint8]] = self.bits.view(np.uint8)[0]
        return mask


@attrs.frozen(eq=False)
class XGrammarConstraint(MatcherConstraint):
    """A constraint by a grammar that xgrammar compiled.

    Args:
        compiled: a `xgrammar.CompiledGrammar`.
        eos_token_ids: the tokens that end a text, those that `generate` ends at.
    """

    compiled: Any = attrs.field(repr=False)
    eos_token_ids: tuple[int, ...] = attrs.field(converter=as_ints)

    @classmethod
    def json_schema(
        cls,
        schema: Mapping[str, Any] | str,
        tokenizer: Any,
        *,
        eos_token_id: int | Sequence[int] | None = None,
        any_whitespace: bool = False,
    ) -> XGrammarConstraint:
        """Texts that are JSON and fit `schema`, an object or its text.

        Args:
            tokenizer: that of the models.
            eos_token_id: default: the tokenizer's own.
            any_whitespace: allow any between the parts; else as `json.dumps` writes it, which bounds
                the text's length where the schema does.

        Raises:
            InvalidInput: xgrammar is not installed, or cannot serve the schema.
        """
        text = schema if isinstance(schema, str) else json.dumps(schema)
        unread = _unread(_as_object(text))
        if unread is not None:
            raise InvalidInput(
                f"xgrammar does not read {unread!r} in a JSON schema, and would allow what it forbids; leave "
                "it out, or try llguidance."
            )
        return cls._compiled(
            lambda compiler: compiler.compile_json_schema(text, any_whitespace=any_whitespace),
            tokenizer,
            eos_token_id,
        )

    @classmethod
    def regex(
        cls, pattern: str, tokenizer: Any, *, eos_token_id: int | Sequence[int] | None = None
    ) -> XGrammarConstraint:
        """Texts that match all of the regular expression `pattern`; errors as `json_schema`."""
        return cls._compiled(lambda compiler: compiler.compile_regex(pattern), tokenizer, eos_token_id)

    @classmethod
    def grammar(
        cls, text: str, tokenizer: Any, *, eos_token_id: int | Sequence[int] | None = None
    ) -> XGrammarConstraint:
        """Texts of the rule `root` in the GBNF grammar `text`; errors as `json_schema`."""
        return cls._compiled(lambda compiler: compiler.compile_grammar(text), tokenizer, eos_token_id)

    @classmethod
    def _compiled(
        cls, make: Callable[[Any], Any], tokenizer: Any, eos_token_id: int | Sequence[int] | None
    ) -> XGrammarConstraint:
        xgrammar = package("xgrammar")
        stops = ends(tokenizer, eos_token_id)
        try:
            info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, stop_token_ids=list(stops))
            return cls(make(xgrammar.GrammarCompiler(info)), stops)
        except (RuntimeError, ValueError) as error:
            raise InvalidInput(f"xgrammar does not support this constraint: {_reason(error)}.") from error

    def matcher(self) -> Matcher:
        xgrammar = package("xgrammar")
        vocab_size = self.compiled.tokenizer_info.vocab_size
        return _XGrammarMatcher(
            xgrammar.GrammarMatcher(self.compiled, override_stop_tokens=list(self.eos_token_ids)),
            np.zeros((1, -(-vocab_size // 32)), dtype=np.int32),
            vocab_size,
        )


# xgrammar 0.2 ignores some keywords, and others in certain combinations (seen: a text that breaks
# them was accepted), so that what it is not sure to read is refused.
_NOTES = frozenset(
    [
        "$comment",
        "$id",
        "$schema",
        "default",
        "deprecated",
        "description",
        "examples",
        "format",
        "readOnly",
        "title",
        "writeOnly",
    ]
)
_BY_NAME = ("$defs", "definitions", "patternProperties", "properties")  # schemas by a name of the user's
_READ = frozenset(
    [
        "additionalProperties",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "items",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "pattern",
        "prefixItems",
        "required",
        "type",
    ]
)
_ALONE = ("$ref", "anyOf", "const", "enum")  # keywords next to them are not read
_VALUES = ("const", "default", "enum", "examples")  # no schemas, whatever they look like


def _unread(schema: Any) -> str | None:
    """The first keyword in `schema`, or in one within it, that xgrammar does not read."""
    if isinstance(schema, list):
        return next((inner for part in schema if (inner := _unread(part))), None)
    if not isinstance(schema, dict):
        return None
    readable = _NOTES | _READ | {*_ALONE, *_BY_NAME}
    unread: list[str] = [
        keyword for keyword, value in schema.items() if keyword not in readable and value is not False
    ]
    if any(keyword in schema for keyword in _ALONE):
        first = next(keyword for keyword in _ALONE if keyword in schema)
        beside = {first, "$defs", "definitions", "type", *_NOTES}
        unread += [f"{keyword} together with {first}" for keyword in schema if keyword not in beside]
    if "pattern" in schema:
        unread += [f"{name} together with pattern" for name in ("minLength", "maxLength") if name in schema]
    if unread:
        return unread[0]
    for keyword, value in schema.items():
        by_name = keyword in _BY_NAME and isinstance(value, dict)
        if keyword not in _VALUES and (inner := _unread(list(value.values()) if by_name else value)):
            return inner
    return None


def _as_object(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None  # xgrammar says what is wrong with it


def _reason(error: Exception) -> str:
    """Returns the message of xgrammar's error, without the clock and the source line in front of it."""
    message = str(error).strip().splitlines()[0]
    return message.rpartition("] ")[2].partition(": ")[2].rstrip(". ") or message.rstrip(". ")
