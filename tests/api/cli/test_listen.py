"""`mailprobe listen`: which callbacks it passes on, and what a service gets as the answer."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial

import httpx
import pytest
import trio
from click.testing import CliRunner
from trio.testing import memory_stream_pair

from mailprobe.api.cli import main
from mailprobe.api.cli.listen import (
    BODY_OCTETS_MAX,
    Callback,
    NotACallback,
    _answer,
    check_signature,
)
from mailprobe.api.jobs.rules import callback_headers

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PAYLOAD = b'{"email": "ann@shop.test"}'
NOW = datetime(2026, 11, 1, tzinfo=UTC)
FORWARD = "http://127.0.0.1:3000/hook"


def signed(secret: str | None = SECRET, at: datetime = NOW, **changes: str) -> Callback:
    headers = {
        n.lower(): text for n, text in callback_headers("job-1", PAYLOAD, secret, at).items()
    }
    return Callback(
        headers | {name.replace("_", "-"): text for name, text in changes.items()}, PAYLOAD
    )


@pytest.mark.parametrize("secret", [SECRET, "any other secret", "whsec_käse"])
def test_a_signature_of_the_service_is_genuine(secret: str) -> None:
    check_signature(signed(secret), secret, NOW + timedelta(minutes=5))
    several = signed(
        secret, webhook_signature=f"v1,x {signed(secret).headers['webhook-signature']}"
    )
    check_signature(several, secret, NOW)


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        (signed("another secret"), "not signed with MAILPROBE_WEBHOOK_SECRET"),
        (signed(None), "not signed with"),
        (signed(webhook_id="job-2"), "not signed with"),
        (signed(webhook_timestamp="9" * 13), "not signed"),
        (signed(webhook_timestamp="now"), "not signed"),
        (signed(webhook_signature="v1,ü"), "not signed with"),
        (Callback(signed().headers, PAYLOAD + b" "), "not signed with"),
        (signed(at=NOW - timedelta(minutes=6)), "more than five minutes off"),
        (Callback({}, PAYLOAD), "not signed"),
    ],
)
def test_any_other_callback_is_refused(callback: Callback, words: str) -> None:
    with pytest.raises(NotACallback, match=words) as refused:
        check_signature(callback, SECRET, NOW)
    assert refused.value.status == 401


Program = Callable[[httpx.Request], httpx.Response]


@asynccontextmanager
async def listening(
    program: Program | None, secret: str | None = None
) -> AsyncIterator[Callable[[bytes], Awaitable[bytes]]]:
    """What sends octets to a listener, and returns what it answers."""
    transport = httpx.MockTransport(program or (lambda request: httpx.Response(500)))
    async with httpx.AsyncClient(transport=transport) as client:

        async def send(octets: bytes) -> bytes:
            ours, theirs = memory_stream_pair()
            async with trio.open_nursery() as nursery:
                forward = FORWARD if program else None
                nursery.start_soon(partial(_answer, theirs, client, forward, secret))
                await ours.send_all(octets)
                answer = bytearray()
                with trio.move_on_after(60):
                    while b"\r\n\r\n" not in answer:
                        answer += await ours.receive_some()
            return bytes(answer)

        yield send


def request(callback: Callback, method: str = "POST") -> bytes:
    headers = {
        "host": "hooks.example",
        "content-length": str(len(callback.payload)),
        **callback.headers,
    }
    head = "".join(f"{name}: {text}\r\n" for name, text in headers.items())
    return f"{method} /anything HTTP/1.1\r\n{head}\r\n".encode() + callback.payload


async def test_the_program_gets_the_same_octets_and_its_status_is_the_answer(
    autojump_clock, capsys
) -> None:
    received: list[httpx.Request] = []

    def program(got: httpx.Request) -> httpx.Response:
        received.append(got)
        return httpx.Response(410)

    callback = signed(at=datetime.now(UTC))
    async with listening(program, SECRET) as send:
        assert (await send(request(callback))).startswith(b"HTTP/1.1 410 ")
        assert (await send(request(signed("another secret")))).startswith(b"HTTP/1.1 401 ")
    [got] = received
    assert (str(got.url), got.content) == (FORWARD, PAYLOAD)
    assert all(got.headers[name] == text for name, text in callback.headers.items())
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("job-1 410 ")
    assert second == "job-1 401 it is not signed with MAILPROBE_WEBHOOK_SECRET"


def gone(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("nobody listens")


@pytest.mark.parametrize(
    ("octets", "program", "status"),
    [
        (request(signed()), None, b"204"),
        (request(signed()), gone, b"502"),
        (request(signed(), "GET"), None, b"405"),
        (request(Callback({}, b"x" * (BODY_OCTETS_MAX + 1))), None, b"413"),
        (request(signed())[:-1], None, b"408"),
        (b"\x16\x03\x01\x02\x00 TLS\r\n\r\n", None, b"400"),
    ],
)
async def test_each_request_has_an_answer(
    autojump_clock, octets: bytes, program: Program | None, status: bytes
) -> None:
    async with listening(program) as send:
        assert (await send(octets)).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--forward", "https://shop.example/hook"), "--forward takes an address on this machine"),
        (("--forward", "3000"), "--forward takes an address on this machine"),
        (("--bind", "8090"), "expected an address and a port"),
        (("--bind", "192.0.2.1:8090"), "192.0.2.1:8090 cannot be listened on"),
    ],
)
def test_wrong_usage_is_one_line(arguments: tuple[str, ...], words: str) -> None:
    result = CliRunner().invoke(main, ["listen", *arguments])
    assert result.exit_code == 2
    [line] = result.stderr.splitlines()
    assert words in line
