"""Tiny models and prompts of transformers' own tests, from a checkout of them."""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import sys
import types
import unittest
from pathlib import Path
from typing import Any

import torch

from benchmarks.research.generate_twice import import_names_of_other_versions

_FOLDERS = {
    "kosmos-2": "kosmos2",
    "kosmos-2.5": "kosmos2_5",
    "qwen2_5_omni_thinker": "qwen2_5_omni",
    "qwen3_omni_moe_thinker": "qwen3_omni_moe",
}
"""Folders of tests whose name does not follow from the family."""

_NOT_NEEDED = ("librosa",)
"""Packages that tests of sound import, and that prompts of random numbers do not need."""


def tester_prompt(family: str, checkout: Path) -> tuple[Any, dict[str, Any]] | None:
    """Returns a model with random weights and inputs of its `generate()`; None where the tests have none.

    Args:
        family: transformers' `model_type`.
        checkout: of transformers, with its folder `tests`.

    Raises:
        Exception: any, where the tests are of a version that does not fit.
    """
    folder = _FOLDERS.get(family, family.replace("-", "_").replace(".", "_"))
    tests = Path("tests", "models", folder, f"test_modeling_{folder}.py")
    if not (checkout / tests).is_file():
        return None
    import_names_of_other_versions()
    for name in _NOT_NEEDED:
        if importlib.util.find_spec(name) is None:
            module = types.ModuleType(name)
            module.__spec__ = importlib.machinery.ModuleSpec(name, None)
            sys.modules[name] = module
    # The checkout's folder `tests` must be found before the project's own.
    sys.path[:0] = [str(checkout), str(checkout / "utils")]
    os.chdir(checkout)
    module = importlib.import_module(".".join(tests.with_suffix("").parts))
    cases: list[Any] = [
        case
        for case in vars(module).values()
        if isinstance(case, type)
        and issubclass(case, unittest.TestCase)
        and case.__module__ == module.__name__
        and getattr(case, "all_generative_model_classes", None)
        and hasattr(case, "prepare_config_and_inputs_for_generate")
    ]
    if not cases:
        return None
    case = cases[-1](next(name for name in dir(cases[-1]) if name.startswith("test_")))
    case.setUp()
    config, inputs = case.prepare_config_and_inputs_for_generate()
    torch.manual_seed(7)
    model = case.all_generative_model_classes[-1](config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "norm" not in name:
                parameter.normal_(0.0, 0.2)
    return model.float().eval(), dict(inputs)


def with_other_numbers(inputs: dict[str, Any]) -> dict[str, Any]:
    """Returns the inputs with other images or sound, and the same text."""
    return {
        name: torch.randn_like(value)
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
        for name, value in inputs.items()
    }
