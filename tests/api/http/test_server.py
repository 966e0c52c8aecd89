"""The HTTP server on real sockets: its limits, and how it drains and ends."""

import gc
import signal
import socket
import subprocess
import sys
import tracemalloc
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import pytest
import trio

from mailprobe.api.http.listeners import listeners_on, open_sockets
from mailprobe.api.http.server import serve_app
from mailprobe.api.http.shared import ACCEPTED_MAX, Limits
from tests.api.raw_http import (
    LIMITS,
    Serving,
    Streaming,
    connected,
    error_body,
    hello,
    read_body,
    respond,
    serving,
)

GET = "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"
POST = "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\n"


# -- the end ----------------------------------------------------------------------------------


async def test_an_open_stream_ends_whole_and_nobody_else_is_let_in():
    stream = Streaming()
    async with serving(stream) as server, server.connect() as raw:
        await raw.send(GET)
        await raw.head()
        server.drain.set()
        await refused(server)
        stream.put.send_nowait(b"one\n")
        assert await raw.chunk() == b"one\n"
        stream.put.close()
        assert await raw.chunk() == b""
        await raw.assert_closed()
        await server.assert_ends(within_s=1.0)


async def refused(server: Serving) -> None:
    """Wait until the server refuses connections."""
    with trio.fail_after(5):
        while True:
            try:
                async with server.connect():
                    await trio.lowlevel.checkpoint()
            except OSError:
                return


async def test_an_answer_while_draining_says_that_the_connection_ends():
    begun, go_on = trio.Event(), trio.Event()

    async def app(scope, receive, send):
        begun.set()
        await go_on.wait()
        await respond(send)

    async with serving(app) as server, server.connect() as raw:
        await raw.send(GET)
        await begun.wait()
        server.drain.set()
        await refused(server)
        go_on.set()
        assert (await raw.answer()).headers["connection"] == "close"
        await raw.assert_closed()


async def test_a_request_that_takes_too_long_is_cut_off():
    stream = Streaming()
    async with serving(stream, drain_s=0.2) as server, server.connect() as raw:
        await raw.send(GET)
        await raw.head()
        await server.assert_ends(within_s=1.0)
        assert stream.ended.is_set()
        assert not stream.whole
        assert await raw.rest() == b""  # no last chunk: the answer is visibly incomplete


SLOW = {
    "says nothing": "",
    "has had its answer": GET,
    "stops in the head": "GET / HT",
    "stops in the body": POST + "he",
    "stops in a second head": GET + "GET / HT",
}


@pytest.mark.parametrize("said", SLOW.values(), ids=SLOW)
async def test_no_client_holds_the_end_up(said):
    """Half a head gets one more second, half a body gets `body_s`, here 0.5 s."""

    async def app(scope, receive, send):
        await read_body(receive)
        await respond(send)

    limits: dict[str, Any] = {"drain_s": 30.0, "keep_alive_s": 30.0, "head_s": 30.0, "body_s": 0.5}
    async with serving(app, **limits) as server, server.connect() as raw:
        await raw.send(said)
        if said.startswith(GET):
            await raw.answer()
        await server.assert_ends(within_s=3.0)


PROGRAM = """
import sys, trio
from functools import partial
from mailprobe.api.http.shared import (ACCEPTED_MAX, Limits)
from mailprobe.api.http.server import (drain_on_signals, serve_app)
from mailprobe.api.http.listeners import listeners_on, open_sockets
from tests.api.raw_http import error_body, hello
from tests.api.http.test_server import endless

async def main():
    sockets = open_sockets("127.0.0.1", 0)
    drain = trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(drain_on_signals, drain))
        print(sockets[0].getsockname()[1], flush=True)
        await serve_app(endless, listeners_on(sockets), drain=drain, error_body=error_body,
                        limits=Limits(drain_s=0.5))
        nursery.cancel_scope.cancel()

trio.run(main)
"""


