"""Texts beyond the length that a model's configuration names: as `generate()`, token for token."""

from __future__ import annotations

import copy
import logging
import random
from typing import Any

import pytest
import torch
import transformers as hf

from benchmarks.research import families_models
from draftwood import InvalidInput, SpeculativeDecoder, UnsupportedModel, custom_generate
from draftwood.backends.kinds.longrope import LongRopeBackend
from draftwood.backends.kinds.transformer import TransformerBackend
from draftwood.backends.kinds.unrolled import UnrolledBackend
from draftwood.backends.loading.loader import load
from draftwood.backends.structure.context import end_of_context, end_of_positions, recomputes_at_switch
from draftwood.base.errors import OutOfMemory
from draftwood.protocols import StateBackend
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.testing.backends import StateBackendTests
from tests.backends import test_architectures as attention
from tests.backends.attention_models import SMALL, VOCAB, against, plain, randomised, tiny, words
from tests.backends.recurrent_models import HYBRIDS, PURES
from tests.cache_names import cache_name
from tests.thorough import some_of

NAMED = 32
"""Tokens that a configuration names."""

TABLES = {"opt", "gpt2", "gpt_bigcode", "gptj", "codegen", "gpt_neo", "mpt"}
"""Attention families that read their positions from a table."""

SWITCH = 24
FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0]}
LONGROPE: dict[str, Any] = {
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "original_max_position_embeddings": SWITCH,
        "short_mscale": 1.1,
        "long_mscale": 1.3,
        **FACTORS,
    },
    "original_max_position_embeddings": SWITCH,
}


def named(config: Any, length: int = NAMED) -> Any:
    for name in ("max_position_embeddings", "max_seq_len"):
        if hasattr(config, name):
            setattr(config, name, length)
    return config


def built(config: Any, length: int = NAMED) -> Any:
    torch.manual_seed(7)
    model = randomised(hf.AutoModelForCausalLM.from_config(named(config, length)))
    model.generation_config = hf.GenerationConfig(pad_token_id=0)
    return model


def written(model: Any, prompt: list[int], count: int) -> list[int]:
    """Returns the tokens that `generate()` writes."""
    ids = torch.tensor([prompt])
    # Without a mask padding is guessed from the tokens.
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, eos_token_id=None
    )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


def ours(target: Any, drafter: Any, prompts: list[list[int]], count: int) -> Any:
    decoder = SpeculativeDecoder(target, drafter, FixedTree(2, 2, law="top-k"), Greedy())
    return decoder.generate(prompts, max_new_tokens=count, eos_token_id=[], return_dict_in_generate=True)


def prompt_of(length: int, seed: str) -> list[int]:
    rng = random.Random(f"{seed} {length}")
    return [rng.randrange(6, VOCAB) for _ in range(length)]


COMPUTED = sorted({*attention.MASKED, *attention.UNROLLED} - TABLES)


@pytest.mark.parametrize("name", some_of(COMPUTED, {*attention.KINDS, "bloom"} - TABLES))
def test_texts_go_on_where_positions_are_computed(name: str) -> None:
    model = built((attention.MASKED | attention.UNROLLED)[name]())
    assert load(model).max_length is None
    prompts = [prompt_of(length, name) for length in (NAMED - 5, 3, NAMED + 9)]
    expected = [written(model, prompt, 24) for prompt in prompts]
    # The model drafts for itself, so that whole paths lead over the end.
    for drafter in (ModelDrafter(load(model)), PromptLookup(load(model).vocab_size)):
        out = ours(model, drafter, prompts, 24)
        assert out.tokens == expected
        assert out.finish_reasons == ["length"] * 3
    ids = torch.tensor(prompts[:1])
    loop = custom_generate(drafter=ModelDrafter(load(model)), policy=DySpec(6), verifier=Greedy())
    tokens = model.generate(ids, do_sample=False, max_new_tokens=24, custom_generate=loop)
    assert tokens[0, ids.shape[1] :].tolist() == expected[0]


@pytest.mark.parametrize("name", sorted(TABLES))
def test_texts_end_where_generate_breaks(name: str) -> None:
    model = built((attention.MASKED | attention.UNROLLED)[name]())
    assert load(model).max_length == NAMED
    prompt = prompt_of(5, name)
    most = NAMED + 1 - len(prompt)
    expected = written(model, prompt, most)
    with pytest.raises((IndexError, RuntimeError)):
        written(model, prompt, most + 1)
    out = ours(model, ModelDrafter(load(model)), [prompt], 40)
    assert out.tokens == [expected]
    assert out.finish_reasons == ["context"]


@pytest.mark.parametrize("length", [6, 8, 13, 17, 24])
@pytest.mark.parametrize("name", sorted(TABLES))
def test_tables_shorter_than_the_check(name: str, length: int) -> None:
    model = built((attention.MASKED | attention.UNROLLED)[name](), length)
    prompt = prompt_of(3, name)
    out = ours(model, ModelDrafter(load(model)), [prompt], length)
    assert out.tokens == [written(model, prompt, length + 1 - len(prompt))]


