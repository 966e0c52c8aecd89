"""A conversation over a stream: the read clock, and what is left when it goes wrong."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio

from mailprobe.bench.world.fake_network import Cable, open_cable
from mailprobe.engine.smtp import wire
from mailprobe.engine.smtp.connection import QUIT_S, SmtpConnection
from mailprobe.engine.smtp.wire import (
    QUIT,
    ConnectionLost,
    Overdue,
    ReadTimedOut,
    RemoteProtocolError,
    Stage,
)

READ_S = 1.0
EHLO = wire.ehlo("probe.example.org")
MAIL = wire.mail("")
ANN, BOB, CY = (wire.rcpt(f"{name}@shop.test") for name in ("ann", "bob", "cy"))
GREETING = b"220 hello\r\n"
PIPELINING = b"250-mx.shop.test\r\n250 PIPELINING\r\n"
STEPS = {  # a stage -> what is said and heard to come there
    Stage.HELLO: [],
    Stage.READY: [(EHLO, PIPELINING)],
    Stage.MAIL: [(EHLO, PIPELINING), (MAIL, b"250 Ok\r\n")],
}

Script = list[tuple[float, bytes | None]]  # at which second the server sends what; None: it closes


def make() -> tuple[SmtpConnection, Cable]:
    client, server = open_cable()
    return SmtpConnection(client, READ_S), server


async def make_at(stage: Stage) -> tuple[SmtpConnection, Cable]:
    """A connection that came to this stage, where nothing is unanswered."""
    connection, server = make()
    await server.send_all(GREETING)
    await connection.receive_reply()
    for command, reply in STEPS[stage]:
        await connection.send(command)
        await server.send_all(reply)
        await connection.receive_reply()
    assert connection.usable
    return connection, server


@asynccontextmanager
async def playing(server: Cable, script: Script) -> AsyncIterator[None]:
    """The server follows its script; the seconds count from now."""
    began = trio.current_time()

    async def play() -> None:
        for at_s, octets in script:
            await trio.sleep_until(began + at_s)
            if octets is None:
                await server.aclose()
            else:
                await server.send_all(octets)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(play)
        yield
        nursery.cancel_scope.cancel()


# -- the read clock --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "ends_s"),
    [
        ([], 1.0),
        ([(1.001, b"550 No\r\n")], 1.0),
        ([(0.999, b"550 No\r\n")], None),
        ([(0.9, b"550 "), (0.99, b"No\r\n")], None),
        ([(0.5, b"550 "), (1.01, b"No\r\n")], 1.0),
        ([(0.1 * place, b"5") for place in range(1, 20)], 1.0),  # octets that drip in
        ([(0.3 * place, b"550-x\r\n") for place in range(1, 6)], 1.0),  # lines that drip in
    ],
)
async def test_a_reply_is_complete_within_a_second_of_its_command(autojump_clock, script, ends_s):
    """1000 ms from the write; dripping octets do not extend them."""
    connection, server = await make_at(Stage.MAIL)
    await trio.sleep(7)  # the clock begins with the command, not with the last reply
    began = trio.current_time()
    async with playing(server, script):
        await connection.send(ANN)
        if ends_s is None:
            assert (await connection.receive_reply()).command is ANN
            assert connection.usable
            return
        with pytest.raises(ReadTimedOut):
            await connection.receive_reply()
    assert trio.current_time() - began == pytest.approx(ends_s)
    assert not connection.usable


async def test_the_banner_has_a_second_from_the_connect(autojump_clock):
    connection, server = make()
    async with playing(server, [(1.1, GREETING)]):
        with pytest.raises(ReadTimedOut):
            await connection.receive_reply()
        assert trio.current_time() == pytest.approx(1.0)


async def test_each_pipelined_reply_has_its_second_from_the_one_before(autojump_clock):
    connection, server = await make_at(Stage.READY)
    script: Script = [
        (0.9, b"250 mail\r\n"),
        (1.8, b"250 ann\r\n"),
        (2.7, b"250 bob\r\n"),
        (3.71, b"250 cy, too late\r\n"),
    ]
    async with playing(server, script):
        await connection.send(MAIL, ANN, BOB, CY)
        for command, at_s in ((MAIL, 0.9), (ANN, 1.8), (BOB, 2.7)):
            assert (await connection.receive_reply()).command is command
            assert trio.current_time() == pytest.approx(at_s)
        with pytest.raises(ReadTimedOut):
            await connection.receive_reply()
        assert trio.current_time() == pytest.approx(3.7)
    assert not connection.usable


async def test_a_part_of_the_next_reply_does_not_move_its_clock(autojump_clock):
    connection, server = await make_at(Stage.READY)
    async with playing(server, [(0.5, b"250 mail\r\n250"), (1.4, b" a"), (1.6, b"nn\r\n")]):
        await connection.send(MAIL, ANN)
        await connection.receive_reply()
        with pytest.raises(ReadTimedOut):
            await connection.receive_reply()
        assert trio.current_time() == pytest.approx(1.5)


async def test_until_ends_the_wait_before_the_read_clock(autojump_clock):
    connection, server = await make_at(Stage.MAIL)
    async with playing(server, [(0.5, b"250 ann\r\n")]):
        await connection.send(ANN)
        with pytest.raises(Overdue):
            await connection.receive_reply(until=0.3)
        assert trio.current_time() == pytest.approx(0.3)
    assert not connection.usable


async def test_until_never_extends_the_read_clock(autojump_clock):
    connection, _ = await make_at(Stage.MAIL)
    await connection.send(ANN)
    with pytest.raises(ReadTimedOut):
        await connection.receive_reply(until=100)
    assert trio.current_time() == pytest.approx(1.0)


@pytest.mark.parametrize("late_s", [0.5, 1.0, 5.0])
async def test_a_reply_that_came_in_time_is_read_by_a_late_reader(autojump_clock, late_s):
    """Our own slowness is not the server's: what lies there is taken, at any time."""
    connection, server = await make_at(Stage.MAIL)
    await connection.send(ANN)
    await server.send_all(b"550 No ann\r\n")
    await trio.sleep(late_s)
    assert (await connection.receive_reply()).reply.code == 550
    assert connection.usable


