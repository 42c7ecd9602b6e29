"""Every example of the documentation runs, and prints what its page says that it prints."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"

PRINTED = {
    "add_a_strategy": ["Comb is lossless", "def fibonacci(n):", "tokens a round"],
    "batch": ["def fibonacci(n):", "Dear Sir,", "(eos)", "by itself writes the same text"],
    "engine_drafter": ["The letter to Anna: 22 tokens in", "The letter to Tom: 21 tokens in 10 rounds."],
    "hybrid_target": ["The river runs", "HybridBackend: "],
    "openai_server": [
        "--- def fibonacci(n):",
        "Return the first string",
        "--- Once upon a time\n.",
        "Answer:",
    ],
    "prove_a_verifier": ["Rejection is lossless.", "TargetAgain() is biased: tokens (", "should have"],
    "queue_and_chat": [
        "Row 6 has ended (length).",
        "Once upon a time",
        "The next day",
        "writes the same text",
    ],
    "speed_up_hugging_face": ["There are 30 students", "The same tokens in ", "instead of 48."],
    "stream": ["        ", " events"],
}


def test_every_example_is_here_and_on_its_page():
    assert set(PRINTED) == {path.stem for path in EXAMPLES.glob("*.py")}
    page = (EXAMPLES.parent / "examples.md").read_text(encoding="utf-8")
    assert all(f"(examples/{name}.py)" in page for name in PRINTED)


@pytest.mark.docs
@pytest.mark.parametrize("name", sorted(PRINTED))
def test_it_runs(name, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", [f"{name}.py"])
    monkeypatch.syspath_prepend(EXAMPLES)  # as Python does for a program
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    out = capsys.readouterr().out
    for part in PRINTED[name]:
        assert part in out