def test_contexts_too_short_to_check_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="a context of 5 tokens, too short .* holds 6 or more"):
        load(built(attention.MASKED["gpt2"](), 5))


@pytest.mark.parametrize("name", [*PURES, *HYBRIDS])
def test_recurrent_models_have_no_end(name: str) -> None:
    model = built((PURES | HYBRIDS)[name]())
    assert load(model).max_length is None


def test_what_cannot_be_told_ends_where_the_configuration_says() -> None:
    class Own(hf.LlamaForCausalLM):
        pass

    config = hf.LlamaConfig(**SMALL | {"max_position_embeddings": NAMED})
    assert end_of_positions(hf.LlamaForCausalLM(config)) is None
    assert end_of_positions(Own(config)) == NAMED


def test_tables_of_what_sees_do_not_count() -> None:
    vision = hf.CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=20,
        patch_size=4,
    )
    text = hf.LlamaConfig(**SMALL | {"max_position_embeddings": 26})
    model = hf.LlavaForConditionalGeneration(hf.LlavaConfig(vision_config=vision, text_config=text))
    assert model.model.vision_tower.embeddings.position_embedding.num_embeddings == 26
    assert end_of_positions(model) is None
    model.model.language_model.table = torch.nn.Embedding(28, 4)
    assert end_of_positions(model) == 26


def test_a_rotation_scaled_by_length_is_served_up_to_there(caplog: pytest.LogCaptureFixture) -> None:
    rotation = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    model = tiny(rope_parameters=rotation, max_position_embeddings=NAMED)
    with caplog.at_level(logging.INFO):
        backend = load(model)
    assert backend.max_length == NAMED
    assert f"supported up to {NAMED} tokens" in caplog.text
    text = words(NAMED + 8)
    # What was rotated at one length does not go with what is said at another.
    assert (plain(model, text[:-4]) - plain_after_cache(model, text, kept=NAMED)).abs().max() > 1e-2
    out = ours(model, ModelDrafter(load(model)), [words(5)], 60)
    assert out.finish_reasons == ["context"]
    assert out.tokens[0] == written(model, words(5), 60)[: len(out.tokens[0])]


def plain_after_cache(model: Any, tokens: list[int], *, kept: int) -> torch.Tensor:
    """Logits before the last four of `tokens`, of which the first `kept` come from a cache."""
    with torch.no_grad():
        name = cache_name(model)
        cache = {name: model(torch.tensor([tokens[:kept]]), use_cache=True)[name]}
        logits: torch.Tensor = model(torch.tensor([tokens[kept:]]), **cache).logits[0, -5]
    return logits


def phi3() -> Any:
    return tiny(hf.Phi3Config, **copy.deepcopy(LONGROPE))


def phimoe() -> Any:
    return tiny(hf.PhimoeConfig, num_local_experts=4, num_experts_per_tok=2, **copy.deepcopy(LONGROPE))


class SwitchTests(StateBackendTests):
    """Law S where all trees lead over the switch, and texts begin on either side of it."""

    vocab_size = VOCAB
    longest = 3 * SWITCH

    @pytest.fixture(autouse=True)
    def _model(self) -> None:
        self.model, self.stock = phi3(), phi3()

    def logits_after(self, tokens: list[int]) -> torch.Tensor:
        return plain(self.stock, tokens)


class TestSwitchingMask(SwitchTests):
    def make_backend(self) -> StateBackend:
        return LongRopeBackend(self.model, TransformerBackend)


@pytest.mark.thorough
class TestSwitchingPaths(SwitchTests):
    examples = 3

    def make_backend(self) -> StateBackend:
        return LongRopeBackend(self.model, UnrolledBackend)


class TestSwitchingEarly(SwitchTests):
    """The machine's prompts have some 12 tokens."""

    @pytest.fixture(autouse=True)
    def _model(self) -> None:
        self.model, self.stock = phi3(), phi3()
        for model in (self.model, self.stock):
            for config in (model.config, model.model.config, model.model.rotary_emb.config):
                config.original_max_position_embeddings = 6
                config.rope_parameters["original_max_position_embeddings"] = 6

    def make_backend(self) -> StateBackend:
        return LongRopeBackend(self.model, TransformerBackend)


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        *((phi3, way) for way in ("mask", "paths")),
        *(pytest.param(phimoe, way, marks=pytest.mark.thorough) for way in ("mask", "paths")),
    ],
)
def test_texts_go_on_over_a_switch_as_generate_does(kind: Any, way: Any) -> None:
    model = kind()
    backend = load(model, attention=way)
    assert type(backend) is LongRopeBackend
    assert backend.max_length is None
    prompts = [words(length) for length in (SWITCH - 6, 3, SWITCH, SWITCH + 1)]
    model.generation_config = hf.GenerationConfig(pad_token_id=0)
    expected = [written(model, prompt, 30) for prompt in prompts]
    for drafter in (ModelDrafter(load(model)), ModelDrafter(tiny(num_hidden_layers=1))):
        out = ours(backend, drafter, prompts, 30)
        assert out.tokens == expected
        for prompt, text in zip(prompts, expected, strict=True):
            assert ours(backend, drafter, [prompt], 30).tokens == [text]
    loop = custom_generate(drafter=ModelDrafter(load(model)), policy=DySpec(6), verifier=Greedy())
    for prompt, text in zip(prompts, expected, strict=True):
        ids = torch.tensor([prompt])
        options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": 30}
        tokens = model.generate(ids, **options, custom_generate=loop)
        assert tokens[0, len(prompt) :].tolist() == text


