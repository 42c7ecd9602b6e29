"""Triton's interpreter without what it does again and again."""

import functools
from typing import Any


@functools.cache
def patch_language_once() -> None:
    """Let the interpreter change Triton's language once a launch.

    It does so at every call of a function within a kernel too, and looks through all of the language for what
    there is left to change: nearly half of its time.
    """
    from triton import language as tl
    from triton.runtime import interpreter as triton_interpreter

    triton: Any = triton_interpreter  # all of this is its own, and other versions may lack it
    if not hasattr(triton, "_LangPatchScope"):
        return
    change = triton._patch_lang

    def changed(function: Any) -> Any:
        used = [one for one in function.__globals__.values() if one is tl or one is tl.core]
        members = [tl.tensor.__add__, *(language.load for language in used)]
        if any(tl.core.is_builtin(member) for member in members):
            return change(function)
        return triton._LangPatchScope()

    triton._patch_lang = changed
