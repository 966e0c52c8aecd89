"""A mail relay, by the standard library's client in a thread: one mail, handed over whole.

The mail's octets are out within HAND_OVER_S, kept by a clock of our own that cuts the
socket, because the client's time-out is for each read and a relay that drips never
meets it. A password goes out under TLS alone, or to this machine.
"""

import ipaddress
import re
import smtplib
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import Protocol
from urllib.parse import unquote, urlsplit

import trio

DELIVERY_S = 30.0  # from the connect to the mail's last octet
ANSWER_S = 120.0  # then for the yes: who gives up while the relay still files it makes copies
QUIT_S = 1.0  # for the answer to it; a stop in between would be a copy
REPLY_SHOWN_MAX = 200  # characters of what a relay says
PORTS = {"smtp": 25, "smtps": 465}  # RFC 5321, RFC 8314


@dataclass(frozen=True, slots=True)
class SendResult:
    """What came of one try to send a letter."""

    why: str | None = None  # it was not taken
    final: bool = False  # and trying again would change nothing


ACCEPTED = SendResult()


class Mailer(Protocol):
    """Who takes mails."""

    async def send(self, message: EmailMessage) -> SendResult:
        """Hand it over; a relay's trouble is a Fate. Bounded in time, well below LEASE_S."""
        ...


def shortened(address: str) -> str:
    """As much of it as a log may hold."""
    local, at, domain = address.rpartition("@")
    return printable(f"{local[:1]}…{at}{domain}")


def printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


@dataclass(frozen=True, slots=True)
class Relay:
    """Where mails are handed in, and how."""

    host: str
    port: int
    tls: bool  # from the first octet on
    user: str | None = None
    password: str = field(default="", repr=False)
    name: str = "localhost"  # said in EHLO; without one smtplib would ask the resolver
    context: ssl.SSLContext | None = None  # checks the certificate; None: the system's authorities
    delivery_s: float = DELIVERY_S
    answer_s: float = ANSWER_S

    def tls_context(self) -> ssl.SSLContext:
        return self.context or ssl.create_default_context()


def read_relay(url: str, name: str) -> Relay:
    """`smtp://[user:pass@]host[:port]` or `smtps://`, percent-decoded; raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError("it is no smtp:// or smtps:// URL")
    return Relay(
        parts.hostname,
        parts.port or PORTS[parts.scheme],
        parts.scheme == "smtps",
        None if parts.username is None else unquote(parts.username),
        unquote(parts.password or ""),
        name,
    )


class RelayMailer:
    """A Mailer by smtplib, in a thread of its own."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._threads = trio.CapacityLimiter(1)

    async def send(self, message: EmailMessage) -> SendResult:
        exchange = _Exchange(self._relay, message)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._cut_in_time, exchange)
                send_result = await trio.to_thread.run_sync(
                    exchange.run, limiter=self._threads, abandon_on_cancel=True
                )
                nursery.cancel_scope.cancel()
        finally:
            exchange.cut()
        return send_result

    async def _cut_in_time(self, exchange: "_Exchange") -> None:
        await trio.sleep(self._relay.delivery_s)
        if exchange.delivered:
            await trio.sleep(self._relay.answer_s)
        exchange.cut()


