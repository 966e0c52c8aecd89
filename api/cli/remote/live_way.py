"""The live socket: addresses go in as the service's credit allows, results come out.

The service paces the account's limits by itself. A connection that breaks is opened anew, and
what had no result is sent again; nothing that was received is lost. A refusal for good ends
the run with its words.
"""

import math
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import httpx
import msgspec
import trio
from trio_websocket import (
    ConnectionClosed,
    ConnectionRejected,
    HandshakeError,
    WebSocketConnection,
    wrap_client_stream,
)

from mailprobe.engine.background import sole_exception
from mailprobe.engine.stream.answers import Answer
from mailprobe.engine.verdict import Outcome, judge

from ...errors import CommandError
from ...terminal import plain
from .http_responses import ANSWER_S, RefusedRequest, error_of, reason_of
from .result_lines import ResultLine
from .runs import (
    LISTED_CHARACTERS_MAX,
    PASSING,
    TEXT_CHARACTERS_MAX,
    LimitNotice,
    ServiceFailures,
)
from .service import RemoteService

PATH = "/v1/email/verify/live"
QUERY = "?evidence=1"  # for the reason of each result
MESSAGE_ADDRESSES_MAX = 100
MESSAGE_CHARACTERS_MAX = 32 * 1024  # the service reads messages of twice as many
RECEIVED_CHARACTERS_MAX = 16 << 20
CONNECT_S = 10.0
CLOSE_CODES = 4000  # an error closes with this and its HTTP status


class _LiveLine(ResultLine, frozen=True, tag_field="type", tag="result"):
    ref: int = 0


class _Credit(msgspec.Struct, tag_field="type", tag="credit"):
    more: int


class _Wait(msgspec.Struct, tag_field="type", tag="wait"):
    seconds: float


class _Error(RefusedRequest, frozen=True, tag_field="type", tag="error"):
    pass


class _Done(msgspec.Struct, tag_field="type", tag="done"):
    answered: int


_decode = msgspec.json.Decoder(_LiveLine | _Credit | _Wait | _Error | _Done).decode


@asynccontextmanager
async def open_live_socket(url: httpx.URL, key: str) -> AsyncIterator[WebSocketConnection]:
    """Open a live socket. Raises OSError, HandshakeError, trio.TooSlowError.

    The stream is closed here: the library leaves it open when the service closes first.
    """
    is_tls = url.scheme == "https"
    with trio.fail_after(CONNECT_S):
        port = url.port or (443 if is_tls else 80)
        stream: Any = await trio.open_tcp_stream(url.host, port)
    if is_tls:
        context = ssl.create_default_context()
        stream = trio.SSLStream(stream, context, server_hostname=url.host, https_compatible=True)
    async with aclosing(stream), trio.open_nursery() as nursery:
        with trio.fail_after(CONNECT_S):
            socket = await wrap_client_stream(
                nursery, stream, url.netloc.decode(), url.raw_path.decode(),
                extra_headers=[(b"Authorization", f"Bearer {key}".encode())],
                message_queue_size=100, max_message_size=RECEIVED_CHARACTERS_MAX,
            )  # fmt: skip
        yield socket
        with trio.move_on_after(1):
            await socket.aclose()
        nursery.cancel_scope.cancel()


