"""`draftwood tune` on the zoo's Llama pair; where a decision is tested, passes cost what the test says."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import draftwood as library
from draftwood import IncompatibleModels, InvalidInput, zoo
from tests.apps.timed_tune import tuned

PROMPT = "Question: Tom has 3 boxes with 12 apples each. How many apples are there?\nAnswer:"

pytestmark = pytest.mark.usefixtures("few_reads")


@pytest.fixture(scope="module")
def tuned_at(tmp_path_factory):
    return partial(tuned, tmp_path_factory)


@pytest.fixture(scope="module")
def paying(tuned_at) -> tuple[Path, str]:
    return tuned_at(0.02)


@pytest.fixture(scope="module")
def ordinary(tuned_at) -> tuple[Path, str]:
    """The draft drafts for itself: all is accepted, and yet nothing gained."""
    return tuned_at(1.0, "--target", "llama-draft", "--drafter", "llama-draft")


@pytest.fixture
def edited(paying, tmp_path):
    """The file with some keys changed, or taken out where the value is `...`."""

    def write(**changes: object) -> Path:
        content = json.loads(paying[0].read_text()) | changes
        file = tmp_path / "edited.json"
        file.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))
        return file

    return write


def test_it_measures_for_real(draftwood, tmp_path):
    file = tmp_path / "tuned.json"
    result = draftwood(
        "tune", "--to", file, "--prompts", 1, "--new-tokens", 4, "--strategy", "dyspec", "--budget", 3
    )
    assert result.exit_code == 0, result.output
    content = json.loads(file.read_text())
    costs = library.read_tuned(file).pass_costs
    assert costs is not None
    assert {point[:2] for point in costs.target.points} == {(nodes, 1) for nodes in (1, 2, 3, 4)}
    assert costs.target(4) > 0 < costs.draft_seconds(1)
    assert costs.machine == content["machine"]
    assert [one["label"] for one in content["estimates"]] == ["dyspec:budget=3"]
    assert all(
        (contest["label"], contest["equal"]) == ("dyspec:budget=3", True) for contest in content["contest"]
    )
    assert library.read_tuned(file).ordinary == (not content["contest"] or content["gain"] <= 1)


def test_what_pays_is_recommended(paying):
    file, output = paying
    content = json.loads(file.read_text())
    gains = [one["gain"] for one in content["estimates"]]
    assert gains == sorted(gains, reverse=True)
    assert {one["label"] for one in content["estimates"]} == {
        *(f"leviathan:length={n}" for n in (2, 5)),
        *(f"dyspec:budget={n}" for n in (2, 5)),
    }
    best = max(content["contest"], key=lambda one: one["gain"])
    assert content["gain"] == best["gain"] > 1
    assert best["label"] in {one["label"] for one in content["estimates"][:2]}
    assert f"Take {best['label']}:" in output
    assert content["recipe"] == best["label"].split(":")[0]
    assert {"torch", "draftwood"} <= content["versions"].keys()
    assert content["machine"]


def test_generate_takes_the_file(draftwood, paying):
    file, _ = paying
    known = library.read_tuned(file)
    same = ["--prompt", PROMPT, "--max-new-tokens", 16, "--json"]
    options = [word for name, value in known.options.items() for word in ("-o", f"{name}={value}")]
    wanted = json.loads(draftwood("generate", *same, "--recipe", known.recipe, *options).stdout)
    found = json.loads(draftwood("generate", *same, "--tuned", file).stdout)
    for content in (wanted, found):
        content["rounds"] = content["statistics"]["target_calls"], content["statistics"]["draft_calls"]
        del content["statistics"]
    assert found == wanted
    assert found["rounds"][0] < 16


def test_the_library_takes_the_file(paying, monkeypatch):
    """The library takes the file as docs/tune.md shows it."""
    page = (Path(__file__).parents[2] / "docs" / "tune.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(paying[0].parent)
    prompt = zoo.tokenizer()(PROMPT)["input_ids"]
    scope: dict[str, Any] = {
        "target": zoo.path("llama-7m"),
        "draft": zoo.path("llama-draft"),
        "inputs": [prompt],
    }
    exec(compile(code, "tune.md", "exec"), scope)
    model: Any = zoo.load("llama-7m")
    written = model.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False, pad_token_id=0)
    assert scope["ids"][:, : written.shape[1]].tolist() == written.tolist()
    assert scope["decoder"].policy == scope["tuned"].method().policy
    assert not scope["tuned"].ordinary


def test_another_temperature_is_said(draftwood, paying):
    result = draftwood(
        "generate", "--tuned", paying[0], "--temperature", 0.7, "--prompt", PROMPT, "--max-new-tokens", 4
    )
    assert result.exit_code == 0, result.output
    assert "was tuned at temperature 0; at 0.7" in result.stderr


def test_a_draft_as_slow_as_its_target_is_left_out(draftwood, ordinary):
    file, output = ordinary
    assert "Ordinary decoding is faster than all that was tried" in output
    known = library.read_tuned(file)
    assert known.ordinary
    assert known.gain <= 1
    result = draftwood("generate", "--tuned", file, "--prompt", PROMPT, "--max-new-tokens", 8, "--json")
    assert "nothing is drafted" in result.stderr
    statistics = json.loads(result.stdout)["statistics"]
    assert statistics["target_calls"] + 1 == statistics["new_tokens"] == 8
    assert statistics["draft_calls"] == 0

    decoder = known.decoder(zoo.path("llama-draft"))
    prompt = zoo.tokenizer()(PROMPT)["input_ids"]
    found: Any = decoder.generate([prompt], max_new_tokens=8, return_dict_in_generate=True)
    assert found.tokens[0] == json.loads(result.stdout)["tokens"]
    assert found.statistics.target_calls == 7


def test_above_temperature_0_with_a_drafter_that_is_no_model(tuned_at, draftwood):
    file, _ = tuned_at(0.0, "--drafter", "prompt-lookup", "--temperature", 0.8, "--strategy", "dyspec")
    known = library.read_tuned(file)
    assert known.draft is None
    assert known.drafter == "prompt-lookup"
    assert known.temperature == 0.8
    decoder = known.decoder(zoo.path("llama-7m"))
    prompt = zoo.tokenizer()("one two one two one two")["input_ids"]
    options: dict[str, Any] = {
        "max_new_tokens": 5,
        "sampling": known.sampling,
        "draft_sampling": known.draft_sampling,
    }
    found: Any = decoder.generate([prompt], **options, seed=1, return_dict_in_generate=True)
    result = draftwood(
        "generate",
        "--tuned",
        file,
        "--prompt",
        "one two one two one two",
        "--max-new-tokens",
        5,
        "--seed",
        1,
        "--json",
    )
    assert json.loads(result.stdout)["tokens"] == found.tokens[0]


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"version": 2}, ["version 2", "reads 1"]),
        ({"format": "other"}, ["not written by draftwood tune"]),
        ({"recipe": "dispec"}, ["'dispec'", "did you mean 'dyspec'?"]),
        ({"options": {"bugdet": 3}, "recipe": "dyspec"}, ["'bugdet'", "'budget'"]),
        ({"options": ["budget"]}, ["options", "not dict"]),
        ({"vocabulary": ...}, ["vocabulary is missing"]),
        ({"target": None}, ["target is None"]),
        ({"draft": {"name": "x"}}, ["draft is {'name': 'x'}", "vocab_size"]),
        ({"dtype": "int3"}, ["dtype is 'int3'"]),
        ({"draft_temperature": "hot"}, ["draft_temperature is 'hot'", "not float or int or null"]),
        ({"draft_temperature": -1}, ["temperature is -1", "0 (greedy) or a finite number above it"]),
        ({"vocabulary": "0" * 64}, ["another tokenizer"]),
        (
            {"target": {"name": "llama-7m", "vocab_size": 32000, "weight_bytes": 29377536}},
            ["'llama-7m'", "32000", "4096"],
        ),
        (
            {"draft": {"name": "llama-draft", "vocab_size": 4096, "weight_bytes": 7}},
            ["'llama-draft'", "7 bytes of weights"],
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_files_that_do_not_fit(refused, edited, changes, parts):
    sentence = refused("generate", "--tuned", edited(**changes), "--prompt", "Hi")
    for part in ("edited.json", *parts):
        assert part in sentence


WITNESS = """
from pathlib import Path

