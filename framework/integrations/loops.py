"""A custom loop for a model, made from names only."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import Any

from draftwood.integrations.custom_generate import custom_generate
from draftwood.methods.recipe import Recipe
from draftwood.protocols import registry


def loop_of(
    model: Any, *, drafter: Any = None, recipe: str | None = None, **options: Any
) -> Callable[..., Any]:
    """Returns a loop for the `custom_generate` of `model.generate`; equal arguments give the same loop.

    Args:
        model: a transformers model.
        drafter: a model, or its folder or hub name, which is loaded with the target's dtype and device. None
            drafts by looking up earlier text, which needs no other model.
        recipe: a published method; default: `"dyspec"` with a model, else `"prompt-lookup"`.
        options: options of the recipe.

    Raises:
        UnknownStrategy: there is no such recipe or option.
        UnsupportedModel: no backend supports one of the models; the message says why.
        IncompatibleModels: target and draft do not share one vocabulary.
    """
    recipe = recipe or ("prompt-lookup" if drafter is None else "dyspec")
    # The model keeps its loops: a loop keeps its decoder, which keeps the model.
    loops: dict[Any, Callable[..., Any]] = vars(model).setdefault("_draftwood_loops", {})
    key = (drafter if isinstance(drafter, str) else id(drafter), recipe, tuple(sorted(options.items())))
    if key not in loops:
        method: Recipe = registry.create("recipes", recipe, options)
        if drafter is None:
            size = model.config.get_text_config().vocab_size
            drafts = registry.create("drafters", "prompt-lookup", {"vocab_size": size})
        else:
            where = (
                {"dtype": model.dtype, "device": model.device} if isinstance(drafter, str | PathLike) else {}
            )
            backend = registry.load(drafter, **where)
            drafts = registry.create("drafters", "model", {"backend": backend})
        loops[key] = custom_generate(drafter=drafts, policy=method.policy, verifier=method.verifier)
    return loops[key]
