"""A small server of OpenAI's protocol over one decoder, for trying strategies in a chat window.

    python openai_server.py --port 8000 --target big/ --drafter small/ --temperature 0.7

Without --port it asks itself a few things at once, and ends. It is no engine: docs/serving.md says why. It
needs h11 and pydantic, which OpenAI's own client brings.
"""

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection

import torch
from openai_protocol.server import Server
from transformers import AutoTokenizer

from draftwood import SpeculativeDecoder, load, zoo
from draftwood.drafters import ModelDrafter
from draftwood.policies import LayeredDySpec
from draftwood.verifiers import RecursiveRejection


def decoder_of(target: str, drafter: str, budget: int) -> SpeculativeDecoder:
    # A CPU computes fastest in float32, and there a text does not depend on the other rows.
    dtype = None if torch.cuda.is_available() else torch.float32
    models = [load(name, dtype=dtype) for name in (target, drafter)]
    return SpeculativeDecoder(models[0], ModelDrafter(models[1]), LayeredDySpec(budget), RecursiveRejection())


def ask(address: tuple[str, int], question: dict[str, object]) -> str:
    """One streamed answer, with only the standard library."""
    client, pieces = HTTPConnection(*address), list[str]()
    client.request("POST", "/v1/completions", json.dumps({**question, "stream": True}))
    for line in client.getresponse():
        if line.startswith(b"data: {"):
            pieces += [choice["text"] for choice in json.loads(line[6:])["choices"]]
    return "".join(pieces)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--target", default=str(zoo.path("llama-7m")))
    parser.add_argument("--drafter", default=str(zoo.path("llama-draft")))
    parser.add_argument("--budget", type=int, default=16)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--rows", type=int, default=16)
    options = parser.parse_args()
    if options.target == str(zoo.path("llama-7m")):
        tokenizer = zoo.tokenizer()
    else:
        tokenizer = AutoTokenizer.from_pretrained(options.target)
    decoder = decoder_of(options.target, options.drafter, options.budget)
    server = Server(decoder, tokenizer, temperature=options.temperature, rows=options.rows)
    with server.running(options.port) as address:
        if options.port:
            print(f"http://127.0.0.1:{options.port}/v1, model {server.name}; Ctrl-C ends it.", flush=True)
            try:
                while True:
                    time.sleep(3600)
            except KeyboardInterrupt:
                return
        prompts = ["def fibonacci(n):", "Once upon a time", "Question: What is 2 plus 3?\nAnswer:"]
        with ThreadPoolExecutor() as threads:
            questions = [{"prompt": prompt, "max_tokens": 16} for prompt in prompts]
            answers = list(threads.map(partial(ask, address), questions))
        for prompt, answer in zip(prompts, answers, strict=True):
            print(f"--- {prompt}\n{answer}")


if __name__ == "__main__":
    main()
