"""`mailprobe listen`: receives callbacks, checks their signatures, and passes them to a program here.

For trying a receiver: it keeps nothing and retries nothing. The program's status is the answer,
so the service retries as it would with the program alone.
"""

import hmac
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from urllib.parse import urlsplit

import click
import h11
import httpx
import trio
from msgspec import Struct

from ..errors import Misuse, print_error
from ..jobs.rules import callback_headers
from ..setting_values import Bind
from ..settings import Settings
from ..terminal import plain
from .remote.http_responses import reason_of
from .runner import run
from .shell.options import read_bind_option

DEFAULT_BIND = "127.0.0.1:8090"
BODY_OCTETS_MAX = 64 * 1024  # a callback is one result: 2 KB
RECEIVE_OCTETS = 16 * 1024
RECEIVE_S = 10.0  # a whole request
FORWARD_S = 14.0  # a service waits for 15 s
CONNECTIONS_MAX = 32  # a service opens 4 to one host
OLD_AFTER = timedelta(minutes=5)  # a recorded callback is useless afterwards
ID_CHARACTERS_MAX = 64
# What the program gets of a request's head; the rest is between the service and us.
FORWARDED = ("content-type", "user-agent", "x-service-signature")


class Callback(Struct, frozen=True):
    """A request that has arrived: its headers, in lower case, and its body."""

    headers: Mapping[str, str]
    payload: bytes

    @property
    def id(self) -> str:
        return plain(self.headers.get("webhook-id", "-")[:ID_CHARACTERS_MAX])


