"""Rows: prompts cut from real text, continued by the target at one of several temperatures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Generator, Tensor

from draftwood.base.errors import InvalidInput
from draftwood.base.whole_files import inner_folder, written_whole

from ..text import windows

SHARD_TOKENS = 16_384
_SEEDS = 1_000_003  # between the seeds of two runs, so that no shards of theirs share one


@attrs.frozen(eq=False)
class Rows:
    """Rows of one length.

    Attributes:
        tokens: int64 `[rows, length]`, prompts first.
        prompt: the length of the prompts.
        temperature: at which the target continued them; 0 is greedy.
    """

    tokens: Tensor
    prompt: int
    temperature: float


@attrs.frozen(kw_only=True)
class RowPlan:
    """A plan of the rows to write.

    Every pair of a temperature and a prompt length has its turn, a shard of about 16,000 tokens at a time.

    Attributes:
        shards: how many are written.
        temperatures: of the continuations, those that are to be frequent more than once.
        prompts: lengths of the prompts, likewise.
        new_tokens: that the target adds to each.
        seed: of the prompts and of the continuations.
    """

    shards: int
    temperatures: tuple[float, ...] = (0.0, 0.6, 0.0, 1.0)
    prompts: tuple[int, ...] = (32, 96, 160)
    new_tokens: int = 128
    seed: int = 0

    def shape(self, index: int) -> tuple[int, int, float]:
        """Rows, prompt length and temperature of a shard."""
        turn, which = divmod(index, len(self.temperatures))
        prompt = self.prompts[turn % len(self.prompts)]
        return max(1, SHARD_TOKENS // (prompt + self.new_tokens)), prompt, self.temperatures[which]


def ends_of_text(model: Any) -> tuple[int, ...]:
    """The tokens after which `model.generate` stops."""
    config = getattr(model, "generation_config", None) or model.config
    ends = getattr(config, "eos_token_id", None)
    if ends is None:
        ends = getattr(model.config, "eos_token_id", None)
    return () if ends is None else (ends,) if isinstance(ends, int) else tuple(ends)


@torch.inference_mode()
def continued(model: Any, prompts: Tensor, *, new_tokens: int, temperature: float, seed: int) -> Rows:
    """Continue int64 `prompts[rows, length]` by `new_tokens` tokens of `model`.

    A row that has ended is filled up with the end-of-text token. The model's generation defaults (top-k,
    penalties) play no part.
    """
    from transformers import GenerationConfig

    ends, own = ends_of_text(model), model.generation_config
    chance = {"temperature": temperature, "top_k": 0} if temperature > 0 else {}
    devices = [model.device] if model.device.type == "cuda" else []
    # What a call does not name, generate takes from the model's defaults.
    model.generation_config = GenerationConfig(pad_token_id=ends[0] if ends else 0)
    try:
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            tokens = model.generate(
                prompts.to(model.device),
                attention_mask=torch.ones_like(prompts, device=model.device),
                max_new_tokens=new_tokens,
                do_sample=temperature > 0,
                eos_token_id=list(ends) or None,
                **chance,
            ).cpu()
    finally:
        model.generation_config = own
    missing = prompts.shape[1] + new_tokens - tokens.shape[1]
    if missing:
        tokens = torch.cat([tokens, tokens.new_full((len(tokens), missing), ends[0])], 1)
    return Rows(tokens, prompts.shape[1], temperature)


def written(
    model: Any,
    streams: Mapping[str, Tensor],
    folder: Path,
    *,
    plan: RowPlan,
    shares: Mapping[str, float] | None = None,
) -> Iterator[Rows]:
    """The shards of `plan` in turn, written by `model` to `folder`; those already there are read.

    Args:
        model: the target.
        streams: int token streams of the real text, by name.
        folder: made where it is missing.
        plan: what is written.
        shares: how often prompts are cut from each stream, by name; a stream without one has 1.

    Raises:
        InvalidInput: a stream is shorter than a prompt, or a shard that is there cannot be read.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    inner_folder(folder)
    share = torch.tensor([float((shares or {}).get(name, 1.0)) for name in streams])
    for index in range(plan.shards):
        file = folder / f"{index:05d}.pt"
        if not file.exists():
            rows = _shard(model, list(streams.values()), share, plan, index)
            save_whole(file, {**attrs.asdict(rows), "tokens": rows.tokens.int()})
        yield read_rows(file)


def _shard(model: Any, streams: Sequence[Tensor], share: Tensor, plan: RowPlan, index: int) -> Rows:
    count, prompt, temperature = plan.shape(index)
    seed = plan.seed * _SEEDS + index
    generator = Generator().manual_seed(seed)
    chosen = torch.multinomial(share, count, replacement=True, generator=generator)
    parts = [
        windows(stream, rows=int(number), length=prompt, generator=generator)
        for stream, number in zip(streams, chosen.bincount(minlength=len(streams)), strict=True)
    ]
    return continued(model, torch.cat(parts), new_tokens=plan.new_tokens, temperature=temperature, seed=seed)


def read_rows(file: Path) -> Rows:
    """One shard."""
    stored = load_whole(file)
    return Rows(stored["tokens"].long(), stored["prompt"], stored["temperature"])


def save_whole(file: Path, content: Mapping[str, Any]) -> None:
    """`torch.save` that leaves a whole file or none, whenever the process ends."""
    with written_whole(file) as part, part.open("wb") as out:
        torch.save(dict(content), out)


def load_whole(file: Path) -> dict[str, Any]:
    """Returns the content of a file of `save_whole`, on the CPU; code in it is not run."""
    try:
        content: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch and pickle raise many kinds for a damaged file
        raise InvalidInput(f"{str(file)!r} cannot be read; delete it and run the same again.") from error
    return content


def position_weights(rows: Rows, *, ends: Sequence[int], real: float) -> Tensor:
    """Weight of each position's prediction, float `[rows, length - 1]`.

    `real` inside the prompt, 1 in the continuation, 0 after the continuation's first end of text.
    """
    following = rows.tokens[:, 1:]
    weights = torch.ones(following.shape)
    weights[:, : rows.prompt - 1] = real
    ended = torch.isin(following, torch.tensor(list(ends), dtype=following.dtype))
    ended[:, : rows.prompt - 1] = False
    past_end = ended.cumsum(1) - ended.int() > 0
    return weights.masked_fill(past_end, 0.0)
