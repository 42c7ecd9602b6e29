"""A build of torch for a GPU on a machine without one: every command runs on the CPU."""

from pathlib import Path

import pytest
import torch

from draftwood import load, zoo

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"  # a text
TEXT = ["--prompts", 1, "--new-tokens", 4]


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make torch behave as its CUDA build does where it finds no driver."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)


@pytest.mark.parametrize(
    "command",
    [
        ["demo", "--prompts", 1, "--tokens", 4, "--parameters", 1e6],
        ["generate", "--prompt", "def add(a, b):", "--max-new-tokens", 4],
        ["bench", "--to", "run", *TEXT, "--prompt-length", 8, "--strategy", "dyspec:budget=2"],
        ["tune", "--to", "tuned.json", *TEXT, "--strategy", "dyspec", "--budget", 2],
    ],
    ids=lambda command: command[0],
)
def test_commands_run(draftwood, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("draftwood.apps.bench.measure._SIZES", (1, 2, 4))
    result = draftwood(*command)
    assert result.exit_code == 0, result.output


def test_a_model_is_loaded():
    assert load(zoo.path("llama-draft")).device.type == "cpu"


@pytest.mark.parametrize(
    "command",
    [
        ["demo"],
        ["generate", "--prompt", "x"],
        ["bench"],
        ["tune"],
        ["distil", "llama-7m", "llama-draft", CONSTRAINTS, "-o", "out"],
    ],
    ids=lambda command: command[0],
)
def test_a_device_that_is_not_there_is_named(refused, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    assert "'cuda'" in refused(*command, "--device", "cuda")
    assert not list(tmp_path.iterdir())