def test_load_checks_what_happens_at_a_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the long text is not read again, the self-check must see it."""
    monkeypatch.setattr(LongRopeBackend, "_join", lambda self, rows: None)
    with pytest.raises(Exception, match=f"beyond {SWITCH} tokens, its logits differ"):
        load(phi3())


def test_a_pass_that_fails_at_a_switch_leaves_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    model = phi3()
    backend = LongRopeBackend(model, TransformerBackend)
    mirror = against(model, backend)
    mirror.prefill([words(SWITCH - 2), words(SWITCH + 5), words(4)])
    mirror.extend([[(1, -1), (2, 0)], [(1, -1), (3, -1)], [(2, -1)]])

    def fail(*args: Any) -> None:
        raise OutOfMemory("no more")

    for side in (backend._long, backend._short):
        for name in ("prefill", "extend"):
            with monkeypatch.context() as patch:
                patch.setattr(side, name, fail)
                if side is backend._short and name == "prefill":
                    with pytest.raises(OutOfMemory):
                        backend.prefill([torch.tensor(words(2))])
                else:
                    with pytest.raises(OutOfMemory):
                        backend.extend(torch.tensor([[5, 6]] * 3), torch.tensor([[1, 2], [1, 0], [0, 0]]))
    mirror.extend([[(5, 1), (6, 2)], [(4, 1)], [(7, 0)]])
    mirror.commit([[0, 1, 2, 3], [1, 2], [0]])
    mirror.check_state()
    assert backend.lengths == [SWITCH + 2, SWITCH + 7, 5]
    # Beyond the switch nobody needs the short ones.
    assert (backend._short.lengths, backend._long.lengths) == ([5], [SWITCH + 7, SWITCH + 2])
    with monkeypatch.context() as patch:
        patch.setattr(backend._long, "prefill", fail)
        with pytest.raises(OutOfMemory):
            backend.prefill([torch.tensor(words(2)), torch.tensor(words(SWITCH + 1))])
    mirror.check_lengths()
    mirror.prefill([words(6)])
    mirror.release([0])
    mirror.check_state()


def test_what_a_switching_backend_offers_is_that_of_its_kind() -> None:
    model = phi3()
    backend = LongRopeBackend(model, TransformerBackend)
    smaller = backend.without_layers([1])
    assert type(smaller) is LongRopeBackend
    assert smaller.weight_bytes < backend.weight_bytes
    mirror = against(smaller.model, smaller)
    mirror.prefill([words(SWITCH - 1)])
    mirror.extend([[(1, -1), (2, 0), (3, 1)]])
    mirror.commit([[0, 1, 2]])
    mirror.check_state()
    with pytest.raises(UnsupportedModel, match="gives no features"):
        backend.keep_features([0])


def test_families_that_lose_or_mix_their_texts_end_at_the_switch() -> None:
    mixing = tiny(rope_parameters=copy.deepcopy(LONGROPE["rope_parameters"]))
    assert not recomputes_at_switch(mixing)
    assert load(mixing).max_length == SWITCH
    losing = families_models.build("phi4_multimodal", reach=8)
    assert not recomputes_at_switch(losing)
    assert end_of_context(losing) == losing.config.original_max_position_embeddings
    # It says nothing of the text before.
    switch = losing.config.original_max_position_embeddings
    long = written(losing, words(switch - 1), 8)
    assert long[:2] == [int(plain(losing, words(switch - 1) + long[:n]).argmax()) for n in range(2)]
    lone = written(losing, words(switch - 1) + long[:2], 1)
    assert long[2:] != [*lone, *written(losing, words(switch - 1) + long[:3], 5)]


def test_a_drafter_of_a_shorter_context_proposes_nothing_beyond_it() -> None:
    target = built(hf.LlamaConfig(**SMALL))
    config = hf.GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=1, n_head=4, n_positions=32)
    drafter = ModelDrafter(hf.GPT2LMHeadModel(config).eval())
    prompts = [words(length) for length in (4, 29, 32, 33, 50)]
    out = ours(target, drafter, prompts, 40)
    assert out.tokens == [written(target, prompt, 40) for prompt in prompts]
    assert any(row.outcome.drafted for row in out.statistics.rounds[0].rows[:2])
    assert not any(row.outcome.drafted for row in out.statistics.rounds[0].rows[3:])
    assert not any(row.outcome.drafted for row in out.statistics.rounds[-1].rows)


def test_a_prompt_that_a_table_cannot_hold_is_refused() -> None:
    model = built(attention.MASKED["gpt2"]())
    with pytest.raises(InvalidInput, match=f"has {NAMED + 1} tokens and the target's context holds {NAMED}"):
        ours(model, PromptLookup(model.config.vocab_size), [prompt_of(NAMED + 1, "")], 4)
