"""`draftwood index` and what is drafted from it; other tokenizers than the target's are refused."""

import gzip
import json
from typing import Any

import numpy as np
import pytest

from draftwood import zoo
from draftwood.apps.models.by_name import vocabulary_digest
from draftwood.strategies.drafters.suffix_index import SuffixIndex

PROMPT = "Question: Tom has 3 boxes with 12 apples each. How many apples are there?\nAnswer:"
SEPARATOR = "\n<|endoftext|>\n"


@pytest.fixture(scope="module")
def written() -> Any:
    """Returns the text that the zoo's target itself writes."""
    ids = zoo.tokenizer()(PROMPT, return_tensors="pt").input_ids
    model: Any = zoo.load("llama-7m")
    output = model.generate(ids, max_new_tokens=32, do_sample=False)
    return zoo.tokenizer().decode(output[0, ids.shape[1] :], skip_special_tokens=True)


@pytest.fixture
def swapped(tiny):
    """A tiny model whose tokenizer gives two tokens each other's number."""
    folder = tiny("swapped")
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[1000:1002]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder


@pytest.fixture
def own_index(draftwood, tmp_path, written):
    """An index over what the target writes, with other text around it."""
    (tmp_path / "own.txt").write_text(SEPARATOR.join(["Once upon a time.", PROMPT + written]))
    assert draftwood("index", tmp_path / "own.txt", "-o", tmp_path / "own").exit_code == 0
    return tmp_path / "own"


def documents_of(folder) -> list[Any]:
    index = SuffixIndex.open(folder)
    ends = np.flatnonzero(index.tokens == index.vocab_size)
    rows = np.split(index.tokens, ends + 1)[:-1]
    return [zoo.tokenizer().decode(row[:-1].tolist()) for row in rows]


