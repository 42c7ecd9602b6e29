"""lm-evaluation-harness with drafted texts: the same scores, sooner.

`python -m draftwood.integrations.lm_eval` is `lm-eval` with the model `draftwood` besides:

    python -m draftwood.integrations.lm_eval run --model draftwood
        --model_args pretrained=big,drafter=small --tasks gsm8k --batch_size 8

Tasks that generate are drafted; those that compare log-likelihoods run as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from torch import Tensor

from draftwood.integrations.loops import loop_of
from draftwood.integrations.until import write_until


@register_model("draftwood")
class DraftwoodLM(HFLM):  # type: ignore[misc]
    """lm-eval's model of transformers, which writes with a draft.

    Args:
        pretrained: the target, as `HFLM` takes it.
        drafter: as `draftwood.integrations.loops.loop_of` takes it.
        recipe: the same argument of `loop_of`.
        options: the options of `HFLM`.
    """

    def __init__(
        self, pretrained: Any, drafter: Any = None, recipe: str | None = None, **options: Any
    ) -> None:
        super().__init__(pretrained, **options)
        self._loop = loop_of(self.model, drafter=drafter, recipe=recipe)

    def _model_generate(
        self, context: Tensor, max_length: int, stop: Sequence[str], **generation_kwargs: Any
    ) -> Tensor:
        dtype = self.mixed_precision_dtype
        with torch.autocast(device_type=self.device.type, dtype=dtype, enabled=dtype is not None):
            return write_until(
                self.model,
                self.tokenizer,
                context,
                max_length=max_length,
                stop=stop,
                custom_generate=self._loop,
                **generation_kwargs,
            )


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
