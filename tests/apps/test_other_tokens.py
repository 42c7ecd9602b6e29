"""A draft with another tokenizer in `bench` and `tune`: the zoo's draft with its tokens in another order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import draftwood as library
from draftwood import IncompatibleModels, InvalidInput, zoo
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.drafters.shared_tokens import SharedTokens
from tests.apps.cells import cells

EXTRA = 150  # tokens that the target lacks: more than padding is

pytestmark = pytest.mark.usefixtures("few_reads")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """llama-draft with its tokens in another order, the longest gone and others in their place."""
    folder = tmp_path_factory.mktemp("foreign")
    zoo.tokenizer().save_pretrained(folder)
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    vocabulary, merges = content["model"]["vocab"], content["model"]["merges"]
    # The last merge of a token that no other one needs.
    merges.pop()
    size = zoo.tokenizer().vocab_size
    places = torch.cat([torch.arange(1), 1 + torch.randperm(size - 1, generator=torch.manual_seed(0))])
    old = sorted(vocabulary, key=vocabulary.get)
    gone = old[-1]
    renamed = {token: int(places[vocabulary[token]]) for token in old if token != gone}
    renamed |= {f"\u0100{number}": size + number for number in range(EXTRA)} | {"\u0101": int(places[-1])}
    content["model"]["vocab"] = renamed
    file.write_text(json.dumps(content), encoding="utf-8")

    model: Any = zoo.load("llama-draft")
    order = torch.argsort(places)
    own = model.get_input_embeddings().weight.detach()
    head = model.get_output_embeddings().weight.detach()
    model.resize_token_embeddings(size + EXTRA, mean_resizing=False)
    with torch.no_grad():
        model.get_input_embeddings().weight[:size] = own[order]
        model.get_output_embeddings().weight[:size] = head[order]
    model.save_pretrained(folder)
    return folder


def test_bench_contests_it_beside_the_targets_own(
    draftwood: Any, foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftwood.apps.bench.measure._SIZES", (1, 2, 4))
    words = ["--prompts", 1, "--new-tokens", 8, "--strategy", "dyspec:budget=6"]
    words += ["--strategy", "generate-assisted", "--temperature", 0, "--temperature", 0.8]
    pairs = ["llama-7m,llama-draft", f"llama-7m,{foreign}"]
    result = draftwood("bench", "--to", tmp_path, *words, "--pair", pairs[0], "--pair", pairs[1])
    assert result.exit_code == 0, result.stderr
    said = " ".join(result.stdout.split())
    assert "the draft has another tokenizer and proposes 4095 of the target's 4096 tokens" in said
    assert (
        "generate-assisted did not run: transformers cuts the output head of a draft with another tokenizer"
        in said
    )
    content = json.loads((tmp_path / "results.json").read_text())
    assert content["passes"][pairs[0]]["shared_tokens"] is None
    shared = content["passes"][pairs[1]]["shared_tokens"]
    assert (shared["shared"], shared["target"]) == (4095, 4096)
    assert 0.95 < shared["coverage"] <= 1
    measured = cells(tmp_path)
    for contender in ("dyspec:budget=6", "generate-assisted"):
        own, other = (
            next(
                one
                for one in measured
                if (one["kind"], one.get("contender")) == ("text", contender)
                and (one["pair"], one["temperature"]) == (pair, 0)
            )
            for pair in pairs
        )
        assert own["tokens"] == other["tokens"]
        assert contender == "generate-assisted" or own["rounds"] == other["rounds"] < 8
    greedy = [one for one in measured if one["kind"] == "pair" and one["temperature"] == 0]
    own, other = (next(one for one in greedy if one["pair"] == pair) for pair in pairs)
    assert other["accepted"] == pytest.approx(own["accepted"], abs=0.01)
    assert sum(other["drawn"]) == pytest.approx(8)
    again = draftwood("bench", "--to", tmp_path, "--report")
    assert again.stdout == result.stdout


def test_tune_keeps_the_pair_and_generate_takes_it(
    draftwood: Any, refused: Any, foreign: Path, tmp_path: Path
) -> None:
    file = tmp_path / "tuned.json"
    words = ["--drafter", foreign, "--strategy", "dyspec", "--budget", 4, "--prompts", 1, "--new-tokens", 4]
    result = draftwood("tune", "--to", file, *words)
    assert result.exit_code == 0, result.stderr
    assert "The draft has another tokenizer and proposes 4095 of the target's 4096 tokens" in result.stderr
    content = json.loads(file.read_text())
    assert content["settings"]["shared_tokens"]["shared"] == 4095
    assert all(one["equal"] for one in content["contest"])  # none after a clear no
    content |= {"recipe": "dyspec", "options": {"budget": 4}, "gain": 2.0}
    file.write_text(json.dumps(content))

    same = ["--prompt", "The sea", "--max-new-tokens", 8, "--json"]
    found = draftwood("generate", "--tuned", file, *same)
    assert found.exit_code == 0, found.stderr
    assert "proposes 4095 of the target's" in found.stderr
    wanted = json.loads(draftwood("generate", *same).stdout)
    assert json.loads(found.stdout)["tokens"] == wanted["tokens"]
    assert json.loads(found.stdout)["statistics"]["target_calls"] < 8

    tuned = library.read_tuned(file)
    with pytest.raises(InvalidInput, match=r"give the drafter that SharedTokens.between\(\) makes"):
        tuned.decoder(zoo.path("llama-7m"), foreign)
    tokenizers = zoo.tokenizer(), _tokenizer(foreign)
    drafter = SharedTokens.between(ModelDrafter(library.load(foreign)), *tokenizers, vocab_size=4096)
    decoder = tuned.decoder(zoo.path("llama-7m"), drafter)
    rows: Any = decoder.generate([zoo.tokenizer()("The sea")["input_ids"]], max_new_tokens=8)
    assert rows[0, -8:].tolist() == wanted["tokens"]
    other = SharedTokens.between(
        ModelDrafter(library.load(zoo.path("llama-7m"))), *[zoo.tokenizer()] * 2, vocab_size=4096
    )
    with pytest.raises(IncompatibleModels, match="bytes of weights"):
        tuned.decoder(zoo.path("llama-7m"), other)

    file.write_text(json.dumps(content | {"draft_vocabulary": "0" * 64}))
    assert "another tokenizer than the draft's" in refused("generate", "--tuned", file, *same)
    file.write_text(json.dumps(content | {"draft_vocabulary": None}))
    assert "tokenizers of target and draft differ" in refused("generate", "--tuned", file, *same)


def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)
