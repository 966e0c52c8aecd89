"""One callback, delivered or not: found anew, guarded, over TLS, by one HTTP/1.1 request.

    async with open_courier(mailprobe.engine.dns.routes.addresses_now, allow_private=False, ca_file=None) as courier:
        delivered = await courier.deliver(check_webhook(url), headers, payload)

A customer's URL makes us connect, so nothing between its host's name and the
socket is left to anybody else: the name is looked up by the engine at every try,
all its addresses must be public, and the connection goes to one of those very
addresses (mailprobe.engine.net.dialer guards it once more). There is no pool that could give a
host another one's connection, no proxy (the engine's are for probes: a receiver
should see where it is called from), no cookie and no redirect.

It logs nothing, and what it tells holds nothing of the URL but the host, nothing of
the headers and nothing of what the receiver wrote.
"""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, zip_longest

import h11
import trio

from mailprobe.api.jobs.rules import WebhookTarget, read_retry_after
from mailprobe.engine.dns.doh import tls_context
from mailprobe.engine.dns.messages import AddressAnswer, LookupFailed, NoAddress
from mailprobe.engine.net.dialer import Dial, Dialer
from mailprobe.engine.net.public_addresses import is_public
from mailprobe.engine.net.tcp import CannotConnect

DELIVERY_S = 15.0  # all of it: look-up, connect, TLS, answer
CONNECT_S = 4.0  # one address, so that a second and a third have their chance
ADDRESSES_MAX = 4  # tried at a delivery; a name with dozens would make a scanner of us
ANSWER_OCTETS_MAX = 64 * 1024  # read, interim answers, head and body together
HEAD_OCTETS_MAX = 16 * 1024  # of these; h11 reads a head at one go, 10 ms at the worst
INTERIM_MAX = 16  # 1xx answers (RFC 9110 15.2) before the one that counts
BODY_PARTS_MAX = 500  # chunks of an octet each are as dear to read as long ones
RECEIVE_OCTETS = 16 * 1024  # a TLS record
ERROR_CHARACTERS_MAX = 200  # several resolvers' reasons are the longest

FindAddresses = Callable[[str], Awaitable[AddressAnswer]]


@dataclass(frozen=True, slots=True)
class Delivered:
    """What came of a try: the answer's status, or in a few words why there is none.

    `retry_after_s` is what the receiver asked for, whatever its status.
    """

    status: int | None
    error: str | None
    retry_after_s: float | None
    took_ms: int


class WebhookSender:
    """Delivers callbacks, any number at a time; `open_webhook_sender()` opens one."""

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
        """Post these very octets once; tells what came of it within DELIVERY_S.

        Raises nothing but Cancelled. The status decides: when the head has come, what
        becomes of the answer's body changes nothing.
        """
        began = trio.current_time()
        this = _Try()
        error = None
        with trio.move_on_after(DELIVERY_S) as limit:
            try:
                await self._post(this, target, headers, body)
            except Exception as trouble:
                # All of them: a receiver that finds a hole in h11 or in ssl, or a bug of
                # ours, is a try that failed, and may not end the other jobs.
                error = _in_words(trouble)
        if limit.cancelled_caught:
            error = f"{this.doing} took longer than {DELIVERY_S:g} s"
        took_ms = round((trio.current_time() - began) * 1000)
        if this.status is None:
            return Delivered(None, (error or "no answer")[:ERROR_CHARACTERS_MAX], None, took_ms)
        return Delivered(this.status, None, this.retry_after_s, took_ms)

    async def _post(
        self, this: "_Try", target: WebhookTarget, headers: Mapping[str, str], body: bytes
    ) -> None:
        addresses = await self._find(target.host)
        this.doing = "connecting"
        async with await self._connect(addresses, target) as stream:
            this.doing = "the TLS handshake"
            await stream.do_handshake()
            this.doing = "the answer"
            conversation = _Conversation(stream)
            await conversation.request(target, headers, body)
            head = await conversation.receive_head()
            this.status = head.status_code
            this.retry_after_s = self._retry_after_s(head)
            # To its end where it is short: a receiver that still writes would see a reset.
            await conversation.receive_body()

    def _retry_after_s(self, head: h11.Response) -> float | None:
        reported = next((value for name, value in head.headers if name == b"retry-after"), None)
        return (
            None if reported is None else read_retry_after(reported.decode("latin-1"), self._now())
        )

    async def _find(self, host: str) -> Sequence[str]:
        """The addresses to try, all of the host's being public; else raises _Undelivered."""
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
        """TLS over the first connection that there is, not yet begun; or raises OSError."""
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
                # https_compatible: HTTP says where an answer ends, so servers that close
                # without saying so in TLS are borne, and closing never waits.
                return trio.SSLStream(
                    stream, tls, server_hostname=target.host, https_compatible=True
                )
        raise trouble


class Trust:
    """By whose word certificates are accepted: the authorities of a file, or else the system's.

    A file is read at once, and raises OSError where it cannot be. The system's, more than
    a hundred, are read when the first receiver is called, in a thread: those 60 ms are the
    start's no more, nor of whoever is being served.
    """

    def __init__(self, ca_file: str | None) -> None:
        self._context = None if ca_file is None else _http_context(ca_file)
        self._reading = trio.Lock()

    async def context(self) -> ssl.SSLContext:
        async with self._reading:
            if self._context is None:
                self._context = await trio.to_thread.run_sync(_http_context, None)
            return self._context


def _http_context(ca_file: str | None) -> ssl.SSLContext:
    tls = tls_context(ca_file)
    tls.set_alpn_protocols(["http/1.1"])
    return tls


@dataclass(slots=True)
class _Try:
    """A delivery under way: what it is at, and what the answer's head said when it has come."""

    doing: str = "the look-up"
    status: int | None = None
    retry_after_s: float | None = None


class _Undelivered(Exception):
    """Why there is no answer; the message is a few words of ours."""


class _Conversation:
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
        """The answer's head, interim answers passed over."""
        for _ in range(INTERIM_MAX + 1):
            event = await self._next_event()
            if isinstance(event, h11.Response):
                return event
        raise _Undelivered(f"more than {INTERIM_MAX} interim answers")

    async def receive_body(self) -> None:
        """All of the body, or as much as we read; may raise where it breaks off."""
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
    """IPv4 and IPv6 by turns (RFC 8305 4): where one of them leads nowhere, it costs one try."""
    fours = [ip for ip in ips if ":" not in ip]
    sixes = [ip for ip in ips if ":" in ip]
    mixed = chain.from_iterable(zip_longest(fours, sixes))
    return [ip for ip in mixed if ip is not None][:ADDRESSES_MAX]


def _in_words(error: Exception) -> str:
    """Why a try failed, in words of ours, OpenSSL's or the system's; never the receiver's."""
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


def _utc_now() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def open_webhook_sender(
    find_addresses: FindAddresses,
    *,
    allow_private: bool,
    ca_file: str | None,
    dial: Dial | None = None,
    now: Callable[[], datetime] = _utc_now,
) -> AsyncIterator[WebhookSender]:
    """A courier for as long as the block lasts.

    `find_addresses` gives all addresses that a name has at this moment. Receivers must
    show a certificate for their host by an authority of `ca_file`, or else of the
    system; raises OSError where that cannot be read. `dial` and `now` are the world;
    left out, they are the real one.
    """
    yield WebhookSender(
        find_addresses,
        dial or Dialer(allow_private=allow_private),
        Trust(ca_file),
        allow_private=allow_private,
        now=now,
    )
