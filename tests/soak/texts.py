"""Files of texts whose writing ends early."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.soak.ends import Subject

PROMPTS = 24
WORDS = ("--temperature", 0.8, "--seed", 3, "--max-new-tokens", 8, "--rows", 4, "-o", "budget=4")


def _words(folder: Path) -> list[object]:
    prompts = folder / "prompts.txt"
    if not prompts.exists():
        prompts.write_text("".join(f"Count from {n} to {n + 5}:\n" for n in range(PROMPTS)))
    return ["generate", "--data", prompts, "--out", folder / "out.jsonl", *WORDS]


def _texts(folder: Path) -> list[dict[str, Any]]:
    """All lines, without what depends on the clock."""
    lines = [json.loads(line) for line in (folder / "out.jsonl").read_bytes().splitlines()]
    return [{name: value for name, value in line.items() if name != "statistics"} for line in lines]


TEXTS = Subject(
    "a file of texts",
    words=_words,
    journal=lambda folder: folder / "out.jsonl.part",
    finished=lambda folder: (folder / "out.jsonl").exists() and not (folder / "out.jsonl.part").exists(),
    content=_texts,
    lines=lambda folder: (folder / "out.jsonl").read_bytes().splitlines(),
)
