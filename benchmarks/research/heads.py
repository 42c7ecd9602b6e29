"""A head and a draft model at equal nodes: tokens per round on held-out prompts, and tokens per second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import attrs
import torch
import typer
from rich.console import Console

from benchmarks.research import heads_speed, held_out
from benchmarks.research.heads_speed import Key, Texts
from benchmarks.research.verifiers import interval
from draftwood import SamplingParams, SpeculativeDecoder, StateBackend, zoo
from draftwood.apps.bench.specs import ORDINARY, Spec, parse
from draftwood.apps.bench.writers import Speculative, Text, Writer, writer
from draftwood.apps.files.machine import device_name
from draftwood.apps.models import by_name as models
from draftwood.apps.models import drafters_by_name
from draftwood.apps.terminal.progress import watched
from draftwood.protocols import registry
from draftwood.zoo.heads.loading import load_for
from draftwood.zoo.heads.widened import widened_head
from draftwood.zoo.widen import parameter_count, widen_to

STRATEGIES = ("leviathan:length=5", "dyspec:budget=14", "dyspec:budget=64")
_WARM = 4  # tokens that each contender writes before it is timed


def heads(
    drafters: Annotated[list[str], typer.Argument(help="Heads and draft models; the first one is compared.")],
    data: Annotated[Path, typer.Option(help="Folder with the prompts of the five data sets.")],
    target: Annotated[str, typer.Option(help="A model of the zoo, or a folder.")] = models.TARGET,
    strategy: Annotated[list[str] | None, typer.Option(help="With options; repeatable.")] = None,
    temperature: Annotated[list[float] | None, typer.Option(help="Repeatable.")] = None,
    prompts: Annotated[int, typer.Option(help="Prompts a domain.", min=1)] = 20,
    tokens: Annotated[int, typer.Option(help="Tokens a text.", min=1)] = 32,
    calibration: Annotated[
        bool, typer.Option("--calibration", help="On the prompts that settings are chosen by.")
    ] = False,
    widen: Annotated[
        float | None,
        typer.Option(help="Parameters that the target and its heads are widened to; times are told then."),
    ] = None,
    dtype: Annotated[models.Dtype, typer.Option(help="Of all weights.")] = models.Dtype.float32,
    to: Annotated[Path | None, typer.Option(help="A JSON file for all figures.")] = None,
) -> None:
    """Tokens a round with each of DRAFTERS, on the same prompts, strategies and seeds, with 95 % intervals.

    On a widened target also tokens per second and ordinary decoding; all take turns on every prompt.

    \b
    Examples:
      python -m benchmarks heads llama-7m-eagle3 llama-draft --data data/
      python -m benchmarks heads llama-7m-eagle3 llama-draft --data data/ --widen 350e6 --dtype bfloat16
    """
    torch.set_num_threads(1)
    models.quiet()
    chosen = held_out.prompts(
        data, zoo.tokenizer(), count=prompts, domains=held_out.DOMAINS, calibration=calibration
    )
    rows = [row.tolist() for some in chosen.values() for row in some]
    jobs = [(spec, name) for spec in strategy or STRATEGIES for name in drafters]
    contenders, found = Contenders(target, widen, dtype), Texts()
    for temp in temperature or [0.0, 1.0]:
        writers = {(temp, ORDINARY, ""): contenders.ordinary(temp)} if widen else {}
        writers |= {(temp, *job): contenders.writer(temp, *job) for job in jobs}
        _write(writers, rows, tokens, found)
    typer.echo(f"{device_name()}: {contenders.described()}; {len(rows)} prompts, {tokens} tokens a text")
    (heads_speed.show if widen else _show)(found, drafters)
    if to:
        lines = [_line(*key, texts) for key, texts in found.items()]
        to.write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")


@attrs.define(eq=False)
class Contenders:
    """The writers of texts, on one target that is loaded once.

    Attributes:
        target: its name.
        widen: parameters that it is widened to; None: it stays as it is.
        dtype: of all weights.
    """

    target: str
    widen: float | None
    dtype: models.Dtype
    _small: models.Loaded = attrs.field(init=False)
    _wide: Any = attrs.field(default=None, init=False)
    _loaded: dict[str, models.Loaded] = attrs.field(factory=dict, init=False)
    _heads: dict[str, Any] = attrs.field(factory=dict, init=False)
    _sizes: dict[str, int] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._small = self._load(None)
        if self.widen:
            self._wide = widen_to(self._small.target.model, parameters=self.widen)

    def ordinary(self, temperature: float) -> Writer:
        """transformers' own decoding with the target."""
        return writer(Spec(ORDINARY), attrs.evolve(self._small, target=self._backend()), temperature)

    def writer(self, temperature: float, strategy: str, name: str) -> Writer:
        """Decoding with the drafter `name`, a head, a draft model, or another one with options after it."""
        # Options of a drafter may follow its name: medusa:heads=FOLDER.
        is_model = not drafters_by_name.is_drafter(name.partition(":")[0])
        chosen = parse(strategy if is_model else f"{strategy}:drafter={name}").strategy(temperature)
        if name not in self._loaded:
            # Features are kept for only one head, so each has its own backend over the same weights.
            self._loaded[name] = attrs.evolve(self._load(name if is_model else None), target=self._backend())
        loaded, options = self._loaded[name], chosen.drafter_options
        if self._wide is not None and "head" in options:
            options = options | {"head": self._widened(options["head"])}
        made: Any = (
            drafters_by_name.create_drafter("model", {"backend": loaded.draft}, loaded)
            if chosen.drafter is None
            else drafters_by_name.create_drafter(chosen.drafter, options, loaded)
        )
        module = getattr(made, "head", None) or getattr(loaded.draft, "model", None)
        if isinstance(module, torch.nn.Module):
            self._sizes[name] = parameter_count(module)
        sharper = chosen.draft_temperature
        return Speculative(
            SpeculativeDecoder(loaded.target, made, chosen.policy, chosen.verifier),
            SamplingParams(temperature=temperature),
            None if sharper is None else SamplingParams(temperature=sharper),
        )

    def described(self) -> str:
        """The target, and what has drafted for it, with their parameters."""
        whole = parameter_count(self._small.target.model if self._wide is None else self._wide)
        drafts = [f"{name} {size / 1e6:.1f}M ({size / whole:.1%})" for name, size in self._sizes.items()]
        widened = " widened to" if self._wide is not None else ""
        return ", ".join([f"{self.target}{widened} {whole / 1e6:.1f}M parameters, {self.dtype}", *drafts])

    def _load(self, draft: str | None) -> models.Loaded:
        return models.load(
            self.target,
            draft,
            tokenizer=None,
            dtype=self.dtype,
            device="cpu",
            trust_remote_code=False,
        )

    def _backend(self) -> StateBackend:
        return registry.load(self._small.target.model if self._wide is None else self._wide)

    def _widened(self, head: str) -> Any:
        if head not in self._heads:
            narrow = self._small.target
            self._heads[head] = widened_head(load_for(head, narrow), narrow.model, self._wide)
        return self._heads[head]


