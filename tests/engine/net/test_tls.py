"""TLS over a line: on real sockets, and in memory under virtual time."""

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from mailprobe.bench.world.fake_network import Cable, open_cable
from mailprobe.bench.world.tls import UpgradableStream, server_context
from mailprobe.engine.net.reactor import SocketChannel, open_reactor
from mailprobe.engine.net.tls import client_context
from mailprobe.engine.smtp import wire
from mailprobe.engine.smtp.connection import SmtpConnection
from mailprobe.engine.smtp.wire import (
    ConnectionLost,
    LocalProtocolError,
    Overdue,
    ReadTimedOut,
    RemoteProtocolError,
    Stage,
)

EHLO = wire.ehlo("probe.example.org")
MAIL = wire.mail("")
ANN = wire.rcpt("ann@shop.test")
OFFER = b"250-mx.shop.test\r\n250-PIPELINING\r\n250 STARTTLS\r\n"
READY = b"220 2.0.0 Ready to start TLS\r\n"


class Server:
    """The other end, which says what a test has it say."""

    def __init__(self, stream: trio.abc.Stream, context: ssl.SSLContext | None = None) -> None:
        self.stream = UpgradableStream(stream, context)

    async def send(self, octets: bytes) -> None:
        await self.stream.send_all(octets)

    async def receive(self) -> bytes:
        return bytes(await self.stream.receive_some(4096))


async def come_to_handshake(connection: SmtpConnection, server: Server) -> None:
    """Up to the reply to STARTTLS, which is heard."""
    await server.send(b"220 hello\r\n")
    await connection.receive_reply()
    for command, reply in ((EHLO, OFFER), (wire.STARTTLS, READY)):
        await connection.send(command)
        assert await server.receive() == f"{command.line}\r\n".encode()
        await server.send(reply)
        await connection.receive_reply()


async def secure(connection: SmtpConnection, server: Server) -> str:
    await come_to_handshake(connection, server)
    version = ""

    async def start_tls() -> None:
        nonlocal version
        version = await connection.start_tls()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start_tls)
        nursery.start_soon(server.stream.start_tls)
    return version


@asynccontextmanager
async def in_memory(
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[SmtpConnection, Server]]:
    client, theirs = open_cable()
    yield SmtpConnection(client, 1.0), Server(theirs, context)


@asynccontextmanager
async def on_sockets(
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[SmtpConnection, Server]]:
    async with open_reactor() as lines:
        assert lines is not None
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        stream = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        theirs = await listener.accept()
        await listener.aclose()
        line = lines.open_channel(stream)
        assert isinstance(line, SocketChannel)
        connection = SmtpConnection(line, 10.0)
        yield connection, Server(theirs, context)
        await connection.close()
        await theirs.aclose()


either = pytest.mark.parametrize("open_both", [in_memory, on_sockets])
Opened = Callable[..., AsyncIterator[tuple[SmtpConnection, Server]]]


# -- a conversation within TLS ---------------------------------------------------------------


@either
async def test_a_conversation_goes_on_within_tls(open_both):
    async with open_both() as (connection, server):
        assert await secure(connection, server) == "TLS 1.3"
        assert connection.conversation.state.stage is Stage.HELLO
        for command, reply in (
            (EHLO, b"250 hello\r\n"),
            (MAIL, b"250 Ok\r\n"),
            (ANN, b"550 No\r\n"),
        ):
            await connection.send(command)
            assert await server.receive() == f"{command.line}\r\n".encode()
            await server.send(reply)
            assert str((await connection.receive_reply()).reply) == reply.decode().strip()
        assert connection.usable


@either
async def test_replies_that_come_in_one_record_are_all_heard(open_both):
    async with open_both() as (connection, server):
        await secure(connection, server)
        await connection.send(EHLO)
        await server.send(OFFER)
        await connection.receive_reply()
        await connection.send(MAIL, ANN, ANN)
        await server.send(b"250 Ok\r\n550 No\r\n250 Yes\r\n")
        assert [(await connection.receive_reply()).reply.code for _ in range(3)] == [250, 550, 250]


