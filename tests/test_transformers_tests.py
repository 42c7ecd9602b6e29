"""`python -m benchmarks transformers-tests` on a small checkout: what it runs, counts and says."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.research import generate_twice, transformers_tests
from tests.backends.attention_models import tiny

TESTS = """
import pytest, torch, transformers as hf
from tests.test_pipeline_mixin import SomethingElse
from transformers.testing_utils import no_such_name

def model():
    torch.manual_seed(0)
    sizes = dict(vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=64)
    return hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)).eval()

@pytest.mark.generate
def test_greedy():
    ids = torch.tensor([[3, 4, 5]])
    with pytest.raises(ValueError):
        model().generate(ids, max_new_tokens=0)
    out = model().generate(ids, max_new_tokens=6, do_sample=False)
    assert out.shape == (1, 9)
    model().generate(ids, max_new_tokens=6, do_sample=True)
    model().generate(ids, max_new_tokens=6, num_beams=2, do_sample=False)
    model().generate(ids, max_new_tokens=6, do_sample=False, cache_implementation="static")

@pytest.mark.generate
def test_refused():
    class Changing(hf.LogitsProcessor):
        called = 0
        def __call__(self, ids, scores):
            self.called += 1
            return scores + self.called * torch.arange(40)
    model().generate(torch.tensor([[3, 4]]), max_new_tokens=4, logits_processor=[Changing()])

def test_that_is_not_marked():
    raise AssertionError
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "tests" / "models" / "tiny"
    folder.mkdir(parents=True)
    (tmp_path / "tests" / "generation").mkdir()
    (tmp_path / "tests" / "generation" / "test_utils.py").touch()
    for package in (folder, folder.parent, folder.parent.parent):
        (package / "__init__.py").touch()
    (folder / "test_modeling_tiny.py").write_text(TESTS, encoding="utf-8")
    broken = folder.parent / "broken" / "test_modeling_broken.py"
    broken.parent.mkdir()
    broken.write_text("import no_such_module", encoding="utf-8")
    return tmp_path


def called(checkout: Path, output: Path, *more: str) -> str:
    """What the command prints; a process of its own forks without this one's tests."""
    script = (
        "from benchmarks.__main__ import app; from benchmarks.research import transformers_tests as t;"
        "t._NEEDED = (); t.FAMILIES = ('tiny', 'broken', 'missing'); app()"
    )
    words = ["transformers-tests", *more, "--checkout", str(checkout), "--output", str(output)]
    run = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
    return run.stdout


def test_calls_are_counted_by_their_results(checkout: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    said = called(checkout, table)
    lines = dict(line.split(",", 1) for line in table.read_text().splitlines())
    assert lines["tiny"] == "5,2,1,1,1,0,0,"
    assert lines["broken"].startswith("0,0,0,0,0,0,0,ModuleNotFoundError: No module named 'no_such")
    assert lines["missing"] == f"0,0,0,0,0,0,0,no {Path('tests/models/missing/test_modeling_missing.py')}"
    (refused,) = (line for line in said.splitlines() if "test_refused" in line)
    assert "Changing" in refused
    assert called(checkout, table) == ""  # all families are there


def test_without_a_checkout_or_a_package_it_says_so(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, needed, words in (
        (tmp_path / "nowhere", (), "has no tests/generation/test_utils.py"),
        (checkout, ("no_such_package",), "need no_such_package; install it with pip."),
    ):
        monkeypatch.setattr(transformers_tests, "_NEEDED", needed)
        said = CliRunner().invoke(app, ["transformers-tests", "--checkout", str(folder)])
        assert said.exit_code == 1
        assert words in " ".join(said.output.split())


def test_other_texts_are_wrong_and_other_errors_raw() -> None:
    model, kwargs = tiny(), {"max_new_tokens": 8, "do_sample": False}
    ids = torch.tensor([[3, 4, 5]])
    plain = model.generate(ids, **kwargs)
    judge = generate_twice.judge
    assert judge(type(model).generate, model, ((ids,), kwargs), plain, None).result == "equal"
    other = plain.clone()
    other[0, -3] = (other[0, -3] + 1) % 50
    assert judge(type(model).generate, model, ((ids,), kwargs), other, None).result == "wrong"
    assert judge(type(model).generate, model, ((ids,), kwargs), None, ValueError()).result == "wrong"

    def breaks(*args: Any, **kwargs: Any) -> Any:
        raise KeyError("self")

    assert judge(breaks, model, ((ids,), kwargs), plain, None).result == "raw"
    assert judge(breaks, model, ((ids,), kwargs), None, ValueError()).result == "raises"
