"""Settings of every test: one thread per process, no network, bounded searches, no kernels.

A test whose marker names what this system lacks is skipped with the reason.

The tests of kernels switch them on. Where no GPU is, Triton's interpreter runs them, which it must be told
before it is imported.
"""

import gc
import logging
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec

# Before torch is imported; processes that tests start inherit it.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["DRAFTWOOD_KERNELS"] = "off"
os.environ["DRAFTWOOD_CACHE"] = "off"

import pytest

# Of what is imported and collected hardly anything is garbage; to look for it took a quarter of that time.
gc.disable()

LACKING = {
    "linux": None if sys.platform == "linux" else "needs Linux: /proc, /dev/full, processes that fork",
    "posix": None if os.name == "posix" else "needs POSIX: its signals, links and locks",
    "triton": None if find_spec("triton") else "needs Triton, which is made for Linux",
}
"""By marker: why tests that carry it cannot run here; None where they can."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # What only hands tests to other processes waits for none of these.
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        return
    import torch
    from draftwood_pytest import register_profiles
    from hypothesis import settings

    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
        if LACKING["triton"] is None:
            from tests.interpreter import patch_language_once

            patch_language_once()

    # CI repeats the same cases at every run; `--draftwood-profile thorough` tries twenty times as many.
    register_profiles()
    usual = settings.get_profile("draftwood-ci" if os.environ.get("CI") else "draftwood-default")
    settings.register_profile("make-test", usual, max_examples=50)
    settings.load_profile("make-test")


def pytest_collection_finish() -> None:
    # What stands now stays, so that no later collection goes through it.
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, reason in LACKING.items():
        if reason is not None and item.get_closest_marker(marker) is not None:
            pytest.skip(reason)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Switches messages on again that a command of the benchmarks switched off."""
    before = logging.root.manager.disable
    yield
    logging.disable(before)
