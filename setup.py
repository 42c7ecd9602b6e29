"""Lists the packages below the folders that `package-dir` in pyproject.toml names.

Every folder with Python files in it is a package, so a new one needs no entry anywhere. The folders
hang below `draftwood` under names of their own, which setuptools' own search cannot express.
"""

import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent


def packages() -> list[str]:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = []
    for name, layer in config["tool"]["setuptools"]["package-dir"].items():
        top = ROOT / layer
        inner = {path.parent for path in top.rglob("*.py") if "__pycache__" not in path.parts}
        found += [".".join((name, *p.relative_to(top).parts)) for p in inner | {top} if p.is_dir()]
    return sorted(found)


setup(packages=packages())
