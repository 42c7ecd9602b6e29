"""Options of `draftwood bench`, by flags, names with options and files, and their refusals."""

import pytest

from draftwood import zoo
from draftwood.apps.bench.specs import parse
from draftwood.strategies.policies.chain import Chain
from tests.apps.cells import cells


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--strategy", "dispec"], ["'dispec'", "did you mean 'dyspec'?"]),
        (["--strategy", "dyspec:bugdet=3"], ["'bugdet'", "'budget'"]),
        (["--strategy", "dyspec:budget"], ["'budget'", "name=value"]),
        (["--strategy", "generate:length=3"], ["'generate'", "has none"]),
        (["--strategy", "chain+bock"], ["'bock'", "did you mean 'block'?"]),
        (
            ["--strategy", "chain+greedy", "--temperature", "1"],
            ["chain+greedy", "only supports temperature 0"],
        ),
        (["--strategy", "dyspec:drafter=llama-draft"], ["'llama-draft'", "pairs"]),
        (["--strategy", "chain+:draft_temperature=hot"], ["'hot'", "a number"]),
        (["--pair", "llama-7m"], ["'llama-7m'", "TARGET,DRAFT"]),
        (["--pair", "llama-7m,no-such"], ["no-such"]),
        (["--temperature", "-1"], ["temperatures holds -1", ">= 0"]),
        (["--budget", "0"], ["budgets holds 0", ">= 1"]),
        (["--prompts", "0"], ["prompts is 0"]),
        (["--prompts", "7"], ["built-in has 6 prompts", "prompts=7"]),
        (["--new-tokens", "9999"], ["9999 new", "context of 2048"]),
        (["--data", "/no/such.jsonl"], ["/no/such.jsonl", "No such file"]),
        (["--data", "A", "--data", "A"], ["'a'", "another name"]),
        (["--file", "/no/such.toml"], ["/no/such.toml", "No such file"]),
        (["--paper", "dyspec-table9"], ["'dyspec-table9'", "did you mean"]),
        (["--report", "--seed", "3"], ["--report", "--seed"]),
        (["--widen", "1e6", "--pair", "T,llama-draft"], ["cannot be widened"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and value[0].startswith("--") else "",
)
def test_bad_options_are_one_sentence(refused, tmp_path, words, parts, request):
    (tmp_path / "a.txt").write_text("Dear Sir,\n\nDear Madam,\n")
    words = [str(tmp_path / "a.txt") if word == "A" else word for word in words]
    if any(word.startswith("T,") for word in words):
        words = [word.replace("T,", f"{zoo.path('llama-7m')},") for word in words]
    sentence = refused("bench", "--to", tmp_path / "results", *words)
    for part in parts:
        assert part in sentence


def test_a_toml_file_says_what_runs(draftwood, refused, tmp_path, monkeypatch):
    monkeypatch.setattr("draftwood.apps.bench.measure._SIZES", (1, 2, 4))
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Dear Sir,"}\n')
    file = tmp_path / "run.toml"
    file.write_text(
        'strategies = ["chain+block:length=2"]\ndata = ["prompts.jsonl"]\nprompts = 1\n'
        "temperatures = 0.7\nnew_tokens = [4]\n"
    )
    result = draftwood("bench", "--file", file, "--to", tmp_path / "r", "--new-tokens", 3)
    assert result.exit_code == 0, result.output
    assert "chain+block:length=2" in result.stdout
    assert "prompts, temperature 0.7, 3 new tokens" in result.stdout
    for content, parts in [
        ('strategy = ["x"]', ["'strategy'", "did you mean 'strategies'?"]),
        ("prompts = ", ["run.toml", "not TOML"]),
        ('prompts = "many"', ["prompts is 'many'", "integer"]),
        ("budgets = [true]", ["budgets holds True"]),
        ('dtype = "float8"', ["'float8'", "float32"]),
        ("device = 3", ["device is 3", "give text"]),
        ('widen = "1e6"', ["widen is '1e6'", "number"]),
        ("trust_remote_code = 1", ["trust_remote_code is 1", "true or false"]),
        ("paper = 5", ["'5'", "of a paper"]),
    ]:
        file.write_text(content)
        sentence = refused("bench", "--file", file, "--to", tmp_path / "other")
        for part in parts:
            assert part in sentence


def test_texts_follow_the_seed_of_the_run(draftwood, tmp_path, monkeypatch):
    monkeypatch.setattr("draftwood.apps.bench.measure._SIZES", (1, 2, 4))

    def texts(folder: str, seed: int) -> list[list[int]]:
        words = ["--prompts", 1, "--prompt-length", 16, "--new-tokens", 8, "--temperature", 1, "--seed", seed]
        result = draftwood("bench", "--to", tmp_path / folder, "--strategy", "chain:length=2", *words)
        assert result.exit_code == 0, result.output
        return [cell["tokens"] for cell in cells(tmp_path / folder) if cell["kind"] == "text"]

    first = texts("a", 1)
    assert texts("b", 1) == first
    assert all(mine != other for mine, other in zip(first, texts("c", 2), strict=True))


def test_the_drafts_temperature_is_an_option_of_every_strategy():
    assert parse("dyspec:draft_temperature=0.8").strategy(0.6).draft_temperature == 0.8
    found = parse("chain+:draft_temperature=0.8:length=2").strategy(0.6)
    assert (found.policy, found.draft_temperature) == (Chain(2), 0.8)
    assert parse("chain+:length=2").strategy(0.6).draft_temperature is None
    assert parse("race:budget=4:draft_temperature=0.8").strategy(0.6).draft_temperature == 0.8
    assert parse("race:budget=4").strategy(0.6).draft_temperature is None


def test_plots_without_matplotlib_are_refused_before_the_run(refused, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "the extra bench" in refused("bench", "--plots", "--to", tmp_path / "r")
    assert not (tmp_path / "r").exists()
