"""Models that read images, videos or sound, called with text only: by object and by folder."""

from typing import Any

import pytest
import torch
import transformers as hf

from benchmarks.research.pictured_models import build_pictured
from draftwood import UnsupportedModel, custom_generate, load
from draftwood.backends.loading.loader import load_model
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from tests.backends.attention_models import SMALL, VOCAB, randomised, tiny

TEXT: Any = {**SMALL, "num_hidden_layers": 2, "bos_token_id": 2}
CLIP: Any = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
EYE: Any = {**CLIP, "image_size": 28, "patch_size": 14}
TURNS = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}}
QWEN_EYE: Any = {
    "depth": 1,
    "hidden_size": 32,
    "out_hidden_size": 32,
    "num_heads": 2,
    "intermediate_size": 32,
}


def gemma3(image_token=50, **options):
    text = hf.Gemma3TextConfig(**TEXT | options, head_dim=8, sliding_window=6, query_pre_attn_scalar=8)
    eye = hf.SiglipVisionConfig(**EYE)
    config: Any = hf.Gemma3Config
    config = config(text_config=text, vision_config=eye, mm_tokens_per_image=4, image_token_id=image_token)
    return hf.Gemma3ForConditionalGeneration(config)


def llava():
    text, eye = hf.LlamaConfig(**TEXT), hf.CLIPVisionConfig(**EYE)
    return hf.LlavaForConditionalGeneration(
        hf.LlavaConfig(vision_config=eye, text_config=text, image_token_index=50)
    )


def qwen2_5_vl(image_token=50, **text):
    config = hf.Qwen2_5_VLConfig(
        text_config={**TEXT, **TURNS, **text},
        vision_config=QWEN_EYE,
        image_token_id=image_token,
        video_token_id=image_token + 1,
    )
    return hf.Qwen2_5_VLForConditionalGeneration(config)


def qwen2_audio():
    ear = {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32}
    config = hf.Qwen2AudioConfig(audio_config=ear, text_config=hf.Qwen2Config(**TEXT), audio_token_index=50)
    return hf.Qwen2AudioForConditionalGeneration(config)


KINDS = {"gemma3": gemma3, "llava": llava, "qwen2_5_vl": qwen2_5_vl, "qwen2_audio": qwen2_audio}
MARKS = {"gemma3": "token_type_ids", "qwen2_5_vl": "mm_token_type_ids"}


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def model(kind):
    torch.manual_seed(3)
    found = randomised(KINDS[kind]())
    found.generation_config = hf.GenerationConfig(pad_token_id=1, eos_token_id=5)
    return found


@pytest.fixture(scope="module")
def speculative():
    return custom_generate(
        drafter=tiny(hf.LlamaConfig), policy=LayeredDySpec(8), verifier=RecursiveRejection()
    )


def options(rows=2):
    ids = torch.tensor([[1, 1, 1, *range(8, 24)], [*range(11, 30)]])[-rows:]
    return {"input_ids": ids, "attention_mask": (ids != 1).long(), "max_new_tokens": 16, "do_sample": False}


def test_text_alone_is_that_of_generate(model, kind, speculative):
    plain = model.generate(**options())
    assert torch.equal(model.generate(**options(), custom_generate=speculative), plain)
    assert load(model).vocab_size == VOCAB
    if kind in MARKS:  # as their processors give it for text
        marked = {**options(), MARKS[kind]: torch.zeros_like(options()["input_ids"])}
        assert torch.equal(model.generate(**marked), plain)
        assert torch.equal(model.generate(**marked, custom_generate=speculative), plain)


def test_empty_arguments_say_nothing(model, kind, speculative):
    if kind == "qwen2_audio":
        empty: Any = {"input_features": None}
    else:
        empty = {"mm_encoder_outputs": {}}
    plain = model.generate(**options(1), **empty)
    assert torch.equal(model.generate(**options(1), **empty, custom_generate=speculative), plain)


def test_a_folder_is_read(model, speculative, tmp_path):
    model.save_pretrained(tmp_path)
    read = load_model(tmp_path, device="cpu")
    plain = model.generate(**options())
    assert torch.equal(read.generate(**options(), custom_generate=speculative), plain)


def test_positions_that_count_tokens_are_text(speculative):
    model = randomised(qwen2_5_vl())
    plain = model.generate(**options(1))
    counted = torch.arange(19).expand(4, 1, -1)
    assert torch.equal(model.generate(**options(1), position_ids=counted, custom_generate=speculative), plain)


def test_a_text_that_is_read_in_both_directions(speculative):
    """PaliGemma sees all of a text before it writes, so its own forward reads it."""
    model = build_pictured("paligemma", reach=32)
    model.generation_config = hf.GenerationConfig(pad_token_id=1, eos_token_id=5)
    said = r"cannot continue from its own cache .* give prompts to its generate\(custom_generate=\.\.\.\)"
    with pytest.raises(UnsupportedModel, match=said):
        load(model)
    loop = custom_generate(drafter=PromptLookup(96), policy=LayeredDySpec(8), verifier=RecursiveRejection())
    for given in (options(1), options(2)):
        plain = model.generate(**given)
        assert torch.equal(model.generate(**given, custom_generate=loop), plain)


def test_a_decoder_whose_cache_holds_keys_of_an_image_is_refused():
    """BLIP's generate() calls its decoder's generate(), whose layers attend to the image."""
    model = build_pictured("blip", reach=32)
    size = model.config.vision_config.image_size
    pixels = torch.zeros(1, 3, size, size)
    loop = custom_generate(drafter=PromptLookup(96), policy=LayeredDySpec(8), verifier=RecursiveRejection())
    with pytest.raises(UnsupportedModel, match="such as the keys of an image for its own layers"):
        model.generate(pixel_values=pixels, max_new_tokens=4, custom_generate=loop)
