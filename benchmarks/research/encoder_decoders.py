"""Every encoder-decoder of the installed transformers, tiny: whether its trees and texts are right."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import attrs
import torch
import typer
from rich.console import Console
from torch import Tensor
from transformers import GenerationMixin

from benchmarks.research.encoder_decoder_models import (
    build_encoder_decoder,
    encoder_decoder_families,
    prompt_with_source,
)
from benchmarks.research.families import TABLE as FAMILIES
from benchmarks.research.families import each, settle, write
from benchmarks.research.families_check import (
    TOLERANCE,
    Known,
    Written,
    difference,
    path_to,
    random_tree,
)
from draftwood import ModelPrompt, custom_generate, load
from draftwood.apps.terminal.progress import watched
from draftwood.base.errors import DraftwoodError
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.verifiers.greedy import Greedy

TABLE = FAMILIES.with_name("families-encoder-decoders.csv")
NEW, REACH = 16, 8
"""Tokens that are written after each prompt, and where windows are."""


@attrs.frozen
class EncoderDecoderFinding:
    """One line of the table.

    Attributes:
        family: transformers' `model_type`.
        model: the class; empty where it could not be built.
        result: "served", "refused", "differs", "not built", "not finished"; "no prompt": `generate()` takes
            none of the sources that are tried.
        backend: the class of the backend.
        reads: the inputs.
        law_s: the largest difference of a node's logits, over their spread, on random trees.
        rows: rows whose greedy text is that of `generate()`, of two with other sources, written together.
        one: the same, one by one.
        matters: whether another source leads to other logits of the first token.
        reason: of anything but "served".
    """

    family: str
    model: str = ""
    result: str = ""
    backend: str = ""
    reads: str = ""
    law_s: float | None = None
    rows: int | None = None
    one: int | None = None
    matters: bool | None = None
    reason: str = ""


def encoder_decoders(
    names: Annotated[list[str] | None, typer.Argument(help="Families; default: all.")] = None,
    limit: Annotated[float, typer.Option(help="Seconds a family may take.", min=1)] = 90,
    jobs: Annotated[int, typer.Option(help="Processes.", min=1)] = 2,
    output: Annotated[
        Path, typer.Option(help="The table; if families are named, only their lines are made anew.")
    ] = TABLE,
) -> None:
    """Compare trees and texts of encoder-decoders with transformers' own `generate()`, family by family.

    \b
    Examples:
      python -m benchmarks encoder-decoders
      python -m benchmarks encoder-decoders t5 whisper
    """
    settle()
    chosen = names or encoder_decoder_families()
    if not names:
        output.unlink(missing_ok=True)

    def written() -> Iterator[EncoderDecoderFinding]:
        for finding in each(chosen, look, _unfinished, limit=limit, jobs=jobs):
            write(output, finding, command="encoder-decoders")
            yield finding

    findings = list(watched(written(), "families", total=len(chosen), console=Console(stderr=True)))
    for finding in findings:
        if names or finding.result != "served":
            typer.echo(f"{finding.family:<26}{finding.result:<14}{finding.law_s}  {finding.reason}")
    counts = Counter(finding.result for finding in findings)
    typer.echo(", ".join(f"{count} {result}" for result, count in counts.most_common()) + ".")


def look(family: str) -> EncoderDecoderFinding:
    """Returns the finding of a family."""
    try:
        model = build_encoder_decoder(family, reach=REACH)
    except Exception as error:
        return EncoderDecoderFinding(family, result="not built", reason=_said(error))
    finding = EncoderDecoderFinding(family, type(model).__name__)
    inputs = prompt_with_source(model)
    if inputs is None:
        return attrs.evolve(finding, result="no prompt")
    finding = attrs.evolve(finding, reads=" ".join(sorted(inputs.keys() - {"attention_mask"})))
    plain = _text(model, inputs)
    try:
        prompt = ModelPrompt.of(model, **inputs)
        first = _along(model, prompt, inputs, [])
        other = _along(model, prompt, {**inputs, **(prompt_with_source(model, seed=1) or {})}, [])
        finding = attrs.evolve(finding, matters=difference(other[:, 0], first[:, 0]) > TOLERANCE)
        finding = attrs.evolve(finding, law_s=worst_node(model, prompt, inputs))
        loop = _loop(model, prompt, plain)
        together = int((_text(model, inputs, custom_generate=loop) == plain).all(1).sum())
        one_by_one = 0
        for row in range(2):
            given = {name: value[row : row + 1] for name, value in inputs.items()}
            truth = _text(model, given)
            loop = _loop(model, ModelPrompt.of(model, **given), truth)
            one_by_one += int(torch.equal(_text(model, given, custom_generate=loop), truth))
    except DraftwoodError as error:
        return attrs.evolve(finding, result="refused", reason=str(error))
    except Exception as error:
        return attrs.evolve(finding, result="differs", reason=f"raises {_said(error)}")
    right = finding.law_s is not None and finding.law_s <= TOLERANCE and together == one_by_one == 2
    return attrs.evolve(
        finding,
        result="served" if right else "differs",
        backend=type(loop.target).__name__,
        rows=together,
        one=one_by_one,
    )


def worst_node(model: Any, prompt: ModelPrompt, inputs: dict[str, Any], *, rounds: int = 2) -> float:
    """The largest difference of a node's logits, over their spread, in random trees after `prompt`."""
    backend, chance = load(model), random.Random(1)
    rows = range(len(prompt))
    worst = difference(backend.read_prompt(prompt), _along(model, prompt, inputs, [])[:, 0])
    texts: list[list[int]] = [[] for _ in rows]
    roots = [chance.randrange(5, 60) for _ in rows]
    for _ in range(rounds):
        trees = [random_tree(chance, root) for root in roots]
        logits = backend.extend(
            torch.tensor([tokens for tokens, _ in trees]), torch.tensor([parents for _, parents in trees])
        )
        paths = []
        for row, (tokens, parents) in enumerate(trees):
            leaves = [node for node in range(len(tokens)) if node not in parents]
            for leaf in leaves[-3:]:
                path = path_to(parents, leaf)
                written = texts[row] + [tokens[node] for node in path]
                along = _along(model, prompt, inputs, written)[row, len(texts[row]) + 1 :]
                worst = max(worst, difference(logits[row, path], along))
            paths.append(path_to(parents, chance.choice(leaves))[: chance.randint(1, 5)])
            texts[row] += [tokens[node] for node in paths[-1]]
            roots[row] = chance.randrange(5, 60)
        backend.commit(paths)
    backend.release()
    return worst


