"""Random decoders over tiny models, the calls made on them, and what must hold after a call broke off."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import attrs
import torch

from draftwood import (
    Constraint,
    SamplingParams,
    SpeculativeDecoder,
    TreePolicy,
    Verifier,
    custom_generate,
    load,
)
from draftwood.base import locks
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from draftwood.strategies.drafters.several import Several
from draftwood.strategies.policies.beam import Beam
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dynamic_depth import DynamicDepth
from draftwood.strategies.policies.dynatree import DynaTree
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.block import Block
from draftwood.strategies.verifiers.class_ordered_rejection import ClassOrderedRejection
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.race_traversal import RaceTraversal
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.testing import ToyBackend, ToyModel
from tests.backends import attention_models
from tests.framework.learners import Grows
from tests.generate_fuzz import models, processors
from tests.generate_fuzz.processors import Collects

VOCAB = models.VOCAB

STRATEGIES: list[tuple[Callable[[], TreePolicy], Callable[[], Verifier]]] = [
    (lambda: Chain(3), RecursiveRejection),
    (lambda: Chain(3), Block),
    (lambda: DySpec(5), RecursiveRejection),
    (lambda: LayeredDySpec(6), Traversal),
    (lambda: FixedTree(2, 2, law="top-k"), RecursiveRejection),
    (lambda: FixedTree(2, 2), ClassOrderedRejection),
    (lambda: FixedTree(3, 2), RaceTraversal),  # whose sums are machine code
    (lambda: Beam(2, 3), Greedy),
    (lambda: DynaTree(budget=6, depth=3), RecursiveRejection),
    (lambda: DynamicDepth(Chain(3)), RecursiveRejection),
    (Grows, RecursiveRejection),
    (lambda: FixedTree(2, 2, law="per-drafter"), RecursiveRejection),
]
SEVERAL = len(STRATEGIES) - 1
KINDS = ("toy", *models.KINDS)


class OddThenEven(Constraint):
    """After an odd new token comes an even one, and after an even one any but the last."""

    def start(self, prompt: Sequence[int]) -> int:
        return 0

    def advance(self, state: int, token: int) -> int | None:
        return None if (state % 2 and token % 2) else token

    def masks(self, states: Sequence[int], vocab_size: int) -> torch.Tensor:
        tokens = torch.arange(vocab_size)
        return torch.stack([(tokens % 2 == 0) | (state % 2 == 0) for state in states])


@cache
def target_model(kind: str) -> Any:
    if kind == "toy":
        return ToyModel(VOCAB, seed=1, sharpness=3.0)
    return models.model(kind)


@cache
def draft_model() -> Any:
    return attention_models.tiny(models.hf.LlamaConfig, num_hidden_layers=1).eval()


def _draft_backend(kind: str, seed: int = 2) -> Any:
    if kind == "toy":
        return ToyBackend(ToyModel(VOCAB, seed=seed, near=target_model("toy"), mix=0.7))
    # Half the drafts are the target itself, so that long paths are accepted too.
    return load(target_model(kind) if seed % 2 else draft_model())


@attrs.frozen(eq=False)
class Subject:
    """One decoder and one call, both fixed by `number`."""

    number: int
    kind: str
    strategy: int
    drafter: str
    rows: int
    prompts: list[list[int]]
    features: frozenset[str]
    seed: int

    @classmethod
    def drawn(cls, number: int, kinds: Sequence[str] = KINDS) -> Subject:
        rng = random.Random(number)
        kind = kinds[number % len(kinds)]
        strategy = rng.randrange(len(STRATEGIES))
        rows = rng.choice([1, 3])
        known = ["sampled", "processor", "criterion", "constraint", "scores", "eos"]
        features = set(rng.sample(known, rng.randrange(4)))
        if rows == 1 and rng.random() < 0.7:
            features.add("streamer")
        if rng.random() < 0.3:
            features.add("custom_generate")
        if kind == "toy" or features & {"constraint"}:
            features.discard("custom_generate")
        if STRATEGIES[strategy][1] is Greedy:
            features.discard("sampled")
        drafter = "several" if strategy == SEVERAL else rng.choice(["model", "model", "same", "lookup"])
        # A batch of `generate` is padded, and pads of one length are enough here.
        length = rng.randrange(2, 6)
        prompts = [[rng.randrange(6, VOCAB) for _ in range(length)] for _ in range(rows)]
        return cls(number, kind, strategy, drafter, rows, prompts, frozenset(features), rng.randrange(10**6))

    def __str__(self) -> str:
        policy, verifier = STRATEGIES[self.strategy]
        return (
            f"subject {self.number}: {self.kind}, {policy()}, {type(verifier()).__name__}, {self.drafter}, "
            f"{self.rows} row(s), {sorted(self.features)}"
        )

    def decoder(self) -> SpeculativeDecoder:
        """A new one; the weights are shared."""
        model = target_model(self.kind)
        target = ToyBackend(model) if self.kind == "toy" else load(model)
        policy, verifier = STRATEGIES[self.strategy]
        return SpeculativeDecoder(target, self._drafter(), policy(), verifier())

    def _drafter(self) -> Any:
        match self.drafter:
            case "lookup":
                return PromptLookup(VOCAB)
            case "several":
                return Several([PromptLookup(VOCAB), ModelDrafter(_draft_backend(self.kind))])
            case "same":
                return ModelDrafter(_draft_backend(self.kind, 3))
        return ModelDrafter(_draft_backend(self.kind))

    def call(self, *, tokens: int = 10) -> Call:
        """A decoder with the call to be made on it, by `generate` of the decoder or of the model."""
        named = self.features
        sampled = "sampled" in named
        chosen = [processors.FavoursByLength()] if "processor" in named else []
        criteria = [processors.EndsRowsAtTheirToken()] if "criterion" in named else []
        ends = [5, 11, 17] if "eos" in named else []
        constraint = OddThenEven() if "constraint" in named else None
        if "custom_generate" not in named:
            decoder = self.decoder()
            options: dict[str, Any] = {
                "max_new_tokens": tokens,
                "sampling": SamplingParams(1.0 if sampled else 0.0, processors=chosen),
                "constraint": constraint,
                "seed": self.seed,
                "eos_token_id": ends,
                "stopping_criteria": criteria,
                "output_scores": "scores" in named,
                "return_dict_in_generate": True,
            }
            return Call(self, decoder, options, chosen, [*criteria, constraint])
        policy, verifier = STRATEGIES[self.strategy]
        loop = custom_generate(drafter=self._drafter(), policy=policy(), verifier=verifier())
        options = {
            "max_new_tokens": tokens,
            "do_sample": sampled,
            "logits_processor": chosen,
            "stopping_criteria": criteria,
            "eos_token_id": ends or None,
            "pad_token_id": models.PAD,
            "return_dict_in_generate": True,
            "output_scores": "scores" in named,
        }
        decoder = loop._decoder_of(target_model(self.kind), by_forward=False)
        return Call(self, decoder, options, chosen, [*criteria], loop)


@attrs.frozen(eq=False)
class Call:
    """A call that can be made again and again on the same objects.

    Attributes:
        subject: what it was drawn as.
        decoder: the decoder; of `loop`, where that is given.
        options: of `generate`.
        processors: of the target's scores.
        helpers: criteria and constraint.
        loop: given to transformers' `generate` as `custom_generate`.
    """

    subject: Subject
    decoder: SpeculativeDecoder
    options: dict[str, Any]
    processors: list[Any]
    helpers: list[Any]
    loop: Any = None

    def run(self, streamer: Collects | None = None) -> list[list[int]]:
        """The new tokens of every row."""
        prompts = self.subject.prompts
        shown = streamer if "streamer" in self.subject.features else None
        if self.loop is None:
            out: Any = self.decoder.generate(prompts, streamer=shown, **self.options)
            return out.tokens
        torch.manual_seed(self.subject.seed)
        ids = torch.tensor(prompts)
        model, eos = target_model(self.subject.kind), self.options["eos_token_id"]
        kept = model.generation_config.eos_token_id
        model.generation_config.eos_token_id = eos
        try:
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                custom_generate=self.loop,
                streamer=shown,
                **self.options,
            )
        finally:
            model.generation_config.eos_token_id = kept
        return [row[ids.shape[1] :].tolist() for row in out.sequences]

    def left_behind(self) -> str | None:
        """Returns the remains of a call that broke off, or None."""
        decoder = self.decoder
        held = [decoder.target, *decoder.drafter.backends]
        if rows := [backend.lengths for backend in held if backend.lengths]:
            return f"backends still hold rows of {rows} tokens"
        if count := _rows_of(decoder.drafter):
            return f"the drafter still holds {count} row(s)"
        if locks.active:
            return f"{len(locks.active)} lock(s) are left"
        if not torch.is_grad_enabled():
            torch.set_grad_enabled(True)
            if self.loop is not None:
                return None  # `generate` of transformers switches it off, and on again
            return "autograd is left switched off"
        if self.subject.kind != "toy":
            model = target_model(self.subject.kind)
            if model.config._attn_implementation.startswith("draftwood"):
                return f"the model is left with {model.config._attn_implementation}"
            if any(module._forward_pre_hooks for module in model.modules()):
                return "a hook is left on the model"
        return None


def _rows_of(drafter: Any) -> int:
    inner = getattr(drafter, "members", None) or ([drafter.drafter] if hasattr(drafter, "drafter") else None)
    if inner is not None:
        return sum(_rows_of(one) for one in inner)
    return len(drafter._round._pending if isinstance(drafter, ModelDrafter) else drafter._rows)