@either
async def test_a_reply_of_many_records_is_heard_whole(open_both):
    async with open_both() as (connection, server):
        await secure(connection, server)
        await connection.send(EHLO)
        for _ in range(90):
            await server.send(b"250-" + b"x" * 170 + b"\r\n")
        await server.send(b"250 SMTPUTF8\r\n")
        assert len((await connection.receive_reply()).reply.lines) == 91


@either
async def test_tls_octets_that_arrive_during_a_wait_are_received_without_waking(open_both):
    """A session's replies are taken where they arrive; within TLS, too, where the line can."""
    async with open_both() as (connection, server):
        await secure(connection, server)
        await connection.send(EHLO)
        received = []

        def go_on() -> float | None:
            connection.read()
            turn = connection.conversation.next_exchange()
            if turn is None:
                deadline: float | None = connection.conversation.deadline()
                return deadline
            received.append(turn.reply.code)
            return None

        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.follow, go_on, connection.conversation.deadline())
            await trio.testing.wait_all_tasks_blocked()
            await server.send(b"250 hello\r\n")
        assert received == [250]


@either
@pytest.mark.parametrize("polite", [True, False], ids=["close_notify", "end"])
async def test_an_end_within_tls_is_a_lost_connection(open_both, polite):
    async with open_both() as (connection, server):
        await secure(connection, server)
        await connection.send(EHLO)
        await server.send(b"421 bye\r\n")
        await (server.stream if polite else server.stream.plain).aclose()
        assert (await connection.receive_reply()).reply.code == 421
        await connection.close()


@either
@pytest.mark.parametrize("polite", [True, False], ids=["close_notify", "end"])
async def test_an_end_within_tls_instead_of_a_reply_is_a_lost_connection(open_both, polite):
    async with open_both() as (connection, server):
        await secure(connection, server)
        await connection.send(EHLO)
        await server.receive()
        await (server.stream if polite else server.stream.plain).aclose()
        with pytest.raises(ConnectionLost):
            await connection.receive_reply()
        assert not connection.usable


@either
async def test_octets_that_are_no_tls_within_tls_are_a_lost_connection(open_both):
    async with open_both() as (connection, server):
        await secure(connection, server)
        await connection.send(EHLO)
        await server.stream.plain.send_all(b"250 hello, in plain text\r\n")
        with pytest.raises(ConnectionLost):
            await connection.receive_reply()
        assert not connection.usable


@either
async def test_quit_is_said_within_tls(open_both):
    async with open_both() as (connection, server):
        await secure(connection, server)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.quit)
            assert await server.receive() == b"QUIT\r\n"
            await server.send(b"221 Bye\r\n")


# -- whoever the server is -------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@pytest.mark.parametrize("version", ["TLSv1", "TLSv1_1", "TLSv1_2", "TLSv1_3"])
async def test_every_version_of_tls_will_do(version):
    context = server_context.__wrapped__()
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    context.set_ciphers("ALL:@SECLEVEL=0")
    async with in_memory(context) as (connection, server):
        words = await secure(connection, server)
        assert words.replace("TLS ", "TLSv").replace(".", "_") in (version, f"{version}_0")


def test_no_server_makes_us_compute_with_a_group_of_its_own():
    """Finite-field Diffie-Hellman of 8192 bits takes half a second of everybody's time."""
    assert not [c["name"] for c in client_context().get_ciphers() if c["kea"] == "kx-dhe"]


async def test_a_server_that_sends_session_tickets_without_end_is_given_up():
    """Each costs us a moment of everybody's time, and there is no word in them."""
    context = server_context.__wrapped__()
    context.num_tickets = 2_000
    async with in_memory(context) as (connection, server):
        await secure(connection, server)
        await connection.send(EHLO)
        await server.send(b"250 hello\r\n")
        with pytest.raises(ConnectionLost):
            await connection.receive_reply()
        assert not connection.usable


async def test_a_handshake_without_end_is_given_up(autojump_clock):
    """HelloRequest may be said at any time, and is passed over; no clock ends what never pauses."""
    async with in_memory() as (connection, server):
        await come_to_handshake(connection, server)
        await server.send(b"\x16\x03\x03\x00\x04\x00\x00\x00\x00" * 50_000)
        with pytest.raises(RemoteProtocolError, match="without a word"):
            await connection.start_tls()


# -- when there is no TLS --------------------------------------------------------------------


