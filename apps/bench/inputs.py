"""Prompts of a contest that are more than tokens: with images, sound or videos, or of an encoder-decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from torch import Tensor

from draftwood import ModelPrompt
from draftwood.apps.bench.plan import BenchPlan
from draftwood.apps.files.datasets import DataSet, Prompt
from draftwood.apps.generate.media import media_inputs, reads_source
from draftwood.apps.models import by_name as models
from draftwood.base.errors import InvalidInput

_KEPT = (
    *("decoder_start_token_id", "bos_token_id", "forced_bos_token_id"),
    *("suppress_tokens", "begin_suppress_tokens"),
)
"""Defaults of an encoder-decoder without which it writes no text of its kind."""


@attrs.frozen(eq=False)
class Inputs:
    """Prompts of one call, as arguments of `generate()`.

    Attributes:
        given: what the processor or tokenizer of the target returns for all rows.
        rows: number of prompts.
    """

    given: Mapping[str, Any]
    rows: int

    def __len__(self) -> int:
        return self.rows

    def prompt(self, model: Any) -> ModelPrompt:
        """Returns them as `model` reads them; an encoder runs here."""
        return ModelPrompt.of(model, **self.given)

    @property
    def tokens(self) -> int:
        """Returns the columns of a prompt or of a source, padding included."""
        for name in ("input_ids", "inputs_embeds"):
            if isinstance(value := self.given.get(name), Tensor):
                return int(value.shape[1])
        return 0


def inputs_of(plan: BenchPlan, pair: str, prompts: Sequence[Prompt], loaded: models.Loaded) -> Inputs | None:
    """Returns the arguments of `generate()` for prompts of a data set; None where these are tokens only."""
    given = media_inputs(
        loaded,
        models.locate(pair.split(",")[0].strip()),
        [prompt.text for prompt in prompts],
        [prompt.files for prompt in prompts],
        chat=plan.chat,
        trust_remote_code=plan.trust_remote_code,
    )
    if given is None:
        return None
    model = loaded.target.model
    tensors = {name: one.to(model.device) for name, one in given.items() if isinstance(one, Tensor)}
    floating = {name: one.to(model.dtype) for name, one in tensors.items() if one.is_floating_point()}
    return Inputs({**given, **tensors, **floating}, len(prompts))


def more_than_tokens(loaded: models.Loaded, prompts: Sequence[Prompt]) -> bool:
    """Returns whether any of these prompts is more than tokens to the target."""
    return reads_source(loaded) or any(prompt.files for prompt in prompts)


def check_inputs(plan: BenchPlan, loaded: models.Loaded, data_set: DataSet) -> None:
    """Raise `InvalidInput` where a plan asks what is not measured for prompts that are more than tokens."""
    if not more_than_tokens(loaded, data_set.prompts):
        return
    what = f"{data_set.name} holds prompts that are more than tokens to {type(loaded.target.model).__name__}"
    if plan.arrivals:
        raise InvalidInput(f"{what}, which are written in calls; leave --arrivals out.")
    if any(plan.prompt_lengths):
        raise InvalidInput(f"{what}, which are not cut; leave --prompt-length out.")
    if any(prompt.later for prompt in data_set.prompts):
        raise InvalidInput(f"{what}, and conversations of several turns; give --turns 1.")


def leave_out_defaults(model: Any) -> None:
    """Take a model's generation defaults away: no end of text, no penalty, no top-k.

    What an encoder-decoder begins its texts with stays, and so does what only its own `generate()` knows.
    """
    from transformers import GenerationConfig

    own, plain = model.generation_config, GenerationConfig(pad_token_id=0)
    if model.config.is_encoder_decoder:
        kept = {*_KEPT, *(vars(own).keys() - vars(plain).keys())}
        for name in kept & vars(own).keys():
            setattr(plain, name, getattr(own, name))
        if plain.decoder_start_token_id is None:
            plain.decoder_start_token_id = model.config.decoder_start_token_id
    model.generation_config = plain
