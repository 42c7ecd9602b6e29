"""transformers' own tests of `generate()`, with draft trees in its place: how many calls are equal."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import attrs
import typer

from benchmarks.research.families import TABLE as FAMILIES_TABLE
from benchmarks.research.families import write
from benchmarks.research.generate_twice import LINES
from draftwood.base.errors import InvalidInput

TABLE = FAMILIES_TABLE.with_name("transformers-tests.csv")
ROOT = Path(__file__).parents[2]
FAMILIES = (
    *("llama", "gpt2", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3"),
    *("phi", "phi3", "gpt_neo", "gpt_neox", "gptj", "codegen", "gpt_bigcode", "gpt_oss", "opt", "bloom"),
    *("mpt", "falcon", "stablelm", "starcoder2", "olmo", "olmo2", "cohere", "cohere2", "granite", "helium"),
    *("smollm3", "exaone4", "deepseek_v3", "mamba", "mamba2", "falcon_mamba", "bamba", "falcon_h1"),
    *("granitemoehybrid", "jamba", "zamba2", "nemotron_h", "qwen3_next", "lfm2", "recurrent_gemma"),
    *("llava", "qwen2_vl", "qwen2_5_vl", "idefics3", "smolvlm", "internvl"),
)
"""Families of every kind: attention with and without windows, by paths, recurrent, hybrid, with images."""

_NEEDED = ("parameterized", "httpx")
# Compilation, and packages or devices that are not asked for here.
_NOT_RUN = "not compil and not flash and not fa2 and not quant_cache and not beam and not assisted"


@attrs.frozen
class TestsFinding:
    """One line of the table: calls of `generate()` in the tests of a family, by what came of them.

    Attributes:
        family: transformers' `model_type`.
        calls: greedy and sampled ones; beams and other searches are left out.
        equal: greedy, with the text and all else that was asked for.
        sampled: with as many rows.
        raises: both raise.
        refused: by one of draftwood's errors, where `generate()` writes a text.
        wrong: another text or output.
        raw: any other error.
        result: empty, or why there are no more calls.
    """

    family: str
    calls: int = 0
    equal: int = 0
    sampled: int = 0
    raises: int = 0
    refused: int = 0
    wrong: int = 0
    raw: int = 0
    result: str = ""


def transformers_tests(
    names: Annotated[list[str] | None, typer.Argument(help="Families; default: one of every kind.")] = None,
    checkout: Annotated[
        Path, typer.Option(help="A checkout of transformers, of about the installed version.")
    ] = Path("transformers"),
    limit: Annotated[float, typer.Option(help="Seconds a family may take.", min=1)] = 300,
    output: Annotated[
        Path, typer.Option(help="The table; families that it has are left out unless they are named.")
    ] = TABLE,
) -> None:
    """Run transformers' tests of generate() family by family, every call twice: plain and by draft trees.

    They need the packages parameterized and httpx. Calls that are not equal are printed with their reason.

    \b
    Examples:
      git clone --depth 1 https://github.com/huggingface/transformers
      python -m benchmarks transformers-tests --checkout transformers
      python -m benchmarks transformers-tests gpt2 bamba
    """
    if not (checkout / "tests" / "generation" / "test_utils.py").is_file():
        raise InvalidInput(f"{checkout} has no tests/generation/test_utils.py; give --checkout.")
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise InvalidInput(f"transformers' tests need {' and '.join(missing)}; install it with pip.")
    done = set() if names or not output.exists() else _families(output)
    for family in names or [family for family in FAMILIES if family not in done]:
        lines, result = run(checkout.resolve(), family, limit=limit)
        for line in lines:
            if line["result"] in ("refused", "wrong", "raw"):
                typer.echo(f"{family:<20}{line['result']:<9}{line['test']}: {line['detail'][:400]}")
        found = finding(family, lines, result)
        write(output, found, command="transformers-tests")
        counts = (f"{value} {name}" for name, value in attrs.asdict(found).items() if value)
        typer.echo(", ".join(counts))


def run(checkout: Path, family: str, *, limit: float) -> tuple[list[dict[str, Any]], str]:
    """Runs the tests of a family in a process of their own.

    Returns:
        A line for every call (its `test`, `model`, `result` and `detail`), and why there are no more, if so.
    """
    tests = checkout / "tests" / "models" / family / f"test_modeling_{family}.py"
    if not tests.is_file():
        return [], f"no {tests.relative_to(checkout)}"
    # The checkout's folder `tests` must be found before the project's own.
    paths = [checkout, checkout / "utils", ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lines.jsonl"
        file.touch()
        environment = os.environ | {
            LINES: str(file),
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        words = [
            "-q",
            "--noconftest",
            "-m",
            "generate",
            "-k",
            _NOT_RUN,
            "-p",
            "benchmarks.research.generate_twice",
        ]
        words += ["-p", "no:cacheprovider", "-W", "ignore", "-c", os.devnull, "--rootdir", str(checkout)]
        result = ""
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *words, str(tests)],
                cwd=checkout,
                env=environment,
                capture_output=True,
                text=True,
                timeout=limit,
            )
            # 0 and 1: tests passed or failed, which here depends on the two versions.
            if done.returncode not in (0, 1):
                result = (done.stdout + done.stderr).strip().splitlines()[-1]
        except subprocess.TimeoutExpired:
            result = f"it took more than {limit:g} s"
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()], result


def finding(family: str, lines: Sequence[dict[str, Any]], result: str) -> TestsFinding:
    """Returns the counts of these lines."""
    counts = Counter(line["result"] for line in lines)
    return TestsFinding(family, calls=len(lines), result=result, **counts)


def _families(table: Path) -> set[str]:
    lines = table.read_text(encoding="utf-8").splitlines()
    return {line.split(",")[0] for line in lines[1:]}