class _Exchange:
    """One conversation with the relay, in a thread, which another thread can end.

    smtplib's time-out is one for each read: a relay that says a letter a second would
    never meet it. So the clock is kept outside, and cuts the line.
    """

    def __init__(self, relay: Relay, message: EmailMessage) -> None:
        self._relay = relay
        self._message = message
        self._sender = str(message["From"].addresses[0].addr_spec)
        self._recipient = str(message["To"].addresses[0].addr_spec)
        self._lock = threading.Lock()
        self._line: socket.socket | None = None  # the same connection, whatever TLS lies upon it
        self._is_cut = False
        self.delivered = False  # the relay has every octet, and has not said yes

    def cut(self) -> None:
        """From any thread: whatever waits for the relay fails now, and no more is sent."""
        with self._lock:
            self._is_cut = True
            if self._line is not None:
                with suppress(OSError):  # the relay has hung up before
                    self._line.shutdown(socket.SHUT_RDWR)
                self._line.close()
                self._line = None

    # from here on in the thread

    def run(self) -> SendResult:
        try:
            with closing(_Client(self._relay, self._dial)) as client:
                return self._converse(client)
        except smtplib.SMTPAuthenticationError as error:
            # not its words: they may repeat what was sent
            return self._failed(f"the login was refused with {error.smtp_code}")
        except smtplib.SMTPResponseException as error:
            return self._failed(_reply_text(error.smtp_code, error.smtp_error))
        except (OSError, ValueError) as error:  # all of smtplib's; what it cannot decode or encode
            return self._failed(str(error) or type(error).__name__)

    def _failed(self, why: str, *, final: bool = False) -> SendResult:
        if self._is_cut:
            return SendResult("the relay took too long")
        why = re.sub(re.escape(self._recipient), shortened(self._recipient), why, flags=re.I)
        return SendResult(printable(why)[:REPLY_SHOWN_MAX], final)

    def _converse(self, client: "_Client") -> SendResult:
        client.ehlo_or_helo_if_needed()
        if self._relay.user is not None:
            self._log_in(client, self._relay.user)
        needs = [] if self._recipient.isascii() else ["SMTPUTF8"]
        _expect(250, client.mail(self._sender, needs))
        code, text = client.rcpt(self._recipient)
        if code not in (250, 251):
            return self._failed(_reply_text(code, text), final=500 <= code <= 599)
        _expect(354, client.docmd("DATA"))
        client.send(_dotted(self._message.as_bytes()))
        self.delivered = True
        _expect(250, client.getreply())
        with suppress(OSError):  # a courtesy: the mail is the relay's, whatever it says now
            if client.sock is not None:
                client.sock.settimeout(QUIT_S)
            client.quit()
        return ACCEPTED

    def _dial(self, host: str, port: int) -> socket.socket:
        context = self._relay.tls_context() if self._relay.tls else None
        line = socket.create_connection((host, port), self._relay.delivery_s)
        line.settimeout(None)  # from here on cut() ends it
        with self._lock:
            if self._is_cut:
                line.close()
                raise TimeoutError
            self._line = line.dup()
        return context.wrap_socket(line, server_hostname=host) if context else line

    def _log_in(self, client: "_Client", user: str) -> None:
        if not self._relay.tls:
            if client.has_extn("starttls"):
                client.starttls(context=self._relay.tls_context())
            elif not _is_this_machine(client.sock):
                raise smtplib.SMTPNotSupportedError(
                    "the relay offers no STARTTLS, and a password is not sent in the clear"
                )
        client.login(user, self._relay.password)


class _Client(smtplib.SMTP):
    """smtplib's client, on a connection that somebody else makes (as its SMTP_SSL does it)."""

    def __init__(self, relay: Relay, dial: Callable[[str, int], socket.socket]) -> None:
        self._dial = dial
        super().__init__(relay.host, relay.port, local_hostname=relay.name)

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        return self._dial(host, port)


def _expect(code: int, said: tuple[int, bytes]) -> None:
    if said[0] != code:
        raise smtplib.SMTPResponseException(*said)


def _reply_text(code: int, text: bytes | str) -> str:
    words = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return f"{code} {words}"


def _dotted(octets: bytes) -> bytes:
    """As DATA takes it (RFC 5321 4.5.2): a dot that begins a line doubled, a lone one at the end."""
    lines = octets.removesuffix(b"\r\n").split(b"\r\n")
    return b"\r\n".join([*(b"." + line if line[:1] == b"." else line for line in lines), b".", b""])


def _is_this_machine(sock: socket.socket | None) -> bool:
    return sock is not None and ipaddress.ip_address(sock.getpeername()[0]).is_loopback
