"""Every family of the installed transformers that reads images or sound, tiny: whether its text is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import attrs
import torch
import typer
from rich.console import Console
from torch import Tensor

from benchmarks.research import encoder_decoders
from benchmarks.research.families import TABLE as FAMILIES
from benchmarks.research.families import each, settle, write
from benchmarks.research.families_check import TOLERANCE, Known, difference
from benchmarks.research.pictured_models import build_pictured, pictured_families, pictured_prompt, writer_of
from benchmarks.research.tester_models import tester_prompt, with_other_numbers
from benchmarks.research.video_prompts import video_families, video_prompt
from draftwood import custom_generate
from draftwood.apps.terminal.progress import watched
from draftwood.base.errors import DraftwoodError
from draftwood.protocols.model_prompt import ModelPrompt
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.verifiers.greedy import Greedy

TABLE = FAMILIES.with_name("families-images.csv")
VIDEO_TABLE = FAMILIES.with_name("families-videos.csv")
NEW, REACH = 12, 32
"""Tokens that are written after each prompt, and where windows and switches are."""


OUTSIDE = {
    "pi0": "It gives actions of a robot, and has no generate().",
    "diffusion_gemma": "It writes by diffusion, many tokens at once, and not token by token.",
    "evolla": "It reads proteins.",
    "mistral4": "Its class, Mistral4ForCausalLM, reads text only.",
}
"""Families that are listed with these and read neither images nor sound, or write no text, and why."""

_OWN_ENDS = ("BlipForConditionalGeneration",)
"""Classes whose own `generate()` says itself where texts end."""


@attrs.frozen
class PicturedFinding:
    """One line of the table.

    Attributes:
        family: transformers' `model_type`.
        model: the class; empty where it could not be built.
        result: "served", "refused", "differs", "not built" or "not finished"; "no prompt": the model makes
            features of no form of images or sound that is tried; "not read": `generate()` itself refuses
            the prompt; "outside": the class reads neither images nor sound, or writes no text token by token.
        backend: the class of the backend.
        reads: the inputs besides text.
        rows: rows whose greedy text is that of `generate()`, of two rows that differ in text and image.
        matters: whether other images, with the same text, lead to other logits of the first token, or to
            another text.
        reason: of anything but "served".
        built: "ours", or "tests": with the tiny model and prompt of transformers' own tests.
    """

    family: str
    model: str = ""
    result: str = ""
    backend: str = ""
    reads: str = ""
    rows: int | None = None
    matters: bool | None = None
    reason: str = ""
    built: str = "ours"


def pictured(
    names: Annotated[list[str] | None, typer.Argument(help="Families; default: all.")] = None,
    limit: Annotated[float, typer.Option(help="Seconds a family may take.", min=1)] = 90,
    jobs: Annotated[int, typer.Option(help="Processes.", min=1)] = 2,
    checkout: Annotated[
        Path | None,
        typer.Option(help="A checkout of transformers: where no prompt of ours is read, its tests give one."),
    ] = None,
    videos: Annotated[
        bool, typer.Option("--videos", help="After videos, of families that take any.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="The table; if families are named, only their lines are made anew.")
    ] = None,
) -> None:
    """Compare texts after images or sound with the texts of transformers' own `generate()`, family by family.

    \b
    Examples:
      python -m benchmarks pictured
      python -m benchmarks pictured llava qwen3_vl
      python -m benchmarks pictured --videos
      python -m benchmarks pictured --checkout transformers
    """
    settle()
    chosen = names or (video_families() if videos else pictured_families())
    table = output or (VIDEO_TABLE if videos else TABLE)
    if not names:
        table.unlink(missing_ok=True)

    def written() -> Iterator[PicturedFinding]:
        each_look = partial(look, checkout=checkout and checkout.resolve(), videos=videos)
        for finding in each(chosen, each_look, _unfinished, limit=limit, jobs=jobs):
            write(table, finding, command="pictured")
            yield finding

    findings = list(watched(written(), "families", total=len(chosen), console=Console(stderr=True)))
    for finding in findings:
        if names or finding.result in ("differs", "refused"):
            typer.echo(f"{finding.family:<26}{finding.result:<14}{finding.backend:<20}{finding.reason}")
    counts = Counter(finding.result for finding in findings)
    typer.echo(", ".join(f"{count} {result}" for result, count in counts.most_common()) + ".")


def look(family: str, *, checkout: Path | None = None, videos: bool = False) -> PicturedFinding:
    """Returns the finding of a family; where it reads no prompt of ours, with one of transformers' tests."""
    finding = _look(family, video_prompt if videos else pictured_prompt)
    if checkout is None or videos or finding.result in ("served", "differs", "outside"):
        return finding
    try:
        found = tester_prompt(family, checkout)
    except Exception:  # tests of another version fail in any way
        return finding
    if found is None:
        return finding
    model, prompt = found
    of_tests = PicturedFinding(family, type(model).__name__, built="tests")
    of_tests = _compared(of_tests, model, prompt, with_other_numbers(prompt))
    return finding if of_tests.result == "not read" else of_tests


