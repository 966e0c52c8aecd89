"""A resolver on real sockets that commits faults by chance, over HTTP/2 or HTTP/1.1."""

import random
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import dns.message
import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import trio
import trustme

from tests.engine.dns.scripted_endpoints import reply

DNS = "application/dns-message"
EXCHANGE = "mx.test"  # of every domain
LAST_S = 40.0  # then a connection is closed, if it still is open

# What becomes of a question, and how often in a hundred of a troubled resolver's.
FAULTS = {
    "late": 12,  # answered after others that came later
    "slow": 4,  # after a second
    "hangs": 4,
    "SERVFAIL": 4,
    "another id": 3,
    "another question": 3,
    "no DNS": 3,
    "oversized": 2,
    "429": 1,
    "500": 3,
    "refused": 3,  # HTTP/2: not processed
    "reset": 3,
    "cut": 2,  # the connection ends in the middle of this answer
    "goaway": 3,  # HTTP/2; over HTTP/1.1 the connection ends after this answer
    "garbage": 2,  # no HTTP
}


@dataclass
class FaultyResolver:
    """Answers MX questions, and commits faults until it is `cured`. One for a port."""

    seed: int
    protocol: str
    faults: dict[str, int] = field(default_factory=FAULTS.copy)
    streams_max: int = 100
    url: str = ""
    cured: bool = False
    dead: bool = False  # it takes connections and never says a word
    asked: Counter[str] = field(default_factory=Counter)  # by name
    connections: int = 0
    open_now: int = 0
    open_max: int = 0

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    def next_fault(self) -> str:
        chance = self._rng.uniform(0, 100)
        for fault, share in self.faults.items():
            chance -= share
            if chance < 0 and not self.cured:
                return fault
        return "none"

    async def serve(self, stream: "trio.SSLStream[trio.SocketStream]") -> None:
        self.connections += 1
        self.open_now += 1
        self.open_max = max(self.open_max, self.open_now)
        try:
            with trio.move_on_after(LAST_S):
                if self.dead:
                    await trio.sleep_forever()
                await stream.do_handshake()
                carry = self._serve_two if self.protocol == "h2" else self._serve_one
                await carry(stream)
        except* (trio.BrokenResourceError, trio.ClosedResourceError, h2.exceptions.ProtocolError):
            pass
        finally:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)
            self.open_now -= 1

    def answer(self, query: bytes, fault: str) -> tuple[str, str, bytes]:
        """The status, the content type and the body."""
        octets = reply(query, f"300 MX 10 {EXCHANGE}.")
        match fault:
            case "SERVFAIL":
                octets = reply(query, rcode="SERVFAIL")
            case "another id":
                octets = b"\x12\x34" + octets[2:]
            case "another question":
                other = dns.message.make_query("other.test", "MX", id=0).to_wire()
                octets = reply(other, f"300 MX 10 {EXCHANGE}.")
            case "no DNS":
                return "200", "text/html", b"<html>sign in</html>"
            case "oversized":
                octets = bytes(70_000)
            case "429" | "500":
                return fault, "text/plain", b"no"
        return "200", DNS, octets

    def note(self, query: bytes) -> None:
        self.asked[dns.message.from_wire(query).question[0].name.to_text(omit_final_dot=True)] += 1

    async def wait(self, fault: str) -> None:
        match fault:
            case "late":
                await trio.sleep(0.05)
            case "slow":
                await trio.sleep(1.0)
            case "hangs":
                await trio.sleep_forever()

    # -- HTTP/1.1 -----------------------------------------------------------------------------

    async def _serve_one(self, stream: "trio.SSLStream[trio.SocketStream]") -> None:
        buffer = b""
        while True:
            while b"\r\n\r\n" not in buffer:
                if not (more := await stream.receive_some()):
                    return
                buffer += more
            head, _, buffer = buffer.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split()[0])
            while len(buffer) < length:
                buffer += await stream.receive_some()
            query, buffer = buffer[:length], buffer[length:]
            self.note(query)
            fault = self.next_fault()
            async with trio.open_nursery() as nursery:

                async def until_it_leaves(scope: trio.CancelScope) -> None:
                    nonlocal buffer
                    more = await stream.receive_some()  # HTTP/1.1 without pipelining: the end
                    buffer += more
                    scope.cancel()

                if fault in ("late", "slow", "hangs"):
                    nursery.start_soon(until_it_leaves, nursery.cancel_scope)
                await self.wait(fault)
                nursery.cancel_scope.cancel()
            if fault == "garbage":
                return await stream.send_all(b"220 mx.test ESMTP\r\n")
            if fault in ("refused", "reset"):
                return
            status, kind, body = self.answer(query, fault)
            fields = f"HTTP/1.1 {status} Word\r\nContent-Type: {kind}\r\n"
            octets = f"{fields}Content-Length: {len(body)}\r\n\r\n".encode() + body
            if fault == "cut":
                return await stream.send_all(octets[: self._rng.randrange(len(octets))])
            for piece in self._pieces(octets):
                await stream.send_all(piece)
            if fault == "goaway":
                return

    def _pieces(self, octets: bytes) -> list[bytes]:
        at = self._rng.randrange(len(octets))
        return [piece for piece in (octets[:at], octets[at:]) if piece]

    # -- HTTP/2 -------------------------------------------------------------------------------

    async def _serve_two(self, stream: "trio.SSLStream[trio.SocketStream]") -> None:
        wire = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        wire.local_settings = h2.settings.Settings(
            client=False,
            initial_values={h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: self.streams_max},
        )
        wire.initiate_connection()
        bodies: dict[int, bytes] = {}
        writing = trio.Lock()

        async def flush() -> None:
            async with writing:
                if octets := wire.data_to_send():
                    for piece in self._pieces(octets):
                        await stream.send_all(piece)

        async def settle(number: int, query: bytes, scope: trio.CancelScope) -> None:
            fault = self.next_fault()
            await self.wait(fault)
            with suppress(h2.exceptions.ProtocolError):  # given up by the client
                match fault:
                    case "refused":
                        wire.reset_stream(number, h2.errors.ErrorCodes.REFUSED_STREAM)
                    case "reset":
                        wire.reset_stream(number, h2.errors.ErrorCodes.INTERNAL_ERROR)
                    case "garbage":
                        async with writing:
                            await stream.send_all(b"220 mx.test ESMTP\r\n" * 3)
                    case "cut":
                        wire.send_headers(number, [(":status", "200"), ("content-type", DNS)])
                        await flush()
                        return scope.cancel()
                    case _:
                        status, kind, body = self.answer(query, fault)
                        wire.send_headers(number, [(":status", status), ("content-type", kind)])
                        for start in range(0, len(body), 16_384):
                            last = start + 16_384 >= len(body)
                            wire.send_data(number, body[start : start + 16_384], end_stream=last)
                if fault == "goaway":
                    wire.close_connection(last_stream_id=number)
                    await flush()
                    await trio.sleep(0.02)
                    return scope.cancel()
            await flush()

        async with trio.open_nursery() as nursery:
            await flush()
            while octets := await stream.receive_some():
                for event in wire.receive_data(bytes(octets)):
                    match event:
                        case h2.events.RequestReceived():
                            bodies[event.stream_id] = b""
                        case h2.events.DataReceived():
                            bodies[event.stream_id] += event.data
                        case h2.events.StreamEnded():
                            query = bodies.pop(event.stream_id)
                            self.note(query)
                            nursery.start_soon(settle, event.stream_id, query, nursery.cancel_scope)
                await flush()
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_faulty(
    authority: trustme.CA, resolver: FaultyResolver
) -> AsyncIterator[FaultyResolver]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    context.set_alpn_protocols([resolver.protocol])
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    resolver.url = f"https://127.0.0.1:{listener.socket.getsockname()[1]}/dns-query"
    async with trio.open_nursery() as nursery:
        listeners = [trio.SSLListener(listener, context)]
        nursery.start_soon(trio.serve_listeners, resolver.serve, listeners)
        yield resolver
        nursery.cancel_scope.cancel()
