"""Logits processors of xgrammar and outlines, followed as the constraints that they hold.

Such a processor goes on by one token a call, which a tree cannot. The grammar in it can be followed from any
node. A text begins anew for every call, as if the processor had not been used before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftwood import Constraint
from draftwood.base.errors import InvalidInput
from draftwood.strategies.constraints.llguidance import LLGuidanceConstraint
from draftwood.strategies.constraints.matching import package
from draftwood.strategies.constraints.outlines import OutlinesConstraint
from draftwood.strategies.constraints.xgrammar import XGrammarConstraint


def of_xgrammar(processor: Any, *, rows: int, ends: frozenset[int]) -> Sequence[Constraint]:
    """Returns one constraint per row for an `xgrammar.contrib.hf.LogitsProcessor`.

    Args:
        processor: it has one grammar for all rows, or one per row.
        rows: of the batch.
        ends: the tokens at which `generate` ends a text.

    Raises:
        InvalidInput: there are grammars for another number of rows, or a grammar ends a text elsewhere.
    """
    grammars = list(processor.compiled_grammars)
    # The processor repeats a single grammar for the rows of its first call.
    if len(set(map(id, grammars))) == 1:
        grammars = grammars[:1] * rows
    if len(grammars) != rows:
        raise InvalidInput(
            f"xgrammar's LogitsProcessor holds {len(grammars)} grammars for {rows} rows; give one per row, "
            "or one for all."
        )
    return [_of_compiled(grammar, ends) for grammar in grammars]


def of_outlines_core(processor: Any, *, rows: int, ends: frozenset[int]) -> Sequence[Constraint]:
    """Returns one constraint per row for a processor of outlines' own automata."""
    return [OutlinesConstraint(processor.index)] * rows


def of_outlines_xgrammar(processor: Any, *, rows: int, ends: frozenset[int]) -> Sequence[Constraint]:
    """Returns one constraint per row for a processor of outlines' backend "xgrammar"; errors as above."""
    return [_of_compiled(processor.compiled_grammar, ends)] * rows


def of_outlines_llguidance(processor: Any, *, rows: int, ends: frozenset[int]) -> Sequence[Constraint]:
    """Returns one constraint per row for a processor of outlines' backend "llguidance"; errors as above."""
    tokenizer = processor.llg_tokenizer
    _check_ends(tokenizer.eos_tokens, ends)
    first = package("llguidance").LLMatcher(tokenizer, processor.grammar, log_level=0)
    return [LLGuidanceConstraint(first, tokenizer)] * rows


def _of_compiled(grammar: Any, ends: frozenset[int]) -> Constraint:
    stops = tuple(grammar.tokenizer_info.stop_token_ids)
    _check_ends(stops, ends)
    return XGrammarConstraint(grammar, stops)


def _check_ends(stops: Sequence[int], ends: frozenset[int]) -> None:
    if not ends.issuperset(stops):
        raise InvalidInput(
            f"The grammar ends a text at the tokens {sorted(stops)} and generate() at {sorted(ends)}; give "
            f"generate() eos_token_id={sorted({*stops, *ends})}."
        )
