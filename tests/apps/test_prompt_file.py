"""Files of prompts: marks, halves of characters, lines too long, and fields that are kept."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwood import InvalidInput, zoo
from draftwood.apps.files.datasets import read
from draftwood.apps.files.text_input import half_character, read_text
from draftwood.apps.generate.prompt_file import WRITTEN, read_prompts
from draftwood.apps.models import prompt_limits
from draftwood.apps.models.prompt_limits import PromptLimit, longest_token
from draftwood.backends.kinds.packed import PackedBackend

OPTIONS = ("--max-new-tokens", 4, "--seed", 7)

few_reads = pytest.mark.usefixtures("few_reads")


def read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("ending", [".txt", ".jsonl"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_byte_order_mark_is_no_part_of_the_first_prompt(tmp_path, ending, newline):
    lines = ["Hello", "World"] if ending == ".txt" else ['{"prompt": "Hello"}', '{"prompt": "World"}']
    plain, marked = tmp_path / f"plain{ending}", tmp_path / f"marked{ending}"
    plain.write_bytes(newline.join(lines).encode())
    marked.write_bytes(codecs.BOM_UTF8 + newline.join(lines).encode())
    first, second = read_prompts(plain), read_prompts(marked)
    assert first == second
    assert [line.shown for line in first.lines] == ["Hello", "World"]
    assert [prompt.text for prompt in read(marked).prompts] == [prompt.text for prompt in read(plain).prompts]


@few_reads
@pytest.mark.parametrize("how", ["--prompt-file", "stdin"])
def test_a_mark_before_the_one_prompt(draftwood, tmp_path, how):
    file = tmp_path / "prompt.txt"
    written = []
    for mark in (b"", codecs.BOM_UTF8):
        file.write_bytes(mark + b"Once upon a time")
        words, piped = (["--prompt-file", file], None) if how == "--prompt-file" else ([], file.read_bytes())
        written.append(json.loads(draftwood("generate", *words, *OPTIONS, "--json", stdin=piped).stdout))
    assert written[0]["text"] == written[1]["text"]
    assert written[0]["prompt_tokens"] == written[1]["prompt_tokens"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("option", ["generate", "--prompt-file", "bench", "--file", "index"])
def test_utf_16_is_refused_in_one_sentence(refused, tmp_path, encoding, option):
    file = tmp_path / ("run.toml" if option == "--file" else "prompts.txt")
    file.write_bytes("Once upon a time, there was a king.\n".encode(encoding))
    words = {
        "generate": ["generate", "--data", file, "--out", tmp_path / "out.jsonl"],
        "--prompt-file": ["generate", "--prompt-file", file],
        "bench": ["bench", "--data", file, "--to", tmp_path / "run"],
        "--file": ["bench", "--file", file, "--to", tmp_path / "run"],
        "index": ["index", file, "--out", tmp_path / "index"],
    }[option]
    assert "is UTF-16 or UTF-32 text, not UTF-8; convert it first." in refused(*words)


def test_bytes_that_are_no_utf_8_are_told_with_their_place(refused, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_bytes("Grüße\nein Weg\n".encode() + "für".encode("latin-1"))
    said = refused("generate", "--data", file, "--out", tmp_path / "out.jsonl")
    assert "is not UTF-8 text (line 3, byte 2)" in said


@few_reads
def test_half_a_character_is_its_lines_error_and_the_rest_goes_on(draftwood, tmp_path):
    lines = [
        '{"prompt": "Hello", "id": "a"}',
        '{"id": "\\ud800", "prompt": "half of \\ud83d one", "n": 2}',
        '{"prompt": "whole \\ud83d\\ude00", "id": "c"}',
    ]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    out = tmp_path / "out.jsonl"
    run = ("generate", "--data", tmp_path / "prompts.jsonl", "--out", out, *OPTIONS)
    result = draftwood(*run)
    assert result.exit_code == 1
    column = lines[1].index("\\ud83d") + 1
    reason = (
        f'Line 2 of the prompts, column {column}: "prompt" holds a lone surrogate, half a character of '
        "UTF-16; write it anew."
    )
    assert f"1 of 3 prompts were refused; number 1, the first, because: {reason}" in result.stderr
    found = read_lines(out)
    assert found[1] == {
        "number": 1,
        "prompt": "half of \ud83d one",
        "id": "\ud800",
        "n": 2,
        "refused": reason,
    }
    assert [line["id"] for line in found] == ["a", "\ud800", "c"]
    assert "refused" not in found[0]
    assert found[2]["prompt"] == "whole \U0001f600"
    assert not (tmp_path / "out.jsonl.part").exists()
    assert "is there already" in draftwood(*run).stderr


@few_reads
def test_half_a_character_in_plain_text(draftwood, tmp_path):
    (tmp_path / "prompts.txt").write_bytes(b"Hello\nhalf \xed\xa0\xbd of one\n")
    out = tmp_path / "out.jsonl"
    assert draftwood("generate", "--data", tmp_path / "prompts.txt", "--out", out, *OPTIONS).exit_code == 1
    first, second = read_lines(out)
    assert first["finish_reason"] == "length"
    assert second["refused"].startswith("Line 2 of the prompts, column 6: a lone surrogate")


def test_a_bench_names_the_line_of_half_a_character(refused, tmp_path):
    (tmp_path / "data.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b\\udc00"}\n')
    said = refused("bench", "--data", tmp_path / "data.jsonl", "--to", tmp_path / "run", "--prompts", 2)
    assert 'data.jsonl\', line 2, column 14: "prompt" holds a lone surrogate' in said


@given(st.lists(st.sampled_from(["a", "\\n", "\\\\", "\\u0041", "\\ud83d\\ude00", "é", '\\"']), max_size=6))
def test_the_column_is_that_of_the_half(parts):
    line = '{"id": "' + "".join(parts) + '", "prompt": "' + "".join(parts) + '\\ud800", "b": "\\udc00"}'
    assert half_character(line, "prompt") == line.index('\\ud800"') + 1


@few_reads
@pytest.mark.parametrize("tokenized", [False, True])
def test_a_line_longer_than_the_positions_is_never_read(draftwood, tmp_path, monkeypatch, tokenized):
    """A megabyte is refused by its length, without a tokenizer; a shorter line by its number of tokens."""
    texts = ["Hello", "word " * (2500 if tokenized else 200_000), "World"]
    (tmp_path / "prompts.txt").write_text("\n".join(texts))
    read_tokens, read_characters = list[int](), list[int]()
    prefill, watched = PackedBackend.prefill, zoo.tokenizer()

    def counted(self: Any, rows: Any, *rest: Any) -> Any:
        read_tokens.extend(len(row) for row in rows)
        return prefill(self, rows, *rest)

    class Watched(type(watched)):  # type: ignore[misc]
        def __call__(self, text: str, *rest: Any, **options: Any) -> Any:
            read_characters.append(len(text))
            return super().__call__(text, *rest, **options)

    monkeypatch.setattr(PackedBackend, "prefill", counted)
    watched.__class__ = Watched
    monkeypatch.setattr(zoo, "tokenizer", lambda: watched)
    out = tmp_path / "out.jsonl"
    result = draftwood("generate", "--data", tmp_path / "prompts.txt", "--out", out, *OPTIONS)
    assert result.exit_code == 1
    first, second, third = read_lines(out)
    assert first["prompt_tokens"] == 3
    assert third["tokens"]
    expected = "The prompt has 2501 tokens, and the target's context holds 2048; shorten it."
    if not tokenized:
        expected = (
            "The prompt has 1000000 bytes, and the target's 2048 positions hold at most 303104 of any text; "
            "shorten it."
        )
    assert second["refused"] == expected
    assert max(read_tokens) < 10
    assert (max(read_characters) > 3000) == tokenized


@pytest.mark.parametrize(
    "text", ["x", " ", "\n", "é", "\U0001f600", "the ", "﷽", "\u0301", "\x00", "<|endoftext|>"]
)
def test_no_text_has_fewer_tokens_than_its_length_says(text):
    tokenizer = zoo.tokenizer()
    longest = longest_token(tokenizer)
    assert longest == 37
    for count in (1, 7, 500):
        tokens = tokenizer(text * count)["input_ids"]
        assert len((text * count).encode()) <= longest * len(tokens)
    PromptLimit(512, longest * 512).check_text(text * 10)


def test_a_tokenizer_that_may_swallow_text_says_nothing():
    """One that replaces what it does not know by one token, strips spaces, or joins them."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

    class Fast:
        def __init__(self, backend: Tokenizer) -> None:
            self.backend_tokenizer = backend

    def words(**options: Any) -> Tokenizer:
        made = Tokenizer(models.BPE({"a": 0, "ab": 1}, [], **options))
        made.pre_tokenizer = pre_tokenizers.ByteLevel()
        return made

    assert longest_token(Fast(words())) == 2
    assert longest_token(Fast(Tokenizer(models.BPE({"a": 0}, [], byte_fallback=True)))) == 1
    assert longest_token(Fast(Tokenizer(models.BPE({"a": 0}, [], unk_token="a", fuse_unk=True)))) is None
    assert longest_token(Fast(Tokenizer(models.WordPiece({"a": 0}, unk_token="a")))) is None
    stripped = words()
    stripped.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])
    assert longest_token(Fast(stripped)) is None
    replaced = words()
    replaced.normalizer = normalizers.Replace("  ", " ")
    assert longest_token(Fast(replaced)) is None
    swallows = words()
    swallows.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    assert longest_token(Fast(swallows)) is None
    cut = words()
    cut.enable_truncation(5)
    assert longest_token(Fast(cut)) is None
    spaces = words()
    spaces.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel()]
    )
    assert longest_token(Fast(spaces)) is None
    assert longest_token(object()) is None


