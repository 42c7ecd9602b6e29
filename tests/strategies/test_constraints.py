"""Grammars of xgrammar and llguidance as constraints: every mask only depends on its prefix."""

import json
import sys
from typing import Any

import llguidance
import llguidance.hf
import numpy as np
import pytest
import regex
import torch
import xgrammar
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood import zoo
from draftwood.base.errors import InvalidInput
from draftwood.distributions.processing import check_processors
from draftwood.protocols import registry
from draftwood.strategies.constraints.llguidance import LLGuidanceConstraint
from draftwood.strategies.constraints.matching import ends
from draftwood.strategies.constraints.xgrammar import XGrammarConstraint
from draftwood.trees.prefixes import RowText
from tests.strategies.pattern_constraint import PatternConstraint, spellings

TOKENIZER = zoo.tokenizer()
VOCAB = len(TOKENIZER)
ADAPTERS = [XGrammarConstraint, LLGuidanceConstraint]
PATTERNS = ["ab[0-9]{2,4}(cd|ce)*", "(yes|no|yesterday)", "[a-c]{1,3}=[0-9]+;", "(the |there )*end"]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["red", "green", "grey"]},
        "counts": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 40}, "maxItems": 3},
    },
    "required": ["name", "kind", "counts"],
    "additionalProperties": False,
}


def grown(constraint, choices):
    """States of a random tree and their tokens: every choice is a parent and which allowed token follows."""
    states, texts = [constraint.start([5, 6])], [list[int]()]
    for parent, choice in choices:
        parent %= len(states)
        allowed = constraint.masks([states[parent]], VOCAB)[0].nonzero().flatten()
        token = int(allowed[choice % len(allowed)])
        states.append(constraint.advance(states[parent], token))
        texts.append([*texts[parent], token])
    return states, texts


def xgrammar_from_scratch(compiled, text):
    matcher = xgrammar.GrammarMatcher(compiled)
    bits = xgrammar.allocate_token_bitmask(1, VOCAB)
    assert all(matcher.accept_token(token) for token in text)
    matcher.fill_next_token_bitmask(bits)
    return np.unpackbits(bits.numpy().view(np.uint8), bitorder="little").astype(bool)


def llguidance_from_scratch(grammar, tokenizer, text):
    matcher = llguidance.LLMatcher(tokenizer, grammar)
    assert matcher.consume_tokens(text)
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    return np.unpackbits(bits, count=VOCAB, bitorder="little").astype(bool)


trees = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4095)), min_size=1, max_size=30)


def check_masks(constraint, expected, choices, order):
    """The masks of a tree's states, asked in any order and in batches, are those `expected` of the texts."""
    states, texts = grown(constraint, choices)
    assert all(state is not None for state in states)  # what a mask allows can follow
    indices = order.sample(range(len(states)), len(states))
    for batch in (indices[:3], indices[3:]):
        if batch:
            masks = constraint.masks([states[index] for index in batch], VOCAB)
            assert masks.dtype == torch.bool
            assert masks.shape == (len(batch), VOCAB)
            for index, mask in zip(batch, masks, strict=True):
                if 0 not in texts[index]:
                    assert np.array_equal(mask.numpy(), expected(texts[index])), texts[index]
                else:
                    assert mask.nonzero().tolist() == [[0]]


