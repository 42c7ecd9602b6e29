"""Own policies, verifiers and drafters by `package.module:Class`, without registration."""

import json

import pytest

from draftwood.apps.bench.specs import contenders, parse
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection

MINE = """
import attrs

from draftwood import TreePolicy
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.verifiers.block import Block


@attrs.frozen
class Line(Chain):
    budget: int = 3


class Mine(Block):
    pass


class Words(PromptLookup):
    pass
"""


@pytest.fixture(autouse=True)
def few_passes(monkeypatch):
    monkeypatch.setattr("draftwood.apps.bench.measure._SIZES", (1, 2, 4))


@pytest.fixture
def mine(own_module):
    return own_module(MINE)


def test_own_classes_run_beside_the_registered_ones(draftwood, mine):
    words = [
        "--strategy",
        "mine:Line:length=2",
        "--strategy",
        "chain+mine:Mine:length=2",
        "--strategy",
        "dyspec:budget=4:drafter=mine:Words:longest=2",
        "--temperature",
        0.7,
    ]
    words += ["--prompts", 1, "--new-tokens", 6, "--to", "r"]
    result = draftwood("bench", *words)
    assert result.exit_code == 0, result.output
    found = json.loads((mine / "r" / "results.json").read_text())["results"]
    names = ["generate", "mine:Line:length=2", "chain+mine:Mine:length=2"]
    names.append("dyspec:budget=4:drafter=mine:Words:longest=2")
    assert [one["contender"] for one in found] == names
    assert all(one["figures"]["tokens_per_round"]["value"] >= 1 for one in found)
    assert all(one["figures"]["acceptance_rate"]["value"] >= 0 for one in found[1:])
    assert draftwood("bench", *words).exit_code == 0  # its labels are read back: nothing is another run


@pytest.mark.parametrize("strategy", ["mine:Line:length=2", "chain:length=2:drafter=mine:Words"])
def test_an_edited_strategy_is_another_run(draftwood, refused, mine, strategy):
    words = ["bench", "--strategy", strategy, "--prompts", 1, "--new-tokens", 2, "--to", "r"]
    assert draftwood(*words).exit_code == 0
    assert draftwood("bench", "--to", "r", "--report").exit_code == 0
    (mine / "mine.py").write_text(MINE + "\n# changed\n")
    sentence = refused(*words)
    assert 'code.mine was "' in sentence
    assert "--to" in sentence


@pytest.mark.parametrize(
    ("word", "name", "options"),
    [
        ("mine:Line", "mine:Line", ()),
        ("mine:Line:length=2:law=top-k", "mine:Line", ("length=2", "law=top-k")),
        ("mine:Line+mine:Mine", "mine:Line+mine:Mine", ()),
        ("mine:Line+block:length=2", "mine:Line+block", ("length=2",)),
        ("chain+mine:Mine:length=2", "chain+mine:Mine", ("length=2",)),
        ("dyspec:budget=8:drafter=prompt-lookup", "dyspec", ("budget=8", "drafter=prompt-lookup")),
        (
            "mine:Line:drafter=mine:Words:longest=2",
            "mine:Line",
            ("drafter=mine:Words", "longest=2"),
        ),
        ("dyspec:drafter=mine:Words", "dyspec", ("drafter=mine:Words",)),
        ("chain", "chain", ()),
    ],
)
def test_the_colon_of_a_class_belongs_to_its_name(word, name, options):
    spec = parse(word)
    assert (spec.name, spec.options) == (name, options)
    assert parse(spec.label) == spec


def test_a_policy_alone_has_the_usual_verifier_and_a_budget(mine):
    assert type(parse("mine:Line").strategy(0).verifier) is Greedy
    assert type(parse("chain").strategy(0.5).verifier) is RecursiveRejection
    labels = [spec.label for spec in contenders(["mine:Line", "chain"], [2, 4], 0)]
    swept = ["mine:Line:budget=2", "mine:Line:budget=4", "chain:length=2", "chain:length=4"]
    assert labels == ["generate", *swept]


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("mine:Lien", ["'mine'", "no 'Lien'", "did you mean 'Line'?"]),
        ("mien:Line", ["no module 'mien'", "change to its folder"]),
        ("mine:Mine", ["'mine:Mine' is no policy", "derived from TreePolicy"]),
        ("chain+mine:Line", ["'mine:Line' is no verifier", "derived from Verifier"]),
        ("mine:attrs", ["'mine:attrs' is no policy"]),
        ("mine:TreePolicy", ["'mine:TreePolicy' is no policy"]),
        ("mine:Line:lenth=2", ["'lenth'", "did you mean 'length'?"]),
        ("mine:Line:length", ["'length'", "name=value"]),
        ("mine.py:Line", ["'mine.py' is a file", "mine:Class"]),
        ("os:system:command=true", ["'os:system' is no policy"]),
        ("greedy", ["no strategy 'greedy'"]),
        ("dyspec:drafter=mine:Wrods", ["'mine'", "no 'Wrods'", "did you mean 'Words'?"]),
        ("dyspec:drafter=mine:Line", ["'mine:Line' is no drafter", "derived from Drafter"]),
        ("dyspec:drafter=mine:Words:longst=2", ["'longst'", "did you mean 'longest'?"]),
        ("dyspec:drafter=mine:Words:longest", ["'longest'", "name=value"]),
        ("dyspec:drafter=prompt-lookup:longest", ["'longest'", "name=value"]),
    ],
)
def test_what_is_no_strategy_is_refused_in_one_sentence(refused, mine, word, parts):
    sentence = refused("bench", "--strategy", word, "--to", "r")
    for part in parts:
        assert part in sentence
    assert not (mine / "r").exists()


def test_tuning_takes_recipes_alone(refused, mine):
    assert "'mine:Line' is no recipe" in refused("tune", "--strategy", "mine:Line")


def test_generate_and_prove_take_them_too(draftwood, mine):
    words = ["--policy", "mine:Line", "-o", "length=2", "--prompt", "Dear Sir,", "--max-new-tokens", 4]
    assert draftwood("generate", *words).exit_code == 0
    result = draftwood("prove", "--policy", "mine:Line", "--verifier", "mine:Mine", "--models", 1)
    assert result.exit_code == 0, result.output
    assert " ok" in result.stdout


@pytest.mark.parametrize(
    "words",
    [
        "--policy dyspec -o budget=4 --drafter mine:Words -o longest=2",
        "--policy fixed-tree -o branching=2 -o depth=2 -o law=per-drafter"
        " --drafter several -o members=llama-draft,mine:Words:longest=2",
    ],
    ids=["alone", "one of several"],
)
def test_a_drafter_of_ones_own_drafts(draftwood, mine, words):
    asked = ["--prompt", "a b a b a", "--max-new-tokens", 6, "--json"]
    ours, ordinary = draftwood("generate", *words.split(), *asked), draftwood("generate", *asked)
    assert ours.exit_code == 0, ours.output
    assert json.loads(ours.stdout)["text"] == json.loads(ordinary.stdout)["text"]


def test_a_policy_that_weighs_passes_has_them_timed(draftwood, tmp_path):
    """It is refused without costs, so bench times passes first, and says so."""
    result = draftwood(
        *("bench", "--to", tmp_path / "run", "--prompts", 1, "--new-tokens", 4, "--budget", 4),
        *("--strategy", "throughput-dyspec+recursive-rejection"),
    )
    assert result.exit_code == 0, result.output
    assert "Timing passes for ThroughputDySpec" in result.stderr
