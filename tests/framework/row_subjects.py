"""Decoders over tiny models of every kind that a backend supports, for what must hold of their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, wraps
from typing import Any
from unittest import mock

import attrs
import torch

from draftwood import Drafter, SpeculativeDecoder, StateBackend, TreePolicy, Verifier, load
from draftwood.backends.kinds.ssm import HybridBackend, SSMBackend
from draftwood.backends.kinds.unrolled import UnrolledBackend
from draftwood.strategies.drafters.cached_suffixes import CachedSuffixes
from draftwood.strategies.drafters.eagle3 import Eagle3
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from draftwood.strategies.drafters.several import Several
from draftwood.strategies.policies.beam import Beam
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dynamic_depth import DynamicDepth
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.block import Block
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.testing import ToyBackend, ToyModel
from tests.backends import attention_models, recurrent_models
from tests.framework.learners import Grows
from tests.strategies import feature_heads

TOY = ToyModel(7, seed=1, sharpness=2.5)


class ScoringBackend(ToyBackend):
    """A toy backend that gives logits with its prefill, as packed ones do."""

    gives_first_logits = True

    def first_logits(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        self.prefill(rows)
        return torch.stack([self.model.logits(row.tolist()) for row in rows])


@cache
def recurrent_model(name: str) -> Any:
    return recurrent_models.build(name, torch.float64)


@cache
def _draft_model(vocab_size: int) -> Any:
    return attention_models.tiny(num_hidden_layers=1, vocab_size=vocab_size).double()


def _recurrent(name: str) -> Callable[[], StateBackend]:
    return lambda: load(recurrent_model(name))


@contextmanager
def doubled_states() -> Iterator[None]:
    """Have recurrent layers, which compute steps in single precision whatever the dtype, compute in double.

    A draw falls on the other side of a bound where rounding moves the bound, and how many rows share a pass
    decides on that.
    """

    def doubled(method: Any) -> Any:
        @wraps(method)
        def call(*args: Any, **options: Any) -> Any:
            with recurrent_models.Doubled():
                return method(*args, **options)

        return call

    with ExitStack() as stack:
        for kind in (SSMBackend, HybridBackend):
            for name in ("prefill", "first_logits", "extend", "commit"):
                stack.enter_context(mock.patch.object(kind, name, doubled(getattr(kind, name))))
        yield


KINDS: dict[str, Callable[[], StateBackend]] = {
    "toy": lambda: ToyBackend(TOY),
    "toy with first logits": lambda: ScoringBackend(TOY),
    "toy with features": lambda: feature_heads.feature_toy(ToyModel(23, seed=1, sharpness=2.5)),
    "llama": lambda: load(feature_heads.target()),
    "llama by paths": lambda: UnrolledBackend(feature_heads.target()),
    "mamba": _recurrent("mamba"),
    "mamba2": _recurrent("mamba2"),
    "bamba": _recurrent("bamba"),
    "jamba": _recurrent("jamba"),
    "qwen3_next": _recurrent("qwen3_next"),
}

STRATEGIES: dict[str, Callable[[], tuple[TreePolicy, Verifier]]] = {
    "chain": lambda: (Chain(3), RecursiveRejection()),
    "chain by blocks": lambda: (Chain(3), Block()),
    "chain of the likeliest": lambda: (Chain(4, "top-k"), RecursiveRejection()),
    "tree": lambda: (DySpec(5), RecursiveRejection()),
    "levels": lambda: (LayeredDySpec(6), Traversal()),
    "learnt length": lambda: (Grows(), RecursiveRejection()),
    "beam": lambda: (Beam(2, 3), Greedy()),
    "depth by confidence": lambda: (DynamicDepth(Chain(3)), RecursiveRejection()),
}


@attrs.frozen
class RowSubject:
    """A decoder of tiny parts.

    Attributes:
        kind: of the target, one of `KINDS`.
        drafter: `"model"`, `"same"` (the target's weights once more), `"lookup"`, `"cache"`, `"several"` or
            `"eagle3"`.
        strategy: one of `STRATEGIES`; not used with several drafters.
    """

    kind: str
    drafter: str
    strategy: str

    @property
    def remembers(self) -> bool:
        """Whether a row's drafts depend on other texts."""
        return self.drafter == "cache"

    @property
    def judges_greedily(self) -> bool:
        """Whether the verifier is for temperature 0 only."""
        return self.strategy == "beam"

    @property
    def greedy(self) -> bool:
        """Whether only greedy texts are supported, or are the same as without other rows."""
        return self.remembers or self.judges_greedily

    def decoder(self) -> SpeculativeDecoder:
        """A new one; the weights are shared."""
        target = KINDS[self.kind]()
        policy, verifier = STRATEGIES[self.strategy]()
        if self.drafter == "several":
            policy, verifier = FixedTree(2, 2, law="per-drafter"), RecursiveRejection()
        return SpeculativeDecoder(target, self._drafter(target), policy, verifier)

    def _drafter(self, target: StateBackend) -> Drafter:
        match self.drafter:
            case "same":
                return ModelDrafter(KINDS[self.kind]())
            case "lookup":
                return PromptLookup(target.vocab_size)
            case "cache":
                return CachedSuffixes(target.vocab_size)
            case "several":
                return Several([PromptLookup(target.vocab_size), ModelDrafter(self._draft(target))])
            case "eagle3":
                return Eagle3(target, feature_heads.random_head())
        return ModelDrafter(self._draft(target))

    def _draft(self, target: StateBackend) -> StateBackend:
        if isinstance(target, ToyBackend):
            near = ToyModel(target.vocab_size, seed=2, near=target.model, mix=0.7)
            return ToyBackend(near)
        return load(_draft_model(target.vocab_size))


def subjects(kind: str) -> list[RowSubject]:
    """All subjects of a kind, the simplest first."""
    drafters = ["model", "same", "lookup", "cache", "several"]
    if kind == "llama":
        drafters.append("eagle3")
    if kind == "toy with features":
        drafters = ["eagle3"]
    return [
        RowSubject(kind, drafter, strategy)
        for drafter in drafters
        for strategy in (STRATEGIES if drafter != "several" else ["tree"])
    ]
