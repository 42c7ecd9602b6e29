"""Models, drafters, policies and verifiers by `package.module:function`, in every command that takes them."""

import json
from typing import Any

import pytest

MINE = '''
import torch

from draftwood import Drafter, load, zoo
from draftwood.drafters import PromptLookup
from draftwood.policies import Chain
from draftwood.verifiers import RecursiveRejection

CALLS = []


def target():
    CALLS.append("target")
    return zoo.load("llama-draft"), zoo.tokenizer()


def backend():
    return load(zoo.load("llama-draft")), zoo.tokenizer()


def bare():
    return zoo.load("llama-draft")


def policy(length: int = 2):
    return Chain(length)


def verifier():
    return RecursiveRejection()


def words(vocab_size):
    return PromptLookup(vocab_size)


def drafter():
    return PromptLookup(7)


def wrong():
    return 3


def asks(x):
    return 3


def raises():
    raise KeyError("x")


class LastState(Drafter):
    """Proposes by the output head at the last committed token."""

    def __init__(self, target, scale: float = 1.0):
        self.target, self.vocab_size, self.scale = target, target.vocab_size, scale
        target.keep_features([target.feature_layers], last=1)
        self.rows = []

    def prefill(self, rows):
        self.rows += [None for _ in rows]
        self.take()

    def take(self):
        for place, states in enumerate(self.target.take_features()):
            if len(states):
                self.rows[place] = states[-1]

    def release(self, rows=None):
        gone = range(len(self.rows)) if rows is None else rows
        self.rows = [row for place, row in enumerate(self.rows) if place not in gone]

    def distributions(self, requests):
        widest = max(len(request) if request is not None else 0 for request in requests)
        logits = torch.full((len(requests), widest, self.vocab_size), -torch.inf)
        for place, request in enumerate(requests):
            if request is not None and self.rows[place] is not None:
                logits[place, : len(request)] = self.scale * self.target.output_head(self.rows[place])
        return logits

    def commit(self, outcomes):
        self.take()


class Forgetful(LastState):
    def commit(self, outcomes):
        self.target.take_features()


class Swapped(LastState):
    def release(self, rows=None):
        super().release(rows)
        self.rows.reverse()
'''
WRITTEN = ("--prompt", "Dear Sir,", "--max-new-tokens", 4)


@pytest.fixture
def mine(own_module):
    return own_module(MINE)


def test_generate_takes_functions_for_all_parts(draftwood, mine):
    parts = ["--policy", "mine:policy", "--verifier", "mine:verifier", "-o", "length=3"]
    models = ["--target", "mine:target", "--drafter", "mine:bare"]
    result = draftwood("generate", *models, *parts, "--temperature", 0.5, *WRITTEN)
    assert result.exit_code == 0, result.output
    from mine import CALLS  # type: ignore[import-not-found]

    assert CALLS == ["target"]  # once for model and tokenizer
    greedy = [
        draftwood("generate", "--target", target, "--drafter", drafter, "--json", *WRITTEN)
        for target, drafter in (
            ("llama-draft", "prompt-lookup"),
            ("mine:target", "mine:words"),
            ("mine:backend", "mine:bare"),
        )
    ]
    texts = [json.loads(result.stdout)["text"] for result in greedy]
    assert texts[0] == texts[1] == texts[2]


