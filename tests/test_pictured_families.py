"""A few families of the tables of `python -m benchmarks pictured`, one of each kind of prompt and backend."""

import pytest

from benchmarks.research.pictured import look


@pytest.mark.parametrize(
    ("family", "backend"),
    [
        ("llava", "TransformerBackend"),  # features in the place of placeholders
        ("qwen3_vl", "TransformerBackend"),  # positions of several axes
        ("paligemma", "TransformerBackend"),  # attention over the prompt in both directions
        ("qwen3_5", "HybridBackend"),  # recurrent layers
        ("lfm3_vl", "UnrolledBackend"),  # a path a row
        ("voxtral", "TransformerBackend"),  # sound
        ("qwen3_omni_moe", "TransformerBackend"),  # whose generate() hands the prompt to a thinker
        ("pp_formulanet", "UnrolledBackend"),  # an encoder of images
    ],
)
def test_texts_after_images_or_sound_are_those_of_generate(family, backend):
    finding = look(family)
    assert (finding.result, finding.rows, finding.reason) == ("served", 2, "")
    assert finding.matters
    assert finding.backend == backend


@pytest.mark.parametrize(
    ("family", "backend"),
    [
        ("qwen2_vl", "TransformerBackend"),  # frames in one run
        ("glm4v", "TransformerBackend"),  # frames parted by text, with the token of images
        ("llava_onevision", "TransformerBackend"),  # whole frames
        ("internvl", "TransformerBackend"),  # frames that are images of a row
        ("qwen3_5", "HybridBackend"),
        ("lfm3_vl", "UnrolledBackend"),
    ],
)
def test_texts_after_videos_are_those_of_generate(family, backend):
    finding = look(family, videos=True)
    assert (finding.result, finding.rows, finding.reason) == ("served", 2, "")
    assert finding.matters
    assert finding.backend == backend


@pytest.mark.parametrize("family", ["voxtral_realtime", "kyutai_speech_to_text"])
def test_models_that_listen_while_they_write_are_refused_for_that(family):
    finding = look(family)
    assert finding.result == "refused"
    assert "reads a piece of the sound with every new token" in finding.reason
