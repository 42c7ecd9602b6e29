"""What the site adds to the pages: tables from the registry, and the READMEs that lie beside the code.

mkdocs calls these functions while it builds. Pages of the repository outside docs/ become pages of the
site, and links to them lead there.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

import tables
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
"""Pages beside docs/, and where they stand in the site; the READMEs of kernels are looked for."""
KERNELS = list(ROOT.glob("kernels/*/README.md"))


def outside() -> dict[str, str]:
    """Every page of the repository that the site holds beside those of docs/."""
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
    """Lay the layers side by side for the reference, and put the kernels into the navigation."""
    package = SOURCES / "draftwood"
    package.mkdir(parents=True, exist_ok=True)
    for old in package.iterdir():
        old.unlink()
    entries = [path for path in (ROOT / "framework").iterdir() if path.name != "__pycache__"]
    for path in [*entries, *(ROOT / layer for layer in ("apps", "strategies", "backends", "zoo"))]:
        os.symlink(path, package / path.name)
    for section in config["nav"]:
        if "Kernels" in section:
            section["Kernels"] = [page for page in outside().values() if page.startswith("kernels/")]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie outside docs/."""
    for source, page in outside().items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in the tables, and lead links to where their pages stand in the site."""
    for name, table in tables.TABLES.items():
        marker = f"<!-- table: {name} -->"
        if marker in markdown:
            markdown = markdown.replace(marker, table())
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
