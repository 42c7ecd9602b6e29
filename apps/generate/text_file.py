"""`draftwood generate --data FILE --out FILE`: a file of prompts into a file of texts, in their order."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import attrs
import torch
import typer

from draftwood.apps.files import journal
from draftwood.apps.files.journal import Journal, Place
from draftwood.apps.files.journal_work import Work
from draftwood.apps.files.machine import versions
from draftwood.apps.generate import batch_requests, on_ray
from draftwood.apps.generate.prompt_file import PromptFile, read_prompts
from draftwood.apps.generate.text_writer import TextWriter, refusal
from draftwood.apps.models import identity
from draftwood.apps.models.asked import PromptLine, Record
from draftwood.apps.models.method import Method
from draftwood.apps.terminal.cli_errors import FAILED
from draftwood.apps.terminal.shown import to_stderr
from draftwood.base.errors import InvalidInput
from draftwood.base.json_text import parse_json
from draftwood.base.whole_files import check_writable, write_bytes
from draftwood.decoding.metrics import value
from draftwood.laws.randomness import row_seeds

FORMAT, VERSION = "draftwood-texts", 2
ROWS = 8
_ENDING = ".part"
_OTHER = "name another file with --out"
_SHOWN = 10  # numbers of lines in a sentence


@attrs.define
class TextFile:
    """The file of texts while it is written: `FILE.part`, a journal with a line for every text.

    Its lines are in the order in which texts ended. When all are there, `FILE` is made of them in the order
    of the prompts, and the part goes.

    Attributes:
        out: where the texts go.
        part: the journal.
        lines: all that is asked for, with seeds.
        done: where the line of each text is in the part, by number.
        refused: why there is none, by number.
    """

    out: Path
    part: Journal
    lines: Sequence[PromptLine]
    done: dict[int, Place] = attrs.field(factory=dict)
    refused: dict[int, str] = attrs.field(factory=dict)

    @property
    def missing(self) -> list[PromptLine]:
        """Returns the prompts that are not written yet."""
        return [line for line in self.lines if line.number not in self.done]

    def add(self, record: Record) -> None:
        """Keep a text; when this returns, it survives whatever happens."""
        self._note(record, self.part.append(record))

    def _note(self, record: Record, place: Place) -> None:
        self.done[record["number"]] = place
        if "refused" in record:
            self.refused[record["number"]] = record["refused"]

    def read(self) -> None:
        """Take what a run that ended early has left.

        Raises:
            InvalidInput: a line that is none of its; the message names it.
        """
        for count, place, words in self.part.records():
            try:
                self._note(self._checked(parse_json(words)), place)
            except ValueError as error:
                raise InvalidInput(
                    f"{str(self.part.path)!r}, line {count}: no text of this run ({error}); delete the line "
                    f"to write that text again, or {_OTHER}."
                ) from error

    def _checked(self, found: Any) -> Record:
        if not isinstance(found, dict) or type(found.get("number")) is not int:
            raise ValueError("it has no number")
        number = found["number"]
        if not 0 <= number < len(self.lines):
            raise ValueError(f"its number is {number}, and there are {len(self.lines)} prompts")
        if number in self.done:
            raise ValueError(f"it is the second one of number {number}")
        line = self.lines[number]
        if line.request is None and found.get("prompt") != line.shown:
            raise ValueError(f"its prompt is not that of number {number}")
        wanted = "refused" if "refused" in found else "text" if line.request is None else "answer"
        if not isinstance(found.get(wanted), dict if wanted == "answer" else str):
            raise ValueError(f"it has no {wanted}")
        return found

    def finish(self) -> None:
        """Make the file of all texts.

        Raises:
            InvalidInput: some are missing, which the message names; the part stays. Or the file cannot be
                written, or something else has taken its name.
        """
        if missing := [line.number for line in self.missing]:
            raise InvalidInput(
                f"{len(missing)} of {len(self.lines)} texts were not written: {_numbers(missing)}; repeat "
                "the command, which writes them."
            )
        if os.path.lexists(self.out):
            # A run that was killed between the file and the end of the part left both.
            if self.out.is_symlink() or not _is_made_of(self.out, self._written()):
                raise _is_there(self.out)
        else:
            write_bytes(self.out, self._written(), new=True)
        self.part.remove()

    def _written(self) -> Iterator[bytes]:
        for line in self.lines:
            words = self.part.line(self.done[line.number])
            if line.request is not None:
                words = json.dumps(json.loads(words)["answer"]).encode() + b"\n"
            yield words


def _is_made_of(file: Path, lines: Iterable[bytes]) -> bool:
    with file.open("rb") as found:
        return all(found.read(len(line)) == line for line in lines) and not found.read(1)


def _is_there(out: Path) -> InvalidInput:
    return InvalidInput(f"{str(out)!r} is there already; {_OTHER}, or remove it.")


def _numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN]))
    return shown if len(numbers) <= _SHOWN else f"{shown} and {len(numbers) - _SHOWN} more"


@contextmanager
def opened(
    out: Path, configuration: Mapping[str, Any], lines: Sequence[PromptLine], seed: int | None
) -> Iterator[TextFile]:
    """The file of texts of a run, new or to be continued; nobody else can write it meanwhile.

    Args:
        out: where the texts go.
        configuration: all that decides what is written; a part of another run is refused.
        lines: what is asked for.
        seed: of the run; None: any, and that of a part which is there.

    Raises:
        InvalidInput: there is another run's part, a finished file, or something else.
    """
    part = out.with_name(out.name + _ENDING)
    check_writable(out)
    if out.exists() and not os.path.lexists(part):
        raise _is_there(out)
    work = Work(
        format=FORMAT,
        version=VERSION,
        program="draftwood generate",
        description={
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": versions(),
            "configuration": {
                **configuration,
                "seed": int(torch.randint(2**31, ())) if seed is None else seed,
            },
        },
        free=frozenset({"seed"} if seed is None else ()),
        remedy=_OTHER,
        before="which does not say what weights its texts are of",
    )
    with journal.opened(part, work) as of_part:
        if of_part.is_new and out.exists():  # another run has just finished it
            of_part.remove()
            raise _is_there(out)
        seeds = iter(row_seeds(of_part.first["configuration"]["seed"], len(lines)))
        file = TextFile(out, of_part, [line.seeded(next(seeds)) for line in lines])
        file.read()
        if out.exists() and file.missing:
            raise _is_there(out)
        yield file


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
    """Write a text for every prompt of a file, those that are missing in a run that ended early.

    Args:
        method: how.
        prompts: the file.
        out: a `.jsonl` file for the texts.
        seed: of the run. Prompt 0 has it, the others those spawned from it, wherever they are written.
        rows: texts at once, of every worker; default: 8.
        ray: the address of a Ray cluster; None: this process writes.
        workers: decoders on the cluster.

    Raises:
        InvalidInput: options that do not go together, files that cannot be read or written, or texts that
            are missing at the end.
        typer.Exit: prompts were refused; their lines say why.
    """
    if out is None:
        raise InvalidInput("--data needs --out; name a .jsonl file for the texts.")
    if out.suffix != ".jsonl":
        raise InvalidInput(f"--out is {str(out)!r}; give a file that ends in .jsonl.")
    if workers is not None and ray is None:
        raise InvalidInput("--workers needs --ray; give the address of a cluster.")
    if ray is not None and method.words.offload is not None:
        raise InvalidInput(
            f"--offload {method.words.offload} is one process's folder, which workers of --ray would write "
            "over one another; leave one of the two out."
        )
    asked = read_prompts(prompts)
    count, target = len(asked.lines), method.target
    asked = attrs.evolve(asked, lines=[batch_requests.of_model(line, target) for line in asked.lines])
    method = _for_all(method, asked.lines)
    if ray is not None:
        on_ray.check()
    files = identity.of_method(method)
    with opened(out, configuration(method, asked, files), asked.lines, seed) as file:
        known = len(file.done)
        if known and file.missing:
            to_stderr(f"{known} texts are there already, {len(file.missing)} are missing.")
        started, records = perf_counter(), list[Record]()
        try:
            for line in file.missing:
                if line.refused is not None:
                    file.add(refusal(line, line.refused))
            if missing := file.missing:
                if ray is None:
                    written = TextWriter.of(method, missing[0]).write(missing, rows or ROWS)
                else:
                    written = on_ray.write(
                        ray, method.words, missing, files=files, rows=rows or ROWS, workers=workers
                    )
                _watched(written, file, records, total=len(missing))
        except BaseException:
            if known < len(file.done) < count:
                to_stderr(f"{len(file.done)} of {count} texts are written; the same command continues.")
            raise
        file.finish()
    lossless = method.strategy.verifier.lossless
    to_stderr(_summary(records, perf_counter() - started, lossless=lossless))
    if file.refused:
        first = min(file.refused)
        to_stderr(
            f"{len(file.refused)} of {count} prompts were refused; number {first}, the first, because: "
            f"{file.refused[first]}"
        )
        raise typer.Exit(FAILED)


def _for_all(method: Method, lines: Sequence[PromptLine]) -> Method:
    """The method, with a policy and a verifier for the temperatures of all requests.

    Where the command says temperature 0 and some request does not, those for higher ones are chosen, which
    serve 0 too. A verifier that was named stays, and refuses the requests that it does not support.
    """
    asked = [row.settings.temperature or 0 for line in lines for row in line.rows]
    warmest = max(asked, default=0)
    if method.sampling.temperature > 0 or not warmest or method.known:
        return method
    return attrs.evolve(method.words, chosen_for=warmest).method()


def configuration(method: Method, asked: PromptFile, files: Mapping[str, Any]) -> dict[str, Any]:
    """Returns everything that determines the texts, as JSON; the place and the number of rows do not."""
    words = method.words
    read = {
        name: identity.of_file(path)
        for name in ("tuned", "json_schema")
        if (path := getattr(words, name)) is not None
    }
    said = (
        attrs.asdict(words, filter=lambda field, _: field.name not in ("device", "offload", "engine")) | read
    )
    said |= {"option": list(words.option), "stop": list(words.stop), "dtype": str(words.dtype)}
    return {
        "prompts": {"count": len(asked.lines), "sha256": asked.digest},
        **{name: value for name, value in said.items() if value not in (None, [], False)},
        **files,
    }


def _watched(written: Iterable[Record], file: TextFile, records: list[Record], *, total: int) -> None:
    """Keep every text, with a bar where someone watches."""
    from rich.progress import track

    from draftwood.apps.terminal.plain_console import PlainConsole

    console = PlainConsole(stderr=True)
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
