"""Counts of openings and words that plain English avoids, in docstrings, comments, messages and pages.

`python -m tests.plain_english` prints the counts. With `--write` it lowers those in `plain_english.json`,
the exceptions for files that are not rewritten yet. A count there never rises.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXCEPTIONS = Path(__file__).with_suffix(".json")
CODE = ("framework", "apps", "strategies", "backends", "kernels", "zoo", "benchmarks", "docs")
PAGES = ("docs", "kernels", "zoo")

# A docstring opens with a verb or a noun: "Returns the path", "A policy that ...".
DOCSTRING = re.compile(r"(What|Those|Of|The same|As|How|Which|Whose)\b")
SENTENCE = re.compile(r"(?:^|(?<=[.!?] ))(?:Nor|Those|Of|Which|Whose)\b", re.MULTILINE)
WORDS = re.compile(
    r"\b(?:behind|beside|stands?(?![- ](?:for|in)\b)|alone|serves|(?:is|are) served|those of"
    r"|of (?:its|their|one's|your|our) own)\b",
    re.IGNORECASE,
)
GENERATED = re.compile(r"<!-- table: \w+ -->.*?<!-- end -->", re.DOTALL)
BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def docstrings(source: str) -> Iterator[str]:
    """Yields the docstrings of a module, its classes and its functions."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield text


def texts(source: str) -> str:
    """Returns the comments and strings of a module, without the names in its code."""
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return "\n".join(token.string for token in tokens if token.type in kinds)


def prose(page: str) -> str:
    """Returns the text of a page that a person wrote, without code blocks and generated tables."""
    return BLOCK.sub("", GENERATED.sub("", page))


def files() -> Iterator[tuple[str, str]]:
    """Yields the name and the text of every file that is counted; `mistakes.md` is written by a command."""
    found = {path for folder in CODE for path in (ROOT / folder).rglob("*.py")}
    found |= {path for folder in PAGES for path in (ROOT / folder).rglob("*.md")} | set(ROOT.glob("*.md"))
    for path in sorted(found - {ROOT / "docs" / "mistakes.md"}):
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def count(name: str, text: str) -> dict[str, int]:
    """Returns the number of openings and of words to avoid, where they are not 0."""
    if name.endswith(".py"):
        openings = sum(bool(DOCSTRING.match(one)) for one in docstrings(text))
        words = len(WORDS.findall(texts(text)))
    else:
        openings = len(SENTENCE.findall(prose(text)))
        words = len(WORDS.findall(prose(text)))
    return {what: number for what, number in (("openings", openings), ("words", words)) if number}


def counts() -> dict[str, dict[str, int]]:
    """Returns the counts of all files that have any."""
    return {name: found for name, text in files() if (found := count(name, text))}


def exceptions() -> dict[str, dict[str, int]]:
    """Returns the counts that files may have, from `plain_english.json`."""
    found: dict[str, dict[str, int]] = json.loads(EXCEPTIONS.read_text(encoding="utf-8"))
    return found


def too_many(
    found: dict[str, dict[str, int]], allowed: dict[str, dict[str, int]]
) -> Iterator[tuple[str, str, int, int]]:
    """Yields file, kind, count and allowed count for every count that is too high."""
    for name, kinds in found.items():
        for kind, number in kinds.items():
            limit = allowed.get(name, {}).get(kind, 0)
            if number > limit:
                yield name, kind, number, limit


def lowered(
    found: dict[str, dict[str, int]], allowed: dict[str, dict[str, int]]
) -> dict[str, dict[str, int]]:
    """Returns the exceptions with every count that fell; none rises and none is added."""
    kept = {
        name: {kind: min(limit, found.get(name, {}).get(kind, 0)) for kind, limit in kinds.items()}
        for name, kinds in allowed.items()
    }
    return {
        name: left for name, kinds in kept.items() if (left := {kind: n for kind, n in kinds.items() if n})
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.plain_english", description=__doc__)
    parser.add_argument("--write", action="store_true", help="lower the counts in plain_english.json")
    found, total = counts(), Counter[str]()
    for name, kinds in found.items():
        total.update(kinds)
        sys.stdout.write(f"{name}: {', '.join(f'{number} {kind}' for kind, number in kinds.items())}\n")
    sys.stdout.write(f"{total['openings']} openings and {total['words']} words in {len(found)} files\n")
    if parser.parse_args().write:
        left = lowered(found, exceptions())
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(kinds)}" for name, kinds in left.items())
        text = f"{{\n{lines}\n}}\n"
        EXCEPTIONS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
