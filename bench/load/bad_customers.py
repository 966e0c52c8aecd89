"""Simulates the worst customers, in a process that runs while its standard input is open.

slow bodies    1,000 connections without a key whose bodies drip, opened again when refused
streams        60 streams of one account to hosts that time out, again and again
worst bodies   8 connections of one account that send 2 MB of brackets, again and again
"""

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import trio

from .load_generator import request

SLOW_CONNECTIONS = 1_000
STREAMS = 60
STREAM_ADDRESSES = 50
WORST_CONNECTIONS = 8
DRIP_S = 0.5
THERE_S = 3.0  # until all of them have come
AGAIN_S = 0.05  # before the next request
SLOW_AGAIN_S = 10.0  # before the next slow body: so long a service may wait for one
BODY_OCTETS = 2 * 1024 * 1024
CONNECTIONS = ("/v1/billing/stripe", "/v1/email/verify", "/mcp")
ROOT = Path(__file__).parents[3]

Client = Callable[[Mapping[str, Any], int], Any]


@contextmanager
def bad_customers(
    kind: str, at: tuple[str, int], key: str, texts: Sequence[str] = ()
) -> Iterator[None]:
    """Run these customers for the block; it begins when all of them have connected."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mailprobe.bench.load.bad_customers"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps({"kind": kind, "at": at, "key": key, "texts": texts}) + "\n")
        process.stdin.flush()
        if process.stdout.readline() != "there\n":
            raise RuntimeError(f"the clients with {kind} has failed")
        yield
    finally:
        process.stdin.close()
        process.wait()


async def _slow_body(reported: Mapping[str, Any], number: int) -> None:
    path = CONNECTIONS[number % len(CONNECTIONS)]
    head = request("POST", path, host="bench", body=b"").replace(b"Length: 0", b"Length: 100000")
    async with await _connected(reported) as stream:
        await stream.send_all(head)
        while True:
            await stream.send_all(b" ")
            with trio.move_on_after(DRIP_S) as waiting:
                await stream.receive_some(4096)
            if not waiting.cancelled_caught:
                return


async def _stream(reported: Mapping[str, Any], number: int) -> None:
    texts = reported["texts"]
    first = number * STREAM_ADDRESSES
    emails = [texts[(first + place) % len(texts)] for place in range(STREAM_ADDRESSES)]
    await _request(reported, "/v1/email/verify/stream", json.dumps({"emails": emails}).encode())


async def _worst_body(reported: Mapping[str, Any], number: int) -> None:
    before, after = b'{"emails":["a"],"x":[', b"[]]}"
    body = before + b"[]," * ((BODY_OCTETS - len(before) - len(after)) // 3) + after
    await _request(reported, "/v1/email/verify/batch", body)


async def _request(reported: Mapping[str, Any], path: str, body: bytes) -> None:
    asked = request("POST", path, host="bench", key=reported["key"], body=body)
    asked = asked.replace(b"Accept: */*", b"Connection: close")
    async with await _connected(reported) as stream:
        await stream.send_all(asked)
        while await stream.receive_some(65536):
            pass


async def _connected(reported: Mapping[str, Any]) -> trio.SocketStream:
    stream = await trio.open_tcp_stream(*reported["at"])
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


KINDS: dict[str, tuple[int, Client, float]] = {
    "slow bodies": (SLOW_CONNECTIONS, _slow_body, SLOW_AGAIN_S),
    "streams": (STREAMS, _stream, AGAIN_S),
    "worst bodies": (WORST_CONNECTIONS, _worst_body, AGAIN_S),
}


async def _again_and_again(
    client: Client, reported: Mapping[str, Any], number: int, pause_s: float
) -> None:
    while True:
        with suppress(OSError, trio.BrokenResourceError):
            await client(reported, number)
        await trio.sleep(pause_s)


async def _main() -> None:
    reported = json.loads(sys.stdin.readline())
    count, client, pause_s = KINDS[reported["kind"]]
    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(partial(_again_and_again, client, reported, number, pause_s))
        await trio.sleep(THERE_S)
        print("there", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(_main)
