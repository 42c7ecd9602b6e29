"""The name by which a model takes and gives its cache; from transformers 5.24 on it is `cache` everywhere."""

import inspect
from typing import Any

NAMES = {"cache", "cache_params", "past_key_values"}


def cache_name(model: Any) -> str:
    (name,) = NAMES & inspect.signature(model.forward).parameters.keys()
    return name
