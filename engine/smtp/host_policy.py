"""Learns which envelope sender and how many recipients a mail host accepts, and whether it
demands TLS.

A reply to MAIL or RCPT may object to these terms and not to the recipient: 530 "Must
issue a STARTTLS command first", or a refusal of the envelope sender. Then the session
changes the terms and sends the same recipients again on the same connection. Such a
reply never settles a probe. What the host demands in reply to MAIL holds for all of its
connections. A demand in reply to RCPT may come from one domain only, and broken TLS must
not fail the other domains: if the handshake fails, probes without the demand continue in
plain text.

Terms change only on demand: a host that does not demand TLS is used in plain text.
"""

from dataclasses import dataclass, field

import trio

from . import wire
from .connection import SmtpConnection
from .limits import RecipientLimits
from .wire import (
    CommandReply,
    ConnectionLost,
    ReadTimedOut,
    RemoteProtocolError,
    Stage,
)


@dataclass(slots=True)
class Terms:
    """The sender, the TLS and the limits that one mail host demands, as far as known."""

    senders: tuple[str, ...]  # one of each kind (an address, the null sender); the first is used
    tls: bool = False  # the host demands it
    limits: RecipientLimits = field(default_factory=RecipientLimits, compare=False)
    _tls_fails: bool = False

    @property
    def sender(self) -> str:
        return self.senders[0]

    def demand_tls(self, *, of_all: bool) -> None:
        """The host demands TLS: `of_all`, or of one recipient; then of all unless TLS failed."""
        self.tls = self.tls or of_all or not self._tls_fails

    def tls_works(self) -> None:
        self.tls, self._tls_fails = True, False

    def tls_failed(self) -> None:
        """Continue in plain text for probes without the demand."""
        self.tls, self._tls_fails = False, True

    def refuse(self, sender: str) -> bool:
        """The host refused this sender: use the other kind. Returns False if there is none."""
        if sender == self.senders[0]:
            self.senders = (*self.senders[1:], sender)
        return len(self.senders) > 1


def first_terms(mail_from: str) -> Terms:
    """Return the terms to begin with: the sender of the settings, in plain text."""
    return Terms((mail_from, "") if mail_from else ("",))


async def start_tls(
    connection: SmtpConnection,
    helo_name: str,
    written: list[tuple[float, bool, str]],
    *,
    until: float = float("inf"),
) -> CommandReply | None:
    """Start TLS with STARTTLS, and send EHLO again.

    Adds the lines of the exchange to `written`, also before a failure. Returns the
    exchange in which the server refused, or None. Raises what
    SmtpConnection.receive_reply() raises.
    """
    conversation = connection.conversation
    opening = [wire.RSET] if conversation.state.stage is Stage.MAIL else []
    for command in (*opening, wire.STARTTLS):
        turn = await connection.exchange(command, written, until=until)
        if not turn.reply.positive:
            return turn
    try:
        version = await connection.start_tls(until=until)
    except (ReadTimedOut, ConnectionLost, RemoteProtocolError) as error:
        words = f"(handshake failed: {str(error) or 'no answer in time'})"
        written.append((trio.current_time(), True, words))
        raise
    written.append((conversation.received_at, True, f"({version}, certificate not judged)"))
    turn = await connection.exchange(wire.ehlo(helo_name), written, until=until)
    return None if turn.reply.positive else turn
