"""Drafters by name for the command line: registered ones, heads, models, and a user's classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftwood import Drafter, create
from draftwood.apps.models import own_model
from draftwood.apps.models.by_name import Loaded, Loader, check_same_tokens, locate, vocabulary_digest
from draftwood.apps.terminal.options import assign, parse, split
from draftwood.base.errors import IncompatibleModels
from draftwood.protocols import registry
from draftwood.protocols.named_heads import named_head


def model_drafter(loaded: Loaded) -> Drafter:
    """Returns the drafter of the pair: its draft model, or the head in the place of one.

    A draft of another tokenizer proposes the tokens that both have.

    Raises:
        IncompatibleModels: the tokenizers have no token in common.
    """
    if loaded.head is not None and (found := drafter_of(loaded.head)) is not None:
        return create_drafter(*found, loaded)
    drafter: Drafter = create("drafters", "model", {"backend": loaded.draft})
    if loaded.token_map is None:
        return drafter
    shared: Drafter = registry.get("drafters", "shared-tokens")(drafter, loaded.token_map)
    return shared


def is_drafter(name: str) -> bool:
    """Whether `name` is no model; see `drafter_of`."""
    return drafter_of(name) is not None


def names_head(name: str) -> bool:
    """Returns whether `name` leads to the files of a head, in a folder, in the zoo or on the hub."""
    return not own_model.is_own(name) and named_head(locate(name)) is not None


def drafter_of(name: str) -> tuple[str, dict[str, Any]] | None:
    """Returns the drafter of this name, and the options that it brings; None where it is a model.

    A registered drafter and a class or function `package.module:Name` bring none. A folder or hub name goes
    before both: one that holds a head, like the zoo's heads, is for the drafter whose `reads` says so.
    """
    if own_model.is_own(name):
        return name, {}
    if (found := named_head(locate(name))) is not None:
        return found.drafter, {found.option: str(found.head)}
    if Path(locate(name)).is_dir():
        return None
    known = name != "model" and name in registry.names("drafters")
    return (name, {}) if known and not Path(name).exists() else None


def create_drafter(name: str, options: dict[str, Any], loaded: Loaded) -> Drafter:
    """The drafter `name`; what it must know of the target is filled in.

    The members of `several` are names with commas between them: `llama-draft,prompt-lookup`. Options of
    a member follow it, each after a colon: `llama-draft,retrieval:index=FOLDER:longest=8`. The `drafter` of
    `lookup-first` is such a name.

    Raises:
        IncompatibleModels: it was made for another tokenizer than the target's.
    """
    if name == "several" and "members" in options:
        options = {"members": [_member(word, loaded) for word in options["members"].split(",")]}
    if name == "lookup-first" and "drafter" in options:
        options = options | {"drafter": _member(options["drafter"], loaded)}
    if isinstance(options.get("head"), str):
        options = options | {"head": locate(options["head"])}
    known = {"vocab_size": loaded.target.vocab_size, "target": loaded.target}
    needed = known.keys() & registry.options("drafters", name).keys()
    chosen = {option: known[option] for option in needed} | options
    if own_model.is_own(name):
        return _own_drafter(name, chosen, loaded)
    drafter: Drafter = create("drafters", name, chosen)
    made_for = getattr(drafter, "vocabulary", None)
    if made_for is not None and made_for != vocabulary_digest(loaded.tokenizer):
        raise IncompatibleModels(
            f"The index of the drafter {name!r} was built with another tokenizer than the target's; build it "
            "again with `draftwood index --tokenizer` and the target's name."
        )
    return drafter


def _own_drafter(name: str, options: dict[str, Any], loaded: Loaded) -> Drafter:
    """The drafter that the class or function `name` builds, or that of the draft model that it makes."""
    built = registry.build(registry.get("drafters", name), name, options)
    if Drafter in type(built).__mro__:
        return built  # type: ignore[no-any-return]
    own = own_model.of_result(name, built)
    if own.tokenizer is not None:
        check_same_tokens(loaded.tokenizer, own.tokenizer)
    drafter: Drafter = create("drafters", "model", {"backend": loaded.loader.own(name, own)})
    return drafter


def _member(word: str, loaded: Loaded) -> Drafter:
    """One of several drafters, with its options, or a model."""
    name, words = split(word)
    if found := drafter_of(name):
        drafter_name, brought = found
        (options,) = assign(parse(words), [("drafters", drafter_name)])
        return create_drafter(drafter_name, brought | options, loaded)
    model = word.strip()
    _check_draft(model, loaded.tokenizer, loaded.loader)
    drafter: Drafter = create("drafters", "model", {"backend": loaded.loader.backend(model)})
    return drafter


def _check_draft(name: str, target: Any, loader: Loader) -> None:
    """Raise `IncompatibleModels` if the model `name` comes with another tokenizer than `target`."""
    own = loader.tokenizer(name)
    if own is not None:
        check_same_tokens(target, own)
