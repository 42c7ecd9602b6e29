"""The command line in this process, and tiny models on disk for what only a folder can get wrong."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from draftwood_cli import app
from typer.testing import CliRunner, Result

from draftwood import zoo

COMMAND = [sys.executable, "-c", "from draftwood_cli import main; main()"]


@cache
def of_the_zoo() -> Callable[..., Any]:
    """Reads every folder once, for all tests."""
    from draftwood.backends.loading import loader as loading

    return cache(loading.load_model)


@pytest.fixture
def few_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands in this process read a model of the zoo once, for tests of what is done with it."""
    from draftwood.backends.loading import loader as loading

    once, always = of_the_zoo(), loading.load_model

    def read(name: Any, **options: Any) -> Any:
        known = zoo.path("llama-7m").parent in Path(name).resolve().parents
        return (once if known else always)(str(name), **options)

    monkeypatch.setattr(loading, "load_model", read)


@pytest.fixture
def draftwood(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run the command line with some arguments and, where given, standard input."""
    monkeypatch.delenv("DRAFTWOOD_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: object, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(app, [str(a) for a in arguments], input=stdin)

    return run


@pytest.fixture
def refused(draftwood: Callable[..., Result]) -> Callable[..., str]:
    """Run the command line, check that it fails with one sentence, only on stderr, and return it."""

    def run(*arguments: object, stdin: str | bytes | None = None) -> str:
        result = draftwood(*arguments, stdin=stdin)
        assert result.exit_code == 1, result.output
        assert result.stdout == ""
        assert "Traceback" not in result.stderr
        (sentence,) = result.stderr.splitlines()
        assert sentence.startswith("Error: ")
        assert sentence[-1] in ".?)"
        return sentence

    return run


@pytest.fixture
def start() -> Callable[..., subprocess.Popen[str]]:
    """The command line in a separate process."""
    # Where the tests run in the background, Ctrl-C is ignored, and children inherit that.
    listens = (
        {}
        if sys.platform == "win32"
        else {"preexec_fn": partial(signal.signal, signal.SIGINT, signal.SIG_DFL)}
    )

    def run(*arguments: object, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            text=True,
            **{
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                "stdin": subprocess.DEVNULL,
                **listens,
                **options,
            },
        )

    return run


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """Write a module `mine` into the current folder, which is on nobody's search path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(text: str) -> Path:
        (tmp_path / "mine.py").write_text(text)
        return tmp_path

    yield write
    sys.modules.pop("mine", None)


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., Path]:
    """Save a random Llama with the zoo's tokenizer; keyword arguments go to its config."""

    def save(name: str = "tiny", **config: Any) -> Path:
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        sizes = {
            "vocab_size": 4096,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "max_position_embeddings": 64,
            "bos_token_id": 0,
            "eos_token_id": 0,
        }
        folder = tmp_path / name
        LlamaForCausalLM(LlamaConfig(**{**sizes, **config})).save_pretrained(folder)
        zoo.tokenizer().save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="session")
def trace_of() -> Callable[..., dict[str, Any]]:
    """A trace of the zoo's pair writing after some prompts, as `--trace` would; options go to the policy."""
    from draftwood import SamplingParams, SpeculativeDecoder, create, load
    from draftwood.apps.files import trace

    target, draft = load(zoo.path("llama-7m")), load(zoo.path("llama-draft"))

    def write(*prompts: str, policy: str = "layered-dyspec", new: int = 12, **options: Any) -> dict[str, Any]:
        drafter = create("drafters", "model", {"backend": draft})
        grows = create("policies", policy, options)
        verifier = create("verifiers", "recursive-rejection", {})
        decoder = SpeculativeDecoder(target, drafter, grows, verifier)
        rows = [zoo.tokenizer()(prompt)["input_ids"] for prompt in prompts]
        generation: Any = decoder.generate(
            rows,
            max_new_tokens=new,
            sampling=SamplingParams(temperature=0.8),
            seed=3,
            trace=True,
            return_dict_in_generate=True,
        )
        given = [{"text": text, "tokens": tokens} for text, tokens in zip(prompts, rows, strict=True)]
        document = trace.document(
            generation, tokenizer=zoo.tokenizer(), prompts=given, settings={"policy": repr(grows)}
        )
        return json.loads(json.dumps(document))

    return write


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str, str], Path]:
    """Copies a model of the zoo without its tokenizer."""

    def copy(name: str, to: str) -> Path:
        shutil.copytree(zoo.path(name), tmp_path / to)
        return tmp_path / to

    return copy


@pytest.fixture
def chatting(copied: Callable[[str, str], Path]) -> Path:
    """A draft model whose tokenizer has a chat template."""
    folder = copied("llama-draft", "chat")
    tokenizer = zoo.tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }} ~{% endfor %}bot:"
    tokenizer.save_pretrained(folder)
    return folder