def test_documents_of_every_kind_of_file(draftwood, tmp_path):
    (tmp_path / "a.txt").write_text(SEPARATOR.join(["first", "  ", "the second"]), encoding="utf-8")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("dritter\nÄ".encode()))
    lines = [{"id": 1, "text": "four"}, {"prompt": "five"}, {"turns": ["six", "seven"]}, {"question": "8?"}]
    (tmp_path / "c.jsonl").write_text("\n\n".join(map(json.dumps, lines)), encoding="utf-8")
    ids = zoo.tokenizer()("nine", add_special_tokens=False)["input_ids"]
    np.save(tmp_path / "d.npy", np.array([*ids, 0, *ids], dtype=np.uint16))
    np.save(tmp_path / "e.npy", np.array([ids, ids], dtype=np.int64))
    files = [tmp_path / name for name in ("a.txt", "b.txt.gz", "c.jsonl", "d.npy", "e.npy")]
    result = draftwood("index", *files, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    found = documents_of(tmp_path / "out")
    assert found[:7] == ["first", "the second", "dritter\nÄ", "four", "five", "six\nseven", "8?"]
    assert found[7:] == ["nine" + zoo.tokenizer().eos_token, "nine", "nine", "nine"]
    index = SuffixIndex.open(tmp_path / "out")
    assert index.vocab_size == 4096
    assert index.vocabulary == vocabulary_digest(zoo.tokenizer())
    size = sum(file.stat().st_size for file in (tmp_path / "out").iterdir())
    (line,) = result.stdout.splitlines()
    assert line.startswith(f"{len(index.tokens) - 11} tokens in 11 documents indexed in ")
    assert line.endswith(f" s; {size / 1e6:.1f} MB in {tmp_path / 'out'}")


def test_retrieved_drafts_are_accepted_and_change_nothing(draftwood, own_index, written):
    arguments = ["generate", "--prompt", PROMPT, "--max-new-tokens", 32, "--json", "--drafter", "retrieval"]
    result = draftwood(*arguments, "-o", f"index={own_index}", "-o", "longest=8")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["text"] == written
    assert found["statistics"]["tokens_per_round"] > 4


def test_an_index_drafts_beside_a_model(draftwood, own_index, written):
    members = f"members= llama-draft,retrieval:index={own_index}:longest=8"
    policy = ["--policy", "fixed-tree", "-o", "law=per-drafter", "--verifier", "recursive-rejection"]
    arguments = ["generate", "--prompt", PROMPT, "--max-new-tokens", 32, "--json", "--drafter", "several"]
    result = draftwood(*arguments, *policy, "-o", members, "-o", "depth=4", "-o", "branching=2")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["text"] == written
    assert found["statistics"]["tokens_per_round"] > 3


def test_an_index_for_another_tokenizer_is_refused(draftwood, refused, tmp_path, swapped):
    (tmp_path / "a.txt").write_text("some text")
    built = draftwood("index", tmp_path / "a.txt", "-o", tmp_path / "out", "--tokenizer", swapped)
    assert built.exit_code == 0, built.output
    for drafter in (
        ["--drafter", "retrieval", "-o", f"index={tmp_path / 'out'}"],
        ["--drafter", "several", "-o", f"members=prompt-lookup,retrieval:index={tmp_path / 'out'}"],
    ):
        policy = ["--policy", "chain", "-o", "law=per-drafter", "--verifier", "recursive-rejection"]
        sentence = refused("generate", "--prompt", "x", *drafter, *(policy if "several" in drafter else ()))
        assert "drafter 'retrieval' was built with another tokenizer than the target's" in sentence
        assert "`draftwood index --tokenizer`" in sentence
    with_its_own = ["--target", swapped, "--drafter", "retrieval", "-o", f"index={tmp_path / 'out'}"]
    assert draftwood("generate", "--prompt", "x", "--max-new-tokens", 2, *with_its_own).exit_code == 0


def test_a_member_with_another_tokenizer_is_refused(refused, swapped):
    policy = ["--policy", "chain", "-o", "law=per-drafter", "--verifier", "recursive-rejection"]
    arguments = ["generate", "--prompt", "x", *policy, "--drafter", "several"]
    for members in (f"{swapped},prompt-lookup", f"llama-draft,{swapped}"):
        sentence = refused(*arguments, "-o", f"members={members}")
        assert "differ in 2 tokens" in sentence
        assert "choose a draft that shares the target's tokenizer" in sentence


def test_a_draft_is_held_against_a_tokenizer_that_stands_for_the_targets(draftwood, tiny, swapped):
    target = tiny("bare")
    for file in target.glob("*token*"):
        file.unlink()
    models = ["--target", target, "--tokenizer", "llama-7m", "--drafter", swapped]
    result = draftwood("generate", "--prompt", "The tale", "--max-new-tokens", 4, *models)
    assert result.exit_code == 0, result.output
    assert "The draft has another tokenizer and proposes 4096 of the target's 4096 tokens" in result.stderr
    assert "(100.0%); of the prompt they are 100.0%" in result.stderr


@pytest.mark.parametrize(
    ("drafter", "parts"),
    [
        (["retrieval"], ["'retrieval' needs the option 'index'"]),
        (["retrieval", "-o", "index=/no/index"], ["no index in '/no/index'", "draftwood index"]),
        (["retrieval", "-o", "index=/no/index", "-o", "longest=x"], ["longest is 'x'"]),
    ],
)
def test_retrieval_without_an_index(refused, drafter, parts):
    sentence = refused("generate", "--prompt", "x", "--drafter", *drafter)
    for part in parts:
        assert part in sentence


@pytest.mark.parametrize(
    ("members", "parts"),
    [
        ("prompt-lookup", ["1 drafter(s)", "at least 2"]),
        ("prompt-lookup,retrieval", ["'retrieval' needs the option 'index'"]),
        ("prompt-lookup,prompt-lookup:longst=3", ["'longst'", "did you mean 'longest'"]),
        ("prompt-lookup,no-such-model", ["no-such-model"]),
    ],
)
def test_members_that_cannot_draft(refused, members, parts):
    policy = ["--policy", "chain", "-o", "law=per-drafter", "--verifier", "recursive-rejection"]
    arguments = ["--drafter", "several", "-o", f"members={members}"]
    sentence = refused("generate", "--prompt", "x", *policy, *arguments)
    for part in parts:
        assert part in sentence


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("a.txt", None, ["a.txt'", "No such file"]),
        ("a.txt", b"", ["holds no token"]),
        ("a.txt", b"\xff\xfe\xfa", ["not UTF-8"]),
        ("a.pdf", b"%PDF", ["a.pdf'", "none of .txt, .txt.gz, .jsonl and .npy"]),
        ("a.txt.gz", b"plain", ["a.txt.gz'", "corrupt"]),
        ("a.txt.gz", gzip.compress(b"some words" * 99)[:-12], ["a.txt.gz'", "corrupt"]),
        ("a.jsonl", b'{"text": "a"}\n{"text":', ["Line 2", "is not JSON"]),
        ("a.jsonl", b'{"title": "a"}', ["Line 1", "no text", "prompt"]),
        ("a.jsonl", b'{"text": 5}', ["Line 1", "no text"]),
        ("a.jsonl", b"[1]", ["Line 1", "no text"]),
        ("a.npy", b"", ["a.npy'", "no .npy file of tokens"]),
        ("a.npy", b"\x93NUMPY\x01\x00", ["a.npy'", "no .npy file of tokens"]),
        ("a.npy", np.array([0.5]), ["float64 of shape [1]"]),
        ("a.npy", np.array([[[1]]]), ["shape [1, 1, 1]"]),
        ("a.npy", np.array([{"pickled": 1}], dtype=object), ["a.npy'", "no .npy file of tokens"]),
        ("a.npy", np.array([1, 4096]), ["token 4096, outside the vocabulary of 4096"]),
        ("a.npy", np.array([1, -1]), ["token -1, outside"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_files_that_cannot_be_indexed(refused, tmp_path, name, content, parts):
    file = tmp_path / name
    if isinstance(content, np.ndarray):
        np.save(file, content)
    elif content is not None:
        file.write_bytes(content)
    sentence = refused("index", file, "-o", tmp_path / "out")
    for part in parts:
        assert part in sentence
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_files_is_left_alone(refused, draftwood, tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    assert "holds other files; name a new folder" in refused("index", tmp_path / "a.txt", "-o", tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]
    for text in ("some text", "other words"):  # an index may be built again
        (tmp_path / "a.txt").write_text(text)
        assert draftwood("index", tmp_path / "a.txt", "-o", tmp_path / "out").exit_code == 0
        assert documents_of(tmp_path / "out") == [text]


def test_a_tokenizer_that_there_is_not(refused, tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    arguments = ["index", tmp_path / "a.txt", "-o", tmp_path / "out", "--tokenizer", tmp_path]
    assert "There is no tokenizer in" in refused(*arguments)