KEPT = st.dictionaries(
    st.text(max_size=5).filter(lambda name: name not in {*WRITTEN, "prompt", "question", "turns"}),
    st.recursive(
        st.sampled_from([None, True, 0.5, -1e300]) | st.integers(-(2**63), 2**63) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)  # fmt: skip


@given(KEPT)
def test_any_field_is_kept(tmp_path_factory, fields):
    file = tmp_path_factory.mktemp("kept") / "prompts.jsonl"
    file.write_text(json.dumps({"prompt": "Hello", **fields}))
    (line,) = read_prompts(file).lines
    assert dict(line.kept) == fields


@few_reads
def test_fields_that_are_not_known_come_out_again(draftwood, tmp_path):
    asked: list[dict[str, Any]] = [
        {
            "task_id": "HumanEval/0",
            "prompt": "def f(",
            "entry_point": "f",
            "meta": {"tags": ["a", 1.5, None]},
        },
        {"prompt": "Hello", "task_id": 2**60},
    ]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    out = tmp_path / "out.jsonl"
    run = ("generate", "--data", tmp_path / "prompts.jsonl", "--out", out, *OPTIONS)
    assert draftwood(*run).exit_code == 0
    found = read_lines(out)
    for row, line in zip(asked, found, strict=True):
        assert {name: line[name] for name in row} == row
        assert line.keys() - row.keys() == WRITTEN - {"refused"}
    (tmp_path / "sums.jsonl").write_text('{"question": "1 + 2?", "answer": "#### 3", "level": "easy"}\n')
    out = tmp_path / "sums-out.jsonl"
    assert draftwood("generate", "--data", tmp_path / "sums.jsonl", "--out", out, *OPTIONS).exit_code == 0
    (line,) = read_lines(out)
    assert (line["question"], line["answer"], line["level"]) == ("1 + 2?", "#### 3", "easy")
    assert line["prompt"] == "Question: 1 + 2?\nAnswer:"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            '{"prompt": "a", "text": "b"}',
            'line 1: the field "text" has the name of a field that --out writes',
        ),
        ('{"question": "a", "prompt": "b"}', 'the field "prompt" has the name of a field'),
        ('{"prompt": "a", "score": NaN}', "a field cannot be kept in --out (NaN is no number)"),
        ('{"prompt": "a", "score": 1e999}', "a field cannot be kept in --out (Infinity is no number)"),
        ('{"prompt": "a", "id": 99999999999999999999999}', "a field cannot be kept in --out (the number"),
        ('{"prompt": "a", "deep": ' + "[" * 60 + "]" * 60 + "}", "(nested too deeply)"),
        ('{"prompt": "a", "deep": ' + "[" * 900 + "]" * 900 + "}", "(nested too deeply)"),
        ('{"text": "a"}', "or custom_id and body as OpenAI's batch files"),
    ],
)
def test_fields_that_cannot_be_kept(refused, tmp_path, line, reason):
    (tmp_path / "prompts.jsonl").write_text(line)
    assert reason in refused("generate", "--data", tmp_path / "prompts.jsonl", "--out", tmp_path / "o.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["prompts.jsonl"]


def test_a_text_is_read_with_the_ends_of_lines_of_any_system(tmp_path):
    (tmp_path / "a").write_bytes(b"one\r\ntwo\rthree\n")
    assert read_text(tmp_path / "a") == "one\ntwo\nthree\n"
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_text(tmp_path)


def test_the_limit_holds_for_texts_of_any_characters():
    limit = PromptLimit(4, 40)
    limit.check_text("é" * 20)
    with pytest.raises(InvalidInput, match="has 42 bytes"):
        limit.check_text("é" * 21)
    with pytest.raises(InvalidInput, match="has 4 tokens"):
        limit.check_tokens([1, 2, 3, 4])
    limit.check_tokens([1, 2, 3])
    nothing = PromptLimit(None, None)
    nothing.check_text("x" * 10**6)
    nothing.check_tokens([0] * 10**6)
    assert prompt_limits._SHORTER >= 4
