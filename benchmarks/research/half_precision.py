"""Places where greedy texts in bfloat16 differ from `generate()` in bfloat16, and the gaps there.

A pass over a tree and a pass over one token add the same products in another order, so that logits differ
in their last bits. A text parts where its two best logits are closer than that.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Annotated, Any, cast

import attrs
import torch
import typer

from benchmarks.research.prompts import prompts_of
from draftwood import custom_generate, zoo
from draftwood.apps.bench.figures import common
from draftwood.apps.files.machine import device_name
from draftwood.apps.models import by_name as models
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.greedy import Greedy


@attrs.frozen
class Compared:
    """One text both ways.

    Attributes:
        gaps: the best logit less the second best before every token of `generate()`.
        parted: the number of tokens before the first that differs, or None where all are equal.
    """

    gaps: list[float]
    parted: int | None


def compared(model: Any, speculative: Any, prompt: list[int], *, tokens: int) -> Compared:
    """Greedy text of `model` after `prompt`, by `generate()` and with draft trees."""
    ids = torch.tensor([prompt], device=model.device)
    options = {"max_new_tokens": tokens, "do_sample": False}
    plain = model.generate(ids, **options, return_dict_in_generate=True, output_logits=True)
    drafted = model.generate(ids, **options, custom_generate=speculative)
    expected, other = plain.sequences[0, len(prompt) :].tolist(), drafted[0, len(prompt) :].tolist()
    best = [logits[0].topk(2).values.tolist() for logits in plain.logits]
    gaps = [first - second for first, second in best]
    alike = common(expected, other)
    return Compared(gaps, alike if alike < max(len(expected), len(other)) else None)


def half_precision(
    data: Annotated[Path | None, typer.Option(help="Folder with held-out prompts.")] = None,
    prompts: Annotated[int, typer.Option(help="Prompts a domain.", min=1)] = 20,
    tokens: Annotated[int, typer.Option(help="Tokens a text.", min=1)] = 64,
    target: Annotated[str, typer.Option(help="A model of the zoo.")] = models.TARGET,
    draft: Annotated[str, typer.Option(help="Its draft.")] = models.DRAFT,
) -> None:
    """Counts greedy texts that differ from generate()'s, and measures the gap of the two best logits there.

    \b
    Examples:
      python -m benchmarks half-precision --data data/
    """
    models.quiet()
    texts = prompts_of(data, zoo.tokenizer(), prompts)
    typer.echo(f"{device_name()}: {target} with {draft}, {len(texts)} texts of {tokens} tokens, greedy")
    for dtype in (torch.float32, torch.bfloat16):
        model, small = (cast(Any, zoo.load(name)).to(dtype) for name in (target, draft))
        speculative = custom_generate(drafter=small, policy=LayeredDySpec(16), verifier=Greedy())
        texts_compared = [compared(model, speculative, text, tokens=tokens) for text in texts]
        parted = [one.gaps[one.parted] for one in texts_compared if one.parted is not None]
        every = sorted(gap for one in texts_compared for gap in one.gaps)
        typer.echo(
            f"\n{str(dtype).removeprefix('torch.')}: {len(parted)} of {len(texts_compared)} texts part"
        )
        typer.echo(f"  gap of the two best logits at any token: median {median(every):.3f}")
        if parted:
            largest = max(parted)
            share = sum(gap <= largest for gap in every) / len(every)
            typer.echo(
                f"  where they part: median {median(parted):.4f}, largest {largest:.4f}; {share:.1%} of all "
                "tokens have a gap as small"
            )