from draftwood.strategies.drafters.prompt_lookup import PromptLookup

Path(__file__).with_name("ran").touch()


class Mine(PromptLookup):
    pass
"""


@pytest.mark.parametrize(
    "drafter",
    [
        {"drafter": "mine:Mine", "drafter_options": {}},
        {"drafter": "several", "drafter_options": {"members": "prompt-lookup,mine:Mine"}},
    ],
    ids=["drafter", "member"],
)
def test_a_file_runs_no_code(draftwood, refused, edited, own_module, drafter):
    folder = own_module(WITNESS)
    file = edited(draft=None, recipe="dyspec", options={"budget": 4}, **drafter)
    arguments = ("generate", "--tuned", file, "--prompt", "Hi", "--max-new-tokens", 4)
    assert "'mine:Mine'" in refused(*arguments)
    known = library.read_tuned(file)
    with pytest.raises(InvalidInput, match=r"'mine:Mine'.*give it as|'several'.*give the drafter itself"):
        known.decoder(zoo.path("llama-7m"))
    assert not (folder / "ran").exists()
    if drafter["drafter"] == "several":
        assert "'mine:Mine'" in refused(*arguments, "--drafter", "several")
        assert not (folder / "ran").exists()
    else:
        assert draftwood(*arguments, "--drafter", "mine:Mine").exit_code == 0
        assert (folder / "ran").exists()


@pytest.mark.parametrize("recipe", ["mine:Mine", "mine:recipe"])
def test_a_recipe_is_a_registered_one(refused, edited, own_module, recipe):
    folder = own_module(WITNESS)
    assert recipe in refused("generate", "--tuned", edited(recipe=recipe), "--prompt", "Hi")
    assert not (folder / "ran").exists()


def test_files_that_are_none(tmp_path):
    with pytest.raises(InvalidInput, match="cannot be read: No such file"):
        library.read_tuned(tmp_path / "none.json")
    bad = tmp_path / "bad.json"
    for content, said in (
        (b"{", "line 1 is not JSON"),
        (b"\xff", "not UTF-8"),
        (b"[]", "not written by draftwood tune"),
    ):
        bad.write_bytes(content)
        with pytest.raises(InvalidInput, match=said):
            library.read_tuned(bad)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--target", "mamba2-5m"], ["target 'llama-7m'", "'mamba2-5m'"]),
        (["--drafter", "prompt-lookup"], ["drafter 'llama-draft'", "'prompt-lookup'"]),
        (["--recipe", "dyspec"], ["--recipe"]),
        (["-o", "budget=3"], ["--option"]),
    ],
    ids=lambda value: value[0],
)
def test_options_beside_the_file(refused, paying, arguments, parts):
    sentence = refused("generate", "--tuned", paying[0], "--prompt", "Hi", *arguments)
    for part in parts:
        assert part in sentence


def test_the_library_refuses_another_pair(paying):
    known = library.read_tuned(paying[0])
    with pytest.raises(IncompatibleModels, match="target 'llama-7m'.*bytes of weights"):
        known.decoder(zoo.path("mamba2-draft"), zoo.path("llama-draft"))
    with pytest.raises(IncompatibleModels, match="draft 'llama-draft'.*bytes of weights"):
        known.decoder(zoo.path("llama-7m"), zoo.path("mamba2-draft"))
    with pytest.raises(InvalidInput, match="give it as drafter"):
        known.decoder(zoo.path("llama-7m"))


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--data", "/no/such.jsonl"], ["/no/such.jsonl", "No such file"]),
        (["--prompts", 1000], ["1000", "give fewer"]),
        (["--prompts", 0], ["prompts is 0"]),
        (["--new-tokens", 0], ["new_tokens is 0"]),
        (["--new-tokens", 5000], ["context of", "--new-tokens"]),
        (["--budget", 0], ["length is 0"]),
        (["--strategy", "dispec"], ["'dispec'", "dyspec"]),
        (["--strategy", "chain+block"], ["'chain+block'", "no recipe"]),
        (["--strategy", "generate-assisted"], ["'generate-assisted'", "no recipe"]),
        (["--temperature", -1], ["-1"]),
        (["--to", "/no/such/tuned.json"], ["/no/such", "does not exist"]),
    ],
    ids=lambda value: " ".join(map(str, value)) if str(value[0]).startswith("--") else "",
)
def test_bad_options(refused, tmp_path, arguments, parts):
    to = [] if "--to" in arguments else ["--to", tmp_path / "tuned.json"]
    sentence = refused("tune", *to, *arguments)
    for part in parts:
        assert part in sentence
    assert not (tmp_path / "tuned.json").exists()


def test_a_draft_that_costs_too_much_is_refused_before_any_trial(ordinary):
    file, output = ordinary
    content = json.loads(file.read_text())
    assert content["contest"] == content["estimates"] == []
    assert "even if every level of its tree were accepted" in output


def test_a_clear_no_after_the_first_look_needs_no_contest(tuned_at):
    """A drafter that guesses badly and costs half a target pass gains nowhere."""
    file, output = tuned_at(0.5, "--drafter", "prompt-lookup", "--temperature", 1, "--strategy", "dyspec")
    content = json.loads(file.read_text())
    assert content["contest"] == []
    assert content["recipe"] is None
    assert content["gain"] == max(one["gain"] for one in content["estimates"]) <= 1
    assert "First look: 2 candidates, 10 tokens after 2 prompts" in output
    assert "Trial:" not in output
    assert "none of 2 candidates (of 2) came near its speed, so there was no contest" in output


def test_it_says_what_it_measures(paying):
    _, output = paying
    parts = ("Timing passes over up to 6 tokens", "A target pass takes", "First look:", "Trial:", "Contest:")
    places = [output.index(part) for part in parts]
    assert places == sorted(places)