async def test_plain_text_behind_the_reply_to_starttls_ends_the_connection(autojump_clock):
    """It was injected by whoever sits between us, to be taken for what is said within TLS."""
    client, theirs = open_cable()
    connection = SmtpConnection(client, 1.0)
    server = Server(theirs)
    await server.send(b"220 hello\r\n")
    await connection.receive_reply()
    await connection.send(EHLO)
    await server.send(OFFER)
    await connection.receive_reply()
    await connection.send(wire.STARTTLS)
    await server.send(READY + b"250-mx.shop.test\r\n250 PIPELINING\r\n")
    await connection.receive_reply()
    with pytest.raises(RemoteProtocolError):
        await connection.start_tls()
    assert not connection.usable


@pytest.mark.parametrize(
    ("octets", "error"),
    [
        (b"", ReadTimedOut),
        (b"\x16\x03\x03", ReadTimedOut),  # the beginning of a record
        (b"220 hello again\r\n", RemoteProtocolError),
        (b"\x00" * 100, RemoteProtocolError),
        (b"\x15\x03\x03\x00\x02\x02\x28", RemoteProtocolError),  # an alert: handshake failure
        (None, ConnectionLost),
    ],
)
async def test_a_handshake_that_fails(autojump_clock, octets, error):
    async with in_memory() as (connection, server):
        await come_to_handshake(connection, server)
        began = trio.current_time()
        if octets is None:
            await server.stream.aclose()
        else:
            await server.send(octets)
        with pytest.raises(error) as raised:
            await connection.start_tls()
        assert not isinstance(raised.value, Overdue)
        assert trio.current_time() - began == (1.0 if error is ReadTimedOut else 0.0)
        assert not connection.usable


async def test_a_reset_in_the_handshake_is_a_lost_connection(autojump_clock):
    async with in_memory() as (connection, server):
        await come_to_handshake(connection, server)
        assert isinstance(server.stream.plain, Cable)
        server.stream.reset()
        await server.stream.aclose()
        with pytest.raises(ConnectionLost):
            await connection.start_tls()


async def test_the_handshake_ends_with_the_overall_clock(autojump_clock):
    async with in_memory() as (connection, server):
        await come_to_handshake(connection, server)
        with pytest.raises(Overdue):
            await connection.start_tls(until=trio.current_time() + 0.4)


async def test_octets_that_drip_in_do_not_extend_the_handshake(autojump_clock):
    async with in_memory() as (connection, server):
        await come_to_handshake(connection, server)
        began = trio.current_time()

        async def drip() -> None:
            for octet in b"\x16\x03\x03\x20\x00\x02" + b"\x00" * 100:
                await server.send(bytes([octet]))
                await trio.sleep(0.3)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(drip)
            with pytest.raises((ReadTimedOut, RemoteProtocolError)):
                await connection.start_tls()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began <= 1.0


class Prompt(trio.abc.Stream):
    """A server of TLS 1.2 that answers each write at once, and goes on after the handshake."""

    def __init__(self, words: bytes) -> None:
        context = server_context.__wrapped__()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._words = words

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        self._tls.write(self._words)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        return self._outgoing.read()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_octets_sent_with_the_end_of_the_handshake_are_not_the_reply_to_ehlo(autojump_clock):
    """A second banner, as some servers have it."""
    connection = SmtpConnection(Prompt(b"220 hello again\r\n"), 1.0)
    conversation = connection.conversation
    for command, reply in ((None, b"220 hello\r\n"), (EHLO, OFFER), (wire.STARTTLS, READY)):
        if command is not None:
            conversation.send(command)
        conversation.receive(reply)
        assert conversation.next_exchange() is not None
    assert await connection.start_tls() == "TLS 1.2"
    assert not connection.usable
    with pytest.raises(RemoteProtocolError):
        await connection.send(EHLO)


async def test_tls_without_the_servers_agreement_is_our_mistake(autojump_clock):
    async with in_memory() as (connection, _):
        with pytest.raises(LocalProtocolError):
            await connection.start_tls()


async def test_a_handshake_that_is_cancelled_leaves_nothing_usable(autojump_clock):
    async with in_memory() as (connection, server):
        await come_to_handshake(connection, server)
        with trio.move_on_after(0.5):
            await connection.start_tls()
        assert not connection.usable
