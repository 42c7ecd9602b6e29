"""transformers' own tests of `generate()`, with draft trees in its place: how many calls are equal."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Annotated

import attrs
import typer

from benchmarks.research.families import TABLE as FAMILIES_TABLE
from benchmarks.research.families import each, settle, write
from benchmarks.research.generate_twice import GenerateTwice, Judged
from draftwood.base.errors import InvalidInput

TABLE = FAMILIES_TABLE.with_name("transformers-tests.csv")
FAMILIES = (
    *("llama", "gpt2", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma", "gemma2"),
    *("phi", "phi3", "gpt_neo", "gpt_neox", "gptj", "codegen", "gpt_bigcode", "gpt_oss", "bloom"),
    *("mpt", "falcon", "stablelm", "starcoder2", "olmo", "olmo2", "cohere", "cohere2", "granite", "helium"),
    *("smollm3", "exaone4", "deepseek_v3", "mamba", "mamba2", "falcon_mamba", "bamba", "falcon_h1"),
    *("granitemoehybrid", "jamba", "zamba2", "nemotron_h", "qwen3_next", "lfm2", "recurrent_gemma"),
    *("llava", "qwen2_vl", "qwen2_5_vl", "idefics3", "smolvlm", "internvl"),
    *("llava_next", "llava_onevision", "vipllava", "video_llava", "paligemma", "qwen3_vl", "glm4v", "aria"),
    *("aya_vision", "mistral3", "gemma3", "got_ocr2", "idefics2", "instructblip", "ovis2", "voxtral"),
    *("bart", "t5", "marian", "mbart", "pegasus", "whisper", "mt5", "led", "speech_to_text", "blenderbot"),
)
"""Families of every kind: attention with and without windows, by paths, recurrent, hybrid, with images or
sound, and encoder-decoders."""

_NEEDED = ("pytest", "parameterized", "httpx")
# Compilation, and packages or devices that are not asked for here.
_NOT_RUN = "not compil and not flash and not fa2 and not quant_cache and not beam and not assisted"


@attrs.frozen
class TestsFinding:
    """One line of the table: calls of `generate()` in the tests of a family, by their results.

    Attributes:
        family: transformers' `model_type`.
        calls: greedy and sampled ones; beams and other searches are left out.
        equal: greedy, with the text and all else that was asked for.
        sampled: with as many rows.
        raises: both raise.
        refused: by one of draftwood's errors, where `generate()` writes a text.
        wrong: another text or output.
        raw: any other error.
        result: empty, or why there are no calls.
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

    They need the packages pytest, parameterized and httpx. Calls that are not equal are printed with
    their reason.

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
    chosen = names or [family for family in FAMILIES if family not in done]
    settle()
    look = partial(_look, checkout.resolve())
    for found, calls in each(chosen, look, _unfinished, limit=limit, jobs=1):
        for call in calls:
            if call.result in ("refused", "wrong", "raw"):
                typer.echo(f"{found.family:<20}{call.result:<9}{call.test}: {call.detail[:400]}")
        write(output, found, command="transformers-tests")
        counts = (f"{value} {name}" for name, value in attrs.asdict(found).items() if value)
        typer.echo(", ".join(counts))


def _look(checkout: Path, family: str) -> tuple[TestsFinding, list[Judged]]:
    """Runs the tests of a family in this process, which has no other use."""
    tests = Path("tests", "models", family, f"test_modeling_{family}.py")
    if not (checkout / tests).is_file():
        return TestsFinding(family, result=f"no {tests}"), []
    os.chdir(checkout)
    # The checkout's folder `tests` must be found before the project's own.
    sys.path[:0] = [str(checkout), str(checkout / "utils")]
    words = ["-q", "--noconftest", "-m", "generate", "-k", _NOT_RUN, "-p", "no:cacheprovider"]
    words += ["-W", "ignore", "-c", os.devnull, "--rootdir", str(checkout)]
    import pytest  # which other measurements do not need

    plugin = GenerateTwice()
    pytest.main([*words, str(tests)], plugins=[plugin])
    counts = Counter(call.result for call in plugin.calls)
    return TestsFinding(family, calls=len(plugin.calls), result=plugin.failure, **counts), plugin.calls


def _unfinished(family: str, *, result: str, reason: str) -> tuple[TestsFinding, list[Judged]]:
    return TestsFinding(family, result=reason), []


def _families(table: Path) -> set[str]:
    lines = table.read_text(encoding="utf-8").splitlines()
    return {line.split(",")[0] for line in lines[1:]}
