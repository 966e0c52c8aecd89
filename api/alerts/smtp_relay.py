"""Sends mails to an SMTP relay, with the standard library's client in a thread.

A separate timer closes the socket if a mail is not sent within DELIVERY_S, because the
client's time-out is per read and a slow relay never exceeds it. A password is sent only
over TLS or to this machine.
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
from datetime import UTC, datetime
from email import policy
from email.message import EmailMessage
from typing import Protocol
from urllib.parse import unquote, urlsplit

import trio
from msgspec import Struct

from mailprobe.engine.address import Address, NotAnAddress, parse

from ..observability.logs import shortened

DELIVERY_S = 30.0  # from the connect to the mail's last octet
ANSWER_S = 120.0  # then for the reply: giving up while the relay stores the mail would cause a copy
QUIT_S = 1.0  # for the reply to QUIT; a stop during this wait would cause a copy
REPLY_SHOWN_MAX = 200  # characters of a relay's reply
PORTS = {"smtp": 25, "smtps": 465}  # RFC 5321, RFC 8314


class SendResult(Struct, frozen=True):
    """The result of one attempt to send a mail."""

    why: str | None = None  # why it was not sent; None if it was
    final: bool = False  # a retry would not help


ACCEPTED = SendResult()


class Mailer(Protocol):
    """Sends mails."""

    async def send(self, message: EmailMessage) -> SendResult:
        """Send it; a relay's failure is a SendResult. Takes less than the sender's LEASE_S."""
        ...


def recipient_of(text: str) -> Address:
    """The address that a mail goes to. Raises NotAnAddress.

    In a header, an encoded word (RFC 2047) is another mailbox, or none.
    """
    found = parse(text)
    if "=?" in found.local:
        raise NotAnAddress("it has an encoded word")
    return found


def headed(to: Address, subject: str, at: datetime, sender: str, message_id: str) -> EmailMessage:
    """The headers of a mail that this service sends; the caller adds the text."""
    message = EmailMessage(policy.SMTPUTF8 if to.needs_smtputf8 else policy.SMTP)
    message["From"] = f"mailprobe <{sender}>"
    message["To"] = to.mailbox
    message["Subject"] = subject
    message["Date"] = at
    message["Message-ID"] = message_id
    message["Auto-Submitted"] = "auto-generated"  # RFC 3834 5: prevents automatic replies
    return message


def instant_text(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


@dataclass(frozen=True, slots=True)
class Relay:
    """A mail relay: its address, credentials and time limits."""

    host: str
    port: int
    tls: bool  # TLS from the first octet on
    user: str | None = None
    password: str = field(default="", repr=False)
    name: str = "localhost"  # sent in EHLO; without a name smtplib would do a DNS look-up
    context: ssl.SSLContext | None = None  # None: the system's certificate authorities
    delivery_s: float = DELIVERY_S
    answer_s: float = ANSWER_S

    def tls_context(self) -> ssl.SSLContext:
        return self.context or ssl.create_default_context()


def read_relay(url: str, name: str) -> Relay:
    """Parse `smtp://[user:pass@]host[:port]` or `smtps://…`, percent-decoded; raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError("it is not an smtp:// or smtps:// URL")
    return Relay(
        parts.hostname,
        parts.port or PORTS[parts.scheme],
        parts.scheme == "smtps",
        None if parts.username is None else unquote(parts.username),
        unquote(parts.password or ""),
        name,
    )


class RelayMailer:
    """A Mailer that uses smtplib in a thread; one mail at a time."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._threads = trio.CapacityLimiter(1)

    async def send(self, message: EmailMessage) -> SendResult:
        exchange = _RelaySession(self._relay, message)
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

    async def _cut_in_time(self, exchange: "_RelaySession") -> None:
        await trio.sleep(self._relay.delivery_s)
        if exchange.delivered:
            await trio.sleep(self._relay.answer_s)
        exchange.cut()


class _RelaySession:
    """One conversation with the relay, in a thread; any other thread can abort it.

    smtplib's time-out is per read: a relay that sends an octet a second would never
    exceed it. So the timer is outside and closes the connection.
    """

    def __init__(self, relay: Relay, message: EmailMessage) -> None:
        self._relay = relay
        self._message = message
        self._sender = str(message["From"].addresses[0].addr_spec)
        self._recipient = str(message["To"].addresses[0].addr_spec)
        self._lock = threading.Lock()
        self._line: socket.socket | None = None  # a duplicate of the socket below TLS
        self._is_cut = False
        self.delivered = False  # all octets were sent; the relay's reply is still missing

    def cut(self) -> None:
        """Abort from any thread: pending reads and writes fail, and nothing more is sent."""
        with self._lock:
            self._is_cut = True
            if self._line is not None:
                with suppress(OSError):  # the relay has closed it already
                    self._line.shutdown(socket.SHUT_RDWR)
                self._line.close()
                self._line = None

    # the methods below run in the thread

    def run(self) -> SendResult:
        try:
            with closing(_Client(self._relay, self._dial)) as client:
                return self._converse(client)
        except smtplib.SMTPAuthenticationError as error:
            # without the relay's text: it may repeat the credentials
            return self._failed(f"the login was refused with {error.smtp_code}")
        except smtplib.SMTPResponseException as error:
            return self._failed(_reply_text(error.smtp_code, error.smtp_error))
        except (
            OSError,
            ValueError,
        ) as error:  # OSError: all of smtplib's; ValueError: decoding and encoding
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
        with suppress(OSError):  # the relay has accepted the mail, whatever it replies to QUIT
            if client.sock is not None:
                client.sock.settimeout(QUIT_S)
            client.quit()
        return ACCEPTED

    def _dial(self, host: str, port: int) -> socket.socket:
        context = self._relay.tls_context() if self._relay.tls else None
        line = socket.create_connection((host, port), self._relay.delivery_s)
        line.settimeout(None)  # from here on cut() limits the time
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
            elif not is_this_machine(client.sock):
                raise smtplib.SMTPNotSupportedError(
                    "the relay offers no STARTTLS, and a password is not sent in the clear"
                )
        client.login(user, self._relay.password)


class _Client(smtplib.SMTP):
    """smtplib's client on a socket from `dial`; overrides the same method as its SMTP_SSL."""

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
    """Return DATA's content (RFC 5321 4.5.2): leading dots doubled, a final line with one dot."""
    lines = octets.removesuffix(b"\r\n").split(b"\r\n")
    return b"\r\n".join([*(b"." + line if line[:1] == b"." else line for line in lines), b".", b""])


def is_this_machine(sock: socket.socket | None) -> bool:
    return sock is not None and ipaddress.ip_address(sock.getpeername()[0]).is_loopback