async def endless(scope, receive, send):
    if scope["path"] == "/":
        await respond(send)
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while True:
        await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_process_in_order_whatever_its_clients_do(number):
    """Idle, stalled, half-sent and streaming clients; exit code 0 and no traceback."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    async with AsyncExitStack() as stack:
        assert process.stdout is not None
        assert process.stderr is not None
        port = int(await process.stdout.receive_some())
        for said in ("", GET, "GET / HT", POST + "he", GET.replace("/", "/endless", 1)):
            raw = await stack.enter_async_context(connected(port, receive_octets=4096))
            await raw.send(said)
            if "HTTP/1.1" in said and not said.startswith("POST"):
                await raw.head()
        process.send_signal(number)
        with trio.fail_after(5):
            assert await process.wait() == 0
        reported = b"".join([octets async for octets in process.stderr])
        assert b"Traceback" not in reported
        await process.stdout.aclose()
        await process.stderr.aclose()


# -- how much ------------------------------------------------------------------------------------


async def test_a_connection_is_closed_after_its_number_of_requests():
    async with serving(hello, requests_per_connection_max=3) as server, server.connect() as raw:
        for _ in range(2):
            assert "connection" not in (await raw.request(GET)).headers
        assert (await raw.request(GET)).headers["connection"] == "close"
        await raw.assert_closed()


async def test_a_crowd_that_has_come_before_it_is_looked_at_is_answered_whole():
    """One pass of the loop accepts many connections, and the server forgets none of them."""
    (sock,) = open_sockets("127.0.0.1", 0)
    with ExitStack() as stack:
        crowd = []
        for _ in range(5 * ACCEPTED_MAX + 1):
            crowd.append(stack.enter_context(socket.create_connection(sock.getsockname())))
            crowd[-1].sendall(GET.encode())
        drain = trio.Event()
        async with trio.open_nursery() as nursery:

            async def run(task_status):
                await serve_app(
                    hello,
                    listeners_on([sock]),
                    drain=drain,
                    error_body=error_body,
                    limits=LIMITS,
                    task_status=task_status,
                )

            await nursery.start(run)
            with trio.fail_after(10):
                for each in crowd:
                    await trio.lowlevel.wait_readable(each)
                    assert each.recv(65536).startswith(b"HTTP/1.1 200")
            drain.set()


async def test_the_longest_idle_connection_is_closed_for_a_new_one():
    limits: dict[str, Any] = {"connections_max": 3, "keep_alive_s": 30.0}
    async with serving(hello, **limits) as server, AsyncExitStack() as stack:
        first, second, third = [await stack.enter_async_context(server.connect()) for _ in "123"]
        for raw in (second, first, third):
            assert (await raw.request(GET)).status == 200
        newcomer = await stack.enter_async_context(server.connect())
        assert (await newcomer.request(GET)).status == 200
        await second.assert_closed()
        assert (await first.request(GET)).status == 200


async def test_a_newcomer_waits_while_all_are_busy():
    stream = Streaming()

    async def app(scope, receive, send):
        await (stream if scope["path"] == "/stream" else hello)(scope, receive, send)

    async with serving(app, connections_max=1) as server, server.connect() as busy:
        await busy.send(GET.replace("/", "/stream", 1))
        await busy.head()
        async with server.connect() as newcomer:
            await newcomer.send(GET)
            with trio.move_on_after(0.2) as waited:
                await newcomer.more()
            assert waited.cancelled_caught
            stream.put.close()
            assert await busy.chunk() == b""
            assert (await newcomer.answer()).status == 200


async def test_an_idle_connection_costs_little_memory():
    """2,000 idle connections must fit in memory beside the work."""
    connections = 100
    async with serving(hello, keep_alive_s=30.0) as server, AsyncExitStack() as stack:
        tracemalloc.start()
        try:
            gc.collect()
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(connections):
                raw = await stack.enter_async_context(server.connect())
                assert (await raw.request(GET)).status == 200
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (after - before) / connections < 40_000  # both ends of the connection


async def test_nothing_is_left_of_connections_that_are_gone():
    """However a connection ends, it frees its slot."""
    ways = ["", GET, "GET / HT", POST + "he", "nonsense\r\n\r\n", GET + GET]
    async with serving(hello, connections_max=3) as server:
        for _ in range(20):
            for said in ways:
                async with server.connect() as raw:
                    await raw.send(said)
        assert (await server.request(GET)).status == 200  # each of the three slots is free again


# -- sockets ---------------------------------------------------------------------------------------


def test_sockets_listen_at_the_given_address_with_their_options():
    for sock in (sockets := open_sockets("127.0.0.1", 0)):
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
    port = sockets[0].getsockname()[1]
    with pytest.raises(OSError, match="in use"):
        open_sockets("127.0.0.1", port)
    sockets[0].close()


def test_an_address_that_cannot_be_bound_is_reported():
    with pytest.raises(OSError, match="assign"):
        open_sockets("192.0.2.1", 0)


async def test_a_name_with_two_addresses_has_one_port():
    sockets = open_sockets("localhost", 0)
    assert len({sock.getsockname()[1] for sock in sockets}) == 1
    for sock in sockets:
        sock.close()


async def test_accepted_sockets_have_a_tcp_user_timeout():
    """Without TCP_USER_TIMEOUT the kernel keeps unacknowledged octets for a quarter of an hour."""
    (sock,) = open_sockets("127.0.0.1", 0)
    (listener,) = listeners_on([sock])
    async with listener, connected(sock.getsockname()[1]), await listener.accept() as accepted:
        assert accepted.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
        assert accepted.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_several_listeners_serve_one_application():
    sockets = [*open_sockets("127.0.0.1", 0), *open_sockets("127.0.0.2", 0)]
    names = [sock.getsockname() for sock in sockets]
    drain = trio.Event()
    async with trio.open_nursery() as nursery:

        async def run(task_status):
            await serve_app(
                hello,
                listeners_on(sockets),
                drain=drain,
                error_body=error_body,
                limits=LIMITS,
                task_status=task_status,
            )

        await nursery.start(run)
        for host, port in names:
            async with await trio.open_tcp_stream(host, port) as stream:
                await stream.send_all(GET.encode())
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
        drain.set()


def test_the_defaults_keep_the_promises():
    limits = Limits()
    assert limits.body_octets_max == 2_097_152
    assert limits.body_s == 10
    assert limits.drain_s < 10
