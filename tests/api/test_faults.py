"""A bug in shared server code ends one connection, or one pass of a loop, and no more.

Each place fails once, in a server on real sockets; then the server answers the next client.
"""

import socket
import struct
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Any

import pytest
import trio

from mailprobe.api.admission.overload import AdmissionQueue, Ticket
from mailprobe.api.admission.request_bodies import ArrivingBody, BodyBudget
from mailprobe.api.http import connection, parser, server, shared
from mailprobe.api.http.connection import HttpConnection
from mailprobe.api.http.disconnects import HangUps
from mailprobe.api.http.encoder import ResponseEncoder
from mailprobe.api.http.exchange import Exchange
from mailprobe.api.http.output import Output
from mailprobe.api.http.parser import FastReader, StrictReader
from mailprobe.api.http.received_request import admission_of
from mailprobe.api.http.shared import HttpServer
from tests.api.raw_http import Serving, connected, echo, error_body, serving
from tests.engine.fault_places import Place, failing, places_reached

POST = "POST /a HTTP/1.1\r\nHost: a.test\r\nContent-Length: 4\r\n\r\nbody"
GET = "GET /a HTTP/1.1\r\nHost: a.test\r\n\r\n"
CHUNKED = "POST /a HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n"
CONTINUED = POST.replace("Host", "Expect: 100-continue\r\nHost").removesuffix("body")

PARTS = 24  # of the places: each is a test
REACHED_MIN = 85  # functions that the clients below have the server call

NAMED = [  # called before a client comes, or by another name
    Place(HangUps, "run"),
    Place(shared, "accept"),
    Place(shared, "accept_now"),
    Place(server, "HttpConnection"),
    Place(connection, "error_messages"),
]
OWNERS = [
    *(HttpServer, HangUps, HttpConnection, Output, Exchange, ResponseEncoder),
    *(BodyBudget, ArrivingBody, AdmissionQueue, Ticket, FastReader, StrictReader, parser),
]
TIMES: dict[str, Any] = {"head_s": 0.2, "body_s": 0.2, "keep_alive_s": 0.3}
LIMITS = [TIMES, TIMES | {"connections_max": 4}]  # the second server is crowded


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


def serve(limits: dict[str, Any]) -> AbstractAsyncContextManager[Serving]:
    return serving(application, AdmissionQueue(), intake=BodyBudget(), **limits)


async def reach(limits: dict[str, Any]) -> dict[str, Place]:
    """The functions that a server with these limits calls whenever its clients come."""
    async with serve(limits) as served:
        act = partial(all_kinds, served)
        once = await places_reached(OWNERS, act, owned=(trio.SocketStream,))
        again = await places_reached(OWNERS, act, owned=(trio.SocketStream,))
        await served.assert_ends()
    return {name: once[name] for name in once.keys() & again.keys()}


_found: dict[str, tuple[Place, dict[str, Any]]] = {}  # of this process, and the limits they need


async def found() -> dict[str, tuple[Place, dict[str, Any]]]:
    if not _found:
        for limits in reversed(LIMITS):
            _found.update({name: (place, limits) for name, place in (await reach(limits)).items()})
        _found.update({str(place): (place, TIMES) for place in NAMED})
    return dict(sorted(_found.items()))


async def test_the_clients_reach_most_of_the_server():
    assert len(await found()) >= REACHED_MIN


@pytest.mark.parametrize("part", range(PARTS))
async def test_a_fault_in_the_server_ends_a_connection_at_most(part, faults, caplog):
    for place, limits in [*(await found()).values()][part::PARTS]:
        caplog.clear()
        await assert_harmless(place, limits)
        assert f"Fault: {place.name}" in caplog.text, place
        assert "Traceback" in caplog.text, place


async def assert_harmless(place: Place, limits: dict[str, Any]) -> None:
    """Once the place has failed, the server answers the next clients and ends in order."""
    with failing(*place) as has_failed:
        async with serve(limits) as served:
            with trio.fail_after(20):
                while not has_failed():  # on a busy machine clients meet otherwise
                    await all_kinds(served)
            for request in (POST, GET, POST):
                with trio.fail_after(5):
                    assert (await served.request(request)).status == 200, place
            await served.assert_ends()


async def test_the_room_of_connections_that_failed_is_free_again(faults, caplog):
    """Otherwise each failed connection would occupy its slot for ever."""
    async with serving(application, connections_max=3, keep_alive_s=0.1) as served:

        async def get() -> None:
            async with connected(served.port) as raw:
                with suppress(trio.BrokenResourceError):  # a reset
                    await raw.send(GET)
                    await raw.rest()

        places = await places_reached([HttpConnection, Output], get)
        assert len(places) > 20
        for place in [Place(HttpConnection, "__init__"), *places.values()]:
            with failing(*place) as has_failed:
                await get()
            assert has_failed(), place
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
