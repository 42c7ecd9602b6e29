"""One client's connection: requests and answers of HTTP/1.1, framed by h11, each within its time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus

import attrs
import h11

from openai_protocol.refused import Refused

Headers = Sequence[tuple[bytes, bytes]]


@attrs.frozen(kw_only=True)
class Limits:
    """Limits of one client.

    Attributes:
        head: bytes of a request's head, where it comes in several pieces.
        body: bytes of a request's body, and of requests that are read ahead while one is answered.
        seconds: from the start of the connection, or the end of an answer, to the end of the next request;
            and for a client to take what is sent to it.
        linger: seconds for a client to read an answer that closes the connection while it still sends.
    """

    head: int = 16_384
    body: int = 1_000_000
    seconds: float = 60.0
    linger: float = 5.0


@attrs.frozen
class Request:
    """A request that has arrived as a whole.

    Attributes:
        headers: names in lower case.
    """

    method: str
    target: str
    headers: dict[bytes, bytes]
    body: bytes

    @property
    def path(self) -> str:
        """The target without the server's own name, which may be in it."""
        scheme, name, rest = self.target.partition("://")
        return f"/{rest.partition('/')[2]}" if name and scheme.startswith("http") else self.target


@attrs.define(eq=False)
class Connection:
    """Reads the requests of one client, one after another, and sends the answers.

    An `OSError` from any of its methods says that the client has gone.
    """

    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    limits: Limits
    _http: h11.Connection = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=self.limits.head)
        # `drain` waits until everything is on its way.
        self._writer.transport.set_write_buffer_limits(0)

    async def request(self) -> Request | None:
        """Returns the next request; None where the client is done.

        Raises:
            Refused: it is no request, too large or too slow. Then the connection can only be closed.
        """
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await self._request()
        except TimeoutError:
            if self._http.their_state is h11.IDLE and not self._http.trailing_data[0]:
                return None
            sentence = f"The request was not there after {self.limits.seconds:g} seconds; send it faster."
            raise Refused(408, sentence) from None
        except h11.RemoteProtocolError as error:
            raise Refused(error.error_status_hint, f"This is no request of HTTP/1.1: {error}.") from None

    async def _request(self) -> Request | None:
        head = await self._event()
        if not isinstance(head, h11.Request):
            return None
        headers = dict(reversed(list(head.headers)))  # of several of one name the first
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise Refused(415, "The body is compressed; send it as it is, without Content-Encoding.")
        body = bytearray()
        length = int(headers.get(b"content-length", b"0"))
        while length <= self.limits.body and isinstance(event := await self._event(), h11.Data):
            body += event.data
            length = max(length, len(body))
        if length > self.limits.body:
            raise Refused(413, f"The body has more than {self.limits.body} bytes; send a smaller one.")
        return Request(head.method.decode(), head.target.decode(), headers, bytes(body))

    async def _event(self) -> h11.Event:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            self._http.receive_data(await self._reader.read(65_536))
        assert not isinstance(event, type)  # PAUSED comes only after a whole request
        return event

    @property
    def started(self) -> bool:
        """Whether the head of the answer has been sent."""
        return self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE)

    @property
    def lasts(self) -> bool:
        """Whether another request may follow the answer that was sent."""
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Sends a whole answer."""
        await self._send(_head(status, headers), h11.Data(data=body), h11.EndOfMessage())

    async def start(self, headers: Headers) -> None:
        """Sends the head of a stream of events."""
        await self._send(_head(200, headers))

    async def send(self, data: bytes) -> None:
        """Sends a part of a stream."""
        await self._send(h11.Data(data=data))

    async def end(self) -> None:
        """Ends a stream."""
        await self._send(h11.EndOfMessage())

    async def _send(self, *events: h11.Event) -> None:
        self._writer.write(b"".join(self._http.send(event) or b"" for event in events))
        try:
            async with asyncio.timeout(self.limits.seconds):
                await self._writer.drain()
        except TimeoutError:
            raise ConnectionResetError("the client takes nothing") from None

    async def left(self) -> None:
        """Returns when the client has gone. Data that it sends meanwhile is kept for the next requests."""
        ahead = 0
        while ahead <= self.limits.body and (data := await self._reader.read(65_536)):
            self._http.receive_data(data)
            ahead += len(data)
        if self._http.their_http_version == b"1.0":
            return  # there is nothing to send that such a client would not take for its answer
        # A client that has only ended its own direction still reads the answer, and takes no notice of what
        # is sent here. From one that has gone comes a reset.
        pause = 0.05
        while True:
            if not self.started:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            elif self._http.our_state is h11.SEND_BODY:
                await self.send(b":\n\n")  # a comment in a stream of events
            await asyncio.sleep(pause)
            pause = min(2 * pause, 2.0)

    async def close(self) -> None:
        """Closes the connection, when the client has read the answer or has had time for that.

        A connection closed while the client still sends would be reset, and the answer lost.
        """
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(self.limits.linger):
                self._writer.write_eof()
                while await self._reader.read(65_536):
                    pass
        self._writer.close()


def _head(status: int, headers: Headers) -> h11.Response:
    reason = HTTPStatus(status).phrase.encode()
    return h11.Response(status_code=status, reason=reason, headers=list(headers))
