"""Data sets from files: the layouts that are recognised, and what is said of a malformed one."""

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwood.apps.files.conversations import Turn
from draftwood.apps.files.datasets import last_number, read, right
from draftwood.base.errors import InvalidInput


def lines(file, *rows):
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return file


def test_gsm8k(tmp_path):
    row = {"question": "What is 2 + 3?", "answer": "2 + 3 = <<2+3=5>>5\n#### 5"}
    found = read(lines(tmp_path / "gsm8k.jsonl", row))
    (prompt,) = found.prompts
    assert (found.name, found.layout) == ("gsm8k", "problems")
    assert prompt.text == "Question: What is 2 + 3?\nAnswer:"
    assert prompt.answer == "5"
    assert right(" It is 2 + 3 = 5.0.\nQuestion: What is 9?", prompt.answer, found.stops)
    assert not right(" It is 6.", prompt.answer, found.stops)
    assert not right(" Nobody knows.", prompt.answer, found.stops)


def test_human_eval_mt_bench_and_spec_bench(tmp_path):
    code = lines(tmp_path / "h.jsonl", {"task_id": "HumanEval/0", "prompt": "def f(x):\n", "test": "..."})
    assert read(code).prompts[0].text == "def f(x):\n"
    chat = lines(
        tmp_path / "c.jsonl",
        {"question_id": 1, "turns": ["Hello?", "And then?"]},
        {"question_id": 2, "turns": ["How many?"], "reference": ["4 + 3 = 7\n#### 1,007"]},
        {"question_id": 3, "turns": ["Translate."], "reference": ["In 1999 it was."]},
    )
    found = read(chat)
    assert found.prompts[0].text == "User: Hello?\nAssistant:"
    assert [prompt.answer for prompt in found.prompts] == [None, "1007", None]
    assert [prompt.later for prompt in found.prompts] == [("\nUser: And then?\nAssistant:",), (), ()]


def test_wikitext_and_plain_text(tmp_path):
    wiki = tmp_path / "wiki.txt"
    wiki.write_text(" \n = A Title = \n \n" + f" {'word ' * 120}\n" * 2 + " short \n")
    found = read(wiki)
    assert found.layout == "wikitext"
    assert [len(prompt.text.split()) for prompt in found.prompts] == [120, 120]
    plain = tmp_path / "plain.txt"
    plain.write_text("Dear Sir,\nI write.\n\n \nYours.\n")
    assert [prompt.text for prompt in read(plain).prompts] == ["Dear Sir,\nI write.", "Yours."]


def test_prompts_are_spread_over_the_file(tmp_path):
    found = read(lines(tmp_path / "a.jsonl", *({"prompt": str(i)} for i in range(10))))
    assert [prompt.text for prompt in found.spread(4)] == ["0", "2", "5", "7"]
    with pytest.raises(InvalidInput, match="a has 10 prompts but prompts=11"):
        found.spread(11)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 6))
def test_turns_are_limited(tmp_path_factory, lengths, most):
    rows = [{"turns": [f"{i}" for i in range(length)]} for length in lengths]
    found = read(lines(tmp_path_factory.mktemp("d") / "a.jsonl", *rows)).spread(len(lengths), turns=most)
    assert [1 + len(prompt.later) for prompt in found] == [min(n, most or n) for n in lengths]


@given(st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=5))
def test_any_text_is_read_back_whole(tmp_path_factory, texts):
    # A line separator of Unicode may stand within a JSON string and ends no line.
    file = lines(tmp_path_factory.mktemp("d") / "a.jsonl", *({"prompt": text} for text in texts))
    assert [prompt.text for prompt in read(file).prompts] == texts


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ('{"prompt": "a"}\n{"prompt": \n', ["line 2", "not JSON", "column 12"]),
        ('{"prompt": "a"}\n\n["b"]\n', ["line 3", "list instead of an object"]),
        ('{"text": "a"}\n', ["line 1", '"question", "turns", "conversations", "messages", "prompt"']),
        ('{"prompt": "a"}\n{"prompt": 5}\n', ["line 2", '"prompt" is 5', "give text"]),
        ('{"prompt": "a"}\n{"question": "b"}\n', ["line 2", '"prompt" is missing']),
        ('{"prompt": " "}\n', ["line 1", '"prompt" is " "']),
        ('{"turns": []}\n', ["line 1", '"turns" is []', "list of texts"]),
        ('{"turns": "a"}\n', ["line 1", '"turns" is "a"']),
        ('{"turns": ["a"]}\n{"turns": [null]}\n', ["line 2", '"turns[0]" is null']),
        ('{"turns": ["a", ["b"]]}\n', ["line 1", '"turns[1]" is ["b"]', "give text"]),
        ('{"question": "a", "answer": 5}\n', ["line 1", '"answer" is 5']),
        ("\n", ["holds no prompt"]),
    ],
)
def test_a_malformed_file_is_named_with_line_and_field(tmp_path, content, parts):
    file = tmp_path / "bad.jsonl"
    file.write_text(content)
    with pytest.raises(InvalidInput) as caught:
        read(file)
    for part in (str(file), *parts):
        assert part in str(caught.value)


