"""A bug in shared server code ends one connection, or one pass of a loop, and no more.

Each place fails once, in a server on real sockets; then the server answers the next client.
"""

import socket
import struct
from contextlib import suppress
from typing import Any

import pytest
import trio

from mailprobe.api.admission.overload import AdmissionQueue, Ticket
from mailprobe.api.admission.request_bodies import ArrivingBody, BodyBudget
from mailprobe.api.http import connection, parser, server, shared
from mailprobe.api.http.connection import HttpConnection
from mailprobe.api.http.disconnects import HangUps
from mailprobe.api.http.encoder import ResponseEncoder
from mailprobe.api.http.exchange import Exchange, admission_of
from mailprobe.api.http.output import Output
from mailprobe.api.http.parser import FastReader, StrictReader
from mailprobe.api.http.shared import HttpServer
from tests.api.raw_http import Serving, connected, echo, error_body, serving
from tests.engine.test_faults import failing

POST = "POST /a HTTP/1.1\r\nHost: a.test\r\nContent-Length: 4\r\n\r\nbody"
GET = "GET /a HTTP/1.1\r\nHost: a.test\r\n\r\n"
CHUNKED = "POST /a HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n"
CONTINUED = POST.replace("Host", "Expect: 100-continue\r\nHost").removesuffix("body")

PLACES: list[tuple[Any, str]] = [
    (shared, "accept"),
    (shared, "accept_now"),
    (server, "HttpConnection"),
    (HttpServer, "_evict_one"),
    (HttpServer, "_enter"),
    (HttpServer, "mark_idle"),
    (HttpServer, "wait_for"),
    (HttpServer, "forget"),
    (HttpServer, "run_request"),
    (HttpServer, "end"),
    (HangUps, "run"),
    (HangUps, "watch"),
    (HangUps, "forget"),
    (HttpConnection, "run"),
    (HttpConnection, "_read"),
    (HttpConnection, "_reader_of"),
    (HttpConnection, "_start_exchange"),
    (HttpConnection, "_send_message"),
    (HttpConnection, "_answer_ended"),
    (HttpConnection, "_idle"),
    (HttpConnection, "_work"),
    (HttpConnection, "_on_hang_up"),
    (HttpConnection, "_hang_up"),
    (HttpConnection, "_half_close"),
    (HttpConnection, "_finish_half_closed"),
    (HttpConnection, "_refuse_incomplete"),
    (HttpConnection, "_end"),
    (HttpConnection, "_linger"),
    (HttpConnection, "_handle_events"),
    (HttpConnection, "_end_of_body"),
    (HttpConnection, "_watch"),
    (HttpConnection, "_begin"),
    (HttpConnection, "_until_needed"),
    (HttpConnection, "_receive"),
    (HttpConnection, "_refuse"),
    (HttpConnection, "_until_sent"),
    (HttpServer, "new_turn"),
    (HttpServer, "own_fields"),
    (HttpConnection, "settle"),
    (Output, "flush"),
    (Output, "_send_now"),
    (HttpConnection, "_close"),
    (Exchange, "push"),
    (Exchange, "run"),
    (Exchange, "receive"),
    (Exchange, "send"),
    (Exchange, "_send_start"),
    (Exchange, "answer"),
    (Exchange, "hang_up"),
    (Exchange, "refuse"),
    (BodyBudget, "try_acquire"),
    (BodyBudget, "release"),
    (ArrivingBody, "acquire"),
    (ArrivingBody, "complete"),
    (ArrivingBody, "end"),
    (AdmissionQueue, "enter"),
    (AdmissionQueue, "leave"),
    (AdmissionQueue, "_check"),
    (Ticket, "try_enter"),
    (Ticket, "wait_until_active"),
    (Ticket, "activate"),
    (Ticket, "leave"),
    (FastReader, "receive"),
    (FastReader, "next_event"),
    (StrictReader, "receive"),
    (StrictReader, "next_event"),
    (ResponseEncoder, "octets_of"),
    (connection, "error_messages"),
    (parser, "_admit"),
    (parser, "read_fast"),
]


