"""The fits that `draftwood tune` makes to a pair before it tries anything."""

import json
import re
from functools import partial
from typing import Any

import pytest

import draftwood as library
from draftwood.apps.tune import fit
from draftwood.strategies import recipes
from draftwood.strategies.policies.shapes import as_shape
from tests.apps.timed_tune import tuned

PROMPT = "Question: Tom has 3 boxes with 12 apples each. How many apples are there?\nAnswer:"

pytestmark = pytest.mark.usefixtures("few_reads")


@pytest.fixture(scope="module")
def tuned_at(tmp_path_factory):
    return partial(tuned, tmp_path_factory)


@pytest.mark.thorough
def test_a_shape_is_searched_for_the_pair(tuned_at):
    file, _ = tuned_at(0.02, "--strategy", "race", "--strategy", "dyspec", "--temperature", 1)
    content = json.loads(file.read_text())
    labels = [one["label"] for one in content["estimates"]]
    shapes = {}
    for label in labels:
        if found := re.fullmatch(r"race:budget=(\d+)(:draft_temperature=[\d.]+)?:shape=([\d,/]+)", label):
            shapes[int(found[1])] = as_shape(found[3])
    assert len(labels) == 4
    assert {budget: len(shape) for budget, shape in shapes.items()} == {2: 2, 5: 5}
    # What is chosen is read, whether it is the shape or not.
    tuned = library.read_tuned(file)
    if tuned.recipe == "race":
        assert tuned.method().policy.shape in shapes.values()  # type: ignore[attr-defined]


def test_the_drafts_temperature_is_fitted_and_kept(tuned_at, draftwood):
    file, output = tuned_at(0.02, "--strategy", "leviathan", "--temperature", 0.6)
    known = library.read_tuned(file)
    drawn_at = known.draft_temperature
    assert drawn_at is not None
    assert drawn_at > 0.6  # llama-draft was made for temperature 0
    assert f"at draft temperature {drawn_at:g}." in output
    assert known.draft_sampling == library.SamplingParams(temperature=drawn_at)
    same = ["--prompt", PROMPT, "--max-new-tokens", 16, "--seed", 3, "--json"]
    options = ["--recipe", "leviathan", "-o", f"length={known.options['length']}", "--temperature", 0.6]
    wanted = draftwood("generate", *same, *options, "--draft-temperature", drawn_at).stdout
    found = draftwood("generate", *same, "--tuned", file).stdout
    other = draftwood("generate", *same, *options).stdout
    assert json.loads(found)["tokens"] == json.loads(wanted)["tokens"] != json.loads(other)["tokens"]
    # It was fitted for 0.6: at another temperature the draft follows the target.
    hot = [*same, "--temperature", 1.0]
    followed = draftwood("generate", *hot, "--tuned", file).stdout
    options[-1] = 1.0
    alone = draftwood("generate", *same, *options).stdout
    assert json.loads(followed)["tokens"] == json.loads(alone)["tokens"]


@pytest.fixture
def fitted_labels(tuned_at, monkeypatch):
    """The labels of candidates of two nodes and the output, where a draft's best temperature is `best`."""

    def labels(*words: str, temperature: float, best: float) -> tuple[set[str], str]:
        calls = []

        def fitting(*args: Any, temperature: float, **options: Any) -> float:
            calls.append(temperature)
            return best

        monkeypatch.setattr(fit, "best_draft_temperature", fitting)
        strategies = [part for word in words for part in ("--strategy", word)]
        file, output = tuned_at(0.02, *strategies, "--temperature", temperature, "--budget", 2)
        assert calls == [temperature]  # of one drafter once
        estimates = json.loads(file.read_text())["estimates"]
        return {one["label"] for one in estimates if "=2" in one["label"]}, output

    return labels


def test_only_what_draws_and_was_not_told_gets_a_draft_temperature(fitted_labels):
    words = ["leviathan", "leviathan:draft_temperature=0.7", "dyspec", "opt-tree"]
    labels, _ = fitted_labels(*words, temperature=0.6, best=0.9)
    assert labels == {
        "leviathan:length=2:draft_temperature=0.9",
        "leviathan:draft_temperature=0.7:length=2",
        "dyspec:budget=2:draft_temperature=0.9",
        "opt-tree:budget=2",
    }


