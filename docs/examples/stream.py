"""Tokens served as a stream of server-sent events while they are written; only the standard library."""

import json
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer

from draftwood import SpeculativeDecoder, load, zoo
from draftwood.apps.files.text import IncrementalText
from draftwood.drafters import ModelDrafter
from draftwood.policies import LayeredDySpec
from draftwood.verifiers import RecursiveRejection

decoder = SpeculativeDecoder(
    load(zoo.path("llama-7m")),
    ModelDrafter(load(zoo.path("llama-draft"))),
    LayeredDySpec(budget=16),
    RecursiveRejection(),
)
tokenizer = zoo.tokenizer()


def pieces(prompt, max_new_tokens):
    """The text as it becomes final: what one round accepted, at once."""
    text = IncrementalText(tokenizer)  # holds back half a character
    for finished_round in decoder.stream([tokenizer(prompt)["input_ids"]], max_new_tokens=max_new_tokens):
        yield text.add(finished_round.rows[0].tokens)
    yield text.rest()


class Handler(BaseHTTPRequestHandler):
    """POST {"prompt": ...}; the answer is one event a round. One request at a time: the decoder is one."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for piece in pieces(asked["prompt"], 40):
            self.wfile.write(f"data: {json.dumps(piece)}\n\n".encode())
            self.wfile.flush()

    def log_message(self, *arguments):
        """Keep quiet."""


server = HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = HTTPConnection(*server.server_address)
client.request("POST", "/", json.dumps({"prompt": "def fibonacci(n):"}))
events = 0
for line in client.getresponse():
    if line.startswith(b"data: "):
        print(json.loads(line.removeprefix(b"data: ")), end="", flush=True)
        events += 1
print(f"\n{events} events")
server.shutdown()
server.server_close()
