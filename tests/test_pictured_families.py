"""A few families of the table `python -m benchmarks pictured`, one of each kind of prompt and backend."""

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
    ],
)
def test_texts_after_images_or_sound_are_those_of_generate(family, backend):
    finding = look(family)
    assert (finding.result, finding.rows, finding.reason) == ("served", 2, "")
    assert finding.matters
    assert finding.backend == backend
