"""The webhook sender: delivers one callback by one HTTP/1.1 request over TLS (RFC 9112).

    async with open_webhook_sender(routes.addresses_now, allow_private=False, ca_file=None) as sender:
        delivered = await sender.deliver(check_webhook(url), headers, payload)

The customer chooses the URL, so the sender guards against server-side request
forgery: the engine looks the host up for every attempt, all addresses must be
public, and the connection goes to one of these addresses (engine.net.dialer checks
again). There is no connection pool, proxy, cookie or redirect. Proxies are for
probes only: a receiver should see the real source address.

The module logs nothing. Its results contain no part of the URL but the host, no
header, and no text that the receiver wrote.
"""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import chain, zip_longest

import h11
import trio
from msgspec import Struct

from mailprobe.engine.dns.doh import tls_context
from mailprobe.engine.dns.messages import AddressAnswer, LookupFailed, NoAddress
from mailprobe.engine.net.dialer import Dial, Dialer
from mailprobe.engine.net.public_addresses import is_public
from mailprobe.engine.net.tcp import CannotConnect
from mailprobe.storage import utc_now

from .rules import WebhookTarget, read_retry_after

DELIVERY_S = 15.0  # all of it: look-up, connect, TLS, answer
CONNECT_S = 4.0  # per address, so that time is left for the next
ADDRESSES_MAX = 4  # per delivery; a name with dozens would make this a port scanner
ANSWER_OCTETS_MAX = 64 * 1024  # read, interim answers, head and body together
HEAD_OCTETS_MAX = 16 * 1024  # of these; h11 parses a head in one call, at most 10 ms
INTERIM_MAX = 16  # 1xx answers (RFC 9110 15.2) before the one that counts
BODY_PARTS_MAX = 500  # a one-octet chunk costs as much to parse as a long one
RECEIVE_OCTETS = 16 * 1024  # a TLS record
ERROR_CHARACTERS_MAX = 200  # several resolvers' reasons are the longest

FindAddresses = Callable[[str], Awaitable[AddressAnswer]]


class Delivered(Struct, frozen=True):
    """The result of one attempt: the response's status, or a short error text.

    `retry_after_s` is the receiver's Retry-After, with any status.
    """

    status: int | None
    error: str | None
    retry_after_s: float | None
    took_ms: int


class WebhookSender:
    """Delivers callbacks, any number concurrently; made by `open_webhook_sender()`."""

    def __init__(
        self,
        find_addresses: FindAddresses,
        dial: Dial,
        trust: "Trust",
        *,
        allow_private: bool,
        now: Callable[[], datetime],
    ) -> None:
        self._find_addresses = find_addresses
        self._dial = dial
        self._trust = trust
        self._allow_private = allow_private
        self._now = now

    async def deliver(
        self, target: WebhookTarget, headers: Mapping[str, str], body: bytes
    ) -> Delivered:
        """Post `body` unchanged, once, and return the result within DELIVERY_S.

        Raises only Cancelled. The status decides: an error while reading the
        response's body is ignored.
        """
        began = trio.current_time()
        attempt = _Attempt()
        error = None
        with trio.move_on_after(DELIVERY_S) as limit:
            try:
                await self._post(attempt, target, headers, body)
            except Exception as trouble:
                # Any exception, a bug in h11, ssl or here included, fails this attempt
                # only; it must not end other jobs.
                error = _in_words(trouble)
        if limit.cancelled_caught:
            error = f"{attempt.doing} took longer than {DELIVERY_S:g} s"
        took_ms = round((trio.current_time() - began) * 1000)
        if attempt.status is None:
            return Delivered(None, (error or "no answer")[:ERROR_CHARACTERS_MAX], None, took_ms)
        return Delivered(attempt.status, None, attempt.retry_after_s, took_ms)

    async def _post(
        self, attempt: "_Attempt", target: WebhookTarget, headers: Mapping[str, str], body: bytes
    ) -> None:
        addresses = await self._find(target.host)
        attempt.doing = "connecting"
        async with await self._connect(addresses, target) as stream:
            attempt.doing = "the TLS handshake"
            await stream.do_handshake()
            attempt.doing = "the answer"
            exchange = _Exchange(stream)
            await exchange.request(target, headers, body)
            head = await exchange.receive_head()
            attempt.status = head.status_code
            attempt.retry_after_s = self._retry_after_s(head)
            # Read a short body to its end: closing earlier would reset the connection.
            await exchange.receive_body()

    def _retry_after_s(self, head: h11.Response) -> float | None:
        reported = next((value for name, value in head.headers if name == b"retry-after"), None)
        return (
            None if reported is None else read_retry_after(reported.decode("latin-1"), self._now())
        )

    async def _find(self, host: str) -> Sequence[str]:
        """The addresses to try. Raises _Undelivered unless all of the host's are public."""
        found = await self._find_addresses(host)
        if isinstance(found, LookupFailed):
            raise _Undelivered(f"the look-up failed: {found.reason}")
        if isinstance(found, NoAddress):
            raise _Undelivered(f"the host has no address: {found.reason}")
        if not self._allow_private and not all(map(is_public, found.ips)):
            raise _Undelivered("the host has an address that is not public")
        return _by_family(found.ips)

    async def _connect(
        self, addresses: Sequence[str], target: WebhookTarget
    ) -> trio.SSLStream[trio.abc.Stream]:
        """TLS, before its handshake, over the first connection that opens. Raises OSError."""
        tls = await self._trust.context()  # before there is a connection to lose
        trouble: OSError = CannotConnect("the host has no address")
        for address in addresses:
            try:
                with trio.fail_after(CONNECT_S):
                    stream = await self._dial(address, target.port)
            except trio.TooSlowError:
                trouble = CannotConnect(f"no connection within {CONNECT_S:g} s")
            except OSError as error:
                trouble = error
            else:
                # https_compatible: HTTP marks the end of a response, so a close without
                # close_notify is accepted, and closing never waits.
                return trio.SSLStream(
                    stream, tls, server_hostname=target.host, https_compatible=True
                )
        raise trouble


