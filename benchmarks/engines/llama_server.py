"""llama.cpp as a contender: its own server, plain and with its draft."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.engines.contenders import Contender, Writer, Written
from draftwood.base.errors import InvalidInput

CHAIN = 4
"""Tokens that its draft proposes per target pass."""

PATIENCE = 120.0
"""Seconds that a server may take to read its model."""

ANSWER = 600.0
"""Seconds that it may take for one text."""


def contenders(
    program: str, target: Path, draft: Path, *, weights: str, dtype: str, threads: int
) -> list[Contender]:
    """Plain decoding and chains of a draft, one server each; see `Contender.close`.

    Args:
        program: `llama-server`.
        target: a GGUF file.
        draft: that of the draft.
        weights: bits of the target's weights, or "as they are".
        dtype: "float32" or "bfloat16"; keys and values are of the same.
        threads: of each server.
    """
    rounded = weights != "as they are"
    label = f"llama.cpp, {target.stem.split('-')[-1]}"
    held = {"float32": "f32", "bfloat16": "bf16"}[dtype]
    common = ["-m", str(target), "-c", "1024", "-np", "1", "-t", str(threads), "-tb", str(threads)]
    common += ["-ctk", held, "-ctv", held, "--no-webui", "--no-warmup", "--cache-ram", "0"]
    chain = ["-md", str(draft), "--spec-type", "draft-simple", "--spec-draft-n-max", str(CHAIN)]
    chain += ["-ctkd", "f32", "-ctvd", "f32"]
    ways = {f"{label}, plain": common, f"{label}, its draft of {CHAIN}": [*common, *chain]}
    found = []
    for name, words in ways.items():
        process, port = _started(program, words)
        found.append(
            Contender(
                name,
                by_server(port),
                weights=weights,
                texts=label if rounded else "the model",
                cpu=_clock(process.pid),
                close=process.terminate,
            )
        )
    return found


def by_server(port: int) -> Writer:
    """The server at this port of the machine."""

    def write(prompt: list[int], count: int) -> Written:
        asked = {
            "prompt": prompt,
            "n_predict": count,
            "temperature": 0,
            "samplers": ["top_k"],
            "top_k": 1,
            "ignore_eos": True,
            "return_tokens": True,
            "cache_prompt": False,
        }
        answer = _asked(port, "/completion", asked, seconds=ANSWER)
        accepted = answer["timings"].get("draft_n_accepted", 0)
        return Written(answer["tokens"], len(answer["tokens"]) - accepted)

    return write


def _started(program: str, words: list[str]) -> tuple[subprocess.Popen[bytes], int]:
    """A server that answers, and its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [program, *words, "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    started = time.monotonic()
    while time.monotonic() - started < PATIENCE and process.poll() is None:
        try:
            _asked(port, "/health", None, seconds=2.0)
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
        else:
            return process, port
    process.terminate()
    raise InvalidInput(f"{program} did not start; run it yourself to see why: {' '.join(words)}")


def _asked(port: int, path: str, what: Any, *, seconds: float) -> Any:
    data = None if what is None else json.dumps(what).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=seconds) as answer:
        return json.loads(answer.read())


def _clock(process: int) -> Callable[[], float]:
    """Seconds of all threads of another process, as Linux counts them."""

    def read() -> float:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    return read
