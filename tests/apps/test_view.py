"""`draftwood view` without a browser: what the page holds, what it forbids, and which traces it refuses."""

import base64
import copy
import hashlib
import json
import pickle
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwood import zoo
from draftwood.apps.files import trace
from draftwood.apps.files.text import decode
from draftwood.apps.files.trace import VERSION
from draftwood.apps.view import page
from draftwood.apps.view.reading import read
from draftwood.base.errors import InvalidInput

PROMPTS = ("Dear Sir, I write to you about", "Question: What is 3 times 12?\nAnswer:")
SVG = "http://www.w3.org/2000/svg"  # a name, never loaded


class Page(HTMLParser):
    """The elements of a page with their attributes, and the text of each style and script."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.sources: list[tuple[str, str | None, str]] = []
        self._open: tuple[str, str | None] | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._open = (tag, dict(attrs).get("type")) if tag in ("style", "script") else None

    def handle_endtag(self, tag):
        self._open = None

    def handle_data(self, data):
        if self._open:
            self.sources.append((*self._open, data))

    def source(self, tag, kind=None):
        (found,) = [text for name, type_, text in self.sources if (name, type_) == (tag, kind)]
        return found

    @property
    def policy(self):
        (content,) = [
            a["content"] or "" for tag, a in self.elements if a.get("http-equiv") == "Content-Security-Policy"
        ]
        return {words[0]: words[1:] for words in (part.split() for part in content.split(";"))}


@pytest.fixture(scope="module")
def document(trace_of):
    return trace_of(*PROMPTS, budget=8)


@pytest.fixture
def file(document, tmp_path):
    path = tmp_path / "letter.json"
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return path


@pytest.fixture
def viewed(draftwood, file):
    result = draftwood("view", file)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"{file.with_suffix('.html')}: ")
    return Page(file.with_suffix(".html").read_text(encoding="utf-8"))


def test_the_page_loads_nothing(viewed, document):
    assert not [a for _, a in viewed.elements for name in a if name in ("src", "href", "style", "srcset")]
    assert not [a for _, a in viewed.elements for name in a if name.startswith("on")]
    assert not {"link", "img", "iframe", "object", "base"} & {tag for tag, _ in viewed.elements}
    script, style = viewed.source("script"), viewed.source("style")
    assert set(re.findall(r"""\w+://[^"' ]*""", script + style)) == {SVG}
    assert not re.search(r"url\(|@import|@font-face", style)
    forbidden = r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|Function\(|fetch\(|import\b"
    assert not re.search(forbidden, script)


def test_the_policy_lets_only_the_page_s_own_style_and_script_in(viewed):
    def hashed(text):
        return [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"]

    assert viewed.policy["default-src"] == ["'none'"]
    assert viewed.policy["script-src"] == hashed(viewed.source("script"))
    assert viewed.policy["style-src"] == hashed(viewed.source("style"))
    assert viewed.policy["require-trusted-types-for"] == ["'script'"]
    assert [tag for tag, _ in viewed.elements].count("script") == 2
    # The policy governs what stands behind it.
    order = [tag for tag, _ in viewed.elements]
    assert order.index("meta") < order.index("style") < order.index("script")


def test_the_page_holds_the_trace_by_row(viewed, document):
    shown = json.loads(viewed.source("script", "application/json"))
    for place, row in enumerate(shown["rows"]):
        texts = [text for one in row["rounds"] for text in one["texts"]]
        assert row["prompt"] == PROMPTS[place]
        assert "".join(texts) == document["outputs"][place]["text"]
        records = [r for one in document["rounds"] for r in one["rows"] if r["row"] == place]
        assert [one["path"] for one in row["rounds"]] == [r["outcome"]["path"] for r in records]
        assert [one["extra"]["bonus"] for one in row["rounds"]] == [r["outcome"]["bonus"] for r in records]
        for one, record in zip(row["rounds"], records, strict=True):
            assert one["tree"]["parents"] == record["tree"]["parents"]
            assert one["tree"]["target"] == pytest.approx(record["tree"]["target_probs"], rel=1e-5)
            assert one["tree"]["draft"] == pytest.approx(record["tree"]["draft_probs"], rel=1e-5)
            if len(one["texts"]) > len(one["path"]) - 1:
                assert one["extra"]["target"] > 0


ENDS = [
    "</script>",
    "</script ",
    "</script/",
    "<!--",
    "<script>",
    "]]>",
    "\u2028",
    "\ud800",
    "{{script}}",
    "&lt;",
    '"',
    "\\u003c",
]
hard_texts = st.lists(st.sampled_from(ENDS) | st.text(), max_size=5).map("".join)


@given(hard_texts, hard_texts)
def test_no_text_leaves_the_block_it_stands_in(first, second):
    content = {"rows": [], first: second}
    text = page.html(content, "<b>&{{data}}.json")
    seen = Page(text)
    assert not set("<>&") & set(page.embedded(content))
    assert json.loads(seen.source("script", "application/json")) == {**content, "name": "<b>&{{data}}.json"}
    assert [tag for tag, _ in seen.elements].count("script") == 2
    text.encode()  # no half of a surrogate pair
    assert "<title>&lt;b&gt;&amp;{{data}}.json" in text


@pytest.fixture(scope="module")
def tokenizer():
    return zoo.tokenizer()


@given(before=st.text(min_size=1, max_size=12), after=st.text(max_size=24))
def test_token_texts_add_up_to_the_text(tokenizer, before, after):
    prompt, tokens = tokenizer(before)["input_ids"], tokenizer(after)["input_ids"]
    added = trace._texts(tokenizer, prompt, tokens)
    assert len(added) == len(tokens)
    assert decode(tokenizer, prompt) + "".join(added) == decode(tokenizer, [*prompt, *tokens])


def places(value, name=""):
    """Every field below `value` with its name and its container."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            inner = f"{name}[{key}]" if isinstance(value, list) else f"{name}.{key}" if name else key
            yield inner, value, key
            yield from places(value[key], inner)


UNUSED = ("versions", "settings.", r"prompts\[\d\]\.tokens", r"outputs\[\d\]\.(text|tokens)")
TOTALS = ("tokens_per_round", "acceptance_rate", "new_tokens", "seconds", "prefill_seconds")


def is_used(name):
    if name.startswith("statistics."):
        return name.removeprefix("statistics.") in TOTALS
    return not re.match("|".join(UNUSED), name) and not name.endswith(".finished")


@given(st.data())
def test_a_spoilt_field_is_named_or_not_used(document, tmp_path_factory, data):
    spoilt = copy.deepcopy(document)
    name, container, key = data.draw(st.sampled_from(list(places(spoilt))))
    if isinstance(container, dict) and data.draw(st.booleans()):
        del container[key]
    else:
        container[key] = {"not": "this"} if not isinstance(container[key], dict) else "not this"
    file = tmp_path_factory.mktemp("spoilt") / "trace.json"
    file.write_text(json.dumps(spoilt), encoding="utf-8")
    whole = file.with_name("whole.json")
    whole.write_text(json.dumps(document), encoding="utf-8")
    if is_used(name):
        with pytest.raises(InvalidInput) as refusal:
            read(file)
        assert name in str(refusal.value) or name in ("format", "version")
        assert "\n" not in str(refusal.value)
    else:
        assert read(file)["rows"] == read(whole)["rows"]


def change(value, *keys):
    def apply(document):
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = value

    return apply


ROW = ("rounds", 1, "rows", 0)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (change(1, "version"), f"is a trace of version 1, and this draftwood reads versions 2 and {VERSION}"),
        (change("other", "format"), "is no trace"),
        (change(7, *ROW, "row"), "rounds[1].rows[0].row of .* is 7, and there are 2 rows"),
        (change([], *ROW, "outcome", "path"), "outcome of .* has an empty path"),
        (change([0, 99], *ROW, "outcome", "path"), "path[1] of .* is 99, and the path goes"),
        (change([1], *ROW, "outcome", "path"), "path[0] of .* is 1, and the path goes"),
        (change([-1, 5], *ROW, "tree", "parents"), "parents of .* has 2 entries and should have"),
        (change(1.5, *ROW, "tree", "target_probs", 1), "target_probs[1] of .* is 1.5, and no probability is"),
        (change(-2.0, "rounds", 0, "seconds"), "rounds[0].seconds of .* is -2.0, and no time is negative"),
        (change(True, "rounds", 0, "draft_calls"), "rounds[0].draft_calls of .* is not an integer"),
        (change(list(range(30)), *ROW, "tokens"), "has 30 tokens, and its path gives"),
    ],
)
def test_a_trace_that_cannot_be_is_refused(refused, document, tmp_path, spoil, says):
    spoilt = copy.deepcopy(document)
    spoil(spoilt)
    file = tmp_path / "t.json"
    file.write_text(json.dumps(spoilt), encoding="utf-8")
    sentence = refused("view", file)
    pattern = ".*".join(re.escape(part) for part in says.split(".*"))
    assert re.search(pattern, sentence), sentence
    assert "draftwood generate --trace" in sentence
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"format":\n "draftwood-trace",\n "version" 2}', "(line 3 is not JSON"),
        (b"", "(line 1 is not JSON"),
        (b"[" * 100_000, "is no JSON that a trace could be"),
        (b'{"format": NaN}', "is no JSON that a trace could be"),
        (b"[1, 2]", "is no trace"),
        (pickle.dumps({"format": "draftwood-trace"}), "(not UTF-8 text)"),
    ],
)
def test_what_is_no_trace_is_refused(refused, tmp_path, content, says):
    file = tmp_path / "t.json"
    file.write_bytes(content)
    sentence = refused("view", file)
    assert says in sentence
    assert repr(str(file)) in sentence


def test_files_that_cannot_be_read_or_written_are_refused(refused, file, tmp_path):
    assert "No such file" in refused("view", tmp_path / "none.json")
    assert "does not exist" in refused("view", file, "--to", tmp_path / "none" / "page.html")
    assert "is a folder" in refused("view", file, "--to", tmp_path)
    before = file.read_bytes()
    assert "is the trace itself" in refused("view", file, "--to", file)
    assert file.read_bytes() == before


def test_the_default_name_overwrites_pages_of_ours_alone(draftwood, refused, file):
    where = file.with_suffix(".html")
    where.write_text("<p>someone else's</p>")
    assert "is not a page that draftwood made" in refused("view", file)
    assert where.read_text() == "<p>someone else's</p>"
    assert draftwood("view", file, "--to", where).exit_code == 0
    assert draftwood("view", file).exit_code == 0


def test_a_row_without_rounds_is_shown(document, tmp_path):
    empty = {**document, "rounds": []}
    file = Path(tmp_path / "t.json")
    file.write_text(json.dumps(empty), encoding="utf-8")
    assert [row["rounds"] for row in read(file)["rows"]] == [[], []]