async def test_a_late_reader_of_a_silent_server_waits_no_further_second(autojump_clock):
    connection, _ = await make_at(Stage.MAIL)
    await connection.send(ANN)
    await trio.sleep(5)
    with pytest.raises(ReadTimedOut):
        await connection.receive_reply()
    assert trio.current_time() <= 5.05


async def test_replies_that_came_together_are_heard_at_once(autojump_clock):
    connection, server = await make_at(Stage.READY)
    await connection.send(MAIL, ANN, BOB)
    assert connection.conversation.next_exchange() is None
    await server.send_all(b"250 mail\r\n550 ann\r\n250 b")
    assert (await connection.receive_reply()).command is MAIL
    turn = connection.conversation.next_exchange()
    assert turn is not None
    assert (turn.command, turn.reply.code) == (ANN, 550)
    assert connection.conversation.next_exchange() is None  # of the third a part has come
    await server.send_all(b"ob\r\n")
    assert (await connection.receive_reply()).command is BOB
    assert connection.usable


# -- writing ---------------------------------------------------------------------------------


class Clogged(trio.abc.Stream):
    """A stream whose other end takes nothing any more, or whose writes fail."""

    def __init__(self, stream: Cable, error: Exception | None = None) -> None:
        self._stream = stream
        self._error = error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self._error is not None:
            raise self._error
        await trio.sleep_forever()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.sleep_forever()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._stream.aclose()


async def make_clogged(error: Exception | None = None) -> tuple[SmtpConnection, Cable]:
    client, server = open_cable()
    connection = SmtpConnection(Clogged(client, error), READ_S)
    await server.send_all(GREETING)
    await connection.receive_reply()
    return connection, server


async def test_a_write_that_blocks_has_a_second(autojump_clock):
    connection, _ = await make_clogged()
    with pytest.raises(ReadTimedOut):
        await connection.send(EHLO)
    assert trio.current_time() == pytest.approx(1.0)
    assert not connection.usable


ERRORS = [trio.BrokenResourceError(), trio.ClosedResourceError(), ConnectionResetError(104, "x")]


@pytest.mark.parametrize("error", ERRORS)
async def test_last_words_are_heard_after_a_write_that_failed(autojump_clock, error):
    """The server said 421 and closed; our command came too late for it."""
    connection, server = await make_clogged(error)
    await server.send_all(b"421 4.3.2 Shutting down\r\n")
    await server.aclose()
    await connection.send(EHLO)
    turn = await connection.receive_reply()
    assert turn.reply.code == 421
    assert not connection.usable


@pytest.mark.parametrize("error", ERRORS)
async def test_a_write_that_failed_without_last_words_is_a_lost_connection(autojump_clock, error):
    connection, server = await make_clogged(error)
    await server.aclose()
    with pytest.raises(ConnectionLost):
        await connection.send(EHLO)
    assert not connection.usable