def test_bench_and_prove_take_functions(draftwood, mine):
    words: list[Any] = ["--pair", "mine:target,mine:bare", "--strategy", "mine:policy+mine:verifier:length=2"]
    result = draftwood("bench", *words, "--prompts", 1, "--new-tokens", 2, "--to", "r")
    assert result.exit_code == 0, result.output
    assert draftwood("bench", "--to", "r", "--report").exit_code == 0
    # In another precision, greedy texts are compared in float32 too.
    words = [*words, "--dtype", "bfloat16", "--prompts", 1, "--new-tokens", 2, "--to", "half"]
    result = draftwood("bench", *words)
    assert result.exit_code == 0, result.output
    result = draftwood("prove", "--policy", "mine:policy", "--verifier", "mine:verifier", "--models", 1)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--target", "mine:bare"], ["'mine:bare' returns no tokenizer", "its tokenizer"]),
        (["--target", "mine:wrong"], ["returns a int", "a backend"]),
        (["--target", "mine:asks"], ["needs the argument 'x'"]),
        (["--target", "mine:raises"], ["raised KeyError: 'x'"]),
        (["--target", "mine:drafter"], ["the drafter PromptLookup where a model is wanted"]),
        (["--target", "mine:MISSING"], ["'mine'", "no 'MISSING'"]),
        (
            ["--target", "mine:backend", "--dtype", "bfloat16"],
            ["a backend in torch.float32, not torch.bfloat16"],
        ),
        (["--target", "mine:target", "--offload", "there"], ["--offload streams the layers of a folder"]),
        (["--target", "mine:backend", "--engine", "openvino"], ["makes a backend, which runs by itself"]),
        (["--drafter", "mine:wrong"], ["returns a int", "a backend"]),
        (["--drafter", "mine:policy"], ["returns a Chain"]),
        (["--policy", "mine:verifier"], ["builds a RecursiveRejection", "TreePolicy"]),
        (
            ["--policy", "chain", "-o", "verifier=block"],
            ["chain+block in bench", "--verifier block in generate"],
        ),
        (["--policy", "chain", "-o", "drafter=words"], ["chain:drafter=words in bench", "--drafter words"]),
    ],
)
def test_what_does_not_fit_is_told_in_one_sentence(refused, mine, words, parts):
    sentence = refused("generate", *words, *WRITTEN)
    for part in parts:
        assert part in sentence


def test_bench_says_how_a_verifier_is_named(refused, mine):
    assert "write chain+block in bench" in refused("bench", "--strategy", "chain:verifier=block")


def test_distil_wants_a_folder_for_the_draft(refused, mine, tmp_path):
    (tmp_path / "notes.txt").write_text("a")
    sentence = refused("distil", "llama-7m", "mine:bare", tmp_path / "notes.txt", "--out", "there")
    assert "save its model to a folder" in sentence


@pytest.mark.parametrize(("role", "named"), [("target", "--target"), ("draft", "--drafter")])
def test_a_tuned_file_runs_no_function(refused, mine, tmp_path, role, named):
    model = {"name": "llama-7m", "vocab_size": 4096, "weight_bytes": 1}
    content = {
        "format": "draftwood-tuned",
        "version": 1,
        "target": model,
        "draft": model,
        "vocabulary": "",
        "temperature": 0.0,
        "dtype": "float32",
        "recipe": "dyspec",
        "options": {},
        "drafter": "model",
        "drafter_options": {},
        "gain": 1.0,
    }
    content[role] = model | {"name": "mine:target"}
    (tmp_path / "tuned.json").write_text(json.dumps(content))
    sentence = refused("generate", "--tuned", tmp_path / "tuned.json", *WRITTEN)
    assert "a file may run no code" in sentence
    assert f"give {named} mine:target" in sentence


@pytest.mark.parametrize("target", ["llama-draft", "mine:target"])
def test_a_drafter_that_reads_its_target_is_checked(draftwood, mine, target):
    words = ["-o", f"target={target}", "-o", "scale=2"]
    result = draftwood("check", "mine:LastState", *words)
    assert result.exit_code == 0, result.output
    assert "LastState, a drafter: 7 checks." in result.stdout


@pytest.mark.parametrize(("name", "failed"), [("Forgetful", "commit"), ("Swapped", "rows")])
def test_a_wrong_drafter_that_reads_its_target_is_told(draftwood, mine, name, failed):
    result = draftwood("check", f"mine:{name}", "-o", "target=llama-draft")
    assert result.exit_code == 1
    assert f"FAILS     {failed}" in result.stdout
    assert "DrafterWithTarget" not in result.stdout


def test_a_drafter_without_the_target_that_it_reads(refused, mine):
    assert "give -o target=NAME" in refused("check", "mine:LastState")
