"""Helpers of the example server's tests: its client, and its texts without a server."""

from __future__ import annotations

import openai
import torch

from draftwood import SamplingParams, zoo
from tests.served import decoder

TEMPERATURE, NEW = 0.8, 10
OPTIONS = {"temperature": TEMPERATURE, "most": 20, "longest": 200}
MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Is the sky blue?"}]


def client_of(server):
    return openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0, timeout=300)


def alone(server, prompt, seed, new=NEW, **settings):
    """The text that the decoder writes without a server, which is closed for it."""
    server.server.shared.close()
    ids = encoded(prompt) if isinstance(prompt, str) else prompt
    sampling = SamplingParams(**{"temperature": TEMPERATURE, **settings})
    texts = decoder().generate([ids], max_new_tokens=new, seed=seed, sampling=sampling)
    assert isinstance(texts, torch.Tensor)
    row = texts[0, len(ids) :]
    return zoo.tokenizer().decode(row, skip_special_tokens=True)


def encoded(text):
    return zoo.tokenizer()(text)["input_ids"]
