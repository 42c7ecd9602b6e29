"""The pages in docs/ name what there is."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from draftwood import zoo
from draftwood.protocols import registry
from tests.fake_hub import COMMIT, empty_hub

DOCS = Path(__file__).parents[1] / "docs"


def rows(page):
    """Names in the first column of a page's tables."""
    return set(re.findall(r"^\| `([a-z0-9-]+)` \|", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize(
    ("page", "kinds"), [("trees.md", ("policies", "drafters")), ("verifiers.md", ("verifiers",))]
)
def test_every_strategy_has_a_row(page, kinds):
    assert rows(page) == {name for kind in kinds for name in registry.names(kind)}


@pytest.mark.docs
def test_the_examples_of_trees_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    from draftwood import SamplingParams, create, load

    target, draft = load(zoo.path("llama-7m")), load(zoo.path("llama-draft"))
    drafter = create("drafters", "model", {"backend": draft})
    known = {"target": target, "draft": draft, "drafter": drafter, "SamplingParams": SamplingParams}
    known |= {"tokenizer": zoo.tokenizer(), "inputs": [zoo.tokenizer()("Dear Sir,")["input_ids"]]}
    text = (DOCS / "trees.md").read_text(encoding="utf-8")
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(code, "trees.md", "exec"), known)
    assert "4055 of the target's 4096 tokens (99.0%)" in capsys.readouterr().out
    assert known["ids"].shape[1] > len(known["inputs"][0])


def test_the_examples_of_heads_run(tmp_path, monkeypatch):
    """The walk from two hub names to a text, and the same with objects."""
    place = empty_hub(tmp_path, monkeypatch)
    for name, repository in (("llama-7m", "org/model"), ("llama-7m-eagle3", "org/head")):
        shutil.copytree(zoo.path(name), place(repository))
    zoo.tokenizer().save_pretrained(tmp_path / "models--org--model" / "snapshots" / COMMIT)
    known: dict[str, Any] = {}
    text = (DOCS / "heads.md").read_text(encoding="utf-8")
    walk, objects = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for code in (walk, objects):
        exec(compile(code, "heads.md", "exec"), known)
        assert type(known["decoder"].drafter).__name__ == "Eagle3"
    prompt = zoo.tokenizer()("Dear Sir,")["input_ids"]
    assert known["prompt"] == prompt
    assert len(prompt) < known["ids"].shape[1] <= len(prompt) + 64
    assert known["decoder"].generate([prompt], max_new_tokens=4).shape == (1, len(prompt) + 4)


@pytest.mark.docs
def test_the_examples_of_generate_run():
    text = (DOCS / "generate.md").read_text(encoding="utf-8")
    known: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 5
    for code in blocks:
        exec(compile(code, "generate.md", "exec"), known)
    assert known["session"].statistics.new_tokens > 24


@pytest.mark.thorough  # it compiles
def test_the_example_of_captured_passes_runs():
    text = (DOCS / "large-models.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    known: dict[str, Any] = {}
    exec(compile(code, "large-models.md", "exec"), known)
    prompt = zoo.tokenizer()("Dear Sir,")["input_ids"]
    assert known["decoder"].generate([prompt], max_new_tokens=4).shape == (1, len(prompt) + 4)


@pytest.mark.docs
def test_the_examples_of_integrations_run(tmp_path, monkeypatch):
    monkeypatch.chdir(DOCS.parent)  # where `hub` is
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    known: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", (DOCS / "integrations.md").read_text("utf-8"), re.DOTALL):
        exec(compile(code, "integrations.md", "exec"), known)
    assert json.loads(known["answer"])["label"] in ("positive", "negative")
    plain = known["model"].generate(**known["inputs"], max_new_tokens=32, do_sample=False)
    assert known["output"].tolist() == plain.tolist()  # what the hub form wrote last


@pytest.mark.docs
def test_the_example_of_many_texts_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "scale.md").read_text("utf-8"), re.DOTALL)
    exec(compile(code, "scale.md", "exec"), {})
    numbers = re.findall(r"^(\d+) ", capsys.readouterr().out, re.MULTILINE)
    assert set(map(str, range(10))) <= set(numbers)


@pytest.mark.docs
def test_the_examples_of_the_sampler_page_run(capsys):
    text = (DOCS / "prove-your-sampler.md").read_text(encoding="utf-8")
    known: dict[str, object] = {}
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(code, "prove-your-sampler.md", "exec"), known)
    printed = capsys.readouterr().out
    assert printed.startswith("lossless: largest error ")
    assert "Most likely: after a rejection it draws from the target;" in printed
    assert "though the target gives token 0 probability 0" in printed
    report: Any = known["report"]
    assert report.error < 1e-6
