"""Many requests at once from one address, as a proxy sends them: an idle service serves them all."""

import socket
from contextlib import ExitStack

import pytest
import trio

from mailprobe.api.admission.overload import AdmissionQueue
from tests.api.http.test_abuse_http import VERIFY, open_listeners

REQUESTS = 400  # more than the bodies that one address or key may be awaited for
BODY = '{"email":"ann@mailinator.com"}'
LENGTH = f"Content-Length: {len(BODY)}"
CHUNKS = f"{len(BODY):x}\r\n{BODY}\r\n0\r\n\r\n"

# What a client sends in each write.
FORMS: dict[str, list[tuple[str, ...]]] = {
    "closing": [(LENGTH, "Connection: close", "", BODY)],
    "HTTP/1.0": [(LENGTH, "", BODY)],
    "in chunks": [("Transfer-Encoding: chunked", "", CHUNKS)],
    "in many chunks": [
        (
            "Transfer-Encoding: chunked",
            "",
            "".join(f"1\r\n{each}\r\n" for each in BODY) + "0\r\n\r\n",
        )
    ],
    "head and body apart": [(LENGTH, "", ""), (BODY,)],
}


@pytest.mark.parametrize("form", FORMS)
async def test_a_burst_from_one_address_is_served(form):
    """Each was once counted as a slow body: 500 of 600 got a 503."""
    opened = open_listeners(admission_queue=AdmissionQueue())
    async with opened as listeners:
        version = "1.0" if form == "HTTP/1.0" else "1.1"
        start = (f"POST {VERIFY} HTTP/{version}", "Host: a.test")
        key = f"Authorization: Bearer {listeners.shop.key}"
        first, *others = ["\r\n".join(write).encode() for write in FORMS[form]]
        first = "\r\n".join([*start, key, ""]).encode() + first
        with ExitStack() as stack:
            clients = [
                stack.enter_context(socket.create_connection(("127.0.0.1", listeners.api.port)))
                for _ in range(REQUESTS)
            ]
            for octets in [first, *others]:
                for client in clients:  # without a turn of the service between them
                    client.sendall(octets)
            statuses = [await status_of(client) for client in clients]
    assert statuses == [b"200"] * REQUESTS


async def status_of(client: socket.socket) -> bytes:
    with trio.fail_after(30):
        await trio.lowlevel.wait_readable(client)
    return client.recv(65536).split()[1]