class NotACallback(Exception):
    """What arrived is not passed on: the status to answer, and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def check_signature(callback: Callback, secret: str, now: datetime) -> None:
    """Raise NotACallback unless the callback was signed with the secret within OLD_AFTER."""
    job_id = callback.headers.get("webhook-id", "")
    seconds = callback.headers.get("webhook-timestamp", "")
    signature = callback.headers.get("webhook-signature", "")
    if not (seconds.isascii() and seconds.isdigit() and len(seconds) <= 12):
        raise NotACallback(401, "it is not signed")
    at = datetime.fromtimestamp(int(seconds), UTC)
    expected = callback_headers(job_id, callback.payload, secret, at)["webhook-signature"]
    if not any(hmac.compare_digest(expected.encode(), each.encode()) for each in signature.split()):
        raise NotACallback(401, "it is not signed with MAILPROBE_WEBHOOK_SECRET")
    if abs(now - at) > OLD_AFTER:
        raise NotACallback(401, "its timestamp is more than five minutes off")


@click.command()
@click.option(
    "--forward",
    metavar="URL",
    help="Where your program takes callbacks, such as http://127.0.0.1:3000/hook.",
)
@click.option(
    "--bind",
    metavar="H:P",
    callback=read_bind_option,
    default=DEFAULT_BIND,
    show_default=True,
    help="Address and port to receive at.",
)
def listen(forward: str | None, bind: Bind) -> None:
    """Receive callbacks, and pass them to a program on this machine.

    Prints a line for each: its job, the program's status, and how long it took.
    Without --forward it answers 204 itself. With MAILPROBE_WEBHOOK_SECRET, callbacks
    with another signature are refused.

    A service calls https:// names alone: a tunnel or proxy with a certificate
    passes them to this port.
    """
    if forward is not None:
        _check_forward(forward)
    run(partial(_listen, bind, forward, Settings.read(os.environ).webhook_secret))


def _check_forward(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_here = parts.hostname in ("127.0.0.1", "::1", "localhost") and parts.port != 0
    except ValueError:
        is_here = False
    if not is_here or parts.scheme != "http" or parts.username is not None:
        raise Misuse(
            "--forward takes an address on this machine, such as http://127.0.0.1:3000/hook"
        )


async def _listen(bind: Bind, forward: str | None, secret: str | None) -> None:
    try:
        listeners = await trio.open_tcp_listeners(bind.port, host=bind.host)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise Misuse(
            f"{bind} cannot be listened on: {reason}; name another address with --bind"
        ) from None
    at = Bind(*listeners[0].socket.getsockname()[:2])
    if secret is None:
        print_error("signatures are not checked: set MAILPROBE_WEBHOOK_SECRET to the secret")
    to = f", passing to {forward}" if forward else ""
    print_error(f"receiving on {at.url}{to}")
    print_error(f"a request's webhook is the https:// name of a tunnel or proxy that leads to {at}")
    limit = trio.CapacityLimiter(CONNECTIONS_MAX)
    async with httpx.AsyncClient(trust_env=False, timeout=FORWARD_S) as client:

        async def serve(stream: trio.SocketStream) -> None:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                async with limit, stream:
                    await _answer(stream, client, forward, secret)

        await trio.serve_listeners(serve, listeners)


async def _answer(
    stream: trio.abc.Stream, client: httpx.AsyncClient, forward: str | None, secret: str | None
) -> None:
    """Receive one callback, pass it on, and answer."""
    reader, name, began = h11.Connection(h11.SERVER), "-", trio.current_time()
    try:
        callback = await _receive(stream, reader)
        name = callback.id
        if secret is not None:
            check_signature(callback, secret, datetime.now(UTC))
        status = 204 if forward is None else await _pass_on(callback, client, forward)
        click.echo(f"{name} {status} {(trio.current_time() - began) * 1000:.0f} ms")
    except NotACallback as refused:
        status = refused.status
        click.echo(f"{name} {status} {refused}")
    head = h11.Response(
        status_code=status, headers=[("Content-Length", "0"), ("Connection", "close")]
    )
    if reader.our_state in (h11.IDLE, h11.SEND_RESPONSE):
        await stream.send_all((reader.send(head) or b"") + (reader.send(h11.EndOfMessage()) or b""))


async def _receive(stream: trio.abc.Stream, reader: h11.Connection) -> Callback:
    """Read a whole POST. Raises NotACallback."""
    headers: dict[str, str] = {}
    payload = b""
    with trio.move_on_after(RECEIVE_S):
        try:
            while True:
                match reader.next_event():
                    case h11.NEED_DATA:
                        reader.receive_data(bytes(await stream.receive_some(RECEIVE_OCTETS)))
                    case h11.Request(method=method, headers=fields):
                        if method != b"POST":
                            raise NotACallback(405, "it is not a POST")
                        headers = {n.decode("latin-1"): v.decode("latin-1") for n, v in fields}
                    case h11.Data(data=octets):
                        payload += octets
                        if len(payload) > BODY_OCTETS_MAX:
                            raise NotACallback(413, f"it has more than {BODY_OCTETS_MAX >> 10} KiB")
                    case h11.EndOfMessage():
                        return Callback(headers, payload)
                    case _:
                        raise NotACallback(400, "the connection was closed early")
        except h11.RemoteProtocolError:
            raise NotACallback(400, "it is not an HTTP request") from None
    raise NotACallback(408, f"it did not arrive within {RECEIVE_S:.0f} s")


async def _pass_on(callback: Callback, client: httpx.AsyncClient, forward: str) -> int:
    """Post the same octets to the program; return its status. Raises NotACallback."""
    headers = {
        name: text
        for name, text in callback.headers.items()
        if name in FORWARDED or name.startswith("webhook-")
    }
    with trio.move_on_after(FORWARD_S):
        try:
            async with client.stream(
                "POST", forward, content=callback.payload, headers=headers
            ) as response:
                return response.status_code
        except httpx.HTTPError as error:
            words = " ".join(reason_of(error).split())
            raise NotACallback(502, f"{forward} cannot be reached: {words}") from None
    raise NotACallback(504, f"{forward} gave no answer within {FORWARD_S:.0f} s")
