"""`python -m benchmarks transformers-tests` on a small checkout: what it runs, counts and says."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.research import generate_twice, transformers_tests

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
    return tmp_path


def called(checkout: Path, output: Path, *more: str) -> Any:
    words = ["transformers-tests", *more, "--checkout", str(checkout), "--output", str(output)]
    return CliRunner().invoke(app, words)


def test_calls_are_counted_by_what_came_of_them(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers_tests, "_NEEDED", ())
    monkeypatch.setattr(transformers_tests, "FAMILIES", ("tiny", "missing"))
    table = tmp_path / "table.csv"
    run = called(checkout, table)
    assert run.exit_code == 0, run.output
    tiny, missing = table.read_text().splitlines()[:0:-1]
    assert tiny == "tiny,5,2,1,1,1,0,0,"
    assert missing == "missing,0,0,0,0,0,0,0,no tests/models/missing/test_modeling_missing.py"
    assert "refused" in run.output
    assert "Changing" in run.output
    again = called(checkout, table)
    assert (again.exit_code, again.output) == (0, "")


def test_without_a_checkout_or_a_package_it_says_so(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = called(tmp_path / "nowhere", tmp_path / "table.csv")
    assert said.exit_code == 1
    assert "has no tests/generation/test_utils.py" in " ".join(said.output.split())
    monkeypatch.setattr(transformers_tests, "_NEEDED", ("no_such_package",))
    said = called(checkout, tmp_path / "table.csv")
    assert "need no_such_package; install it with pip." in " ".join(said.output.split())


def test_a_family_that_takes_too_long_is_told(checkout: Path) -> None:
    _, result = transformers_tests.run(checkout, "tiny", limit=0.5)
    assert result == "it took more than 0.5 s"


def test_other_texts_are_wrong_and_other_errors_raw() -> None:
    import torch

    from tests.backends.attention_models import tiny

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
