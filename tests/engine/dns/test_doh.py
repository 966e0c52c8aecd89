"""The transport's connections on real sockets: silence, refusals, HTTP/1.1, ends of every kind."""

import ssl
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import pytest
import trio

from mailprobe.engine.dns import connection, endpoint, http2
from mailprobe.engine.dns.doh import open_transport
from mailprobe.engine.dns.endpoint import TRIES_MAX
from mailprobe.engine.dns.messages import encode_query
from mailprobe.engine.dns.response import TransportFailed

QUESTION = encode_query("shop.test", "MX")
DNS = "application/dns-message"


@dataclass
class Server:
    """Answers each question with its own octets, over the protocol that TLS agrees on."""

    url: str = ""
    silent_connections: int = 0  # so many of the first never say a word after the handshake
    refused: int = 0  # so many questions are refused first
    streams_max: int = 100
    lasts: int = 1_000_000  # answers of one HTTP/1.1 connection
    leaves: bool = False  # it says GOAWAY to each question of HTTP/2
    slow: trio.Event | None = None  # answers wait for it
    connections: int = 0
    open_now: int = 0
    at_once: int = 0
    questions: int = 0
    resets: list[int] = field(default_factory=list)
    streams: set[trio.SSLStream[trio.SocketStream]] = field(default_factory=set)

    async def serve(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        self.connections += 1
        self.open_now += 1
        self.streams.add(stream)
        silent = self.connections <= self.silent_connections
        try:
            await stream.do_handshake()
            if silent:
                while await stream.receive_some():
                    pass
            elif stream.selected_alpn_protocol() == "h2":
                await self.serve_two(stream)
            else:
                await self.serve_one(stream)
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)
            self.open_now -= 1
            self.streams.discard(stream)

    async def cut(self) -> None:
        """Close all connections, as a resolver does now and then."""
        for stream in list(self.streams):
            await trio.aclose_forcefully(stream)

    async def serve_one(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        buffer = b""
        for _ in range(self.lasts):
            while len(buffer.partition(b"\r\n\r\n")[2]) < len(QUESTION):
                if not (more := await stream.receive_some()):
                    return
                buffer += more
            _, _, buffer = buffer.partition(b"\r\n\r\n")
            body, buffer = buffer[: len(QUESTION)], buffer[len(QUESTION) :]
            self.questions += 1
            if self.slow is not None:
                await self.slow.wait()
            reply = f"HTTP/1.1 200 OK\r\nContent-Type: {DNS}\r\nContent-Length: {len(body)}\r\n\r\n"
            await stream.send_all(reply.encode() + body)

    async def serve_two(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        wire = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        wire.local_settings = h2.settings.Settings(
            client=False,
            initial_values={h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: self.streams_max},
        )
        wire.initiate_connection()
        bodies: dict[int, bytes] = {}
        waiting: list[int] = []
        writing = trio.Lock()

        async def flush() -> None:
            async with writing:
                await stream.send_all(wire.data_to_send())

        async def release() -> None:
            assert self.slow is not None
            await self.slow.wait()
            for number in waiting:
                self.answer(wire, number, bodies[number])
            await flush()

        async with trio.open_nursery() as nursery:
            if self.slow is not None:
                nursery.start_soon(release)
            await flush()
            while octets := await stream.receive_some():
                ended = []
                for event in wire.receive_data(bytes(octets)):
                    match event:
                        case h2.events.RequestReceived():
                            bodies[event.stream_id] = b""
                            self.at_once = max(self.at_once, wire.open_inbound_streams)
                        case h2.events.DataReceived():
                            bodies[event.stream_id] += event.data
                        case h2.events.StreamEnded():
                            ended.append(event.stream_id)
                        case h2.events.StreamReset():
                            self.resets.append(event.stream_id)
                if ended and self.leaves:
                    wire.close_connection(last_stream_id=0)
                    await flush()
                    break
                for number in ended:
                    self.questions += 1
                    if self.refused:
                        self.refused -= 1
                        wire.reset_stream(number, h2.errors.ErrorCodes.REFUSED_STREAM)
                    elif self.slow is not None and not self.slow.is_set():
                        waiting.append(number)
                    else:
                        self.answer(wire, number, bodies[number])
                await flush()
            nursery.cancel_scope.cancel()

    def answer(self, wire: h2.connection.H2Connection, number: int, body: bytes) -> None:
        with suppress(h2.exceptions.ProtocolError):  # given up by the client
            wire.send_headers(number, [(":status", "200"), ("content-type", DNS)])
            wire.send_data(number, body, end_stream=True)


@asynccontextmanager
async def open_server(authority, *protocols: str, **more):
    server = Server(**more)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    if protocols:
        context.set_alpn_protocols(list(protocols))
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    server.url = f"https://127.0.0.1:{listener.socket.getsockname()[1]}/dns-query"
    async with trio.open_nursery() as nursery:
        listeners = [trio.SSLListener(listener, context)]
        nursery.start_soon(trio.serve_listeners, server.serve, listeners)
        with trio.fail_after(20):
            yield server
        nursery.cancel_scope.cancel()


async def until(condition) -> None:
    while not condition():  # noqa: ASYNC110 - of what others see on their sockets
        await trio.sleep(0.005)


async def exchange_many(transport, server, count: int) -> int:
    answered = 0

    async def account() -> None:
        nonlocal answered
        octets = await transport.exchange(server.url, QUESTION)
        answered += octets == QUESTION

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(account)
    return answered


@pytest.fixture
def quick_clocks(monkeypatch):
    """The clocks of silence, ten times as fast."""
    monkeypatch.setattr(connection, "SILENCE_S", 0.3)
    monkeypatch.setattr(connection, "PING_S", 0.1)
    monkeypatch.setattr(connection, "TICK_S", 0.02)


@pytest.mark.parametrize("protocols", [("http/1.1",), ()])
async def test_where_tls_agrees_on_no_http_2_some_connections_carry_all(
    authority, ca_file, monkeypatch, protocols
):
    monkeypatch.setattr(
        connection, "HANDSHAKE_S", 10
    )  # 32 at once, and both sides of each are ours
    async with (
        open_server(authority, *protocols) as server,
        open_transport(ca_file) as transport,
    ):
        assert await exchange_many(transport, server, 1) == 1
        for _ in range(3):
            assert await exchange_many(transport, server, 5 * endpoint.CONNECTIONS_MAX) == (
                5 * endpoint.CONNECTIONS_MAX
            )
        assert server.connections <= endpoint.CONNECTIONS_MAX


async def test_one_question_after_the_other_takes_one_connection(authority, ca_file):
    async with (
        open_server(authority, "http/1.1") as server,
        open_transport(ca_file) as transport,
    ):
        for _ in range(10):
            await transport.exchange(server.url, QUESTION)
        assert server.connections == 1


async def test_a_connection_that_ended_while_idle_costs_no_try(authority, ca_file, monkeypatch):
    monkeypatch.setattr(endpoint, "TRIES_MAX", 1)
    async with (
        open_server(authority, "http/1.1", lasts=1) as server,
        open_transport(ca_file) as transport,
    ):
        for _ in range(4):
            assert await transport.exchange(server.url, QUESTION) == QUESTION
            await until(lambda: not server.open_now)


async def test_no_more_queries_at_a_time_than_the_server_allows(authority, ca_file):
    async with (
        open_server(authority, "h2", streams_max=5) as server,
        open_transport(ca_file) as transport,
    ):
        await transport.exchange(server.url, QUESTION)  # so that we know how many
        assert await exchange_many(transport, server, 100) == 100
        assert server.at_once == 5
        assert server.connections == 1


@pytest.mark.parametrize(("refused", "answered"), [(TRIES_MAX - 1, True), (TRIES_MAX, False)])
async def test_a_refused_query_is_repeated_a_few_times(authority, ca_file, refused, answered):
    async with (
        open_server(authority, "h2", refused=refused) as server,
        open_transport(ca_file) as transport,
    ):
        if answered:
            assert await transport.exchange(server.url, QUESTION) == QUESTION
        else:
            with pytest.raises(TransportFailed, match="no more questions"):
                await transport.exchange(server.url, QUESTION)
        assert server.questions == TRIES_MAX
        assert server.connections == 1


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
async def test_a_silent_connection_is_replaced(authority, ca_file, quick_clocks, protocol):
    async with (
        open_server(authority, protocol, silent_connections=1) as server,
        open_transport(ca_file) as transport,
    ):
        assert await transport.exchange(server.url, QUESTION) == QUESTION
        assert server.connections == 2


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
async def test_an_endpoint_that_is_silent_each_time_has_failed(
    authority, ca_file, quick_clocks, protocol
):
    async with (
        open_server(authority, protocol, silent_connections=100) as server,
        open_transport(ca_file) as transport,
    ):
        with pytest.raises(TransportFailed, match="silent"):
            await transport.exchange(server.url, QUESTION)
        assert server.connections == TRIES_MAX


async def test_a_slow_answer_is_no_silence_where_the_connection_lives(
    authority, ca_file, quick_clocks
):
    """It answers our PINGs: the resolver is at work, and no connection is thrown away."""
    slow = trio.Event()
    async with (
        open_server(authority, "h2", slow=slow) as server,
        open_transport(ca_file) as transport,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(transport.exchange, server.url, QUESTION)
        await trio.sleep(3 * connection.SILENCE_S)
        slow.set()
        await until(lambda: not nursery.child_tasks)
        assert server.connections == 1


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
async def test_no_question_is_under_way_for_ever(
    authority, ca_file, quick_clocks, monkeypatch, protocol
):
    monkeypatch.setattr(connection, "SILENCE_S", 60)
    async with (
        open_server(authority, protocol, slow=trio.Event()) as server,
        open_transport(ca_file) as transport,
    ):
        reported: list[object] = []
        transport.begin(server.url, QUESTION, reported.append)
        await until(lambda: server.questions)
        monkeypatch.setattr(connection, "EXCHANGE_S", 0.2)
        await until(lambda: reported)
        assert isinstance(reported[0], TransportFailed)
        assert "too slow" in str(reported[0])
        if protocol == "h2":
            await until(lambda: server.resets)
        server.slow.set()
        monkeypatch.undo()
        assert await transport.exchange(server.url, QUESTION) == QUESTION
        assert server.connections == (1 if protocol == "h2" else 2)


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
async def test_idle_connections_are_closed(authority, ca_file, quick_clocks, monkeypatch, protocol):
    monkeypatch.setattr(connection, "IDLE_S", 0.2)
    async with (
        open_server(authority, protocol) as server,
        open_transport(ca_file) as transport,
    ):
        await exchange_many(transport, server, 5)
        await until(lambda: not server.open_now)
        assert await exchange_many(transport, server, 5) == 5


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
async def test_a_question_that_is_given_up_frees_its_place_at_once(authority, ca_file, protocol):
    """Its stream is reset, its connection of HTTP/1.1 closed; others are asked in its place."""
    slow = trio.Event()
    async with (
        open_server(authority, protocol, slow=slow, streams_max=5) as server,
        open_transport(ca_file) as transport,
    ):
        most = 5 if protocol == "h2" else endpoint.CONNECTIONS_MAX
        reported: list[object] = []
        hung = [transport.begin(server.url, QUESTION, reported.append) for _ in range(most)]
        await until(lambda: server.questions == most)
        answered: list[Any] = []
        for _ in range(3):
            transport.begin(server.url, QUESTION, answered.append)
        for give_up in hung:
            give_up()
        await until(lambda: server.questions == most + 3)
        if protocol == "h2":
            await until(lambda: len(server.resets) == most)
            assert server.connections == 1
        else:
            assert server.connections == most + 3
        slow.set()
        await until(lambda: len(answered) == 3)
        if protocol != "h2":
            await until(lambda: server.open_now == 3)
        assert [answer.octets for answer in answered] == [QUESTION] * 3
        assert reported == []


async def test_a_connection_with_many_resets_is_replaced_before_the_server_hangs_up(
    authority, ca_file, monkeypatch
):
    monkeypatch.setattr(http2, "RESETS_MAX", 3)
    monkeypatch.setattr(endpoint, "RETIRE_S", 0.2)
    slow = trio.Event()
    async with (
        open_server(authority, "h2", slow=slow, streams_max=8) as server,
        open_transport(ca_file) as transport,
    ):
        answered: list[Any] = []
        transport.begin(server.url, QUESTION, answered.append)
        for number in range(20):
            give_up = transport.begin(server.url, QUESTION, answered.append)
            await until(lambda number=number: server.questions == number + 2)
            give_up()
        await until(lambda: server.connections >= 3)
        assert len(server.resets) <= 3 * server.connections
        slow.set()
        await until(lambda: len(answered) == 1)
        await until(lambda: server.open_now == 1)  # the others retired


async def test_an_endpoint_that_ends_all_its_connections_is_left_alone_for_a_while(
    authority, ca_file, monkeypatch
):
    """A resolver in a loop of GOAWAYs must not make us shake hands all day."""
    monkeypatch.setattr(connection, "EARLY_CLOSE_S", 20)
    async with (
        open_server(authority, "h2", leaves=True) as server,
        open_transport(ca_file) as transport,
    ):
        for _ in range(20):
            with pytest.raises(TransportFailed):
                await transport.exchange(server.url, QUESTION)
        # One more may be begun before the last has ended.
        assert endpoint.EARLY_CLOSES_MAX <= server.connections <= endpoint.EARLY_CLOSES_MAX + 1
        server.leaves = False
        monkeypatch.setattr(endpoint, "EARLY_CLOSES_BACKOFF_S", 0)
        assert await transport.exchange(server.url, QUESTION) == QUESTION


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
async def test_an_endpoint_with_many_hung_names_is_not_left_alone(
    authority, ca_file, quick_clocks, monkeypatch, protocol
):
    """Connections that we end over names that hang say nothing against the endpoint."""
    monkeypatch.setattr(connection, "EARLY_CLOSE_S", 20)
    slow = trio.Event()
    async with (
        open_server(authority, protocol, slow=slow) as server,
        open_transport(ca_file) as transport,
    ):
        failed: list[object] = []
        for _ in range(2 * endpoint.EARLY_CLOSES_MAX):
            transport.begin(server.url, QUESTION, failed.append)
        if protocol == "http/1.1":
            await until(lambda: len(failed) == 2 * endpoint.EARLY_CLOSES_MAX)  # silent, each time
        slow.set()
        assert await transport.exchange(server.url, QUESTION) == QUESTION


async def test_a_silent_connection_is_found_out_whoever_gives_up(authority, ca_file, quick_clocks):
    """Callers that give up sooner than the silence lasts must not keep a dead connection alive."""
    async with (
        open_server(authority, "h2", silent_connections=1) as server,
        open_transport(ca_file) as transport,
    ):
        while server.connections < 2:
            with trio.move_on_after(0.05):
                await transport.exchange(server.url, QUESTION)
        assert await transport.exchange(server.url, QUESTION) == QUESTION


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
async def test_a_caller_that_gives_up_takes_nothing_from_the_others(authority, ca_file, protocol):
    slow = trio.Event()
    async with (
        open_server(authority, protocol, slow=slow) as server,
        open_transport(ca_file) as transport,
        trio.open_nursery() as nursery,
    ):
        deferred_start = []

        async def wait_for_it() -> None:
            deferred_start.append(await transport.exchange(server.url, QUESTION))

        nursery.start_soon(wait_for_it)
        await until(lambda: server.questions)
        with trio.move_on_after(0.02) as limit:
            await exchange_many(transport, server, 10)
        assert limit.cancelled_caught
        nursery.start_soon(wait_for_it)
        slow.set()
        await until(lambda: len(deferred_start) == 2)
        assert deferred_start == [QUESTION] * 2
        assert await exchange_many(transport, server, 10) == 10


async def test_a_connection_half_made_serves_the_next_question(authority, ca_file):
    async with (
        open_server(authority, "h2") as server,
        open_transport(ca_file) as transport,
    ):
        with trio.move_on_after(0):
            await transport.exchange(server.url, QUESTION)
        assert await transport.exchange(server.url, QUESTION) == QUESTION
        assert server.connections == 1


async def test_an_endpoint_that_never_shakes_hands_fails_all_who_wait(ca_file, monkeypatch):
    monkeypatch.setattr(connection, "HANDSHAKE_S", 0.1)
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener, open_transport(ca_file) as transport:
        url = f"https://127.0.0.1:{listener.socket.getsockname()[1]}/q"
        failed = []

        async def account() -> None:
            with pytest.raises(TransportFailed, match="handshake was too slow"):
                await transport.exchange(url, QUESTION)
            failed.append(1)

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(account)
        assert len(failed) == 5


async def test_callers_that_wait_when_the_transport_closes_get_an_error(authority, ca_file):
    reported: list[object] = []
    async with open_server(authority, "h2", slow=trio.Event()) as server:
        async with open_transport(ca_file) as transport:
            transport.begin(server.url, QUESTION, reported.append)
            await until(lambda: server.questions)
            transport.begin(server.url, QUESTION, reported.append)
        transport.begin(server.url, QUESTION, reported.append)
        await until(lambda: not server.open_now)
    assert [str(failed) for failed in reported] == ["the transport is closed"] * 3


async def test_an_abandoned_query_is_not_reported(authority, ca_file):
    reported: list[object] = []
    async with (
        open_server(authority, "h2") as server,
        open_transport(ca_file) as transport,
    ):
        transport.begin(server.url, QUESTION, reported.append)()
        assert await transport.exchange(server.url, QUESTION) == QUESTION
    assert reported == []


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
@pytest.mark.parametrize("steps", range(0, 40, 3))
async def test_closing_after_any_number_of_steps_leaves_no_socket(
    authority, ca_file, protocol, steps
):
    """A socket that is left is closed by the collector, whose warning is an error here."""
    async with open_server(authority, protocol) as server:
        async with open_transport(ca_file) as transport:
            for _ in range(3):
                transport.begin(server.url, QUESTION, lambda _: None)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
        await until(lambda: not server.open_now)
