"""Files from anyone's hand: whatever is wrong in them is one sentence, and none of them runs code."""

import copy
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from draftwood import DraftwoodError, InvalidInput, read_tuned
from draftwood.apps.bench import command
from draftwood.apps.bench.schema import check_cell
from draftwood.apps.view import page
from draftwood.apps.view.reading import read
from draftwood.base.json_text import parse_json
from draftwood.strategies.drafters.suffix_index import SuffixIndex
from tests.apps.cells import cells
from tests.soak.hostile import TUNED

EXAMPLES = settings(max_examples=100, deadline=None)

JUNK = st.one_of(
    st.sampled_from(
        [None, True, -1, 0, 1, 2, 2**53, 2**64, 1e308, -0.5, [], {}, [[]], [None], {"a": 1}, [0.5] * 20]
    ),
    st.sampled_from(["", "x", "\ud800", "\0", "9" * 99, "mine:Evil", "../x", "a\nb"]),
    st.integers(2, 60).map(lambda levels: json.loads("[" * levels + "]" * levels)),
    st.recursive(
        st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3), max_leaves=5
    ),
)


@st.composite
def spoilt(draw, document):
    """`document` with something taken out, put in or replaced somewhere."""
    content = copy.deepcopy(document)
    place = content
    while True:
        key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        inner = place[key]
        if not isinstance(inner, (dict, list)) or not inner or draw(st.integers(0, 3)) == 0:
            break
        place = inner
    match draw(st.sampled_from(["drop", "replace", "wrap", "add"])):
        case "drop":
            del place[key]
        case "replace":
            place[key] = draw(JUNK)
        case "wrap":
            place[key] = [place[key]]
        case "add" if isinstance(place, dict):
            place[draw(st.text(max_size=3))] = draw(JUNK)
        case "add":
            place.insert(key, draw(JUNK))
    return content


@st.composite
def broken(draw, document):
    """The bytes of a spoilt document, now and then broken as JSON too."""
    written = json.dumps(draw(spoilt(document))).encode()
    if draw(st.integers(0, 4)) == 0:
        at = draw(st.integers(0, len(written)))
        written = written[:at] + draw(st.binary(max_size=4)) + written[at + draw(st.integers(0, 3)) :]
    return written


def one_sentence(action):
    """Run `action`, which succeeds or raises an error of ours in one line."""
    said = ""
    try:
        action()
    except DraftwoodError as error:
        said = str(error)
    assert "\n" not in said
    assert len(said) < 700  # the longest one lists all recipes


@EXAMPLES
@given(content=broken(TUNED))
@example(content=json.dumps(TUNED).encode())
def test_tuned_files(content, tmp_path_factory):
    file = tmp_path_factory.getbasetemp() / "tuned.json"
    file.write_bytes(content)

    def use():
        known = read_tuned(file)
        assert known.sampling.temperature >= 0
        known.draft_sampling  # noqa: B018

    one_sentence(use)


@pytest.fixture(scope="module")
def trace(trace_of):
    return trace_of("Dear Sir,", "def f(", new=4)


