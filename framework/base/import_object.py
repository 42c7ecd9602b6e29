"""A class or function of any module, by its name `package.module:Name`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from draftwood.base.errors import InvalidInput, nearest


def import_object(target: str, protocols: Sequence[type]) -> Any:
    """Returns the object that `target`, of the form `package.module:Name`, names.

    The module is searched for on Python's path and in the current folder.

    Args:
        target: module and name.
        protocols: a name that is not there is compared with the classes derived from these.

    Raises:
        InvalidInput: no such module or name, or a module that cannot be imported.
    """
    module, colon, name = target.partition(":")
    if not (colon and module and name):
        raise InvalidInput(f"{target!r} is not of the form package.module:Class, such as my_policy:Comb.")
    return _named(_module(module), name, protocols)


def _module(name: str) -> ModuleType:
    here = str(Path.cwd())
    if name.endswith(".py") or "/" in name:
        module = ".".join(Path(name).with_suffix("").parts)
        raise InvalidInput(
            f"{name!r} is a file; name the module as Python imports it, such as {module}:Class."
        )
    if here not in sys.path:
        sys.path.append(here)  # last, so that no file here hides an installed module
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise InvalidInput(
                f"There is no module {error.name!r}, neither installed nor in {here}; check its name, or "
                "change to its folder."
            ) from error
        raise InvalidInput(
            f"{name!r} needs the module {error.name!r}, which is not there; install it."
        ) from error
    except (Exception, SystemExit) as error:  # anyone's module may fail in any way
        message = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InvalidInput(
            f"{name!r} cannot be imported ({type(error).__name__}: {message}); fix it first."
        ) from error


def _named(module: ModuleType, name: str, protocols: Sequence[type]) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        where = f"{module.__name__!r} ({getattr(module, '__file__', None) or 'a folder without code'})"
        classes = [n for n, value in vars(module).items() if is_strategy_class(value, protocols)]
        raise InvalidInput(f"{where} has no {name!r}{nearest(name, classes)}") from None


def is_strategy_class(value: Any, protocols: Sequence[type]) -> bool:
    """Returns whether `value` is a class derived from one of the protocols, and none of them itself."""
    return (
        isinstance(value, type)
        and value not in protocols
        and any(protocol in value.__mro__ for protocol in protocols)
    )
