"""`draftwood generate` on the zoo's Llama pair."""

import json
import os
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood import zoo
from draftwood.backends.kinds.transformer import TransformerBackend
from draftwood.protocols import registry
from tests.thorough import every

PROMPT = "Question: Tom has 3 boxes with 12 apples each. How many apples are there?\nAnswer:"


pytestmark = pytest.mark.usefixtures("few_reads")


@pytest.fixture(scope="module")
def expected() -> Any:
    """Returns the 32 tokens that `generate` itself writes."""
    ids = zoo.tokenizer()(PROMPT, return_tensors="pt").input_ids
    model: Any = zoo.load("llama-7m")
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=32, do_sample=False)
    return zoo.tokenizer().decode(output[0, ids.shape[1] :], skip_special_tokens=True)


def test_text_and_summary(draftwood, expected):
    result = draftwood("generate", "--prompt", PROMPT, "--max-new-tokens", 32)
    assert result.exit_code == 0, result.output
    assert result.stdout == expected + "\n"
    (line,) = result.stderr.splitlines()
    assert line.startswith("32 tokens in ")
    assert "tokens/s" in line
    assert "tokens per round" in line


def test_the_defaults_of_the_folder_hold(draftwood, tmp_path):
    model: Any = zoo.load("llama-7m")
    model.generation_config.update(repetition_penalty=1.3, do_sample=True, temperature=0.7)
    model.save_pretrained(tmp_path)
    ids = zoo.tokenizer()(PROMPT, return_tensors="pt").input_ids
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False)
    target = ["--target", tmp_path, "--tokenizer", zoo.path("tokenizer")]
    result = draftwood("generate", *target, "--prompt", PROMPT, "--max-new-tokens", 16)
    text: Any = zoo.tokenizer().decode(output[0, ids.shape[1] :])
    assert result.stdout == text + "\n"
    assert "The target's defaults sample (do_sample=True, temperature=0.7)" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--drafter", "prompt-lookup", "-o", "longest=2"],
        ["--policy", "chain", "-o", "length=3", "-o", "law=without-replacement"],
        ["--policy", "fixed-tree", "-o", "depth=2", "--verifier", "recursive-rejection"],
        ["--recipe", "rsd-c", "-o", "branching=3,2,1"],
        ["--recipe", "dyspec", "--drafter", "prompt-lookup", "-o", "longest=2", "-o", "budget=8"],
        ["--recipe", "prompt-lookup", "-o", "length=4", "-o", "shortest=2"],
        ["--draft-temperature", "0.5", "-o", "budget=6", "-o", "depth=none"],
        ["--target", str(zoo.path("llama-7m")), "--tokenizer", str(zoo.path("tokenizer"))],
    ],
    ids=[
        "prompt lookup",
        "chain",
        "fixed tree",
        "recipe",
        "recipe with another drafter",
        "recipe with its drafter",
        "draft temperature",
        "folders",
    ],
)
def test_any_strategy_writes_the_same(draftwood, expected, arguments):
    result = draftwood("generate", "--prompt", PROMPT, "--max-new-tokens", 32, *arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout == expected + "\n"


@pytest.mark.parametrize("recipe", every(2, registry.names("recipes")))
def test_every_recipe_writes_the_same(draftwood, expected, recipe):
    # Those with drafters of their own are given the draft model, like all others.
    arguments = ["--recipe", recipe, "--drafter", "llama-draft", "--seed", 0, "--max-new-tokens", 10]
    result = draftwood("generate", "--prompt", PROMPT, *arguments)
    assert result.exit_code == 0, result.output
    assert expected.startswith(result.stdout.removesuffix("\n"))


def test_prompt_from_a_file_and_from_standard_input(draftwood, expected, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT, encoding="utf-8")
    from_file = draftwood("generate", "--prompt-file", file, "--max-new-tokens", 32)
    piped = draftwood("generate", "--max-new-tokens", 32, stdin=PROMPT)
    assert from_file.stdout == piped.stdout == expected + "\n"


def test_json(draftwood, expected):
    result = draftwood("generate", "--prompt", PROMPT, "--max-new-tokens", 32, "--json")
    found = json.loads(result.stdout)
    assert found["text"] == expected
    assert zoo.tokenizer().decode(found["tokens"]) == expected
    assert found["finish_reason"] == "length"
    assert found["prompt_tokens"] == len(zoo.tokenizer()(PROMPT)["input_ids"])
    assert found["statistics"]["new_tokens"] == len(found["tokens"]) == 32


def test_a_seed_repeats_a_sampled_text(draftwood):
    texts = [
        draftwood("generate", "--prompt", PROMPT, "--temperature", 0.9, "--seed", seed, *rest).stdout
        for seed in (1, 1, 2)
        for rest in [["--max-new-tokens", 24, "--top-k", 50, "--top-p", 0.95, "--min-p", 0.01]]
    ]
    assert texts[0] == texts[1] != texts[2]


def test_default_law_follows_the_temperature(draftwood, tmp_path):
    def law(*arguments: object) -> str:
        file = tmp_path / "trace.json"
        draftwood("generate", "--prompt", "x", "--max-new-tokens", 2, "--trace", file, *arguments)
        return json.loads(file.read_text())["settings"]["policy"]

    assert "Deterministic" in law()
    assert "WithoutReplacement" in law("-o", "law=without-replacement")
    assert "WithoutReplacement" in law("--temperature", 1, "--seed", 0)


def test_stop_string_ends_the_text(draftwood, expected):
    word = expected.split()[3]
    result = draftwood("generate", "--prompt", PROMPT, "--max-new-tokens", 32, "--stop", word, "--json")
    found = json.loads(result.stdout)
    assert found["finish_reason"] == "criteria"
    assert word in found["text"]
    assert expected.startswith(found["text"])
    assert len(found["tokens"]) < 32


def test_trace_tells_every_round(draftwood, tmp_path):
    file = tmp_path / "trace.json"
    result = draftwood(
        "generate", "--prompt", PROMPT, "--max-new-tokens", 20, "-o", "budget=6", "--trace", file, "--json"
    )
    written = json.loads(result.stdout)
    trace = json.loads(file.read_text(encoding="utf-8"))
    tokenizer = zoo.tokenizer()
    assert (trace["format"], trace["version"]) == ("draftwood-trace", 3)
    assert set(trace["versions"]) >= {"draftwood", "torch", "transformers", "python"}
    assert trace["settings"]["target"] == "llama-7m"
    assert trace["prompts"] == [{"text": PROMPT, "tokens": tokenizer(PROMPT)["input_ids"]}]
    (output,) = trace["outputs"]
    assert output["tokens"] == written["tokens"]
    assert output["text"] == written["text"]

    rows = [row for one in trace["rounds"] for row in one["rows"]]
    assert [token for row in rows for token in row["tokens"]] == output["tokens"]
    assert "".join(text for row in rows for text in row["texts"]) == output["text"]
    assert all(0 < row["outcome"]["extra_target_prob"] <= 1 for row in rows)
    assert [row["finished"] for row in rows] == [None] * (len(rows) - 1) + ["length"]
    root = trace["prompts"][0]["tokens"][-1]
    for row in rows:
        tree, outcome = row["tree"], row["outcome"]
        size = len(tree["tokens"])
        assert 1 <= size <= 7
        assert {len(tree[key]) for key in ("texts", "parents", "draft_probs", "target_probs")} == {size}
        assert tree["tokens"][0] == root
        assert tree["parents"][0] == -1
        assert all(0 <= parent < node for node, parent in enumerate(tree["parents"][1:], start=1))
        assert tree["texts"] == [tokenizer.decode([token]) for token in tree["tokens"]]
        assert all(0 <= p <= 1 for key in ("draft_probs", "target_probs") for p in tree[key])
        path = outcome["path"]
        assert path[0] == 0
        assert all(tree["parents"][child] == parent for parent, child in pairwise(path))
        emitted = [*(tree["tokens"][node] for node in path[1:]), outcome["extra"]]
        assert row["tokens"] == emitted[: len(row["tokens"])]
        root = emitted[-1]
    for one in trace["rounds"]:
        assert 0 < one["draft_seconds"] + one["target_seconds"] <= one["seconds"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["trace.json"]


def is_kept(file, said, errors):
    """Assert that the printed part of an interrupted text is the text of its trace."""
    assert errors.rstrip().endswith("(interrupted)")
    assert "Traceback" not in errors
    (output,) = json.loads(file.read_text())["outputs"]
    assert output["finish_reason"] == "interrupted"
    assert said == output["text"] + "\n"


@pytest.mark.posix
@pytest.mark.thorough  # the next test has the interrupt come in this process
def test_ctrl_c_keeps_what_was_written(start, tmp_path):
    file = tmp_path / "trace.json"
    process = start(
        "generate", "--prompt", PROMPT * 3, "--max-new-tokens", 1500, "-o", "budget=64", "--trace", file
    )
    first = process.stdout.read(10)
    process.send_signal(signal.SIGINT)
    rest, errors = process.stdout.read(), process.stderr.read()
    assert process.wait(timeout=300) == 130
    is_kept(file, first + rest, errors)


def test_an_interrupt_keeps_what_was_written(draftwood, tmp_path, monkeypatch):
    file, passes = tmp_path / "trace.json", []
    extend = TransformerBackend.extend

    def interrupted(self, *arguments, **options):
        passes.append(self)
        if len(passes) == 20:
            raise KeyboardInterrupt
        return extend(self, *arguments, **options)

    monkeypatch.setattr(TransformerBackend, "extend", interrupted)
    result = draftwood("generate", "--prompt", PROMPT, "--max-new-tokens", 400, "--trace", file)
    assert result.exit_code == 130
    assert len(result.stdout) > 10
    is_kept(file, result.stdout, result.stderr)


def test_several_prompts_are_rows_of_one_call_and_of_its_trace(draftwood, expected, tmp_path):
    file, other = tmp_path / "both.json", "def add(a, b):"
    arguments = ["generate", "--prompt", PROMPT, "--prompt", other, "--max-new-tokens", 32]
    result = draftwood(*arguments, "--trace", file)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"--- prompt 1\n{expected}\n--- prompt 2\n")
    trace = json.loads(file.read_text())
    assert [prompt["text"] for prompt in trace["prompts"]] == [PROMPT, other]
    assert trace["outputs"][0]["text"] == expected
    assert {row["row"] for one in trace["rounds"] for row in one["rows"]} == {0, 1}
    assert draftwood("view", file).exit_code == 0
    lines = [json.loads(line) for line in draftwood(*arguments, "--json").stdout.splitlines()]
    assert [line["text"] for line in lines] == [output["text"] for output in trace["outputs"]]


def test_a_lossy_text_is_marked(draftwood, tmp_path):
    file = tmp_path / "lossy.json"
    arguments = ["generate", "--prompt", "Hi", "--max-new-tokens", 4, "--temperature", 0.7, "--seed", 1]
    lossy = draftwood(*arguments, "--verifier", "typical", "--json", "--trace", file)
    assert lossy.stderr.endswith("; lossy: not distributed as the target's own text\n")
    assert json.loads(lossy.stdout)["lossless"] is False
    assert json.loads(file.read_text())["settings"]["lossless"] is False
    lossless = draftwood(*arguments, "--json")
    assert "lossy" not in lossless.stderr
    assert json.loads(lossless.stdout)["lossless"] is True


@pytest.mark.posix
@pytest.mark.thorough
def test_a_locale_of_another_encoding(start, tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "PYTHON"))}
    environment |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    file = tmp_path / "é.json"
    arguments = ("generate", "--prompt", "C'était à Zürich →", "--max-new-tokens", 8, "--trace", file)
    process = start(*arguments, env=environment)
    assert process.wait(timeout=300) == 0, process.stderr.read()
    assert json.loads(file.read_bytes())["prompts"][0]["text"] == "C'était à Zürich →"
    assert start("view", file, env=environment).wait(timeout=300) == 0
    assert "é.json" in file.with_suffix(".html").read_text(encoding="utf-8")