@EXAMPLES
@given(data=st.data())
def test_traces(data, trace, tmp_path_factory):
    file = tmp_path_factory.getbasetemp() / "trace.json"
    file.write_bytes(data.draw(broken(trace)))
    one_sentence(lambda: page.html(read(file), file.name))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A finished run of two contenders on two prompts, at two temperatures."""
    from draftwood_cli import app
    from typer.testing import CliRunner

    folder = tmp_path_factory.mktemp("runs") / "run"
    options = "--prompts 2 --prompt-length 8 --new-tokens 4 --temperature 0 --temperature 1 --budget 2"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("draftwood.apps.bench.measure._SIZES", (1, 2, 4))
        words = ["bench", "--to", str(folder), *options.split(), "--strategy", "leviathan"]
        result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    for name in ("results.json", "results.csv"):
        (folder / name).unlink()
    return folder


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_run_folders(data, run, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "spoilt"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(run, folder)
    lines = (folder / "cells.jsonl").read_bytes().splitlines()
    if data.draw(st.booleans(), "cell"):
        number = data.draw(st.integers(0, len(lines) - 1), "line")
        lines[number] = data.draw(broken(json.loads(lines[number]))).replace(b"\n", b"")
        (folder / "cells.jsonl").write_bytes(b"\n".join([*lines, b""]))
    else:
        description = json.loads((folder / "run.json").read_bytes())
        (folder / "run.json").write_bytes(data.draw(broken(description)))
    one_sentence(lambda: command.bench(to=folder, report=True))


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("indices") / "index"
    SuffixIndex.of([np.arange(20) % 7], vocab_size=9, vocabulary="x").save(folder)
    return folder


@EXAMPLES
@given(data=st.data())
def test_index_files(data, index, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "spoilt-index"
    shutil.copytree(index, folder, dirs_exist_ok=True)
    header = json.loads((folder / "index.json").read_bytes())
    (folder / "index.json").write_bytes(data.draw(broken(header)))
    one_sentence(lambda: SuffixIndex.open(folder))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b"[" * 50 + b"]" * 50, "nested too deeply"),
        (b'{"a": 1, "a": 2}', "the key 'a' occurs twice"),
        (b"[NaN]", "NaN is no number"),
        (b"[-Infinity]", "-Infinity is no number"),
        (b"[1e999]", "the number 1e999 is too large"),
        (b"9" * 5000, "the number 99999999999999999999 is too large"),
        (b"18446744073709551616", "is too large"),
        (b"\x80\x04", "not UTF-8 text"),
        (b'{"a":\n', "line 2 is not JSON: Expecting value"),
    ],
)
def test_json_that_no_program_of_ours_writes(content, reason):
    with pytest.raises(ValueError, match=reason):
        parse_json(content)


def test_json_that_is_sound():
    assert parse_json(b'\xef\xbb\xbf{"a": [1, -2.5, null, "x"], "b": 18446744073709551615}') == {
        "a": [1, -2.5, None, "x"],
        "b": 2**64 - 1,
    }


def test_a_report_runs_no_code(run, own_module, tmp_path, refused, draftwood):
    folder = own_module("from pathlib import Path\nPath(__file__).with_name('ran').touch()\n")
    theirs = tmp_path / "theirs"
    shutil.copytree(run, theirs)
    description = json.loads((theirs / "run.json").read_bytes())
    description["configuration"]["strategies"] += [
        "mine:Evil",
        "leviathan:drafter=mine:Evil",
        "chain+mine:Evil",
    ]
    (theirs / "run.json").write_text(json.dumps(description))
    _, *lines = (theirs / "cells.jsonl").read_bytes().splitlines(keepends=True)
    (theirs / "cells.jsonl").write_bytes(b"".join([json.dumps(description).encode() + b"\n", *lines]))
    assert draftwood("bench", "--to", theirs, "--report").exit_code == 0
    assert not (folder / "ran").exists()


def test_options_that_fail_in_a_way_of_their_own(tmp_path):
    file = tmp_path / "tuned.json"
    file.write_text(json.dumps(TUNED | {"recipe": "spechub", "options": {"length": 2**63}}))
    with pytest.raises(InvalidInput, match="'spechub' cannot be built from its options .OverflowError"):
        read_tuned(file)


def test_an_index_nested_too_deeply(index, tmp_path):
    shutil.copytree(index, tmp_path / "index")
    (tmp_path / "index" / "index.json").write_bytes(b"[" * 100_000)
    with pytest.raises(InvalidInput, match="nested too deeply"):
        SuffixIndex.open(tmp_path / "index")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tokens": []}, "tokens are missing or too large"),
        ({"tokens": [2**31]}, "tokens are missing or too large"),
        ({"draft_cost": None}, "only one of draft_calls and draft_cost is given"),
        ({"lossless": "yes"}, "lossless is"),
        ({"seconds": -1.0}, "seconds is -1.0"),
        ({"prompt": True}, "prompt is True"),
        ({"contender": "\ud800"}, "contender is"),
    ],
)
def test_a_text_that_cannot_be(run, changes, reason):
    sound = next(cell for cell in cells(run) if cell["kind"] == "text")
    check_cell(sound)
    with pytest.raises(ValueError, match=reason):
        check_cell(sound | changes)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("prompts = " + "9" * 5000, "holds a number that is too large"),
        ("data = " + "[" * 100_000, "is nested too deeply"),
        ("prompts = ", "is not TOML"),
    ],
)
def test_a_run_in_toml_that_nobody_means(refused, tmp_path, content, reason):
    (tmp_path / "run.toml").write_text(content)
    assert reason in refused("bench", "--to", tmp_path / "run", "--file", tmp_path / "run.toml")


def test_prompts_nested_too_deeply(refused, tmp_path):
    file = tmp_path / "deep.jsonl"
    file.write_bytes(b"[" * 100_000)
    assert "line 1" in refused("bench", "--to", tmp_path / "run", "--data", file)
    assert "Line 1" in refused("index", file, "--out", tmp_path / "index")


def test_an_unknown_kind_of_cell_is_named(run, tmp_path):
    folder = tmp_path / "odd"
    shutil.copytree(run, folder)
    with (folder / "cells.jsonl").open("a") as file:
        file.write('{"key": "x", "kind": "program"}\n')
    with pytest.raises(InvalidInput, match="not a cell .kind is 'program'."):
        command.bench(to=folder, report=True)
