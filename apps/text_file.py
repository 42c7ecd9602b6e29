"""`draftwood generate --prompts FILE --out FILE`: a file of prompts into a file of texts, in their order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import attrs
import torch
import typer

from draftwood.apps import datasets, journal, on_ray, trace
from draftwood.apps.cli_errors import FAILED, to_stderr
from draftwood.apps.machine import versions
from draftwood.apps.method import Method, Words
from draftwood.apps.text_writer import Asked, Record, TextWriter
from draftwood.errors import InvalidInput
from draftwood.json_text import parse_json
from draftwood.metrics import value
from draftwood.randomness import row_seeds

FORMAT, VERSION = "draftwood-texts", 1
ROWS = 8
_ENDING = ".part"


@attrs.define
class TextFile:
    """The file of texts while it is written: `FILE.part` has a line about the run, and one for every text.

    The lines of texts stand in the order in which they ended. When all are there, `FILE` is made of them
    in the order of the prompts, and the part goes.

    Attributes:
        out: where the texts go.
        run: what is written, as the first line says.
        done: where the line of each text begins in the part, by number.
        refused: why there is none, by number.
    """

    out: Path
    run: dict[str, Any]
    done: dict[int, int] = attrs.field(factory=dict)
    refused: dict[int, str] = attrs.field(factory=dict)

    @property
    def part(self) -> Path:
        return self.out.with_name(self.out.name + _ENDING)

    def add(self, record: Record) -> None:
        """Keep a text; when this returns, it survives whatever happens."""
        begins = self.part.stat().st_size
        journal.append(self.part, record)
        self.note(record, begins)

    def note(self, record: Record, begins: int) -> None:
        """The line of `record` begins there."""
        self.done[record["number"]] = begins
        if "refused" in record:
            self.refused[record["number"]] = record["refused"]

    def read(self) -> None:
        """What a run that broke off has left.

        Raises:
            InvalidInput: a line that is none of its; the message names it.
        """
        begins = 0
        with self.part.open("rb") as lines:
            for count, line in enumerate(lines, start=1):
                try:
                    found = parse_json(line)
                    if not self.run:
                        self.run = _checked_run(found)
                    elif not isinstance(found, dict) or type(found.get("number")) is not int:
                        raise ValueError("it has no number")
                    else:
                        self.note(found, begins)
                except ValueError as error:
                    raise InvalidInput(
                        f"{str(self.part)!r}, line {count}: no text of a run that broke off ({error}); "
                        "delete the line to write that text again, or name another file with --out."
                    ) from error
                begins += len(line)

    def finish(self) -> None:
        """Make the file of all texts, which are there."""
        with self.part.open("rb") as part:
            trace.write_bytes(self.out, (_line(part, self.done[number]) for number in sorted(self.done)))
        self.part.unlink(missing_ok=True)


def _line(part: Any, begins: int) -> bytes:
    part.seek(begins)
    line: bytes = part.readline()
    return line


@contextmanager
def opened(out: Path, configuration: Mapping[str, Any], seed: int | None) -> Iterator[TextFile]:
    """The file of texts for a run, new or to be continued; nobody else can write it meanwhile.

    Args:
        out: where the texts go.
        configuration: what is written; a part of another run is refused.
        seed: of the run; None: any, and that of a part which is there.

    Raises:
        InvalidInput: there is another run's part, a finished file, or something else.
    """
    trace.check_writable(out)
    file = TextFile(out, {})
    part = file.part
    if out.exists() and not part.exists():
        raise InvalidInput(f"{str(out)!r} is there already; name another file with --out, or remove it.")
    with part.open("ab") as held:
        journal.lock(held, part)
        journal.drop_unfinished(part)
        if part.stat().st_size:
            file.read()
            same = {**configuration, "seed": file.run["configuration"]["seed"] if seed is None else seed}
            if odd := journal.differences(file.run["configuration"], same):
                raise InvalidInput(
                    f"{str(part)!r} is of another run: {journal.listed(odd)}; run the same as before, or "
                    "name another file with --out."
                )
        else:
            drawn = int(torch.randint(2**31, ())) if seed is None else seed
            file.run = {
                "format": FORMAT,
                "version": VERSION,
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "versions": versions(),
                "configuration": {**configuration, "seed": drawn},
            }
            journal.append(part, file.run)
        yield file


def _checked_run(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError("the file is not of draftwood generate")
    configuration = found.get("configuration")
    if found.get("version") != VERSION or not isinstance(configuration, dict) or "seed" not in configuration:
        version = found.get("version")
        raise ValueError(f"its version is {version!r:.40}, and this draftwood goes on with {VERSION}")
    return found


def read_prompts(file: Path) -> list[str]:
    """The prompts of a file: those of `.jsonl` as for bench, else one a line; empty lines count for nothing.

    Raises:
        InvalidInput: the file cannot be read, or is malformed, or holds conversations of several turns.
    """
    if file.suffix != ".jsonl":
        try:
            lines = file.read_text(encoding="utf-8").split("\n")
        except OSError as error:
            raise InvalidInput(f"{str(file)!r} cannot be read: {error.strerror or error}.") from error
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{str(file)!r} is not UTF-8 text; convert it first.") from error
        prompts = [line.removesuffix("\r") for line in lines if line.strip()]
        if not prompts:
            raise InvalidInput(f"{str(file)!r} holds no prompt; give a file with at least one.")
        return prompts
    read = datasets.read(file).prompts
    if number := next((number for number, prompt in enumerate(read, start=1) if prompt.later), None):
        raise InvalidInput(
            f"{str(file)!r}: prompt {number} is a conversation of several turns; give prompts of one, or "
            "take draftwood bench."
        )
    return [prompt.text for prompt in read]


def write_file(
    method: Method,
    prompts: Path,
    out: Path | None,
    *,
    seed: int | None,
    rows: int | None,
    ray: str | None,
    workers: int | None,
) -> None:
    """Write a text behind every prompt of a file, those that are missing in a run that broke off.

    Args:
        method: how.
        prompts: the file.
        out: a `.jsonl` file for the texts.
        seed: of the run. Prompt 0 has it, the others those spawned from it, wherever they are written.
        rows: texts at once, of every worker; default: 8.
        ray: the address of a Ray cluster; None: this process writes.
        workers: decoders on the cluster.

    Raises:
        InvalidInput: options that do not go together, or files that cannot be read or written.
        typer.Exit: prompts were refused; their lines say why.
    """
    if out is None:
        raise InvalidInput("--prompts needs --out; name a .jsonl file for the texts.")
    if out.suffix != ".jsonl":
        raise InvalidInput(f"--out is {str(out)!r}; give a file that ends in .jsonl.")
    if workers is not None and ray is None:
        raise InvalidInput("--workers goes with --ray; give the address of a cluster.")
    if ray is not None and method.words.offload is not None:
        raise InvalidInput(
            f"--offload {method.words.offload} is one process's folder, which workers of --ray would write "
            "over one another; leave one of the two out."
        )
    texts = read_prompts(prompts)
    if ray is not None:
        on_ray.check()
    with opened(out, configuration(method.words, texts), seed) as file:
        seeds = row_seeds(file.run["configuration"]["seed"], len(texts))
        everything = [
            Asked(number, *of_text) for number, of_text in enumerate(zip(texts, seeds, strict=True))
        ]
        missing = [asked for asked in everything if asked.number not in file.done]
        if file.done and missing:
            to_stderr(f"{len(file.done)} texts are there already, {len(missing)} are missing.")
        rows = rows or ROWS
        started, records = perf_counter(), list[Record]()
        try:
            if missing:
                if ray is None:
                    written = TextWriter.of(method, missing[0].prompt).write(missing, rows)
                else:
                    written = on_ray.write(ray, method.words, missing, rows=rows, workers=workers)
                _watched(written, file, records, total=len(missing))
        except BaseException:
            if 0 < len(file.done) < len(texts):
                to_stderr(f"{len(file.done)} of {len(texts)} texts are written; the same command goes on.")
            raise
    file.finish()  # behind the lock: Windows removes no file that is open
    lossless = method.strategy.verifier.lossless
    to_stderr(_summary(records, perf_counter() - started, lossless=lossless))
    if file.refused:
        first = min(file.refused)
        to_stderr(
            f"{len(file.refused)} of {len(texts)} prompts were refused; number {first}, the first, because: "
            f"{file.refused[first]}"
        )
        raise typer.Exit(FAILED)


def configuration(words: Words, texts: list[str]) -> dict[str, Any]:
    """What decides what is written, as JSON: where and by how many rows it is written is no part of it."""
    files = {
        name: _digest(path.read_bytes())
        for name in ("tuned", "json_schema")
        if (path := getattr(words, name)) is not None
    }
    asked = attrs.asdict(words, filter=lambda field, _: field.name != "device") | files
    asked |= {"option": list(words.option), "stop": list(words.stop), "dtype": str(words.dtype)}
    return {
        "prompts": {"count": len(texts), "sha256": _digest(json.dumps(texts).encode())},
        **{name: value for name, value in asked.items() if value not in (None, [], False)},
    }


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _watched(written: Iterable[Record], file: TextFile, records: list[Record], *, total: int) -> None:
    """Keep every text, with a bar where someone watches."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    quiet = not console.is_terminal
    for record in track(written, "Writing", total=total, console=console, transient=True, disable=quiet):
        file.add(record)
        records.append({**record.get("statistics", {}), "refused": record.get("refused")})


def _summary(records: list[Record], seconds: float, *, lossless: bool) -> str:
    counted = [record for record in records if record["refused"] is None]
    sums = {name: sum(one[name] for one in counted) for name in ("new_tokens", "drafted", "accepted")}
    sums |= {"tokens": sums["new_tokens"], "seconds": seconds}
    said = (
        f"{len(counted)} texts, {sums['tokens']} tokens in {seconds:.2f} s, "
        f"{value('tokens_per_second', sums):.1f} tokens/s, {value('acceptance_rate', sums):.0%} of drafted "
        "tokens accepted"
    )
    return said if lossless else f"{said}; lossy: not distributed as the target's own text"
