"""The example server for tests: one decoder for all of them, and clients that speak HTTP by hand."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from http.client import HTTPConnection, parse_headers
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs

from draftwood import SpeculativeDecoder, zoo

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
Address = tuple[str, int]

# As Python does for a program in this folder. It comes last, where it hides no other module.
sys.path.append(str(EXAMPLES))


def part(name: str) -> Any:
    """A module of the example, such as `"texts"`."""
    return import_module(f"openai_protocol.{name}")


@cache
def decoder() -> SpeculativeDecoder:
    made: SpeculativeDecoder = import_module("openai_server").decoder_of(
        str(zoo.path("llama-7m")), str(zoo.path("llama-draft")), 8
    )
    return made


@attrs.frozen
class Served:
    """A server that runs."""

    server: Any
    address: Address

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.address[1]}"

    @property
    def unfinished(self) -> int:
        texts: int = self.server.shared.unfinished
        return texts

    def ask(
        self, path: str, content: Any, *, method: str = "POST", headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and JSON of an answer; `content` is an object or bytes."""
        status, _, body = self.exchange(path, content, method=method, headers=headers)
        return status, json.loads(body)

    def exchange(
        self, path: str, content: Any, *, method: str = "POST", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        client = HTTPConnection(*self.address, timeout=300)
        body = content if isinstance(content, bytes | None) else json.dumps(content).encode()
        client.request(method, path, body, headers or {})
        answer = client.getresponse()
        read = answer.read()
        client.close()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, read

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=300)


@contextmanager
def served(**options: Any) -> Iterator[Served]:
    server = part("server").Server(decoder(), options.pop("tokenizer", None) or zoo.tokenizer(), **options)
    with server.running() as address:
        yield Served(server, address)


def request(path: str, content: Any = None, *, method: str = "POST", headers: str = "") -> bytes:
    """A request as it goes over the wire."""
    body = content if isinstance(content, bytes) else b"" if content is None else json.dumps(content).encode()
    length = f"Content-Length: {len(body)}\r\n" if content is not None else ""
    return f"{method} {path} HTTP/1.1\r\nHost: here\r\n{length}{headers}\r\n".encode() + body


def read_answer(stream: Any) -> tuple[int, dict[str, str], bytes]:
    """The next answer on a connection, of a known length; status 0 where it was closed."""
    line = stream.readline()
    if not line:
        return 0, {}, b""
    status = int(line.split()[1])
    headers = {name.lower(): value for name, value in parse_headers(stream).items()}
    return status, headers, stream.read(int(headers.get("content-length", "0")))


def until(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)
