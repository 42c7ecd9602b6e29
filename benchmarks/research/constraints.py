"""JSON by schema: valid texts, equality with `generate()`, and tokens a round with and without.

Text i is prompt i under schema i mod 8. `generate()` has the grammar package's own logits processor, which
shares no line with ours. Without the constraint the same prompts are written on for as many tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import attrs
import torch
import typer
from pydantic import ValidationError

from benchmarks.research.prompts import prompts_of
from benchmarks.research.schemas import SCHEMAS
from draftwood import Constraint, Recipe, SamplingParams, SpeculativeDecoder, create, load, zoo
from draftwood.apps.bench.writers import Speculative
from draftwood.apps.files.machine import device_name
from draftwood.apps.models import by_name as models
from draftwood.decoding.generation import Generation
from draftwood.protocols import registry

ENGINES = ("xgrammar", "llguidance")
MOST = 1024  # tokens; no text of the schemas is as long


@attrs.define
class Tally:
    """Counts over some texts."""

    texts: int = 0
    valid: int = 0
    equal: int = 0
    tokens: int = 0
    first_tokens: int = 0
    rounds: int = 0
    free_tokens: int = 0
    free_rounds: int = 0
    nodes: int = 0
    refused: list[str] = attrs.field(factory=list)

    @property
    def tokens_per_round(self) -> float:
        """Without the tokens that came with the prompts' passes."""
        return (self.tokens - self.first_tokens) / self.rounds

    @property
    def free(self) -> float:
        """Tokens a round without the constraint."""
        return self.free_tokens / self.free_rounds


class LLGuidanceProcessor:
    """llguidance's own matcher as a logits processor for one row, as its documentation shows it."""

    def __init__(self, matcher: Any, prompt: int) -> None:
        self.matcher, self.seen = matcher, prompt

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        from llguidance.torch import allocate_token_bitmask, fill_next_token_bitmask

        assert self.matcher.consume_tokens(ids[0, self.seen :].tolist())
        self.seen = ids.shape[1]
        bits = allocate_token_bitmask(1, scores.shape[1])
        fill_next_token_bitmask(self.matcher, bits)
        open_ = (bits[0].unsqueeze(1) >> torch.arange(32)) & 1
        return scores.masked_fill(open_.flatten()[: scores.shape[1]] == 0, -torch.inf)


def processor(engine: str, constraint: Any, prompt: int) -> Any:
    """The package's own logits processor, for one text."""
    if engine == "xgrammar":
        from xgrammar.contrib.hf import LogitsProcessor

        return LogitsProcessor(constraint.compiled)
    return LLGuidanceProcessor(constraint.first.deep_copy(), prompt)


def constrained(engine: str, tokenizer: Any) -> list[Constraint]:
    """The schemas' constraints."""
    make = registry.get("constraints", engine)
    return [make.json_schema(schema.model_json_schema(), tokenizer) for schema in SCHEMAS]


def measured(
    prompts: Sequence[list[int]],
    constraints: Sequence[Constraint],
    engine: str,
    *,
    temperature: float,
    method: Recipe,
    decoder: SpeculativeDecoder,
    model: Any,
    tokenizer: Any,
) -> Tally:
    """One text for each prompt, checked, and the same number of tokens without the constraint."""
    tally = Tally()
    sampling = SamplingParams(temperature=temperature)
    draft_sampling = method.draft_sampling(sampling)
    free = Speculative(decoder, sampling, draft_sampling)
    for number, prompt in enumerate(prompts):
        schema, constraint = SCHEMAS[number % len(SCHEMAS)], constraints[number % len(SCHEMAS)]
        written = decoder.generate(
            [prompt],
            max_new_tokens=MOST,
            constraint=constraint,
            sampling=sampling,
            draft_sampling=draft_sampling,
            seed=number,
            return_dict_in_generate=True,
        )
        assert isinstance(written, Generation)
        tokens = written.tokens[0]
        tally.texts += 1
        tally.tokens += len(tokens)
        sums = written.statistics.sums
        tally.first_tokens += int(sums["prefill_tokens"])
        tally.rounds += written.statistics.target_calls
        tally.nodes += int(sums["drafted"])
        try:
            schema.model_validate_json(tokenizer.decode(tokens, skip_special_tokens=True))
            tally.valid += written.finish_reasons[0] == "eos"
        except ValidationError as error:
            tally.refused.append(str(error).splitlines()[0])
        if temperature == 0:
            ids = torch.tensor([prompt])
            plain = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=MOST,
                do_sample=False,
                logits_processor=[processor(engine, constraint, len(prompt))],
            )
            tally.equal += plain[0, len(prompt) :].tolist() == tokens
        text = free.write(prompt, len(tokens), number)
        tally.free_tokens += len(text.tokens) - text.prefill_tokens
        tally.free_rounds += text.rounds
    return tally


