"""The library decodes without features that other systems lack, and tests that need these say so."""

import ast
import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from draftwood import InvalidInput, load, zoo
from draftwood.apps.models.by_name import find_device
from draftwood.base.devices import default_device
from draftwood.kernels import compiled
from tests.test_layering import imports, modules

ROOT = Path(__file__).resolve().parents[1]

NOWHERE_ELSE = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "triton"}
"""Modules that Windows lacks; Triton is missing on macOS too."""

# What is foreign loads while the system still looks like itself: torch and transformers have builds of their
# own for every system, and only ours is on trial.
ELSEWHERE = """
    import sys
    sys.modules["triton"] = None
    import hypothesis, os, rich.console, signal, torch, transformers.generation, typer.testing
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    for name in {nowhere_else!r}:
        sys.modules[name] = None
    for name in ("SIGALRM", "SIGHUP", "SIGKILL", "alarm", "getitimer", "pthread_kill", "setitimer"):
        delattr(signal, name)
    for name in ("fork", "getuid", "mkfifo", "sched_getaffinity", "sysconf"):
        if hasattr(os, name):
            delattr(os, name)
    sys.platform = "win32"
"""


# Each by itself; what one of them takes away, it brings back.
PARTS = {
    "the simulation": """
        for name in ("resource", "fcntl", "triton"):
            try:
                __import__(name)
            except ImportError:
                print("no", name)
        """,
    "modules": """
        from importlib import import_module
        for name in {names!r}:
            import_module(name)
        print("all")
        """,
    "kernels": """
        from draftwood.kernels import compiled
        print(sum(len(compiled.configurations(name)) > 0 for name in compiled.operations()), "operations")
        """,
    "a signal": """
        from draftwood.apps.terminal import interrupts
        def ends(*_):
            raise SystemExit("ended")
        kill, os.kill = os.kill, ends
        # Where the tests run in the background, it is ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            interrupts._interrupt()
        except KeyboardInterrupt:
            print("heard")
        finally:
            os.kill = kill
        """,
    "a text, a proof and a bench": """
        from draftwood import SamplingParams, SpeculativeDecoder, load, zoo
        from draftwood.strategies.drafters.model import ModelDrafter
        from draftwood.strategies.policies.dyspec import DySpec
        from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
        from draftwood.testing import ToyBackend, ToyModel, assert_lossless

        model = zoo.load("llama-7m")
        drafter = ModelDrafter(load(zoo.path("llama-draft")))
        decoder = SpeculativeDecoder(load(model), drafter, DySpec(8), RecursiveRejection())
        prompt = zoo.tokenizer()("def add(a, b):")["input_ids"]
        found = decoder.generate([prompt], max_new_tokens=8, return_dict_in_generate=True)
        plain = model.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)
        print("as generate() writes:", found.sequences[0].tolist() == plain[0].tolist())
        print("peak:", found.statistics.peak_memory)
        toy = ModelDrafter(ToyBackend(ToyModel(vocab_size=3, seed=2)))
        assert_lossless(DySpec(2), RecursiveRejection(), target=ToyModel(vocab_size=3, seed=1), drafter=toy)

        from draftwood_cli import app
        words = "bench --prompts 1 --new-tokens 4 --strategy leviathan:length=2 --to".split()
        ran = typer.testing.CliRunner().invoke(app, [*words, {run!r}])
        print("bench:", ran.exit_code)
        """,
}

EACH = """
    import contextlib, io, json, traceback
    said = {}
    for part, code in json.load(sys.stdin).items():
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                exec(code, {**globals(), "__name__": part})
            except BaseException:
                traceback.print_exc(file=printed)
        said[part] = printed.getvalue()
    print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Returns the output of the parts, run in a Python without the features that Windows lacks."""
    setting = ELSEWHERE.format(nowhere_else=sorted(NOWHERE_ELSE - {"posix"}))
    names = [name for _, name, _ in modules() if not name.endswith(("__main__", ".kernel", ".lm_eval"))]
    assert len(names) > 100
    given = {"names": names, "run": str(tmp_path_factory.mktemp("bench") / "run")}
    parts = {part: textwrap.dedent(code).format(**given) for part, code in PARTS.items()}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(setting) + textwrap.dedent(EACH)],
        input=json.dumps(parts),
        cwd=ROOT, env=os.environ, capture_output=True, text=True, encoding="utf-8", timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return printed


def test_the_simulation_takes_away_what_it_says(said: dict[str, str]) -> None:
    assert said["the simulation"].split("\n")[:3] == ["no resource", "no fcntl", "no triton"]


