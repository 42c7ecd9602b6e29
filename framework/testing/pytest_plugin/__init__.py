"""The pytest plugin: how many toy models the checks try, models for samplers, and Hypothesis profiles.

It is installed a second time as `draftwood_pytest`, apart from `draftwood`: pytest loads plugins in
every project of an environment, and those that have nothing to do with draftwood should not wait for
torch. So it imports nothing but the standard library before one of its options is used.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

MODELS = "DRAFTWOOD_MODELS"  # read by `draftwood.testing.checks.strategy_checks`
PROFILES = {"default": 20, "ci": 20, "thorough": 200}
"""Random toy models of a check, by profile."""

_before: dict[str, str | None] = {}


def register_profiles() -> None:
    """Register the Hypothesis profiles `draftwood-default`, `draftwood-ci` and `draftwood-thorough`.

    None has a deadline, since a loaded machine is slow and not wrong. `ci` tries the same
    cases in every run; `thorough` tries ten times as many as `default`.
    """
    from hypothesis import HealthCheck, settings

    slow = [HealthCheck.too_slow]
    settings.register_profile("draftwood-default", deadline=None, suppress_health_check=slow)
    default = settings.get_profile("draftwood-default")
    settings.register_profile("draftwood-ci", default, derandomize=True, database=None)
    settings.register_profile("draftwood-thorough", default, max_examples=1000)


def pytest_addoption(parser: Any) -> None:
    group = parser.getgroup("draftwood")
    group.addoption(
        "--draftwood-models",
        type=_positive,
        metavar="N",
        help="random toy models that a check of draftwood.testing tries (default: 20; 200 when thorough)",
    )
    group.addoption(
        "--draftwood-profile",
        choices=tuple(PROFILES),
        help="load draftwood's Hypothesis profile of this name",
    )
    group.addoption(
        "--draftwood-seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of the toy models of the fixture sampler_model (default: 0)",
    )


def pytest_generate_tests(metafunc: Any) -> None:
    """Run a test with the fixture `sampler_model` once for each pair of toy models.

    Its value goes into `draftwood.testing.prove_sampler(models=...)`.
    """
    if "sampler_model" in metafunc.fixturenames:
        from draftwood.testing import sampler_models

        found = sampler_models(seed=metafunc.config.getoption("--draftwood-seed"))
        pairs = [{name: pair} for name, pair in found.items()]
        metafunc.parametrize("sampler_model", pairs, ids=found)


def pytest_configure(config: Any) -> None:
    profile, models = config.getoption("--draftwood-profile"), config.getoption("--draftwood-models")
    if profile is not None:
        from hypothesis import settings

        register_profiles()
        settings.load_profile(f"draftwood-{profile}")
    if models is not None or profile is not None:
        _before[MODELS] = os.environ.get(MODELS)
        os.environ[MODELS] = str(models or PROFILES[profile])


def pytest_unconfigure(config: Any) -> None:
    for name, value in _before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    _before.clear()


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of models; give 1 or more.")
    return int(text)