class LiveRun:
    """See ServiceRun."""

    def __init__(
        self, service: RemoteService, texts: Sequence[str], send: trio.MemorySendChannel[Answer]
    ) -> None:
        self.error: CommandError | None = None
        self._url = httpx.URL(service.url + PATH + QUERY)
        self._key = service.key
        self._texts = texts
        self._send = send
        self._unanswered: dict[int, None] = {}  # positions, in order
        self._notice = LimitNotice()
        self._failures = ServiceFailures()
        self._credit = 0
        self._credited = trio.Event()
        self._refusal = RefusedRequest()

    async def run(self) -> None:
        async with self._send:
            for position, text in enumerate(self._texts):
                if len(text) > TEXT_CHARACTERS_MAX:  # layer 1 decides without the service
                    self._send.send_nowait(Answer(position, judge(text, Outcome.SYNTAX)))
                else:
                    self._unanswered[position] = None
            while self._unanswered and self.error is None:
                what = await self._converse()
                if what is not None and self.error is None:
                    await self._pause(what)

    async def close(self, *, is_read: bool) -> None:
        """See ServiceRun. A closed socket leaves nothing at the service."""

    async def _converse(self) -> str | None:
        """Verify over one socket; return what went wrong with it, or None at the end."""
        try:
            async with open_live_socket(self._url, self._key) as socket:
                return await self._exchange(socket)
        except Exception as error:
            match sole_exception(error):
                case ConnectionRejected() as rejection:
                    return self._refused(rejection.status_code, error_of(rejection.body or b""))
                case ConnectionClosed():
                    return "ended the connection"
                case (
                    HandshakeError() | OSError() | trio.TooSlowError() | trio.BrokenResourceError()
                ):
                    return f"cannot be reached ({reason_of(error)})"
            raise

    async def _exchange(self, socket: WebSocketConnection) -> str | None:
        self._credit = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_texts, socket)
            try:
                what = await self._receive(socket)
            except ConnectionClosed as closed:
                code = closed.reason.code if closed.reason else 1006
                if code > CLOSE_CODES:
                    what = self._refused(code - CLOSE_CODES, self._refusal)
                else:
                    what = f"ended the connection ({code})"
            nursery.cancel_scope.cancel()
        return what

    async def _send_texts(self, socket: WebSocketConnection) -> None:
        positions = list(self._unanswered)
        with suppress(ConnectionClosed):  # the receiver sees it, after what came before
            for taken in self._messages(positions):
                while self._credit < len(taken):
                    self._credited = trio.Event()
                    await self._credited.wait()
                self._credit -= len(taken)
                lines = [{"email": self._texts[each], "ref": each} for each in taken]
                await socket.send_message(b"\n".join(map(msgspec.json.encode, lines)).decode())

    def _messages(self, positions: Sequence[int]) -> "list[list[int]]":
        """The positions of each message, so that none is too long."""
        messages: list[list[int]] = []
        characters = 0
        for position in positions:
            length = 2 * len(self._texts[position]) + 40
            is_full = (
                not messages
                or len(messages[-1]) == MESSAGE_ADDRESSES_MAX
                or characters + length > MESSAGE_CHARACTERS_MAX
            )
            if is_full:
                messages.append([])
                characters = 0
            messages[-1].append(position)
            characters += length
        return messages

    async def _receive(self, socket: WebSocketConnection) -> str | None:
        waits_until = -math.inf  # for a limit of the account
        while self._unanswered and self.error is None:
            with trio.move_on_at(max(trio.current_time(), waits_until) + ANSWER_S) as reading:
                message = await socket.get_message()
            if reading.cancelled_caught:
                return f"sent no further result for {ANSWER_S:.0f} s"
            for line in str(message).split("\n"):
                try:
                    received: object = _decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    self._stop("is not a mailprobe service: it sends other lines")
                    return None
                match received:
                    case _LiveLine():
                        self._pass_on(received)
                    case _Credit(more=more):
                        self._credit += more
                        self._credited.set()
                    case _Wait(seconds=wait_s):
                        waits_until = trio.current_time() + wait_s
                        self._notice.print_once(wait_s)
                    case _Error():
                        self._refusal = received  # its status is the code of the close
        return None

    def _pass_on(self, line: _LiveLine) -> None:
        self._failures.clear()
        if line.ref not in self._unanswered or self._texts[line.ref] != line.email:
            text = plain(line.email[:LISTED_CHARACTERS_MAX])
            self._stop(f"answers about {text}, which was not sent")
            return
        del self._unanswered[line.ref]
        self._send.send_nowait(line.answer(line.ref))

    # -- failures

    def _refused(self, status: int, error: RefusedRequest) -> str | None:
        """Stop at a refusal for good; return what to wait for after another."""
        if status in PASSING:
            return f"is unavailable ({status} {error.error})"
        words = " ".join(f"{error.message} {error.action}".split()).rstrip(".")
        self.error = CommandError(f"the service answers {status} {error.error}: {words}")
        return None

    def _stop(self, what: str) -> None:
        self.error = CommandError(f"the service at {self._url.copy_with(query=None)} {what}")

    async def _pause(self, what: str) -> None:
        """Pause, longer each time; stop after too long without a result."""
        if self._failures.last_too_long():
            self._stop(what)
        else:
            await trio.sleep(self._failures.next_pause_s())
