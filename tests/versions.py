"""Run a part of the tests on the oldest versions that pyproject.toml allows, or on the newest that pip finds.

`python -m tests.versions lowest newest` makes `.venv-lowest` and `.venv-newest`. Constraints of this project
are not used; those that pip itself is configured with are, and `PIP_CONSTRAINT= ` lifts them.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
EXTRA = "test"
"""Extra that is installed too. It contains those of `bench` and `grammar`."""

CHOSEN = (
    "tests/test_readme.py",  # the code of the README
    "tests/test_generate_fuzz.py",
    "tests/framework/test_custom_generate.py",  # what transformers hands to a custom loop
    "tests/backends/test_architectures.py",  # law S: attention by mask and by paths
    "tests/backends/test_recurrent.py",  # law S: Mamba, Mamba-2, hybrids, gated delta
    "tests/backends/test_recurrent_decoding.py",  # texts of every recurrent family
    "tests/backends/test_length_settings.py",  # longrope
    "tests/backends/test_context.py",
    "tests/backends/test_tested_versions.py",
    "tests/strategies/test_mtp.py",  # layers of transformers that hold no cache
    "tests/strategies/test_lossless.py",  # proofs
    # What a build of torch for CUDA changes where there is no GPU; on Linux pip brings that build.
    "tests/kernels/test_support.py",
    "tests/apps/test_no_accelerator.py",
)
COUNTING = ("tests/counting_device/test_device.py", "tests/counting_device/test_triton_kernels.py")
"""Tests on a stand-in for a GPU, which torch 2.7 does not support."""
FUZZED_CALLS = 200


def requirements(project: dict[str, Any]) -> list[str]:
    """Returns the requirements of the table `[project]` and of its extra `test`, each as it is written."""
    return [*project["dependencies"], *project["optional-dependencies"][EXTRA]]


def lowest(requirement: str) -> str:
    """Returns `requirement` with its lower bound as the only version, such as "numpy==2.0"."""
    pinned, changes = re.subn(r">=\s*([\w.]+)(\s*,\s*<=?\s*[\w.]+)?", r"==\1", requirement)
    if changes != 1:
        raise ValueError(f"The requirement {requirement!r} has no lower bound; write one as name>=version.")
    return pinned


def installed_by(kind: str) -> list[str]:
    """Returns the arguments that `pip install` takes for the environment `kind`."""
    if kind == "newest":
        # An environment of an earlier run gets what was released since.
        return ["--upgrade", "--upgrade-strategy", "eager", "--editable", f".[{EXTRA}]"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*map(lowest, requirements(project)), "--editable", f".[{EXTRA}]"]


def check(kind: str, *, workers: int) -> bool:
    """Makes or updates the environment `kind` and runs the chosen tests in it; returns whether all passed."""
    folder = ROOT / f".venv-{kind}"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    print(
        f"== {kind} versions: installing into {folder.name}, which takes minutes the first time", flush=True
    )
    pip: list[Any] = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", *installed_by(kind)], cwd=ROOT, check=True)
    subprocess.run([python, "-c", VERSIONS], cwd=ROOT, check=True)
    chosen = CHOSEN if kind == "lowest" else (*CHOSEN, *COUNTING)
    tests = ["pytest", "--quiet", f"--numprocesses={workers}", "--dist=worksteal", *chosen]
    # The first calls are among the tests.
    fuzz = ["tests.generate_fuzz", "--first=40", f"--calls={FUZZED_CALLS}", f"--processes={workers}"]
    results = [
        subprocess.run([python, "-m", *program], cwd=ROOT, env=os.environ | QUIET).returncode
        for program in (tests, fuzz)
    ]
    passed = not any(results)
    print(f"== {kind} versions: {'passed' if passed else 'FAILED'}", flush=True)
    if passed and kind == "newest":
        # No failure: a release of today must not stop a change that has nothing to do with it.
        subprocess.run([python, "-c", UNTESTED], cwd=ROOT, check=True)
    return passed


QUIET = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "DRAFTWOOD_KERNELS": "off",
}
VERSIONS = """
import platform, torch
from importlib.metadata import version
shown = "triton", "transformers", "numpy", "numba", "safetensors", "jaxtyping", "attrs", "scipy"
own = f"Python {platform.python_version()}", f"torch {torch.__version__} (CUDA {torch.version.cuda})"
print(*own, *(f"{name} {version(name)}" for name in shown), sep=", ")
"""
UNTESTED = """
from draftwood.backends.loading.tested_versions import untested
for sentence in untested():
    print("NEWEST_TESTED in backends/loading/tested_versions.py can be raised:", sentence)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="+", choices=("lowest", "newest"))
    parser.add_argument("--workers", type=int, default=2, help="test processes")
    given = parser.parse_args()
    passed = [check(kind, workers=given.workers) for kind in given.kinds]
    sys.exit(not all(passed))


if __name__ == "__main__":
    main()
