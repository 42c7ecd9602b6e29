"""The server: what it answers to which request."""

from __future__ import annotations

import asyncio
import copy
import secrets
import socket
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Thread
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from draftwood import DraftwoodError, RowQueue, SamplingParams, SharedDecoder, SpeculativeDecoder
from draftwood.base.machine_faults import machine_fault
from draftwood.laws.randomness import row_seeds
from openai_protocol.answers import Answer, as_json, usage
from openai_protocol.connection import Connection, Limits, Request
from openai_protocol.openapi import document
from openai_protocol.prompts import Prompt, of_chat, of_completion
from openai_protocol.refused import Refused
from openai_protocol.sampling import sampling
from openai_protocol.schema import Asked, ChatAsked, CompletionAsked, Kind, read
from openai_protocol.texts import Choice, Piece
from openai_protocol.writing import Writing, pieces

BACKLOG = 128
"""Connections that come at once; of more than that, some are lost."""

Result = TypeVar("Result")
Headers = list[tuple[bytes, bytes]]
JSON: Headers = [(b"content-type", b"application/json")]
EVENTS: Headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]


class Server:
    """One decoder for any number of clients.

    Args:
        decoder: a `SpeculativeDecoder`.
        tokenizer: of its target; its chat template is used where it has one.
        name: of the model, for clients.
        temperature: of texts whose request has none.
        rows: texts that are written at once; more wait.
        most: texts that are there at once; a request for more is answered 429.
        longest: maximum number of new tokens of a text.
        longest_prompt: maximum number of tokens of a prompt.
        limits: of every client.
    """

    def __init__(
        self,
        decoder: SpeculativeDecoder,
        tokenizer: Any,
        *,
        name: str = "draftwood",
        temperature: float = 0.0,
        rows: int = 16,
        most: int = 64,
        longest: int = 1024,
        longest_prompt: int = 4096,
        limits: Limits | None = None,
    ) -> None:
        # The thread that reads requests has its own tokenizer, because one is for one thread at a time.
        self.tokenizer, self._decoding = copy.deepcopy(tokenizer), tokenizer
        self.name, self.temperature = name, temperature
        self.most, self.longest, self.longest_prompt = most, longest, longest_prompt
        self.limits = limits or Limits()
        session = partial(
            decoder.session, max_new_tokens=longest, sampling=SamplingParams(temperature=temperature)
        )
        self.shared = SharedDecoder(RowQueue(session, rows))
        self._reading = ThreadPoolExecutor(1)
        self._clients: set[asyncio.Task[None]] = set()
        self._document = document(longest=longest, most=most)

    @contextmanager
    def running(self, port: int = 0) -> Iterator[tuple[str, int]]:
        """Answers clients of this machine in a thread, as long as the block runs; returns the address.

        Raises:
            OSError: the port is taken.
        """
        listening = socket.create_server(("127.0.0.1", port), backlog=BACKLOG)
        loop, ended = asyncio.new_event_loop(), asyncio.Event()
        thread = Thread(target=loop.run_until_complete, args=(self._serve(listening, ended),))
        thread.start()
        try:
            yield listening.getsockname()
        finally:
            loop.call_soon_threadsafe(ended.set)
            thread.join()
            loop.close()

    async def _serve(self, listening: socket.socket, ended: asyncio.Event) -> None:
        server = await asyncio.start_server(self._client, sock=listening, backlog=BACKLOG)
        await ended.wait()
        server.close()
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        await asyncio.to_thread(self.shared.close)
        self._reading.shutdown()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the requests of one connection, one after another."""
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        connection = Connection(reader, writer, self.limits)
        try:
            while await self._next(connection):
                pass
            await connection.close()
        except (OSError, asyncio.CancelledError):
            pass  # the client has gone, or the server ends
        finally:
            self._clients.discard(task)
            writer.transport.abort()

    async def _next(self, connection: Connection) -> bool:
        """Answers one request; returns whether another may follow."""
        try:
            request = await connection.request()
        except Refused as refused:
            await Reply(connection).refuse(refused)
            return False
        if request is None:
            return False
        answering = asyncio.ensure_future(self._answer(Reply(connection, request), request))
        leaving = asyncio.ensure_future(connection.left())
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
        if answering.cancelled():
            return False
        answering.result()
        return connection.lasts

    async def _answer(self, reply: Reply, request: Request) -> None:
        try:
            await self._route(reply, request)
        except Refused as refused:
            await reply.refuse(refused)
        except OSError:
            raise  # the client has gone
        except Exception as error:
            if (fault := machine_fault(error)) is not None:
                await reply.refuse(Refused(503, fault.message))
            else:
                traceback.print_exc()
                await reply.refuse(
                    Refused(500, "The server failed at this request; its own output says how.")
                )

    async def _route(self, reply: Reply, request: Request) -> None:
        method, target = request.method, request.path
        model = {"id": self.name, "object": "model", "created": 0, "owned_by": "draftwood"}
        shown: dict[str, Callable[[], dict[str, Any]]] = {
            "/health": self._health,
            "/openapi.json": lambda: self._document,
            "/v1/models": lambda: {"object": "list", "data": [model]},
            f"/v1/models/{quote(self.name, safe='')}": lambda: model,
        }
        written = {"/v1/completions": self._complete, "/v1/chat/completions": self._chat}
        if target not in shown and target not in written:
            if target.startswith("/v1/models/"):
                raise self._unknown(unquote(target.removeprefix("/v1/models/")))
            raise Refused(404, f"There is nothing at {as_json(target[:60]).decode()}.")
        allowed = ("GET", "HEAD") if target in shown else ("POST",)
        if method not in allowed:
            sentence = f"{target} does not support {method[:20]}; use {allowed[0]}."
            raise Refused(405, sentence, allowed=", ".join(allowed))
        if target in shown:
            await reply.send(200, shown[target]())
        else:
            await written[target](reply, request.body)

    def _health(self) -> dict[str, Any]:
        if (closed := self.shared.closed) is not None:
            raise Refused(503, str(closed))
        return {"status": "ok"}

    def _unknown(self, model: str) -> Refused:
        sentence = (
            f"There is no model {as_json(model[:60]).decode()} here; it is {as_json(self.name).decode()}."
        )
        return Refused(404, sentence, field="model", code="model_not_found")

    async def _complete(self, reply: Reply, body: bytes) -> None:
        asked = await self._read(body, CompletionAsked)
        await self._write(reply, asked, await self._aside(of_completion, asked, self.tokenizer), chat=False)

    async def _chat(self, reply: Reply, body: bytes) -> None:
        asked = await self._read(body, ChatAsked)
        await self._write(reply, asked, await self._aside(of_chat, asked, self.tokenizer), chat=True)

    async def _read(self, body: bytes, kind: type[Kind]) -> Kind:
        asked: Kind = await self._aside(read, body, kind)
        if asked.model not in (None, self.name):
            raise self._unknown(asked.model)
        return asked

    async def _aside(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Calls a function that may take long for a large request, while others are answered."""
        return await asyncio.get_running_loop().run_in_executor(self._reading, function, *arguments)

    async def _write(self, reply: Reply, asked: Asked, given: Sequence[Prompt], *, chat: bool) -> None:
        """Writes the texts of a request, and answers with them."""
        options = asked.stream_options
        answer = Answer(self.name, chat, asked.likeliest, bool(options and options.include_usage))
        writings: list[Writing] = []
        try:
            self._begin(asked, given, writings)
            if asked.stream:
                await self._stream(reply, answer, writings)
            else:
                await self._whole(reply, answer, writings)
        finally:
            for writing in writings:
                writing.text.cancel()  # nothing where it has ended; its row is free where the client has gone

    def _begin(self, asked: Asked, given: Sequence[Prompt], writings: list[Writing]) -> None:
        """Gives the texts of a request to the decoder; `n` for each prompt, in order."""
        limit, n = self.longest if asked.limit is None else asked.limit, asked.n or 1
        if limit > self.longest:
            raise Refused(400, f"max_tokens is {limit}; give {self.longest} at most.", field="max_tokens")
        for tokens, _ in given:
            if not 0 < len(tokens) <= self.longest_prompt:
                raise Refused(400, f"A prompt has {len(tokens)} tokens; give 1 to {self.longest_prompt}.")
        if (count := n * len(given)) > self.most:
            raise Refused(400, f"The request is for {count} texts; ask for {self.most} at most.", field="n")
        if self.shared.unfinished + count > self.most:
            sentence = f"Only {self.most} texts may be written or wait at once; ask again later."
            raise Refused(429, sentence, code="rate_limit_exceeded")
        seeds = row_seeds(secrets.randbits(63) if asked.seed is None else asked.seed, count)
        for number, seed in enumerate(seeds):
            tokens, start = given[number // n]
            settings = sampling(asked, temperature=self.temperature, start=len(tokens))
            try:
                text = self.shared.add(
                    tokens, seed=seed, max_new_tokens=limit, sampling=settings, logprobs=asked.likeliest
                )
            except DraftwoodError as error:  # the decoder was closed, or failed
                raise Refused(503, str(error)) from error
            choice = Choice(self._decoding, asked.stops, asked.likeliest)
            writings.append(Writing(text, choice, tokens, start, first=number % n == 0))

    async def _whole(self, reply: Reply, answer: Answer, writings: Sequence[Writing]) -> None:
        found = [list[Piece]() for _ in writings]
        async for number, piece in pieces(writings):
            found[number].append(piece)
        await reply.send(200, answer.whole(writings, found, usage(writings)))

    async def _stream(self, reply: Reply, answer: Answer, writings: Sequence[Writing]) -> None:
        opened = set[int]()
        async for number, piece in pieces(writings):
            writing = writings[number]
            if number not in opened and (opening := answer.opening(number)) is not None:
                await reply.event(opening)
            opened.add(number)
            if piece.text or piece.tokens:
                await reply.event(answer.piece(number, piece, writing.start))
            if writing.choice.finish is not None:
                await reply.event(answer.closing(number, writing.choice.finish))
        if answer.streamed_usage:
            await reply.event(answer.usage(usage(writings)))
        await reply.end()


class Reply:
    """The answer to one request, which carries the request's ids.

    Args:
        connection: to the client.
        request: None where it could not be read; then the connection is closed after the answer.
    """

    def __init__(self, connection: Connection, request: Request | None = None) -> None:
        self._connection = connection
        self._bodiless = request is not None and request.method == "HEAD"
        given = {} if request is None else request.headers
        own = secrets.token_hex(16).encode()
        self._headers = [(b"x-request-id", given.get(b"x-request-id") or own)]
        if named := given.get(b"x-client-request-id"):
            self._headers.append((b"x-client-request-id", named))
        if request is None:
            self._headers.append((b"connection", b"close"))

    async def send(self, status: int, content: Any, more: Headers | None = None) -> None:
        """Answers with an object."""
        body = as_json(content)
        length = (b"content-length", str(len(body)).encode())
        headers = [*JSON, length, *self._headers, *(more or [])]
        await self._connection.answer(status, headers, b"" if self._bodiless else body)

    async def refuse(self, refused: Refused) -> None:
        """Answers with an error; in a stream that has begun, as its last event."""
        if self._connection.started:
            await self.event(refused.content)
            await self._connection.end()
        else:
            allowed = [(b"allow", refused.allowed.encode())] if refused.allowed else []
            await self.send(refused.status, refused.content, allowed)

    async def event(self, content: Any) -> None:
        """Sends an event of a stream, which begins with the first."""
        if not self._connection.started:
            await self._connection.start([*EVENTS, *self._headers])
        await self._connection.send(b"data: " + as_json(content) + b"\n\n")

    async def end(self) -> None:
        """Ends the stream."""
        await self._connection.send(b"data: [DONE]\n\n")
        await self._connection.end()
