"""A Hypothesis state machine: changes of a model, and calls of a decoder and a loop that were used before."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from draftwood import SpeculativeDecoder, custom_generate, load
from draftwood.base.errors import DraftwoodError
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from tests.backends.attention_models import bloom, tiny
from tests.backends.captured_models import as_traced, few_shapes
from tests.backends.recurrent_models import build
from tests.model_changes.changes import CHANGES

KINDS: dict[str, Any] = {
    "mask": tiny,
    "paths": bloom,
    "mamba2": lambda: build("mamba2"),
    "hybrid": lambda: build("bamba"),
    "gated delta": lambda: build("qwen3_5"),
}
NEW = 6
PROMPT = [3, 9, 4, 9, 4, 11]
SEEN: Counter[str] = Counter()
"""How often calls gave a text, and refused one, by the first words of the sentence."""


class Changing(RuleBasedStateMachine):
    """One model, changed between calls."""

    captured = False

    @initialize(kind=st.sampled_from(sorted(KINDS)), seed=st.integers(0, 2**20))
    def begin(self, kind: str, seed: int) -> None:
        self.kind, self.model = kind, KINDS[kind]()
        self.model.generation_config.eos_token_id = None
        self.rng = torch.Generator().manual_seed(seed)
        self.stack = ExitStack()
        if self.captured:
            self.stack.enter_context(few_shapes())
            self.stack.enter_context(
                mock.patch("draftwood.backends.passes.capture._inductor", return_value=as_traced)
            )
        self.used: SpeculativeDecoder | None = self.decoder()
        self.loop = self.fresh_loop()
        self.call()

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.stack.close()
        if self.captured:
            torch._dynamo.reset()  # traced code of models that are gone takes 9 GB after a hundred sequences

    def backend(self) -> Any:
        return load(self.model, capture="compile" if self.captured and self.kind != "paths" else "off")

    def decoder(self) -> SpeculativeDecoder:
        vocab_size = self.model.get_output_embeddings().out_features
        drafter = PromptLookup(vocab_size=vocab_size)
        return SpeculativeDecoder(self.backend(), drafter, Chain(3, "top-k"), RecursiveRejection())

    def fresh_loop(self) -> Any:
        vocab_size = self.model.get_output_embeddings().out_features
        drafter = PromptLookup(vocab_size=vocab_size)
        return custom_generate(drafter=drafter, policy=Chain(3, "top-k"), verifier=RecursiveRejection())

    @rule(name=st.sampled_from(sorted(CHANGES)))
    def change(self, name: str) -> None:
        CHANGES[name](self.model, self.rng)
        if name == "embeddings_resized":  # a drafter's vocabulary is its own
            self.used, self.loop = self.decoder_or_none(), self.fresh_loop()
        self.call()

    def decoder_or_none(self) -> SpeculativeDecoder | None:
        try:
            return self.decoder()
        except DraftwoodError:
            return None

    def call(self) -> None:
        expected = written(lambda: plain(self.model))
        fresh = written(lambda: text_of(self.decoder()))
        if self.used is None:
            self.used = self.decoder_or_none()
        if self.used is not None:
            used = self.used
            self.judge(written(lambda: text_of(used)), fresh, expected)
        ours = written(lambda: plain(self.model, custom_generate=self.loop))
        if self.captured:  # which a loop is not
            fresh = written(lambda: plain(self.model, custom_generate=self.fresh_loop()))
        self.judge(ours, fresh, expected)

    def judge(self, found: Any, fresh: Any, expected: Any) -> None:
        SEEN[found if isinstance(found, str) else "text"] += 1
        if isinstance(found, str):
            assert found.startswith("refused"), f"{self.kind}: {found}"
            return
        assert not isinstance(fresh, str), f"{self.kind}: a text where a fresh decoder says: {fresh}"
        assert found == fresh, f"{self.kind}: {found}, and a fresh decoder writes {fresh}"
        if not isinstance(expected, str) and not autocast(self.model):
            assert found == expected, f"{self.kind}: {found}, and generate() writes {expected}"


def autocast(model: Any) -> bool:
    """Whether its forward runs in bfloat16, in which texts part where two tokens are nearly as likely."""
    code = getattr(vars(model).get("forward"), "__code__", None)
    return code is not None and code.co_name == "decorate_autocast"


def text_of(decoder: SpeculativeDecoder) -> list[int]:
    sequences = decoder.generate([PROMPT], max_new_tokens=NEW)
    assert isinstance(sequences, torch.Tensor)
    return sequences[0].tolist()  # type: ignore[no-any-return]


def plain(model: Any, **options: Any) -> list[int]:
    ids = torch.tensor([PROMPT])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=NEW,
        do_sample=False,
        pad_token_id=1,
        **options,
    )
    return out[0].tolist()  # type: ignore[no-any-return]


def written(call: Any) -> Any:
    """The text of a call, or what kept it from one."""
    try:
        return call()
    except DraftwoodError as error:
        return "refused: " + " ".join(str(error).split()[1:9])
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"


class ChangingCaptured(Changing):
    """A changing model with captured passes, as they are traced."""

    captured = True
