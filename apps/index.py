"""`draftwood index`: the user's own text or tokens, made ready for the retrieval drafter."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import typer

from draftwood.apps.files.corpus import documents, is_text, readable
from draftwood.apps.models import by_name as models
from draftwood.apps.terminal.progress import watched
from draftwood.apps.terminal.shown import say
from draftwood.base.errors import InvalidInput
from draftwood.protocols import registry

_AT_ONCE = 256  # documents that are encoded in one call

Document = str | np.ndarray


def index(
    files: Annotated[
        list[Path],
        typer.Argument(help="Text (.txt, .txt.gz, .jsonl) or tokens (.npy).", show_default=False),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for the index.", show_default=False)],
    tokenizer: Annotated[
        str, typer.Option(help="The target's: a folder, hub name, or model of the zoo.")
    ] = models.TARGET,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the tokenizer.")
    ] = False,
) -> None:
    """Index text for the retrieval drafter.

    It proposes what followed the last words in the text. Documents are kept apart. In a .txt file a line
    <|endoftext|> is between them; a line of a .jsonl file is one, with its text in the field text,
    prompt, question or turns; a .npy file holds one a row, or one row with the tokenizer's end of text
    after each of them.

    \b
    Examples:
      draftwood index notes.txt letters.jsonl -o my-index
      draftwood index tokens.npy -o my-index --tokenizer big/
      draftwood generate --drafter retrieval -o index=my-index --prompt "Hi"
    """
    from draftwood.apps.terminal.plain_console import PlainConsole

    started = perf_counter()
    index_class = registry.get("drafters", "retrieval").index_class
    index_class.check_free(out)
    models.quiet()
    encoder = models.load_tokenizer(tokenizer, trust_remote_code=trust_remote_code)
    found = [document for file in files for document in _documents(file, encoder.eos_token_id)]
    console = PlainConsole(stderr=True)
    parts = [found[start : start + _AT_ONCE] for start in range(0, len(found), _AT_ONCE)]
    encoded = watched(
        (_encoded(part, encoder) for part in parts), "encoding", total=len(parts), console=console
    )
    rows = [row for part in encoded for row in part if len(row)]
    with console.status("sorting"):
        built = index_class.of(
            rows,
            vocab_size=max(encoder.get_vocab().values()) + 1,
            vocabulary=models.vocabulary_digest(encoder),
        )
    size = built.save(out)
    say(
        f"{sum(map(len, rows))} tokens in {len(rows)} documents indexed in {perf_counter() - started:.1f} s; "
        f"{size / 1e6:.1f} MB in {out}"
    )


def _encoded(part: list[Document], encoder: Any) -> list[np.ndarray]:
    """Tokens of every document, in order."""
    texts = [document for document in part if isinstance(document, str)]
    ids = iter(encoder(texts, add_special_tokens=False, verbose=False)["input_ids"] if texts else ())
    return [
        np.array(next(ids), dtype=np.int64) if isinstance(document, str) else document for document in part
    ]


def _documents(file: Path, end: int | None) -> Iterable[Document]:
    """Text or tokens of every document in `file`; `end` is the end-of-text token."""
    if is_text(file):
        return documents(file)
    if file.suffix == ".npy":
        with readable(file):
            return _rows(file, end)
    raise InvalidInput(f"{str(file)!r} is none of .txt, .txt.gz, .jsonl and .npy; convert it first.")


def _rows(file: Path, end: int | None) -> list[np.ndarray]:
    """A document a row, or those that end after `end` in the one row that there is."""
    try:
        tokens = np.load(file, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise InvalidInput(
            f"{str(file)!r} is no .npy file of tokens; save a NumPy array of integers."
        ) from error
    if tokens.dtype.kind not in "iu" or tokens.ndim not in (1, 2):
        raise InvalidInput(
            f"{str(file)!r} holds {tokens.dtype} of shape {list(tokens.shape)}; save integers in one row, or "
            "in a row for each document."
        )
    if tokens.ndim == 2:
        return list(tokens)
    return np.split(tokens, np.flatnonzero(tokens == end) + 1) if end is not None else [tokens]
