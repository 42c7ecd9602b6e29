"""JSON schemas, regular expressions and Lark grammars by the package llguidance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from draftwood.base.errors import InvalidInput
from draftwood.strategies.constraints.matching import Matcher, MatcherConstraint, ends, package


@attrs.frozen(eq=False)
class _LLGuidanceMatcher:
    matcher: Any
    vocab_size: int

    def accept(self, token: int) -> bool:
        # A token outside the vocabulary breaks the matcher for good; and where the text is forced it takes
        # other spellings than the one that its mask allows.
        forced = self.matcher.compute_ff_tokens() if 0 <= token < self.vocab_size else ()
        if not 0 <= token < self.vocab_size or (forced and forced[0] != token):
            return False
        return bool(self.matcher.try_consume_tokens([token]))

    def rollback(self, tokens: int) -> None:
        self.matcher.rollback(tokens)

    def complete(self) -> bool:
        return bool(self.matcher.is_accepting())

    def mask(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return np.frombuffer(self.matcher.compute_bitmask(), dtype=np.uint8)


@attrs.frozen(eq=False)
class LLGuidanceConstraint(MatcherConstraint):
    """A constraint by a grammar of llguidance. Text that the grammar forces is allowed in one spelling only.

    Args:
        first: a `llguidance.LLMatcher` at the beginning of a text.
        tokenizer: the `llguidance.LLTokenizer` that it was made with.
    """

    first: Any = attrs.field(repr=False)
    tokenizer: Any = attrs.field(repr=False)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(self.tokenizer.eos_tokens)

    @classmethod
    def json_schema(
        cls,
        schema: Mapping[str, Any] | str,
        tokenizer: Any,
        *,
        eos_token_id: int | Sequence[int] | None = None,
        any_whitespace: bool = False,
    ) -> LLGuidanceConstraint:
        """Texts that are JSON and fit `schema`, an object or its text.

        Args:
            tokenizer: that of the models.
            eos_token_id: default: the tokenizer's own.
            any_whitespace: allow any between the parts; else none, which bounds the text's length where
                the schema does.

        Raises:
            InvalidInput: llguidance is not installed, or cannot serve the schema.
        """
        text = schema if isinstance(schema, str) else json.dumps(schema)
        matcher = package("llguidance").LLMatcher
        try:
            grammar = matcher.grammar_from_json_schema(
                text, overrides={"whitespace_flexible": any_whitespace}
            )
        except ValueError as error:
            raise _refused(str(error)) from error
        return cls._compiled(grammar, tokenizer, eos_token_id)

    @classmethod
    def regex(
        cls, pattern: str, tokenizer: Any, *, eos_token_id: int | Sequence[int] | None = None
    ) -> LLGuidanceConstraint:
        """Texts that match all of the regular expression `pattern`; errors as `json_schema`."""
        return cls._compiled(
            package("llguidance").LLMatcher.grammar_from_regex(pattern), tokenizer, eos_token_id
        )

    @classmethod
    def grammar(
        cls, text: str, tokenizer: Any, *, eos_token_id: int | Sequence[int] | None = None
    ) -> LLGuidanceConstraint:
        """Texts of the rule `start` in the Lark grammar `text`; errors as `json_schema`."""
        return cls._compiled(package("llguidance").LLMatcher.grammar_from_lark(text), tokenizer, eos_token_id)

    @classmethod
    def _compiled(
        cls, grammar: str, tokenizer: Any, eos_token_id: int | Sequence[int] | None
    ) -> LLGuidanceConstraint:
        llguidance, hf = package("llguidance"), package("llguidance.hf")
        stops = list(ends(tokenizer, eos_token_id))
        if not getattr(tokenizer, "is_fast", True):
            raise InvalidInput(
                f"llguidance does not read a {type(tokenizer).__name__}; name the original model's fast "
                "tokenizer by --tokenizer or tokenizer=."
            )
        vocabulary = hf.from_tokenizer(tokenizer, eos_token=stops)
        first = llguidance.LLMatcher(vocabulary, grammar, log_level=0)
        if first.is_error():
            raise _refused(first.get_error())
        return cls(first, vocabulary)

    def matcher(self) -> Matcher:
        return _LLGuidanceMatcher(self.first.deep_copy(), self.tokenizer.vocab_size)


def _refused(why: str) -> InvalidInput:
    reason = next((line for line in why.splitlines() if line.strip()), "no reason given")
    return InvalidInput(f"llguidance does not support this constraint: {reason.strip().rstrip('.')}.")