def _look(family: str, prompt_of: Any) -> PicturedFinding:
    if family in OUTSIDE:
        return PicturedFinding(family, result="outside", reason=OUTSIDE[family])
    try:
        model = build_pictured(family, reach=REACH)
    except Exception as error:
        return PicturedFinding(family, result="not built", reason=_said(error))
    finding = PicturedFinding(family, type(model).__name__)
    if model.config.is_encoder_decoder:
        return _of_encoder_decoder(family)
    prompt = prompt_of(writer_of(model))
    if prompt is None:
        return attrs.evolve(finding, result="no prompt")
    other = prompt_of(writer_of(model), seed=1) or {}
    return _compared(finding, model, prompt, {**prompt, **other})


def _compared(
    finding: PicturedFinding, model: Any, prompt: dict[str, Any], other: dict[str, Any]
) -> PicturedFinding:
    """Returns the finding of a model for a prompt of two rows; `other` has other images."""
    finding = attrs.evolve(finding, reads=" ".join(sorted(prompt.keys() - {"input_ids", "attention_mask"})))
    try:
        plain = _text(model, prompt)
        read = ModelPrompt.of(writer_of(model), **prompt)
        first = (_first_logits(model, inputs) for inputs in (other, prompt))
        matters = difference(*first) > TOLERANCE or not torch.equal(plain, _text(model, other))
    except Exception as error:
        return attrs.evolve(finding, result="not read", reason=_said(error))
    finding = attrs.evolve(finding, matters=matters)
    begins = read.ids.shape[1]
    texts = [words + row[begins:] for words, row in zip(read.words, plain.tolist(), strict=True)]
    head = writer_of(model).get_output_embeddings()
    vocab = writer_of(model).config.get_text_config().vocab_size if head is None else head.weight.shape[0]
    drafter = ModelDrafter(Known(texts, vocab))
    loop = custom_generate(drafter=drafter, policy=FixedTree(3, 2, 10, 0.0, "top-k"), verifier=Greedy())
    try:
        ours = _text(model, prompt, custom_generate=loop)
    except DraftwoodError as error:
        return attrs.evolve(finding, result="refused", reason=str(error))
    except Exception as error:
        return attrs.evolve(finding, result="differs", reason=f"raises {_said(error)}")
    rows = int((ours == plain).all(1).sum())
    backend = type(loop.target).__name__
    return attrs.evolve(
        finding, result="served" if rows == len(plain) else "differs", backend=backend, rows=rows
    )


def _of_encoder_decoder(family: str) -> PicturedFinding:
    found = encoder_decoders.look(family)
    return PicturedFinding(
        family,
        found.model,
        found.result,
        found.backend,
        found.reads,
        rows=found.rows,
        matters=found.matters,
        reason=found.reason,
    )


def _text(model: Any, inputs: dict[str, Any], **options: Any) -> Any:
    return _written(model, inputs, max_new_tokens=NEW, **options)


def _first_logits(model: Any, inputs: dict[str, Any]) -> Tensor:
    asked = {"output_logits": True, "return_dict_in_generate": True}
    logits: Tensor = _written(model, inputs, max_new_tokens=1, **asked).logits[0]
    return logits


def _written(model: Any, inputs: dict[str, Any], **options: Any) -> Any:
    ends = {} if type(model).__name__ in _OWN_ENDS else {"pad_token_id": 0, "eos_token_id": None}
    asked = {"do_sample": False, **ends, **options}
    if writer_of(model) is model:
        return model.generate(**inputs, **asked)
    # generate() of an Omni model hands these on to its thinker.
    of_thinker = {f"thinker_{name}": value for name, value in asked.items()}
    return model.generate(**inputs, generation_mode="text", **of_thinker)


def _unfinished(family: str, *, result: str, reason: str) -> PicturedFinding:
    return PicturedFinding(family, result="not finished", reason=reason)


def _said(error: Exception) -> str:
    said = " ".join(str(error).split())[:160].rstrip(".")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
