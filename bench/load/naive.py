"""The naive loop that the engine is compared with: a task and its cancel scopes for each probe.

It returns the same results, but it is not a verifier: its connections are open before it
begins and stay open, it does not pipeline, count refusals or queue fairly, and it would
take a late reply for the next address's.
"""

from collections.abc import Sequence

import msgspec
import trio

from mailprobe.engine.address import parse
from mailprobe.engine.lists.lists import Lists
from mailprobe.engine.verdict import Outcome, judge

from .smtp_sink import SmtpSink, host_address

UNDER_WAY = 2_000
GREETING = (b"EHLO bench.test\r\n", b"MAIL FROM:<>\r\n")

NaiveConnection = tuple[
    "trio.MemorySendChannel[trio.SocketStream]", "trio.MemoryReceiveChannel[trio.SocketStream]"
]


class NaiveLoop:
    """Open connections, and a way to ask."""

    def __init__(self, lists: Lists) -> None:
        self._lists = lists
        self._lines: dict[str, NaiveConnection] = {}

    async def connect(self, sink: SmtpSink, connections: int) -> None:
        """Open so many connections to each host, each of which has one domain."""
        port = int(sink.env["MAILPROBE_SMTP_PORT"])
        for number in range(sink.hosts):
            send, receive = trio.open_memory_channel[trio.SocketStream](connections)
            for _ in range(connections):
                stream = await trio.open_tcp_stream(host_address(number), port)
                await stream.receive_some()
                for command in GREETING:
                    await stream.send_all(command)
                    await stream.receive_some()
                await send.send(stream)
            self._lines[sink.domain(number)] = send, receive

    async def verify_all(self, texts: Sequence[str]) -> list[bytes]:
        """The results as JSON lines, in the order in which they are known."""
        lines: list[bytes] = []
        for start in range(0, len(texts), UNDER_WAY):
            async with trio.open_nursery() as nursery:
                for text in texts[start : start + UNDER_WAY]:
                    nursery.start_soon(self._probe, text, lines)
        return lines

    async def _probe(self, text: str, lines: list[bytes]) -> None:
        began = trio.current_time()
        address = parse(text)
        signals = self._lists.signals(address)
        outcome = Outcome.TIMED_OUT
        with trio.move_on_after(3.0):
            send, receive = self._lines[address.domain]
            stream = await receive.receive()
            with trio.fail_after(1.0):
                await stream.send_all(f"RCPT TO:<{address.mailbox}>\r\n".encode())
            with trio.fail_after(1.0):
                reply = await stream.receive_some()
            await send.send(stream)
            outcome = Outcome.DELIVERABLE if reply.startswith(b"250") else Outcome.UNDELIVERABLE
        verdict = judge(
            text,
            outcome,
            signals=signals,
            mx_found=True,
            mx_host=address.domain,
            latency_ms=round((trio.current_time() - began) * 1000),
        )
        lines.append(msgspec.json.encode(verdict))

    async def close(self) -> None:
        for _, receive in self._lines.values():
            while True:
                try:
                    stream = receive.receive_nowait()
                except trio.WouldBlock:
                    break
                await stream.aclose()