async def test_last_words_are_not_waited_for(autojump_clock):
    connection, _ = await make_clogged(ERRORS[0])
    with pytest.raises(ConnectionLost):
        await connection.send(EHLO)
    assert trio.current_time() <= 0.05


async def test_an_unsolicited_reply_does_not_answer_the_next_command(autojump_clock):
    connection, server = await make_at(Stage.READY)
    await connection.send(MAIL)
    await server.send_all(b"250 mail\r\n250 nobody asked\r\n")
    await connection.receive_reply()
    assert not connection.usable
    with pytest.raises(RemoteProtocolError):
        await connection.send(ANN)
    assert not connection.usable


# -- going wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ([(0.1, None)], ConnectionLost),
        ([(0.1, b"250 hal"), (0.2, None)], ConnectionLost),
        ([(0.1, b"HTTP/1.1 200 Ok\r\n")], RemoteProtocolError),
        ([(0.1, b"250-one\r\n550 two\r\n")], RemoteProtocolError),
        ([(0.1, b"250-x\r\n" * 101)], RemoteProtocolError),
        ([(0.1, b"x" * 20_000)], RemoteProtocolError),
        ([], ReadTimedOut),
    ],
)
async def test_after_any_failure_nothing_is_usable(autojump_clock, script, error):
    """A late reply finds nobody: the connection stays unusable, whatever comes."""
    connection, server = await make_at(Stage.MAIL)
    async with playing(server, script):
        await connection.send(ANN)
        with pytest.raises(error):
            await connection.receive_reply()
    assert not connection.usable
    try:
        await server.send_all(b"250 late\r\n")
        connection.conversation.receive(b"250 late\r\n")
        connection.conversation.next_exchange()
    except (trio.BrokenResourceError, trio.ClosedResourceError, RemoteProtocolError):
        pass
    assert not connection.usable


async def test_a_reset_is_a_lost_connection(autojump_clock):
    connection, server = await make_at(Stage.MAIL)
    await connection.send(ANN)
    server.reset()
    await server.aclose()
    with pytest.raises(ConnectionLost, match="reset"):
        await connection.receive_reply()
    assert not connection.usable


async def test_an_endless_reply_ends_at_its_bound(autojump_clock):
    connection, server = await make_at(Stage.MAIL)
    sent = 0
    async with trio.open_nursery() as nursery:

        async def pour() -> None:
            nonlocal sent
            while True:
                await server.send_all(b"250-" + b"x" * 996)
                sent += 1000
                await trio.sleep(0.0001)

        nursery.start_soon(pour)
        await connection.send(ANN)
        with pytest.raises(RemoteProtocolError):
            await connection.receive_reply()
        nursery.cancel_scope.cancel()
    assert sent < 64 * 1024


async def test_a_connection_that_hears_after_being_cancelled_is_not_usable(autojump_clock):
    connection, server = await make_at(Stage.MAIL)
    await connection.send(ANN)
    with trio.move_on_after(0.1):
        await connection.receive_reply()
    assert not connection.usable
    await server.send_all(b"550 No ann\r\n")
    assert not connection.usable


async def test_a_connection_whose_write_was_cancelled_is_not_usable(autojump_clock):
    connection, _ = await make_clogged()
    with trio.move_on_after(0.1):
        await connection.send(EHLO)
    assert not connection.usable


@pytest.mark.parametrize(
    ("commands", "reply", "usable"),
    [
        ((MAIL,), b"250 Ok\r\n", True),
        ((MAIL,), b"550 No\r\n", True),
        ((MAIL,), b"421 Bye\r\n", False),
        ((MAIL,), b"250 Ok\r\n2", False),
        ((MAIL,), b"250 Ok\r\n250 Ok\r\n", False),
        ((MAIL, ANN), b"250 Ok\r\n", False),
        ((wire.QUIT,), b"221 Bye\r\n", False),
    ],
)
async def test_usable_is_what_is_answered_read_and_open(autojump_clock, commands, reply, usable):
    connection, server = await make_at(Stage.READY)
    await connection.send(*commands)
    assert not connection.usable
    await server.send_all(reply)
    await connection.receive_reply()
    assert connection.usable is usable


# -- idling ----------------------------------------------------------------------------------


async def listen(connection: SmtpConnection) -> None:
    conversation = connection.conversation

    def listen_on() -> float | None:
        connection.read()
        if conversation.unread or conversation.lost:
            conversation.state.fail()
            return None
        return float("inf")

    await connection.follow(listen_on, float("inf"))


@pytest.mark.parametrize("script", [[(0.5, b"421 Timeout\r\n")], [(0.5, b"2")], [(0.5, None)]])
async def test_listening_ends_when_the_server_speaks_or_closes(autojump_clock, script):
    connection, server = await make_at(Stage.READY)
    async with playing(server, script):
        await listen(connection)
        assert trio.current_time() == pytest.approx(0.5)
    assert not connection.usable


