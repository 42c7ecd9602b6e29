"""Hooks of the site: they add the pages outside docs/, such as READMEs in the folders of the code.

mkdocs calls these functions while it builds. Links to those pages lead to their places in the site. Tables
are in the pages already (`make pages`).
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "build" / "site-sources"

OUTSIDE = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "kernels/README.md": "kernels/index.md",
    "kernels/COMPILED.md": "kernels/compiled.md",
}
"""Pages outside docs/, and their places in the site; READMEs of kernels are found by pattern."""
KERNELS = list(ROOT.glob("kernels/*/README.md"))


def outside() -> dict[str, str]:
    """Returns every page outside docs/ that the site holds, with its place there."""
    kernels = sorted(ROOT.glob("kernels/**/README.md"))
    pages = {"kernels/README.md": "kernels/index.md"}
    for path in kernels:
        if path.parent.name != "kernels":
            pages[path.relative_to(ROOT).as_posix()] = f"kernels/{path.parent.name}.md"
    compiled = ROOT / "kernels" / "COMPILED.md"
    return {
        **OUTSIDE,
        **pages,
        **({"kernels/COMPILED.md": "kernels/compiled.md"} if compiled.exists() else {}),
    }


def on_config(config: Any) -> Any:
    """Links the layers into one package for the reference, and puts the kernels into the navigation."""
    package = SOURCES / "draftwood"
    package.mkdir(parents=True, exist_ok=True)
    for old in package.iterdir():
        old.unlink()
    entries = [path for path in (ROOT / "framework").iterdir() if path.name != "__pycache__"]
    for path in [*entries, *(ROOT / layer for layer in ("apps", "strategies", "backends", "zoo"))]:
        os.symlink(path, package / path.name)
    (reference,) = (section["Reference"] for section in config["nav"] if "Reference" in section)
    reference[-1]["Kernels"] = [page for page in outside().values() if page.startswith("kernels/")]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages outside docs/."""
    for source, page in outside().items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Returns the page with every link changed to the place of its page in the site."""
    here = page.file.src_uri
    origin = {site: source for source, site in outside().items()}.get(here, f"docs/{here}")
    return re.sub(r"(\]\()([^)#\s]+)([)#])", lambda m: m[1] + _target(m[2], origin, here) + m[3], markdown)


def _target(link: str, origin: str, here: str) -> str:
    """`link` as written in the file `origin` of the repository, for the page `here` of the site."""
    if re.match(r"[a-z]+:", link):
        return link
    path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), link))
    path = f"{path}/README.md" if (ROOT / path / "README.md").exists() and (ROOT / path).is_dir() else path
    site = outside().get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
    return link if site is None else posixpath.relpath(site, posixpath.dirname(here) or ".")
