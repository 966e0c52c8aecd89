"""A receiver of callbacks on loopback: it notes when each path was called, and hangs on one of them."""

import asyncio
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio
import trustme
from msgspec import Struct, field

from mailprobe.engine.settings import EngineSettings
from mailprobe.engine.stream.engine import open_engine

from ..lab import Lab

HANGS = "/hangs"
ANSWER = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"
CALLED_WITHIN_S = 60.0


class CallbackReceiver(Struct):
    """Where it is called, and what it has seen."""

    url: str
    authority: Path  # that its certificate is of
    calls: dict[str, float] = field(default_factory=dict)  # path -> when it was called first
    called: threading.Condition = field(default_factory=threading.Condition)

    def note(self, path: str) -> None:
        with self.called:
            self.calls.setdefault(path, time.perf_counter())
            self.called.notify_all()

    def first_call(self, path: str) -> float:
        """When the path was called first; waits for it, but not for ever."""
        with self.called:
            self.called.wait_for(lambda: path in self.calls, CALLED_WITHIN_S)
            return self.calls.get(path, float("inf"))


@contextmanager
def open_receiver(lab: Lab, folder: Path) -> Iterator[CallbackReceiver]:
    """Listen at the address of one of the lab's mail hosts, by whose name it is called."""
    name, address = trio.run(_host_of, lab)
    authority, trusted = trustme.CA(), folder / "receiver.pem"
    authority.cert_pem.write_to_path(str(trusted))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(tls)
    loop, listening = asyncio.new_event_loop(), threading.Event()
    receiver = CallbackReceiver("", trusted)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ", 2)[1].decode("ascii")
        receiver.note(path)
        if path == HANGS:
            await asyncio.sleep(CALLED_WITHIN_S)
        writer.write(ANSWER)
        writer.close()

    async def listen() -> None:
        server = await asyncio.start_server(answer, address, 0, ssl=tls)
        receiver.url = f"https://{name}:{server.sockets[0].getsockname()[1]}"
        listening.set()

    def run() -> None:
        loop.set_exception_handler(lambda *_: None)  # of connections that were given up
        loop.run_until_complete(listen())
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    listening.wait()
    try:
        yield receiver
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


async def _host_of(lab: Lab) -> tuple[str, str]:
    """The name and the address of a mail host of the lab."""
    settings = EngineSettings(
        doh_urls=(lab.env["MAILPROBE_DOH_URLS"],),
        doh_ca_file=lab.env["MAILPROBE_DOH_CA_FILE"],
        allow_private=True,
    )
    async with open_engine(settings) as engine:
        for text in lab.addresses["deliverable"]:
            route = await engine.routes.find(text.rpartition("@")[2])
            for exchange in getattr(route, "exchanges", ()):
                found = await engine.routes.addresses(exchange.name)
                for ip in getattr(found, "ips", ()):
                    return exchange.name, ip
    raise LookupError("no mail host of the lab has an address")