def _write(writers: dict[Key, Writer], rows: list[list[int]], tokens: int, found: Texts) -> None:
    """Have all of `writers` write after every prompt; they take turns, and each is first on some prompts."""
    for one in writers.values():
        one.write(rows[0], min(_WARM, tokens), 0)
    keys = list(writers)
    turns = [(row, keys[(row + place) % len(keys)]) for row in range(len(rows)) for place in range(len(keys))]
    steps = ((key, writers[key].write(rows[row], tokens, row)) for row, key in turns)
    for key, text in watched(steps, "decoding", total=len(turns), console=Console(stderr=True)):
        found.setdefault(key, []).append(text)


def _line(temperature: float, strategy: str, drafter: str, texts: list[Text]) -> dict[str, Any]:
    """Returns the JSON file's entry for one contender; lists are by prompt."""
    made = {"tokens": _of_rounds(texts), "rounds": [text.rounds for text in texts]}
    times = {name: [getattr(text, name) for text in texts] for name in ("seconds", "first_token_seconds")}
    return {"temperature": temperature, "strategy": strategy, "drafter": drafter, **made, **times}


def _of_rounds(texts: list[Text]) -> list[int]:
    return [len(text.tokens) - text.prefill_tokens for text in texts]


def _show(found: Texts, drafters: list[str]) -> None:
    typer.echo("tokens a round (95 % interval)")
    typer.echo(f"{'':<30}" + "".join(f"{name:>24}" for name in drafters))
    for temperature, strategy, name in found:
        if name != drafters[0]:
            continue
        counted = {
            other: [
                torch.tensor(some).double() for some in (_of_rounds(texts), [text.rounds for text in texts])
            ]
            for other in drafters
            for texts in [found[temperature, strategy, other]]
        }
        cells = []
        for made, rounds in counted.values():
            mean, low, high = interval(made, rounds)
            cells.append(f"{mean:.2f} ({low:.2f} to {high:.2f})")
        typer.echo(f"{f'T={temperature:g} {strategy}':<30}" + "".join(f"{cell:>24}" for cell in cells))
        for other in drafters[1:]:
            ratio, low, high = interval(counted[other][1], counted[name][1])
            typer.echo(f"  {name} vs {other}: {ratio - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%})")