def test_what_is_no_text_file(tmp_path):
    with pytest.raises(InvalidInput, match="No such file"):
        read(tmp_path / "none.jsonl")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match="not UTF-8"):
        read(tmp_path / "bytes.txt")


@given(st.decimals(-(10**9), 10**9, places=2), st.sampled_from(["{:f}", "{:,f}", "${:,f}.", "#### {:f}\n"]))
def test_the_last_number_is_compared_by_its_value(number, written):
    text = "First 7, then 9: " + written.format(number)
    found = last_number(text)
    assert found is not None
    assert Decimal(found) == number
    assert found == last_number(f"{number.normalize():f}")


SAID = [("user", "Hello?"), ("assistant", "Yes."), ("user", "And then?"), ("assistant", "No.")]
SHARED = [{"from": {"user": "human", "assistant": "gpt"}.get(who, who), "value": text} for who, text in SAID]
MESSAGES = [{"role": who, "content": text} for who, text in SAID]


@pytest.mark.parametrize(("field", "said"), [("conversations", SHARED), ("messages", MESSAGES)])
@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_conversations_with_answers(field, said, form, tmp_path):
    rows = [{"id": "a", field: said}, {"id": "b", field: said[:3]}, {"id": "c", field: said[1:3]}]
    file = tmp_path / f"a.{form}"
    file.write_text(json.dumps(rows) if form == "json" else "".join(json.dumps(row) + "\n" for row in rows))
    whole, open_end, late = read(file).prompts
    assert whole.turns == (Turn("Hello?", "Yes."), Turn("And then?", "No."))
    assert open_end.turns == (Turn("Hello?", "Yes."), Turn("And then?"))
    assert late.turns == (Turn("And then?"),)  # what precedes the user's first message is left out
    assert whole.text == "User: Hello?\nAssistant:"
    assert whole.later == (" Yes.\nUser: And then?\nAssistant:",)
    assert whole.is_answered(0)
    assert not open_end.is_answered(1)
    assert read(file).spread(1, turns=1)[0].turns == (Turn("Hello?", "Yes."),)


def test_messages_of_one_side_are_one_and_may_be_in_parts(tmp_path):
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo?"}]
    said = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": parts},
        {"role": "user", "content": "Are you there?"},
    ]
    (prompt,) = read(lines(tmp_path / "a.jsonl", {"messages": said})).prompts
    assert prompt.system == "Be short."
    assert prompt.turns == (Turn("Hello?\n\nAre you there?"),)
    assert prompt.text == "Be short.\nUser: Hello?\n\nAre you there?\nAssistant:"


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"conversations": []}, 'line 1: "conversations" is []; give a list of messages'),
        ({"conversations": ["Hi"]}, '"conversations[0]" is "Hi"; give an object with from and value'),
        (
            {"conversations": [{"from": "gpt", "value": "Hi"}]},
            "holds no message of a user; leave the row out",
        ),
        ({"conversations": [{"from": "tool", "value": "Hi"}]}, 'from" is "tool"; give user or assistant'),
        ({"messages": [{"role": "user"}]}, '"messages[0].content" is null; give text'),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]},
            '"messages[1].role" is "system"; give user or assistant, and system first',
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            '"messages[0].content" is [{"type": "image_url"}]; give text',
        ),
    ],
)
def test_conversations_that_are_refused(row, sentence, tmp_path):
    with pytest.raises(InvalidInput) as error:
        read(lines(tmp_path / "a.jsonl", row))
    assert sentence in str(error.value)
    whole = tmp_path / "a.json"
    whole.write_text(json.dumps([row]))
    with pytest.raises(InvalidInput, match="row 1: "):
        read(whole)


@pytest.mark.parametrize("text", ['{"messages": []}', "[", "[3]"])
def test_other_json_is_refused(text, tmp_path):
    file = tmp_path / "a.json"
    file.write_text(text)
    with pytest.raises(InvalidInput, match="holds no array|is not JSON|row 1: int instead of an object"):
        read(file)