def test_every_module_imports_elsewhere(said: dict[str, str]) -> None:
    assert said["modules"].endswith("all\n")


def test_dispatchers_say_what_they_launch_without_triton(said: dict[str, str]) -> None:
    assert said["kernels"] == f"{len(compiled.operations())} operations\n"
    assert compiled.operations()


def test_a_signal_is_sent_again_without_ending_the_process(said: dict[str, str]) -> None:
    # There os.kill(pid, SIGINT) is TerminateProcess.
    assert said["a signal"].endswith("heard\n")


def test_a_text_a_proof_and_a_bench_elsewhere(said: dict[str, str]) -> None:
    assert "as generate() writes: True\npeak: 0\nbench: 0\n" in said["a text, a proof and a bench"]


@pytest.fixture
def a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make torch behave as on MPS: it names the device and refuses float64."""
    empty = torch.empty

    def on_mps(*size: int, device: object = "cpu", dtype: torch.dtype | None = None) -> torch.Tensor:
        if str(device) == "mps" and dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype as MPS has none.")
        return empty(*size, device="cpu" if str(device) == "mps" else str(device), dtype=dtype)

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    monkeypatch.setattr(torch, "empty", on_mps)


@pytest.mark.usefixtures("a_mac")
def test_a_mac_decodes_on_its_cpu() -> None:
    assert default_device() == find_device(None) == torch.device("cpu")


@pytest.mark.usefixtures("a_mac")
def test_mps_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="'mps' cannot be used here; give 'cpu'"):
        find_device("mps")
    with pytest.raises(InvalidInput, match="device 'mps' is not available here .*float64.*; try 'cpu'"):
        load(zoo.path("llama-draft"), device="mps")


def foreign(source: str, name: str, is_package: bool, lacking: set[str]) -> Iterator[str]:
    """Where the module `name` imports one of `lacking` at its top."""
    for one in imports(source, name, is_package):
        if one.on_import and one.module.split(".")[0] in lacking:
            yield f"{name}, line {one.line}: {one.module}"


def test_no_module_of_ours_needs_another_system_on_import() -> None:
    found: list[str] = []
    for path, name, is_package in modules():
        if not name.endswith(".kernel"):  # imported by its dispatcher, where Triton is
            found += foreign(path.read_text(encoding="utf-8"), name, is_package, NOWHERE_ELSE)
    assert not found


def unencoded(source: str) -> list[int]:
    """Lines that read or write text in the encoding of the locale, which on Windows is not UTF-8."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = {word.arg for word in node.keywords}
        place = {"read_text": 0, "write_text": 1}.get(called)
        if place is not None and len(node.args) <= place and "encoding" not in given:
            found.append(node.lineno)
        if called == "open" and isinstance(node.func, ast.Name) and len(node.args) > 1:
            mode = node.args[1]
            if isinstance(mode, ast.Constant) and "b" not in str(mode.value) and "encoding" not in given:
                found.append(node.lineno)
    return found


def test_text_files_are_utf_8_whatever_the_locale_is() -> None:
    found = [
        f"{name}, line {line}"
        for path, name, _ in modules()
        for line in unencoded(path.read_text(encoding="utf-8"))
    ]
    assert not found


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("path.read_text()", True),
        ("path.read_text(encoding='utf-8')", False),
        ("path.read_text('utf-8')", False),
        ("path.write_text(words)", True),
        ("path.write_text(words, encoding='utf-8')", False),
        ("open(path, 'w')", True),
        ("open(path, 'rb')", False),
    ],
)
def test_a_file_in_the_locales_encoding_is_seen(source: str, wrong: bool) -> None:
    assert bool(unencoded(source)) is wrong


def test_tests_that_need_a_system_say_so() -> None:
    # A module of POSIX at the top of a test's file would fail where its tests should be skipped.
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert len(files) > 100
    found: list[str] = []
    for path in files:
        found += foreign(path.read_text(encoding="utf-8"), path.stem, False, NOWHERE_ELSE - {"posix"})
    assert not found


def test_the_markers_are_those_that_skip() -> None:
    from tests.conftest import LACKING

    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    markers = [text.partition(":")[0] for text in config["tool"]["pytest"]["ini_options"]["markers"]]
    assert set(LACKING) <= set(markers)
    if sys.platform == "linux":
        assert LACKING["linux"] is None
        assert LACKING["posix"] is None
    used = set()
    for path in (ROOT / "tests").rglob("*.py"):
        used |= set(re.findall(r"pytest\.mark\.(linux|posix|triton)\b", path.read_text(encoding="utf-8")))
    assert used == set(LACKING)
