"""The system's resolver in small: plain DNS (RFC 1035) over UDP and TCP, from a zone."""

from contextlib import suppress
from functools import partial

import trio

from ..world.zone import Zone

PORT = 53
QUESTION_OCTETS_MAX = 4_096


async def serve(
    zone: Zone, address: str, port: int = PORT, *, task_status: trio.TaskStatus[int]
) -> None:
    """Answer until cancelled; starts with the port, the same for both transports."""
    with trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM) as datagrams:
        await datagrams.bind((address, port))
        port = datagrams.getsockname()[1]
        listeners = await trio.open_tcp_listeners(port, host=address)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_answer_datagrams, zone, datagrams)
            nursery.start_soon(trio.serve_listeners, partial(_answer_stream, zone), listeners)
            task_status.started(port)


async def _answer_datagrams(zone: Zone, datagrams: trio.socket.SocketType) -> None:
    """Small zones give small answers: none needs to be cut to 512 octets."""
    while True:
        question, account = await datagrams.recvfrom(QUESTION_OCTETS_MAX)
        if (answer := _answer(zone, question)) is not None:
            with suppress(OSError):  # the asker has gone
                await datagrams.sendto(answer, account)


async def _answer_stream(zone: Zone, stream: trio.SocketStream) -> None:
    """Messages that follow their length in two octets (RFC 7766)."""
    buffer = b""
    with suppress(trio.BrokenResourceError):
        async for octets in stream:
            buffer += octets
            while len(buffer) >= 2 and len(buffer) >= (end := 2 + int.from_bytes(buffer[:2])):
                question, buffer = buffer[2:end], buffer[end:]
                if (answer := _answer(zone, question)) is not None:
                    await stream.send_all(len(answer).to_bytes(2) + answer)


def _answer(zone: Zone, question: bytes) -> bytes | None:
    """None for what is no question, and for what DNS can't say: then nothing is answered."""
    try:
        answer = zone.answer(question)
    except ValueError:
        return None
    return answer if isinstance(answer, bytes) else None
