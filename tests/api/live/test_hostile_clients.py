"""Hostile clients of the live socket, on real sockets: each ends its own connection only."""

import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from trio_websocket import wrap_client_stream

from mailprobe.api.http.listeners import open_sockets
from mailprobe.api.live.stream import RECEIVED_OCTETS_MAX
from mailprobe.api.serve import serve_service
from tests.api.live.live_client import HANDSHAKE, LIVE, Live
from tests.api.raw_http import Raw, connected
from tests.api.service_fixture import RunningService, open_shop

TEXT, CONTINUED, PING, CLOSE = 0x1, 0x0, 0x9, 0x8
WITHIN_S = 20.0  # only a failing test waits so long


def frame(opcode: int, octets: bytes, *, is_last: bool = True, masked: bool = True) -> bytes:
    """A frame (RFC 6455 5.2)."""
    head = bytes([opcode | (0x80 if is_last else 0)])
    bit = 0x80 if masked else 0
    if len(octets) < 126:
        head += bytes([bit | len(octets)])
    elif len(octets) < 1 << 16:
        head += bytes([bit | 126]) + struct.pack(">H", len(octets))
    else:
        head += bytes([bit | 127]) + struct.pack(">Q", len(octets))
    return head + (b"\0\0\0\0" if masked else b"") + octets


@asynccontextmanager
async def serving_live() -> AsyncIterator[tuple[RunningService, int]]:
    async with open_shop("scale") as shop, trio.open_nursery() as nursery:
        sockets, drain = open_sockets("127.0.0.1", 0), trio.Event()
        await nursery.start(serve_service, shop.service, sockets, drain)
        yield shop, sockets[0].getsockname()[1]
        drain.set()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_hostile(shop: RunningService, port: int) -> AsyncIterator[Raw]:
    async with connected(port) as raw:
        await raw.send(f"{HANDSHAKE}Authorization: Bearer {shop.key}\r\n\r\n")
        status, _ = await raw.head()
        assert status == 101
        yield raw


@asynccontextmanager
async def open_neighbour(shop: RunningService, port: int) -> AsyncIterator[Live]:
    headers = [(b"Authorization", f"Bearer {shop.key}".encode())]
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream, trio.open_nursery() as nursery:
        socket = await wrap_client_stream(nursery, stream, "127.0.0.1", LIVE, extra_headers=headers)
        yield Live(socket)


async def assert_ends(raw: Raw) -> bytes:
    """The service closes; return what it said."""
    octets = b""
    with trio.fail_after(WITHIN_S):
        with suppress(trio.BrokenResourceError):
            while part := await raw.stream.receive_some(65536):
                octets += part
    return octets


HOSTILE: dict[str, bytes] = {
    "no masking": frame(TEXT, b"ann@friendly.test", masked=False),
    "a huge frame": frame(TEXT, b"a" * 200_000),
    "a length of 8 EiB": bytes([0x81, 0xFF]) + b"\x7f" + b"\xff" * 7 + b"\0\0\0\0" + b"a" * 70_000,
    "a reserved bit": bytes([0xF1, 0x80]) + b"\0\0\0\0",
    "an unknown opcode": frame(0x3, b"x"),
    "a fragmented ping": frame(PING, b"x", is_last=False),
    "a continuation of nothing": frame(CONTINUED, b"x"),
    "text that is not UTF-8": frame(TEXT, b"\xff\xfe"),
    "octets": frame(0x2, b"ann@friendly.test"),
    "a close with a code of one octet": frame(CLOSE, b"\x03"),
    "10,000 tiny frames of broken JSON": frame(TEXT, b"{") * 10_000,
    "empty fragments for ever": frame(TEXT, b"", is_last=False)
    + frame(CONTINUED, b"", is_last=False) * (RECEIVED_OCTETS_MAX // 6 + 10),
    "pings for ever": frame(PING, b"") * (RECEIVED_OCTETS_MAX // 6 + 10),
    "no WebSocket at all": os.urandom(50_000),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_client_ends_its_own_connection_only(name):
    async with serving_live() as (shop, port), open_neighbour(shop, port) as neighbour:
        await neighbour.send("ann@friendly.test")
        await neighbour.until("result")
        async with open_hostile(shop, port) as raw:
            with suppress(trio.BrokenResourceError):
                await raw.stream.send_all(HOSTILE[name])
            await assert_ends(raw)
        await neighbour.send("bob@friendly.test", {"type": "end"})
        assert await neighbour.until_closed() == 1000
        assert len(neighbour.of("result")) == 2


async def test_ten_thousand_addresses_in_tiny_frames_are_all_answered():
    async with serving_live() as (shop, port), open_hostile(shop, port) as raw:
        count = 900  # the minute of the key has 1,000

        async def send() -> None:
            for number in range(count):
                await raw.stream.send_all(frame(TEXT, b"a%d@friendly.test" % number))
            await raw.stream.send_all(frame(TEXT, b'{"type":"end"}'))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            octets = await assert_ends(raw)
        assert octets.count(b'"type":"result"') == count


async def test_a_half_closed_client_is_gone():
    async with serving_live() as (shop, port), open_hostile(shop, port) as raw:
        await raw.stream.send_all(frame(TEXT, b"slow@slow.test"))
        await raw.stream.send_eof()
        await assert_ends(raw)
        ledger: Any = await shop.store.ledger(await shop.caller())
        assert ledger.month_billable == 0


async def test_a_client_that_reads_nothing_holds_up_nobody():
    """It sends its credit again and again, and takes no result."""
    async with serving_live() as (shop, port), open_hostile(shop, port) as raw:
        for number in range(500):
            await raw.stream.send_all(frame(TEXT, b"a%d@friendly.test" % number))
        async with open_neighbour(shop, port) as neighbour:
            await neighbour.send("ann@friendly.test", {"type": "end"})
            assert await neighbour.until_closed() == 1000
            assert neighbour.of("result")[0]["status"] == "deliverable"