class Trust:
    """The trusted certificate authorities: those of a file, or else the system's.

    A file is read at once; raises OSError if that fails. The system's are read in a
    thread at the first delivery: this takes 60 ms, which would delay start-up or requests.
    """

    def __init__(self, ca_file: str | None) -> None:
        self._context = None if ca_file is None else http_context(ca_file)
        self._reading = trio.Lock()

    async def context(self) -> ssl.SSLContext:
        async with self._reading:
            if self._context is None:
                self._context = await trio.to_thread.run_sync(http_context, None)
            return self._context


def http_context(ca_file: str | None) -> ssl.SSLContext:
    tls = tls_context(ca_file)
    tls.set_alpn_protocols(["http/1.1"])
    return tls


class _Attempt(Struct):
    """A delivery in progress: its current step, and what the response's head contained."""

    doing: str = "the look-up"
    status: int | None = None
    retry_after_s: float | None = None


class _Undelivered(Exception):
    """No response arrived; the message is our own text."""


class _Exchange:
    """One request and its answer over a stream, bounded (RFC 9112)."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_OCTETS_MAX)
        self._left = ANSWER_OCTETS_MAX

    async def request(self, target: WebhookTarget, headers: Mapping[str, str], body: bytes) -> None:
        request = h11.Request(
            method="POST",
            target=target.request_target,
            headers=[
                ("Host", target.authority),
                *headers.items(),
                ("Content-Length", str(len(body))),
                ("Connection", "close"),
            ],
        )
        parts = (request, h11.Data(data=body), h11.EndOfMessage())
        await self._stream.send_all(b"".join(self._http.send(part) or b"" for part in parts))

    async def receive_head(self) -> h11.Response:
        """The response's head; interim responses are skipped."""
        for _ in range(INTERIM_MAX + 1):
            event = await self._next_event()
            if isinstance(event, h11.Response):
                return event
        raise _Undelivered(f"more than {INTERIM_MAX} interim answers")

    async def receive_body(self) -> None:
        """Read the body up to its limit; raises if the connection breaks."""
        for _ in range(BODY_PARTS_MAX):
            if not self._left or not isinstance(await self._next_event(), h11.Data):
                return

    async def _next_event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if not self._left:
                raise _Undelivered(f"an answer of more than {ANSWER_OCTETS_MAX} octets")
            octets = await self._stream.receive_some(min(self._left, RECEIVE_OCTETS))
            if not octets and self._http.their_state is h11.SEND_RESPONSE:
                raise _Undelivered("the connection was closed without an answer")
            self._left -= len(octets)
            self._http.receive_data(bytes(octets))
        return event


def _by_family(ips: Sequence[str]) -> Sequence[str]:
    """IPv4 and IPv6 alternately (RFC 8305 4), so a broken family costs one attempt."""
    fours = [ip for ip in ips if ":" not in ip]
    sixes = [ip for ip in ips if ":" in ip]
    mixed = chain.from_iterable(zip_longest(fours, sixes))
    return [ip for ip in mixed if ip is not None][:ADDRESSES_MAX]


def _in_words(error: Exception) -> str:
    """Why an attempt failed, in our, OpenSSL's or the system's words; never the receiver's."""
    if isinstance(error, _Undelivered | CannotConnect):
        return str(error)
    if isinstance(error, h11.RemoteProtocolError):  # its message quotes what came
        too_long = error.error_status_hint == 431
        return "the answer's head is too long" if too_long else "the answer is not HTTP"
    cause = error.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"certificate not accepted: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError):
        return f"TLS failed: {(cause.reason or 'broken off').replace('_', ' ').lower()}"
    if isinstance(error, trio.BrokenResourceError):
        return "the connection broke"
    return f"failed ({type(error).__name__})"


@asynccontextmanager
async def open_webhook_sender(
    find_addresses: FindAddresses,
    *,
    allow_private: bool,
    ca_file: str | None,
    dial: Dial | None = None,
    now: Callable[[], datetime] = utc_now,
) -> AsyncIterator[WebhookSender]:
    """Open a webhook sender for the duration of the block.

    `find_addresses` returns a name's current addresses. A receiver's certificate must
    be issued by an authority of `ca_file`, or else of the system. `dial` and `now` are
    for tests. Raises OSError if `ca_file` cannot be read.
    """
    yield WebhookSender(
        find_addresses,
        dial or Dialer(allow_private=allow_private),
        Trust(ca_file),
        allow_private=allow_private,
        now=now,
    )
