"""The page: plain files of this folder put together, and the trace as data.

Nothing but the page's own style and script may run or load: the content policy names both by their
hashes. Token texts are data. They are in a JSON block, and the script writes them as text.
"""

from __future__ import annotations

import base64
import hashlib
import html as markup
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from draftwood import __version__
from draftwood.apps.terminal.shown import visible

# In this order they make one script.
SCRIPTS = ("model.js", "text.js", "layout.js", "tree.js", "timeline.js", "page.js")

_GENERATOR = '<meta name="generator" content="draftwood view'


def html(shown: Mapping[str, Any], name: str) -> str:
    """The page for what `reading.read` returned; `name` is the trace's file name."""
    style = _source("page.css")
    script = f'(() => {{\n"use strict";\n{"".join(_source(one) for one in SCRIPTS)}}})();\n'
    parts = {
        "policy": "; ".join(
            [
                "default-src 'none'",
                f"script-src {_hash(script)}",
                f"style-src {_hash(style)}",
                "base-uri 'none'",
                "form-action 'none'",
                "require-trusted-types-for 'script'",
                "trusted-types 'none'",
            ]
        ),
        "generator": f'{_GENERATOR} {__version__}">',
        "name": markup.escape(visible(name)),
        "style": style,
        "data": embedded({"name": name, **shown}),
        "script": script,
    }
    # In one pass, so that nothing in a trace is taken for a gap to fill.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _source("page.html"))


def embedded(content: Any) -> str:
    """JSON that cannot end the script block that contains it, whatever its texts are.

    Everything beyond ASCII is written as an escape too: line separators, and halves of surrogate pairs,
    which no UTF-8 file can hold.
    """
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def is_ours(file: Path) -> bool:
    """Whether an earlier call wrote `file`."""
    try:
        with file.open(encoding="utf-8") as opened:
            return _GENERATOR in opened.read(4096)
    except (OSError, UnicodeDecodeError):
        return False


def _source(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
