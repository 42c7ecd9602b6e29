"""A small server of OpenAI's protocol over one decoder, for trying strategies behind a chat window.

    python openai_server.py --port 8000 --target big/ --drafter small/ --temperature 0.7

Without --port it asks itself a few things at once, and ends. It is no engine: docs/serving.md says why.
"""

import argparse
import json
import secrets
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch

from draftwood import DraftwoodError, RowQueue, SamplingParams, SharedDecoder, SpeculativeDecoder, load, zoo
from draftwood.apps.text import IncrementalText
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection

LONGEST_BODY = 1_000_000  # bytes
FINISH = {"eos": "stop", "criteria": "stop", "length": "length", "context": "length"}
PLAIN = {"n": 1, "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0, "logprobs": (None, False)}
"""What else a request may say, as long as it says this."""
READ = {"model", "messages", "prompt", "stream", "stream_options", "seed", "max_tokens", "user", "store"}
READ |= {"max_completion_tokens", "temperature", "metadata"}


class Refused(Exception):
    """A request that cannot be served: its status and one sentence."""

    def __init__(self, status, sentence):
        super().__init__(sentence)
        self.status = status


class Server(ThreadingHTTPServer):
    """One decoder, and a thread for every connection.

    Args:
        decoder: a `SpeculativeDecoder`.
        tokenizer: of its target; its chat template is used where it has one.
        temperature: of every text: rows of one session share it.
        rows: texts that are written at once; more wait.
        most: texts that are there at once; more are answered 429.
        longest: new tokens of a text at most.
        longest_prompt: tokens of a prompt at most.
    """

    daemon_threads = True
    request_queue_size = 128  # connections that come at once; of more than that, some are lost

    def __init__(
        self,
        decoder,
        tokenizer,
        *,
        address,
        name,
        temperature=0.0,
        rows=16,
        most=64,
        longest=1024,
        longest_prompt=4096,
    ):
        self.name, self.tokenizer, self.temperature = name, tokenizer, temperature
        self.most, self.longest, self.longest_prompt = most, longest, longest_prompt
        sampling = SamplingParams(temperature=temperature)
        session = partial(decoder.session, max_new_tokens=longest, sampling=sampling)
        self.shared = SharedDecoder(RowQueue(session, rows))
        super().__init__(address, Handler)

    def server_close(self):
        super().server_close()
        self.shared.close()

    def handle_error(self, request, client_address):
        """A client that went away in the middle is no error of the server."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def text(self, asked, *, chat):
        """The text that a request asks for, which is being written from now on."""
        for field, value in asked.items():
            plain = PLAIN.get(field)
            if field not in READ and value not in (plain if isinstance(plain, tuple) else (plain, None)):
                raise Refused(400, f"This server does not serve {field!r}={value!r:.60}; leave it out.")
        if asked.get("model", self.name) != self.name:
            raise Refused(404, f"There is no model {asked['model']!r:.60} here; it is {self.name!r}.")
        if (wished := asked.get("temperature")) not in (None, self.temperature):
            raise Refused(
                400, f"temperature is {wished!r:.20}, and all texts share {self.temperature}; leave it out."
            )
        wished = asked.get("max_completion_tokens") or asked.get("max_tokens") or self.longest
        seed = secrets.randbits(63) if asked.get("seed") is None else asked["seed"]
        for name, number, most in (("max_tokens", wished, self.longest), ("seed", seed, 2**63)):
            if type(number) is not int or not (name == "max_tokens") <= number <= most:
                raise Refused(400, f"{name} is {number!r:.20}; give an integer of at most {most}.")
        if self.shared.unfinished >= self.most:
            raise Refused(429, f"{self.most} texts are being written or wait already; ask again later.")
        prompt = self.prompt(asked, chat=chat)
        if len(prompt) > self.longest_prompt:
            raise Refused(400, f"The prompt has {len(prompt)} tokens; give {self.longest_prompt} at most.")
        return self.shared.add(prompt, seed=seed, max_new_tokens=wished)

    def prompt(self, asked, *, chat):
        """The tokens that the model is to go on from."""
        if not chat:
            if not isinstance(asked.get("prompt"), str) or not asked["prompt"]:
                raise Refused(400, "prompt is not a text; give one.")
            return self.tokenizer(asked["prompt"])["input_ids"]
        messages = asked.get("messages")
        if not isinstance(messages, list) or not messages or not all(map(is_message, messages)):
            raise Refused(400, "messages is no list of objects with the texts role and content; give one.")
        if self.tokenizer.chat_template:
            return self.tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        turns = [f"{one['role'].capitalize()}: {one['content']}" for one in messages]
        return self.tokenizer("\n".join([*turns, "Assistant:"]))["input_ids"]


def is_message(one):
    return isinstance(one, dict) and all(isinstance(one.get(part), str) for part in ("role", "content"))


class Handler(BaseHTTPRequestHandler):
    """GET /v1/models, POST /v1/completions and /v1/chat/completions, streamed or whole."""

    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self):
        if self.path != "/v1/models":
            return self.refuse(404, f"There is nothing at {self.path!r:.60}.")
        model = {"id": self.server.name, "object": "model", "created": 0, "owned_by": "draftwood"}
        return self.answer(200, {"object": "list", "data": [model]})

    def do_POST(self):
        try:
            chat = self.path == "/v1/chat/completions"
            if not chat and self.path != "/v1/completions":
                raise Refused(404, f"There is nothing at {self.path!r:.60}.")
            asked = self.body()
            text = self.server.text(asked, chat=chat)
        except Refused as refused:
            return self.refuse(refused.status, str(refused))
        except DraftwoodError as error:
            return self.refuse(503, str(error))
        try:
            answer = Answer(self.server, chat)
            return self.stream(answer, text, asked) if asked.get("stream") else self.whole(answer, text)
        finally:
            text.cancel()  # nothing where it has ended; its row is free where the client went away

    def body(self):
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > LONGEST_BODY:
            self.close_connection = True  # what was not read would be taken for the next request
            if length.isdecimal():  # whoever is still sending reads no answer
                left = min(int(length), 16 * LONGEST_BODY)
                while left > 0 and (piece := self.rfile.read(min(left, 65536))):
                    left -= len(piece)
            raise Refused(413, f"The request has no length, or more than {LONGEST_BODY} bytes.")
        try:
            asked = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            asked = None
        if not isinstance(asked, dict):
            raise Refused(400, "The request is no JSON object.")
        return asked

    def whole(self, answer, text):
        written = text.wait()
        if written.refused is not None:
            return self.refuse(400, written.refused)
        piece = answer.text.add(written.tokens) + answer.text.rest()
        return self.answer(200, answer.object(piece, FINISH[written.finished]) | {"usage": usage(written)})

    def stream(self, answer, text, asked):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Connection", "close")
        self.close_connection = True
        self.end_headers()
        try:
            for tokens in text:
                if piece := answer.text.add(tokens):
                    self.event(answer.chunk(piece))
            self.event(answer.chunk(answer.text.rest(), FINISH[text.text.finished]))
        except DraftwoodError as error:
            return self.event({"error": {"message": str(error), "type": "server_error"}})
        if (asked.get("stream_options") or {}).get("include_usage"):
            self.event(answer.chunk(None) | {"choices": [], "usage": usage(text.text)})
        self.wfile.write(b"data: [DONE]\n\n")
        return None

    def event(self, content):
        self.wfile.write(f"data: {json.dumps(content)}\n\n".encode())
        self.wfile.flush()

    def refuse(self, status, sentence):
        return self.answer(status, {"error": {"message": sentence, "type": "invalid_request_error"}})

    def answer(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        """Keep quiet."""


class Answer:
    """The objects of one answer, and its text as it becomes final."""

    def __init__(self, server, chat):
        self.chat, self.text = chat, IncrementalText(server.tokenizer)
        self.common = {
            "id": f"text-{secrets.token_hex(8)}",
            "created": int(time.time()),
            "model": server.name,
        }

    def object(self, piece, finish):
        said = {"message": {"role": "assistant", "content": piece}} if self.chat else {"text": piece}
        kind = "chat.completion" if self.chat else "text_completion"
        choice = {"index": 0, "logprobs": None, "finish_reason": finish, **said}
        return {**self.common, "object": kind, "choices": [choice]}

    def chunk(self, piece, finish=None):
        said = {"delta": {"role": "assistant", "content": piece}} if self.chat else {"text": piece}
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        choice = {"index": 0, "logprobs": None, "finish_reason": finish, **said}
        return {**self.common, "object": kind, "choices": [choice]}


def usage(text):
    """The counts that OpenAI's protocol has, and how well the drafts did."""
    counts = {"prompt_tokens": len(text.prompt), "completion_tokens": len(text.tokens)}
    return {**counts, "total_tokens": sum(counts.values()), "draftwood": text.statistics}


def decoder_of(target, drafter, budget):
    # A CPU computes fastest in float32, and there a text does not feel who is beside it in the batch.
    dtype = None if torch.cuda.is_available() else torch.float32
    models = [load(name, dtype=dtype) for name in (target, drafter)]
    return SpeculativeDecoder(models[0], ModelDrafter(models[1]), LayeredDySpec(budget), RecursiveRejection())


def ask(address, question):
    """One streamed answer, by the standard library alone."""
    client, pieces = HTTPConnection(*address), []
    client.request("POST", "/v1/completions", json.dumps({**question, "stream": True}))
    for line in client.getresponse():
        if line.startswith(b"data: {"):
            pieces += [choice["text"] for choice in json.loads(line[6:])["choices"]]
    return "".join(pieces)


def main():
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
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(options.target)
    decoder = decoder_of(options.target, options.drafter, options.budget)
    address = ("127.0.0.1", options.port)
    server = Server(
        decoder,
        tokenizer,
        address=address,
        name="draftwood",
        temperature=options.temperature,
        rows=options.rows,
    )
    with server:
        if options.port:
            print(f"http://127.0.0.1:{options.port}/v1, model draftwood; Ctrl-C ends it.")
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                return
        threading.Thread(target=server.serve_forever, daemon=True).start()
        prompts = ["def fibonacci(n):", "Once upon a time", "Question: What is 2 plus 3?\nAnswer:"]
        with ThreadPoolExecutor() as threads:
            questions = [{"prompt": prompt, "max_tokens": 16} for prompt in prompts]
            answers = list(threads.map(partial(ask, server.server_address), questions))
        for prompt, answer in zip(prompts, answers, strict=True):
            print(f"--- {prompt}\n{answer}")
        server.shutdown()


if __name__ == "__main__":
    main()