def constraints(
    data: Annotated[Path | None, typer.Option(help="Folder with the prompts of the five data sets.")] = None,
    texts: Annotated[int, typer.Option(help="How many, over the domains in turn.", min=1)] = 100,
    temperatures: Annotated[list[float] | None, typer.Option("--temperature", help="Repeatable.")] = None,
    engine: Annotated[list[str] | None, typer.Option(help="xgrammar or llguidance; repeatable.")] = None,
    recipe: Annotated[list[str] | None, typer.Option(help="Methods; repeatable.")] = None,
    budget: Annotated[int, typer.Option(help="Nodes of a tree.", min=1)] = 16,
) -> None:
    """JSON by eight schemas: valid, equal to generate() with the same grammar, and tokens a round.

    \b
    Examples:
      python -m benchmarks constraints --data data/
    """
    torch.set_num_threads(1)
    models.quiet()
    tokenizer = zoo.tokenizer()
    domains = 3  # that prompts_of takes from a folder
    asked = [
        tokens + tokenizer("\nJSON: ")["input_ids"]
        for tokens in prompts_of(data, tokenizer, -(-texts // domains))[:texts]
    ]
    model = zoo.load(models.TARGET)
    target, draft = load(model), load(zoo.path(models.DRAFT), dtype=torch.float32)
    typer.echo(
        f"{device_name()}: {models.TARGET} with {models.DRAFT}, {len(asked)} texts, {len(SCHEMAS)} schemas"
    )
    typer.echo(
        f"{'engine':<12}{'T':>5} {'method':<12}{'valid':>9}{'equal':>9}{'tokens':>8}"
        f"{'tokens/round':>14}{'free':>7}{'ratio':>7}{'nodes':>7}"
    )
    for name in engine or ENGINES:
        made = constrained(name, tokenizer)
        for temperature in temperatures or (0.0, 0.7):
            for recipe_name in recipe or ("dyspec",):
                parameters = registry.options("recipes", recipe_name)
                options: dict[str, Any] = {"budget" if "budget" in parameters else "length": budget}
                if "temperature" in parameters:
                    options["temperature"] = temperature
                method: Recipe = create("recipes", recipe_name, options)
                decoder = method.decoder(target, create("drafters", "model", {"backend": draft}))
                tally = measured(
                    asked,
                    made,
                    name,
                    temperature=temperature,
                    method=method,
                    decoder=decoder,
                    model=model,
                    tokenizer=tokenizer,
                )
                equal = f"{tally.equal}/{tally.texts}" if temperature == 0 else "-"
                typer.echo(
                    f"{name:<12}{temperature:>5g} {recipe_name:<12}{tally.valid:>5}/{tally.texts}{equal:>9}"
                    f"{tally.tokens:>8}{tally.tokens_per_round:>14.2f}{tally.free:>7.2f}"
                    f"{tally.tokens_per_round / tally.free:>7.2f}{tally.nodes / tally.rounds:>7.1f}"
                )
                for why in sorted(set(tally.refused)):
                    typer.echo(f"    not valid: {why}")