async def application(scope, receive, send):
    if scope["path"] == "/crash":
        raise ZeroDivisionError("the application's own")
    admission_of(scope).admitted()
    await echo(scope, receive, send)


async def all_kinds(serving: Serving) -> None:
    """Clients of every kind, so that each part of the server has something to do."""

    async def send(*parts: str, reset: bool = False, half: bool = False) -> None:
        with trio.move_on_after(1.0):
            async with connected(serving.port) as raw:
                try:
                    for part in parts:
                        await raw.send(part)
                        await trio.sleep(0.01)
                    if half:
                        await raw.stream.send_eof()
                    if reset:
                        linger = struct.pack("ii", 1, 0)
                        raw.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                        return
                    with trio.move_on_after(0.2):
                        await raw.rest()
                except trio.BrokenResourceError:
                    pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send, POST)
        nursery.start_soon(send, GET, GET)
        nursery.start_soon(send, POST + POST)
        nursery.start_soon(send, CHUNKED, "4\r\nbody\r\n", "0\r\n\r\n")
        nursery.start_soon(send, CONTINUED, "body")
        nursery.start_soon(send, POST.replace("/a", "/crash"))
        nursery.start_soon(send, POST[:-2], "dy")
        nursery.start_soon(send, POST[:-2])  # and no more
        nursery.start_soon(send, "GET / what is this\r\n\r\n")
        nursery.start_soon(lambda: send(POST, half=True))
        nursery.start_soon(lambda: send(POST[:-2], half=True))
        nursery.start_soon(lambda: send(POST[:-2], reset=True))
        nursery.start_soon(lambda: send(GET, reset=True))


@pytest.mark.parametrize(
    ("owner", "name"), PLACES, ids=[f"{getattr(o, '__name__', o)}.{n}" for o, n in PLACES]
)
async def test_a_fault_in_the_server_ends_a_connection_at_most(owner, name, faults, caplog):
    limits: dict[str, Any] = {"head_s": 0.2, "body_s": 0.2, "keep_alive_s": 0.3}
    if name in ("_evict_one", "_enter"):
        limits["connections_max"] = 4
    logged = ""
    with failing(owner, name) as has_failed:
        async with serving(application, AdmissionQueue(), intake=BodyBudget(), **limits) as served:
            with trio.fail_after(20):
                for _ in range(5):
                    await all_kinds(served)
                    if has_failed():
                        break
            assert has_failed()
            for request in (POST, GET, POST):
                with trio.fail_after(5):
                    assert (await served.request(request)).status == 200
            await served.assert_ends()
    logged = caplog.text
    assert f"Fault: {name}" in logged
    assert "Traceback" in logged


async def test_the_room_of_connections_that_failed_is_free_again(faults, caplog):
    """Otherwise each failed connection would occupy its slot for ever."""
    async with serving(application, connections_max=3) as served:
        places = [(HttpConnection, name) for name in ("__init__", "run", "_read", "_close")]
        for owner, name in [*places, (Output, "flush")] * 3:
            with failing(owner, name):
                async with connected(served.port) as raw:
                    with suppress(trio.BrokenResourceError):  # a reset
                        await raw.send(GET)
                        await raw.rest()
        for _ in range(5):
            assert (await served.request(GET)).status == 200


async def test_a_fault_in_the_words_of_a_refusal_ends_its_connection_alone(faults, caplog):
    broken = [True]

    def faulty(code: str) -> bytes:
        if broken.pop() if broken else False:
            raise ZeroDivisionError(code)
        return error_body(code)

    async with serving(application, error_body=faulty) as served:
        async with connected(served.port) as raw:
            await raw.send("GET / what is this\r\n\r\n")
            await raw.assert_closed()
        assert (await served.request("GET / what is this\r\n\r\n")).status == 400
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
async def test_the_end_gets_through_the_server(end):
    with (
        failing(shared, "accept", error=end()),
        pytest.RaisesGroup(end, flatten_subgroups=True, allow_unwrapped=True),
    ):
        async with serving(application):
            await trio.sleep(5)