def _along(model: Any, prompt: ModelPrompt, inputs: dict[str, Any], written: Sequence[int]) -> Tensor:
    """Logits `[rows, len(written) + 1, vocab]` of `generate()` where it is made to write these tokens."""
    given = {name: value for name, value in inputs.items() if name != "decoder_input_ids"}
    # A family's own may take other processors.
    out = GenerationMixin.generate(
        model,
        **given,
        decoder_input_ids=prompt.ids,
        do_sample=False,
        max_new_tokens=len(written) + 1,
        eos_token_id=None,
        logits_processor=[Written([*written, 0], prompt.ids.shape[1])],
        output_logits=True,
        return_dict_in_generate=True,
    )
    return torch.stack(out.logits, 1)


def _loop(model: Any, prompt: ModelPrompt, plain: Tensor) -> Any:
    begins = prompt.ids.shape[1]
    read = prompt.words
    texts = [words + row[begins:] for words, row in zip(read, plain.tolist(), strict=True)]
    drafter = ModelDrafter(Known(texts, model.get_output_embeddings().weight.shape[0]))
    return custom_generate(drafter=drafter, policy=FixedTree(3, 2, 10, 0.0, "top-k"), verifier=Greedy())


def _text(model: Any, inputs: dict[str, Any], **options: Any) -> Any:
    return model.generate(**inputs, max_new_tokens=NEW, do_sample=False, eos_token_id=None, **options)


def _unfinished(family: str, *, result: str, reason: str) -> EncoderDecoderFinding:
    return EncoderDecoderFinding(family, result="not finished", reason=reason)


def _said(error: Exception) -> str:
    said = " ".join(str(error).split())[:160].rstrip(".")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