async def test_listening_ends_at_a_reset(autojump_clock):
    connection, server = await make_at(Stage.READY)
    server.reset()
    await server.aclose()
    await listen(connection)
    assert not connection.usable


async def test_reading_can_resume_after_a_cancel(autojump_clock):
    connection, server = await make_at(Stage.READY)
    with trio.move_on_after(0.5):
        await listen(connection)
    assert connection.usable
    await connection.send(MAIL)
    await server.send_all(b"250 Ok\r\n")
    assert (await connection.receive_reply()).reply.positive


# -- the end ---------------------------------------------------------------------------------


async def read_to_the_end(server: Cable) -> bytes:
    octets = b""
    while more := await server.receive_some():
        octets += more
    return octets


@pytest.mark.parametrize("stage", list(STEPS))
async def test_quit_is_said_in_every_stage_and_its_answer_is_heard(autojump_clock, stage):
    connection, server = await make_at(stage)
    async with playing(server, [(0.2, b"221 Bye\r\n")]):
        await connection.quit()
        assert trio.current_time() == pytest.approx(0.2)
    assert (await read_to_the_end(server)).endswith(b"QUIT\r\n")
    assert not connection.usable


async def test_quit_is_said_after_a_refusal_at_the_door(autojump_clock):
    """RFC 5321 3.1: after a 554 only QUIT may come."""
    connection, server = make()
    async with playing(server, [(0, b"554 No\r\n"), (0.1, b"221 Bye\r\n")]):
        await connection.receive_reply()
        await connection.quit()
    assert await read_to_the_end(server) == b"QUIT\r\n"


@pytest.mark.parametrize("answer", [[(0.2, b"garbage\r\n")], [(0.2, None)], [(0.2, b"500 x\r\n")]])
async def test_quit_waits_a_moment_and_no_longer(autojump_clock, answer):
    connection, server = await make_at(Stage.READY)
    async with playing(server, answer):
        assert await connection.quit()
        assert trio.current_time() <= QUIT_S
    assert not connection.usable
    with pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):
        await server.send_all(b"late\r\n")  # either end has closed


@pytest.mark.parametrize("commands", [(QUIT,), (MAIL,), (MAIL, ANN), (wire.NOOP,)])
async def test_a_server_that_owes_a_reply_has_quit_where_a_group_may_end_with_it(
    autojump_clock, commands
):
    """It is not closed before the server ends its half, however late."""
    connection, server = await make_at(Stage.READY)
    await connection.send(*commands)
    assert not await connection.quit()
    assert trio.current_time() <= QUIT_S
    assert (await read_to_the_end(server)).endswith(b"QUIT\r\n") == (commands != (wire.NOOP,))
    async with playing(server, [(5, b"550 No such user\r\n221 Bye\r\n"), (0, None)]):
        assert not await connection.ended(1)
        assert await connection.ended(30)
    assert trio.current_time() == pytest.approx(5, abs=QUIT_S)
    assert not connection.usable


async def test_quit_is_not_said_before_the_banner(autojump_clock):
    connection, server = make()
    assert not await connection.quit()
    assert await read_to_the_end(server) == b""
    await connection.close()


@pytest.mark.parametrize("reply", [b"421 Bye\r\n", b"250 Ok\r\n250 Twice\r\n", b"garbage\r\n"])
async def test_quit_is_not_said_to_who_closes_or_is_out_of_step(autojump_clock, reply):
    connection, server = await make_at(Stage.READY)
    await connection.send(MAIL)
    await server.send_all(reply)
    with suppress(RemoteProtocolError):
        await connection.receive_reply()
    await connection.quit()
    assert b"QUIT" not in await read_to_the_end(server)


async def test_quit_that_is_cancelled_still_closes(autojump_clock):
    connection, server = await make_at(Stage.READY)
    with trio.move_on_after(0.1):
        await connection.quit()
    assert await read_to_the_end(server)  # to its end: it was closed
    assert not connection.usable


@pytest.mark.parametrize(
    ("commands", "written"), [((), b""), ((EHLO,), b"EHLO probe.example.org\r\n")]
)
async def test_close_never_blocks_and_never_speaks(autojump_clock, commands, written):
    connection, server = await make_at(Stage.HELLO)
    if commands:
        await connection.send(*commands)
    await connection.close()
    assert trio.current_time() == 0
    assert await read_to_the_end(server) == written
    assert not connection.usable