def test_what_is_fitted_at_temperature_0_is_kept(tuned_at, draftwood):
    texts = "--prompts", 4, "--new-tokens", 32  # of ten tokens nothing is said
    file, output = tuned_at(0.02, "--strategy", "opt-tree", "--temperature", 0, "--budget", 8, *texts)
    known = library.read_tuned(file)
    assert known.draft_temperature is not None
    assert 0.5 <= known.draft_temperature < 0.95
    assert f"at draft temperature {known.draft_temperature:g}." in output
    assert known.draft_sampling == library.SamplingParams(temperature=known.draft_temperature)
    same = ["--prompt", PROMPT, "--max-new-tokens", 96, "--json"]
    found = json.loads(draftwood("generate", *same, "--tuned", file).stdout)
    by_hand = [*same, "--recipe", "opt-tree", "-o", f"budget={known.options['budget']}"]
    drawn_at = ["--draft-temperature", known.draft_temperature]
    wanted = json.loads(draftwood("generate", *by_hand, *drawn_at).stdout)
    flat = json.loads(draftwood("generate", *by_hand, "--draft-temperature", 3).stdout)
    assert found["tokens"] == wanted["tokens"] == flat["tokens"]
    rounds = [one["statistics"]["tokens_per_round"] for one in (found, wanted, flat)]
    assert rounds[0] == rounds[1] > rounds[2]


def test_at_temperature_0_only_trees_of_likely_paths_get_a_draft_temperature(fitted_labels):
    words = ["leviathan", "sequoia", "opt-tree:draft_temperature=0.7", "dyspec", "opt-tree", "eagle2"]
    labels, output = fitted_labels(*words, temperature=0, best=0.8)
    assert "knows best what the target chooses at draft temperature 0.8." in output
    assert labels == {
        "leviathan:length=2",
        "sequoia:budget=2",
        "opt-tree:draft_temperature=0.7:budget=2",
        "dyspec:budget=2",  # at the 0.6 of its paper
        "opt-tree:budget=2:draft_temperature=0.8",
        "eagle2:budget=2:draft_temperature=0.8",
    }


def test_a_draft_that_is_as_it_should_be_at_temperature_0_is_left_so(fitted_labels):
    labels, output = fitted_labels("opt-tree", temperature=0, best=1.0)
    assert labels == {"opt-tree:budget=2"}
    assert "at draft temperature" not in output


def test_a_draft_that_was_told_to_follow_the_target_does(tuned_at):
    file, _ = tuned_at(
        0.0, "--strategy", "dyspec:draft_temperature=none", "--temperature", 0.8, "--budget", 2
    )
    known = library.read_tuned(file)
    assert known.recipe == "dyspec"
    assert known.draft_sampling is None


def test_a_shape_is_fitted_at_the_drafts_temperature(tuned_at, monkeypatch):
    drawn_at = []

    def fitting(*args: Any, draft_sampling: library.SamplingParams, **options: Any) -> dict[int, str]:
        drawn_at.append(draft_sampling.temperature)
        return {2: "1/1"}

    fitting.option = "shape"  # type: ignore[attr-defined]
    monkeypatch.setattr(fit, "best_draft_temperature", lambda *args, **options: 0.9)
    monkeypatch.setattr(recipes.race, "fit", fitting)
    words = ["race:budget=2", "race:budget=2:draft_temperature=0.7"]
    file, _ = tuned_at(0.02, *(part for word in words for part in ("--strategy", word)), "--temperature", 0.6)
    labels = [one["label"] for one in json.loads(file.read_text())["estimates"]]
    assert sorted(labels) == [
        "race:budget=2:draft_temperature=0.7:shape=1/1",
        "race:budget=2:draft_temperature=0.9:shape=1/1",
    ]
    assert sorted(drawn_at) == [0.7, 0.9]


def test_at_temperature_0_no_shape_is_searched(draftwood, tmp_path):
    file = tmp_path / "tuned.json"
    result = draftwood(
        "tune", "--to", file, "--prompts", 1, "--new-tokens", 4, "--strategy", "race", "--budget", 4
    )
    assert result.exit_code == 0, result.output
    (contest,) = json.loads(file.read_text())["contest"]
    assert contest["label"] == "race:budget=4"
    assert contest["equal"] is True
