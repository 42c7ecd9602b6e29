"""`draftwood generate` with the folder of a model that reads images, and text only."""

from typing import Any

import pytest
import torch
import transformers as hf

from draftwood import zoo
from tests.backends.attention_models import randomised
from tests.framework.test_text_alone import gemma3, qwen2_5_vl

PROMPTS = ["Tom has 3 boxes with 12 apples each.", "def add(a, b):"]


@pytest.mark.parametrize("made", [gemma3, qwen2_5_vl])
def test_a_folder_that_reads_images_writes_the_text_of_generate(draftwood, tmp_path, made):
    torch.manual_seed(3)
    tokenizer = zoo.tokenizer()
    model = randomised(made(image_token=len(tokenizer) - 2, vocab_size=len(tokenizer)))
    # Random layers repeat a token, with which no mistake would show.
    model.generation_config = hf.GenerationConfig(pad_token_id=1, eos_token_id=0, no_repeat_ngram_size=1)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        mask = torch.ones_like(ids)
        plain = model.generate(ids, attention_mask=mask, max_new_tokens=16, do_sample=False)
        expected: Any = tokenizer.decode(plain[0, ids.shape[1] :], skip_special_tokens=True)
        assert len(set(plain[0, ids.shape[1] :].tolist())) > 3
        for drafter in (["--drafter", "prompt-lookup"], ["--drafter", tmp_path, "-o", "budget=4"]):
            asked = ["--target", tmp_path, *drafter, "--prompt", prompt, "--max-new-tokens", 16]
            result = draftwood("generate", *asked)
            assert result.exit_code == 0, result.output
            assert result.stdout == expected + "\n"