@given(trees, st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_json_masks_are_those_of_a_fresh_xgrammar_matcher(choices, order):
    constraint = XGrammarConstraint.json_schema(SCHEMA, TOKENIZER)
    check_masks(constraint, lambda text: xgrammar_from_scratch(constraint.compiled, text), choices, order)


@given(trees, st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_json_masks_are_those_of_a_fresh_llguidance_matcher(choices, order):
    constraint = llguidance_json()
    grammar = llguidance.LLMatcher.grammar_from_json_schema(SCHEMA, overrides={"whitespace_flexible": False})
    check_masks(
        constraint, lambda text: llguidance_from_scratch(grammar, constraint.tokenizer, text), choices, order
    )


def llguidance_json(made=[]):  # noqa: B006 (making the tokenizer's table takes a while)
    if not made:
        made.append(LLGuidanceConstraint.json_schema(json.dumps(SCHEMA), TOKENIZER))
    return made[0]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_masks_of_a_pattern_are_those_of_a_regular_expression(adapter, pattern):
    constraint, oracle = adapter.regex(pattern, TOKENIZER), PatternConstraint(pattern)
    random = np.random.default_rng(3)
    states, texts = grown(constraint, random.integers(0, 4096, (12, 2)).tolist())
    for index in random.permutation(len(states)):
        mask, prefix = constraint.masks([states[index]], VOCAB)[0], oracle.start([])
        for token in texts[index]:
            prefix = oracle.advance(prefix, token)
        expected = oracle.masks([prefix], VOCAB)[0]
        if adapter is LLGuidanceConstraint and int(mask.sum()) == 1:  # forced text has one spelling there
            assert expected[mask].all()
        else:
            assert torch.equal(mask, expected), texts[index]


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_token_follows_where_the_mask_has_it_and_nowhere_else(adapter, capfd):
    constraint = adapter.json_schema(SCHEMA, TOKENIZER)
    states, _ = grown(constraint, np.random.default_rng(0).integers(0, 4096, (12, 2)).tolist())
    wide = constraint.masks(states, VOCAB + 5)  # logits wider than the tokenizer
    assert not wide[:, VOCAB:].any()
    for state, mask in zip(states, wide.tolist(), strict=True):
        follows = [constraint.advance(state, token) is not None for token in range(VOCAB + 5)]
        assert follows == mask
    assert torch.equal(constraint.masks(states, 100), wide[:, :100])  # and narrower
    assert capfd.readouterr().err == ""  # a package that is asked for a strange token complains there


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_behind_its_end_a_text_only_ends(adapter):
    constraint = adapter.regex("ab", TOKENIZER, eos_token_id=[0, 9])
    (token,) = TOKENIZER("ab")["input_ids"]
    start = constraint.start([])
    assert constraint.advance(start, 0) is None
    whole = constraint.advance(start, token)
    for end in (0, 9):
        over = constraint.advance(whole, end)
        assert constraint.masks([over, whole], VOCAB).nonzero().tolist() == [[0, 0], [0, 9], [1, 0], [1, 9]]
        assert constraint.advance(over, token) is None
        assert constraint.advance(over, 9) is not None
    assert constraint.masks([start], VOCAB)[0, token]  # the matcher is where it was


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_long_text_is_not_walked_again(adapter, monkeypatch):
    constraint = adapter.regex("(ab)*", TOKENIZER)
    (token,) = TOKENIZER("ab")["input_ids"]
    made = constraint.matcher()
    moved = {"accept": 0, "rollback": 0}

    class Counted:
        def accept(self, token):
            moved["accept"] += 1
            return made.accept(token)

        def rollback(self, tokens):
            moved["rollback"] += 1
            made.rollback(tokens)

        def __getattr__(self, name):
            return getattr(made, name)

    monkeypatch.setattr(adapter, "matcher", lambda self: Counted())
    state = constraint.start([])
    for _ in range(3000):
        state = constraint.advance(state, token)
    moved["accept"] = 0
    for _ in range(10):  # a tree of two branches, nodes by turns
        left, right = constraint.advance(state, token), constraint.advance(state, token)
        for _ in range(3):
            left, right = constraint.advance(left, token), constraint.advance(right, token)
        constraint.masks([left, right, state], VOCAB)
    assert moved["accept"] <= 10 * 40
    assert moved["rollback"] <= 10 * 10


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("what", ["regex", "grammar", "json_schema"])
def test_what_cannot_be_served_is_one_sentence(adapter, what):
    with pytest.raises(InvalidInput, match=r"does not support this constraint: .*[^.]\.$") as raised:
        getattr(adapter, what)(
            {"regex": "a(", "grammar": "root ::= x y z", "json_schema": "{"}[what], TOKENIZER
        )
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"allOf": [{"type": "integer"}]}, "'allOf'"),
        ({"oneOf": [{"type": "integer"}]}, "'oneOf'"),
        ({"type": "integer", "multipleOf": 3}, "'multipleOf'"),
        ({"type": "string", "pattern": "a+", "maxLength": 3}, "'maxLength together with pattern'"),
        ({"enum": ["a", "bb"], "minLength": 2}, "'minLength together with enum'"),
        (
            {"$ref": "#/$defs/a", "maximum": 3, "$defs": {"a": {"type": "integer"}}},
            "'maximum together with .ref'",
        ),
        ({"anyOf": [{"type": "integer"}], "maximum": 3}, "'maximum together with anyOf'"),
        ({"type": "integer", "madeUp": 3}, "'madeUp'"),
    ],
)
def test_xgrammar_is_not_asked_for_what_it_is_not_known_to_read(schema, said):
    with pytest.raises(InvalidInput, match=f"xgrammar does not read {said}"):
        XGrammarConstraint.json_schema({"type": "object", "properties": {"b": schema}}, TOKENIZER)


@pytest.mark.parametrize("keyword", ["uniqueItems", "not", "if", "dependentRequired", "dependentSchemas"])
def test_xgrammar_is_not_asked_for_keywords_that_it_ignores(keyword):
    inner = {"type": "array", "items": {"type": "integer"}, keyword: True}
    with pytest.raises(InvalidInput, match=keyword):
        XGrammarConstraint.json_schema({"type": "object", "properties": {"a": inner}}, TOKENIZER)
    named = {"type": "object", "properties": {keyword: {"enum": ["a", {keyword: 1}]}}}
    XGrammarConstraint.json_schema(named, TOKENIZER)  # a property of that name is none of them


def test_without_the_package_one_sentence_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    adapter: Any
    for adapter in ADAPTERS:
        with pytest.raises(InvalidInput, match=r"install 'draftwood\[grammar\]'"):
            adapter.regex("a", TOKENIZER)


def test_a_tokenizer_without_an_end_needs_one():
    class Endless:
        eos_token_id = None

    with pytest.raises(InvalidInput, match="eos_token_id"):
        ends(Endless(), None)
    assert ends(Endless(), 7) == (7,)
    assert ends(Endless(), [7, 8]) == (7, 8)


def test_the_packages_own_processor_is_refused_by_name():
    from xgrammar.contrib.hf import LogitsProcessor

    compiled = XGrammarConstraint.regex("[a-z ]+", TOKENIZER).compiled
    texts = [RowText.of(torch.tensor([5, 6, 7]))]
    with pytest.raises(InvalidInput, match="LogitsProcessor fails when it is called again .* constraint "):
        check_processors([LogitsProcessor(compiled)], texts, vocab_size=VOCAB)


def test_both_are_registered():
    assert registry.get("constraints", "xgrammar") is XGrammarConstraint
    assert registry.get("constraints", "llguidance") is LLGuidanceConstraint


def test_the_oracle_reads_bytes():
    assert regex.fullmatch("[a-z ]+", spellings()[TOKENIZER(" the")["input_ids"][0]])
    assert spellings()[0] is None
