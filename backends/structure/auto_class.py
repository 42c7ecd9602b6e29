"""The class of transformers that reads a folder whose model writes text."""

from __future__ import annotations

from typing import Any

from transformers import (
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
)


def auto_class(config: Any) -> Any:
    """Returns the class for causal language models, or the one for models that read images or sound as well.

    The former comes first: of some models that read images it reads only the part that writes text. Of
    encoder-decoders there is one class for text, one for speech, and otherwise the one for images.
    """
    kind = config.model_type
    if config.is_encoder_decoder and kind in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
        return AutoModelForSeq2SeqLM
    if config.is_encoder_decoder and kind in MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES:
        return AutoModelForSpeechSeq2Seq
    both = kind in MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES and kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    own_code = getattr(config, "auto_map", None)
    return AutoModelForMultimodalLM if both and not own_code else AutoModelForCausalLM
