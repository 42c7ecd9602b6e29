"""Contenders that write texts: transformers, and draft trees of draftwood."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch

from draftwood import SamplingParams, SpeculativeDecoder, StateBackend, create

AS_THEY_ARE = "as they are"
"""Weights that are not rounded."""


@attrs.frozen
class Written:
    """One text.

    Attributes:
        tokens: written after the prompt.
        passes: of the target; 0 where that is not known.
        seconds: that it took, where somebody has timed it.
        cpu: seconds of all threads, likewise.
    """

    tokens: list[int]
    passes: int = 0
    seconds: float = 0.0
    cpu: float = 0.0


Writer = Callable[[list[int], int], Written]
"""Writes so many tokens after a prompt, greedily."""


@attrs.frozen
class Contender:
    """One way of writing.

    Attributes:
        name: of its line in the table.
        write: the way.
        ours: whether draftwood writes.
        weights: bits of the weights ("int8"), or AS_THEY_ARE. Contenders of the same weights are compared.
        texts: contenders with the same value here are to write the same texts.
    """

    name: str
    write: Writer
    ours: bool = False
    weights: str = AS_THEY_ARE
    texts: str = "the model"


def by_generate(model: Any, draft: Any = None) -> Writer:
    """Transformers' `generate()`, assisted by `draft` where there is one."""

    def write(prompt: list[int], count: int) -> Written:
        ids = torch.tensor([prompt])
        more = {} if draft is None else {"assistant_model": draft}
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            **more,
        )
        return Written(out[0, len(prompt) :].tolist(), 0 if more else count)

    return write


@attrs.frozen
class Trees:
    """The draft trees of one contender.

    Attributes:
        recipe: how they are grown.
        budget: nodes of a tree; 0: one token per target pass.
        depth: levels of a tree.
        lookup: tokens that must match for the text to be copied in place of a draft; 0: it never is.
        draft_temperature: at which the draft's distributions are taken; None: as the recipe has it.
    """

    recipe: str
    budget: int
    depth: int
    lookup: int = 0
    draft_temperature: float | None = None

    @property
    def described(self) -> str:
        """Their sizes in words."""
        if not self.budget:
            return "one token per pass"
        copies = f", look-up of {self.lookup}" if self.lookup else ""
        return f"{self.budget} nodes of {self.depth} level{'' if self.depth == 1 else 's'}{copies}"


def by_trees(target: StateBackend, draft: StateBackend, trees: Trees, *, engine_only: bool = False) -> Writer:
    """Draft trees.

    Where torch runs no passes (`engine_only`), it has one thread: more would take time from the engine.
    """
    greedy, draft_sampling = SamplingParams(temperature=0), None
    if trees.budget:
        recipe = create("recipes", trees.recipe, {"budget": trees.budget, "depth": trees.depth})
        if trees.draft_temperature is not None:
            recipe = attrs.evolve(recipe, draft_temperature=trees.draft_temperature)
        policy, draft_sampling = recipe.policy, recipe.draft_sampling(greedy)
        drafter = create("drafters", "model", {"backend": draft})
        if trees.lookup:
            drafter = create("drafters", "lookup-first", {"drafter": drafter, "least": trees.lookup})
    else:
        policy = create("policies", "ordinary")
        drafter = create("drafters", "prompt-lookup", {"vocab_size": target.vocab_size})
    decoder = SpeculativeDecoder(target, drafter, policy, create("verifiers", "greedy"))

    def write(prompt: list[int], count: int) -> Written:
        threads = torch.get_num_threads()
        torch.set_num_threads(1 if engine_only else threads)
        try:
            out: Any = decoder.generate(
                [prompt],
                max_new_tokens=count,
                eos_token_id=[],
                sampling=greedy,
                draft_sampling=draft_sampling,
                return_dict_in_generate=True,
            )
        finally:
            torch.set_num_threads(threads)
        return Written(out.tokens[0], out.statistics.target_calls + 1)

    return write