def test_ctrl_c_before_the_first_token_is_no_traceback(draftwood, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("draftwood.apps.models.by_name.load", interrupted)
    result = draftwood("generate", "--prompt", "x")
    assert (result.exit_code, result.stderr) == (130, "Stopped.\n")


@pytest.mark.thorough
@pytest.mark.linux
def test_a_full_disk_behind_stdout_is_one_sentence(start):
    with open("/dev/full", "w") as full:
        process = start("generate", "--prompt", PROMPT, "--max-new-tokens", 4, stdout=full)
    errors = process.stderr.read()
    assert process.wait(timeout=300) == 1
    (sentence,) = [line for line in errors.splitlines() if "No space left" in line]
    assert (
        sentence
        == "Error: The output cannot be written: No space left on device; make room and run it again."
    )


@pytest.mark.posix
@pytest.mark.thorough  # test_main.py has readers that went away from shorter commands
def test_a_reader_that_closes_the_pipe_is_no_traceback(start):
    process: Any = start("generate", "--prompt", PROMPT, "--max-new-tokens", 400)
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(timeout=300) == 1
    assert errors == ""


def test_debugging_shows_the_traceback(draftwood, monkeypatch):
    monkeypatch.setenv("DRAFTWOOD_DEBUG", "1")
    result = draftwood("generate", "--prompt", "")
    assert type(result.exception).__name__ == "InvalidInput"


def test_an_unexpected_error_is_one_sentence(draftwood, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug\nwith details")

    monkeypatch.setattr("draftwood.apps.models.by_name.load", broken)
    result = draftwood("generate", "--prompt", "x")
    assert result.exit_code == 1
    assert result.stderr == "Unexpected RuntimeError: a bug (DRAFTWOOD_DEBUG=1 shows where)\n"


def test_a_trace_that_cannot_be_finished_leaves_the_old_one(monkeypatch, tmp_path: Path):
    from draftwood.base.whole_files import write_json

    file = tmp_path / "trace.json"
    write_json(file, {"old": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(file, {"new": float("nan")})
    assert json.loads(file.read_text()) == {"old": 1}
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("target", ["bamba-6m", "mamba2-5m"])
@pytest.mark.parametrize("drafter", ["mamba2-draft", "llama-draft"])
def test_recurrent_models_as_target_and_draft(draftwood, target, drafter):
    result = draftwood(
        "generate", "--target", target, "--drafter", drafter, "--prompt", PROMPT, "--max-new-tokens", 24
    )
    assert result.exit_code == 0, result.output
    ids = zoo.tokenizer()(PROMPT, return_tensors="pt").input_ids
    model: Any = zoo.load(target)
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
    written = zoo.tokenizer().decode(output[0, ids.shape[1] :], skip_special_tokens=True)
    assert result.stdout == f"{written}\n"
