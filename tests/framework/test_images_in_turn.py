"""Calls that follow each other on one model: where positions go on after images is each call's own."""

import copy
from typing import Any

import pytest
import torch
import transformers as hf

from benchmarks.research.pictured_models import IMAGE, MARK, build_pictured
from draftwood import ModelPrompt, SpeculativeDecoder, custom_generate
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection

KINDS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5")
"""Families whose positions have three axes, the last one with recurrent layers."""
PLAIN: dict[str, Any] = {"max_new_tokens": 9, "do_sample": False}
PAD = 0


@pytest.fixture(scope="module", params=KINDS)
def kind(request: Any) -> Any:
    model = build_pictured(request.param, reach=32)
    model.generation_config = hf.GenerationConfig(pad_token_id=PAD, eos_token_id=None)
    return model


def inputs(model: Any, *rows: list[Any], seed: int = 0) -> dict[str, Any]:
    """Inputs of `generate()`; a row is a list of words and of grids (height, width) of images."""
    eye = model.config.vision_config
    chance = torch.Generator().manual_seed(seed)
    texts, grids = [], []
    for row in rows:
        text: list[int] = []
        for part in row:
            if isinstance(part, int):
                text.append(part)
                continue
            grids.append([1, *part])
            text += [MARK, *[IMAGE] * (part[0] * part[1] // eye.spatial_merge_size**2), MARK]
        texts.append(text)
    longest = max(map(len, texts))
    ids = torch.tensor([[PAD] * (longest - len(text)) + text for text in texts])
    found: dict[str, Any] = {"input_ids": ids, "attention_mask": (ids != PAD).long()}
    if grids:
        found["mm_token_type_ids"] = (ids == IMAGE).long()
        found["image_grid_thw"] = torch.tensor(grids)
        width = getattr(eye, "in_channels", 3) * eye.temporal_patch_size * eye.patch_size**2
        patches = sum(height * across for _, height, across in grids)
        found["pixel_values"] = torch.randn(patches, width, generator=chance)
    return found


CALLS: tuple[tuple[list[Any], ...], ...] = (
    ([5, (4, 4), 7, 8],),
    ([9, 8, 7],),
    ([5, (8, 4), 7, 8, 9], [6, (4, 4), 11]),
    ([9, 8, 7], [4, 3]),
    ([5, (4, 4), 7, (4, 8), 8], [6, 5, 4, 3]),  # several images, and a row without any
    ([5, (4, 4), 7, 8],),
)


def strategies() -> dict[str, Any]:
    return {"policy": FixedTree(3, 2, 8, 0.0, "top-k"), "verifier": RecursiveRejection()}


def expected(model: Any, given: dict[str, Any]) -> Any:
    """The text of a copy that has seen nothing before."""
    fresh = copy.deepcopy(model)
    for part in fresh.modules():
        if hasattr(part, "rope_deltas"):
            part.rope_deltas = None
    return fresh.generate(**given, **PLAIN)


def test_calls_of_generate_follow_each_other(kind: Any) -> None:
    loop = custom_generate(drafter=PromptLookup(kind.config.text_config.vocab_size), **strategies())
    texts = []
    for seed, rows in enumerate(CALLS):
        given = inputs(kind, *rows, seed=seed)
        ours = kind.generate(**given, **PLAIN, custom_generate=loop)
        texts.append(expected(kind, given))
        assert torch.equal(ours, texts[-1])
        assert torch.equal(kind.generate(**given, **PLAIN), texts[-1])
    assert not torch.equal(texts[0], texts[-1])  # of other pixels


def test_prompts_may_be_made_before_others_are_read(kind: Any) -> None:
    drafter = PromptLookup(kind.config.text_config.vocab_size)
    decoder = SpeculativeDecoder(kind, drafter, **strategies())
    given = [inputs(kind, *rows, seed=seed) for seed, rows in enumerate(CALLS)]
    prompts = [ModelPrompt.of(kind, **one) for one in given]
    for one, prompt in [*zip(given, prompts, strict=True)][::-1]:
        written: Any = decoder.generate(prompt, max_new_tokens=9, eos_token_id=[], pad_token_id=PAD)
        assert torch.equal(written, expected(kind, one))
    texts: Any = decoder.generate([[9, 8, 7], [4, 3]], max_new_tokens=9, eos_token_id=[], pad_token_id=PAD)
    new = expected(kind, given[3])[:, 3:]
    assert torch.equal(torch.as_tensor(texts)[:, -9:], new)


def test_a_session_has_rows_with_and_without_images(kind: Any) -> None:
    drafter = PromptLookup(kind.config.text_config.vocab_size)
    decoder = SpeculativeDecoder(kind, drafter, **strategies())
    given = inputs(kind, *CALLS[2])
    with decoder.session(max_new_tokens=9, eos_token_id=[]) as session:
        session.add([9, 8, 7])
        session.run()
        for row in ModelPrompt.of(kind, **given).rows:
            session.add(row)
        session.add([9, 8, 7])
        while session.unfinished:
            session.run()
        written = [session.text(number)[-9:] for number in range(4)]
    plain = expected(kind, inputs(kind, [9, 8, 7]))[0, -9:].tolist()
    assert written == [plain, *expected(kind, given)[:, -9:].tolist(), plain]
