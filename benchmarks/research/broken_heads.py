"""`check-head` on heads that are broken on purpose: which ways are told."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import attrs
import torch
import typer
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.research.head_faults import FAULTS, MEDUSA, Fault, map_faults
from draftwood import DraftwoodError, load, zoo
from draftwood.apps.models import by_name as models
from draftwood.apps.models.prompts import PROMPTS
from draftwood.strategies.blocks.files import save_block
from draftwood.strategies.blocks.head import BlockHead
from draftwood.strategies.drafters.medusa import Heads, save_heads
from draftwood.strategies.heads.eagle3 import Eagle3Head
from draftwood.strategies.heads.peagle import PEagleConfig, PEagleHead, save_peagle
from draftwood.zoo.distil.rows import Rows, continued
from draftwood.zoo.heads.agreement import guesses_of_text
from draftwood.zoo.heads.blocks import new_block_config
from draftwood.zoo.heads.floors import floors_of
from draftwood.zoo.heads.known_text import known_text
from draftwood.zoo.heads.loading import CheckedHead, depths_of, load_for
from draftwood.zoo.heads.parts import added_by_parts
from draftwood.zoo.heads.settings import compared, mean_and_error
from draftwood.zoo.heads.verdict import verdict_of
from draftwood.zoo.medusa import new_heads

_AS_GOOD = 0.03  # of what is accepted, within which a change has broken nothing
_BY_CHANCE, _ERRORS = 0.1, 2.0  # likewise where it is within these standard errors, from text to text


class Kind(StrEnum):
    """The heads that are broken: three of the zoo, and three that are fitted to the texts of the check."""

    eagle3 = "eagle3"
    dspark = "dspark"
    mtp = "mtp"
    dflash = "dflash"
    p_eagle = "p-eagle"
    medusa = "medusa"


ZOO = {
    Kind.eagle3: ("llama-7m", "llama-7m-eagle3"),
    Kind.dspark: ("llama-7m", "llama-7m-dspark"),
    Kind.mtp: ("bamba-6m", "bamba-6m-mtp"),
}


def broken_heads(
    kind: Annotated[list[Kind] | None, typer.Argument(help="Kinds of heads; default: all.")] = None,
    prompts: Annotated[int, typer.Option(help="Prompts of the check.", min=2)] = 8,
    tokens: Annotated[int, typer.Option(help="Tokens after each prompt.", min=8)] = 32,
    depths: Annotated[int, typer.Option(help="Drafted tokens that are compared.", min=1)] = 4,
    only: Annotated[
        list[str] | None, typer.Option(help="Only the ways whose names hold this; repeatable.")
    ] = None,
    sentences: Annotated[bool, typer.Option("--sentences", help="Print every verdict in full.")] = False,
) -> None:
    """Break heads in every way that applies, and print what `check-head` says of each.

    For each, the tokens that a chain of the head's drafts gains per round at temperature 0, and the chance
    that a draft is accepted at temperature 1. Where neither falls by 3 %, or the first by less than two
    standard errors and 10 %, the change has broken nothing, and is counted apart.

    \b
    Examples:
      python -m benchmarks broken-heads
      python -m benchmarks broken-heads eagle3 mtp --sentences
    """
    torch.set_num_threads(1)
    models.quiet()
    for one in kind or list(Kind):
        began = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            check = Check(
                one, Path(folder) / "right", texts(ZOO.get(one, ("llama-7m", ""))[0], prompts, tokens)
            )
            right = check.of(check.right, depths)
            typer.echo(f"{one}: unchanged: {right.grade}, {right.figures}: {right.sentence}")
            found = []
            for name, fault in check.faults():
                if only and not any(part in name for part in only):
                    continue
                if (broken := check.broken(fault)) is None:
                    continue
                result = check.of(broken, depths)
                found.append(result.compared_with(right))
                typer.echo(
                    f"  {name:42} {found[-1]:9} {result.figures} "
                    f"{result.sentence if sentences else result.sentence[:90]}"
                )
            told, weak, good = (
                sum(one in words for one in found)
                for words in (("refused", "broken"), ("weak!",), ("as good",))
            )
            typer.echo(
                f"{one}: {len(found)} ways: {told} told as broken, {weak} as weak, {good} as good as before, "
                f"{len(found) - told - weak - good} not told; {time.process_time() - began:.0f} CPU s"
            )


@attrs.frozen
class Result:
    """The verdict of `check-head` on a head, and what of its drafts is accepted.

    Attributes:
        grade: of the verdict, or "refused".
        sentence: of the verdict, or the refusal.
        gained: tokens of a chain that are accepted per round at temperature 0, by text; None of a refused
            head.
        accepted: chance that a drafted token is accepted at temperature 1, mean of all depths.
    """

    grade: str
    sentence: str
    gained: Tensor | None = None
    accepted: float = 0.0

    @property
    def figures(self) -> str:
        return (
            "           " if self.gained is None else f"{float(self.gained.mean()):.3f} {self.accepted:.3f}"
        )

    def compared_with(self, unchanged: Result) -> str:
        """Returns the result in a word, given the result of the head before the change."""
        if self.gained is None or unchanged.gained is None:
            return "refused"
        if self.grade == "broken":
            return "broken"
        lost, error = (float(one) for one in mean_and_error(unchanged.gained - self.gained))
        before = float(unchanged.gained.mean())
        kept = self.accepted > (1 - _AS_GOOD) * unchanged.accepted
        by_chance = lost < _ERRORS * error and lost < _BY_CHANCE * before
        return "as good" if kept and (lost < _AS_GOOD * before or by_chance) else f"{self.grade}!"


@attrs.define(eq=False, init=False)
class Check:
    """A head, the model it was made for, and texts of that model."""

    kind: Kind
    right: Path
    texts: list[Rows]
    model: Any
    backend: Any

    def __init__(self, kind: Kind, folder: Path, texts: list[Rows]) -> None:
        self.kind, self.texts = kind, texts
        self.model, self.backend = _model(ZOO.get(kind, ("llama-7m", ""))[0])
        self.right = zoo.path(ZOO[kind][1]) if kind in ZOO else folder
        if kind not in ZOO:
            MADE[kind](self.model, texts, folder)

    def faults(self) -> Iterator[tuple[str, Fault]]:
        """Yields the ways to break this head, by name."""
        if self.kind is Kind.medusa:
            yield from MEDUSA.items()
            return
        yield from map_faults(torch.cat([rows.tokens.flatten() for rows in self.texts]).unique()).items()
        yield from FAULTS.items()

    def broken(self, fault: Fault) -> Path | None:
        """Returns a folder with the head after `fault`; None where that changes nothing."""
        names = [file.name for file in self.right.glob("*.json") if file.name != "training.json"]
        (weights,) = self.right.glob("*.safetensors")
        described = {name: json.loads((self.right / name).read_text()) for name in names}
        stored = load_file(weights)
        if not fault(described[names[0]], stored):
            return None
        folder = self.right.parent / "broken" if self.kind not in ZOO else Path(tempfile.gettempdir())
        folder = Path(tempfile.mkdtemp(dir=folder if folder.is_dir() else None))
        for name in names:
            (folder / name).write_text(json.dumps(described[name]))
        save_file({name: some.contiguous() for name, some in stored.items()}, folder / weights.name)
        return folder

    def of(self, folder: Path, depths: int) -> Result:
        """Returns what `check-head` says of the head in `folder`."""
        try:
            head = load_for(folder, self.backend)
            found = compared(self.model, head, self.texts, depths=depths)
            verdict = verdict_of(self.model, head, self.texts, found, floors_of(self.texts), [])
            if not verdict.broken:
                # What parts add makes no broken head right, and takes half of the time.
                added = added_by_parts(self.model, head, self.texts, depths=depths)
                verdict = verdict_of(self.model, head, self.texts, found, floors_of(self.texts), added)
        except DraftwoodError as error:
            return Result("refused", str(error))
        return Result(verdict.grade, verdict.sentence, *accepted_of(self.model, head, self.texts, depths))


@torch.no_grad()
def accepted_of(model: Any, head: CheckedHead, texts: list[Rows], depths: int) -> tuple[Tensor, float]:
    """Returns the tokens that a chain gains per round at temperature 0, by text, and `Result.accepted`.

    A round is counted from every place of the texts that has room for the chain.
    """
    depths = depths_of(head, depths)
    taps = head.taps_in(int(model.config.num_hidden_layers))
    gained, chances = [], []
    for rows in texts:
        text = known_text(model, rows.tokens, taps)
        theirs = text.logits[:, max(rows.prompt - 2, 0) :].float().softmax(-1)
        right: list[Tensor] = []
        for guess, following, _ in guesses_of_text(model, head, rows, text, depths=depths):
            right.append((guess.argmax(-1) == following).double())
            chances.append(torch.minimum(theirs, guess.softmax(-1)).sum(-1).mean())
        # A draft that begins at a place has its next token at the next one.
        starts = right[0].shape[1] - depths + 1
        chain = torch.stack([one[:, depth : depth + starts] for depth, one in enumerate(right)])
        gained.append(chain.cumprod(0).sum(0).mean())
    return torch.stack(gained), float(torch.stack(chances).mean())


@cache
def _model(name: str) -> tuple[Any, Any]:
    model = zoo.load(name).float()
    return model, load(model)


@cache
def texts(name: str, prompts: int, tokens: int) -> list[Rows]:
    """Returns what the model `name` of the zoo continues the built-in prompts with."""
    tokenizer, (model, _) = zoo.tokenizer(), _model(name)
    chosen = [text for some in zip(*PROMPTS.values(), strict=False) for text in some]
    chosen += [text[: len(text) // 2] for text in chosen]
    ids = [torch.tensor([tokenizer(text)["input_ids"][:64]]) for text in chosen[:prompts]]
    written = [continued(model, one, new_tokens=tokens, temperature=0.0, seed=0) for one in ids]
    # They were made in inference mode, whose tensors nothing is fitted to.
    return [attrs.evolve(rows, tokens=rows.tokens.clone()) for rows in written]


def fitted(model: Any, head: Any, rows: list[Rows], *, depths: int, steps: int) -> None:
    """Fit `head` in place to the very texts of the check, which is the fastest way to a good one."""
    taps = head.taps_in(int(model.config.num_hidden_layers))
    read = [known_text(model, some.tokens, taps) for some in rows]
    head.requires_grad_(True)
    optimiser = torch.optim.Adam(head.parameters(), lr=2e-3)
    for step in range(steps):
        number = step % len(rows)
        wanted = rows[number].tokens[:, 2:]
        losses = [
            torch.nn.functional.cross_entropy(guess[:, depth:].flatten(0, 1), wanted[:, depth:].flatten())
            for depth, guess in enumerate(read[number].guesses(model, head, depths=depths))
        ]
        optimiser.zero_grad()
        torch.stack(losses).sum().backward()
        optimiser.step()
    head.requires_grad_(False)


def _dflash(model: Any, rows: list[Rows], folder: Path) -> None:
    torch.manual_seed(0)
    made = attrs.evolve(new_block_config(model, layers=2, depths=4), mask_token_id=1)
    head = BlockHead(made)
    fitted(model, head, rows, depths=3, steps=240)
    save_block(head, folder, target="llama-7m")


def _p_eagle(model: Any, rows: list[Rows], folder: Path) -> None:
    pairs: Any = load_for(zoo.path("llama-7m-eagle3"), _model("llama-7m")[1])
    assert isinstance(pairs, Eagle3Head)
    head = PEagleHead(PEagleConfig(head=pairs.config, mask_token_id=1, depths=4))
    head.head.load_state_dict(pairs.state_dict(), strict=False)
    fitted(model, head, rows, depths=3, steps=80)
    save_peagle(head, folder, target="llama-7m")


def _medusa(model: Any, rows: list[Rows], folder: Path) -> None:
    heads: Heads = new_heads(model, 2)
    fitted(model, heads, rows, depths=2, steps=60)
    save_heads(heads, folder, target="llama-7m")


MADE: dict[Kind, Callable[[Any, list[Rows], Path], None]] = {
    Kind.dflash: _dflash,
    Kind.p_eagle: _p_eagle,
    Kind.medusa: _medusa,
}
