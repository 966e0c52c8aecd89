"""The terms on which a mail host takes a transaction: the sender, and TLS.

A reply to MAIL or RCPT may object to the terms and not to the recipient: 530 "Must
issue a STARTTLS command first", or a refusal of the envelope sender. Then the terms
are changed and the same recipients are asked again on the same connection; such a
reply never settles one. What the host wanted in reply to MAIL is kept for all of its
connections. A demand in reply to RCPT may be one domain's, and TLS that is broken must not
silence the others there: where it fails, those of whom it is not demanded go on without.

Nothing is changed unasked: a host that doesn't demand TLS is spoken to in plain text.
"""

from dataclasses import dataclass

import trio

from mailprobe.engine.smtp import wire
from mailprobe.engine.smtp.connection import ConnectionLost, ReadTimedOut, SmtpConnection
from mailprobe.engine.smtp.wire import CommandReply, RemoteProtocolError, Stage


@dataclass(slots=True)
class Terms:
    """What one mail host was found to want."""

    senders: tuple[str, ...]  # one of each kind that there is; the first is used
    tls: bool = False  # it is demanded
    _tls_fails: bool = False

    @property
    def sender(self) -> str:
        return self.senders[0]

    def demand_tls(self, *, of_all: bool) -> None:
        """The host demands TLS `of_all`, or in reply to one recipient: then of all if it works."""
        self.tls = self.tls or of_all or not self._tls_fails

    def tls_works(self) -> None:
        self.tls, self._tls_fails = True, False

    def tls_failed(self) -> None:
        """Go on in plain text with those from whom it is not demanded."""
        self.tls, self._tls_fails = False, True

    def refuse(self, sender: str) -> bool:
        """The host refused this sender: begin with the other kind. False where there is none."""
        if sender == self.senders[0]:
            self.senders = (*self.senders[1:], sender)
        return len(self.senders) > 1


def first_terms(mail_from: str) -> Terms:
    """What a host is offered first: the sender of the settings, in plain text."""
    return Terms((mail_from, "") if mail_from else ("",))


async def start_tls(
    connection: SmtpConnection,
    helo_name: str,
    written: list[tuple[float, bool, str]],
    *,
    until: float = float("inf"),
) -> CommandReply | None:
    """Change to TLS where the server offers it, and say EHLO again.

    What is said is added to `written`, as far as it goes. The turn by which the server
    refused, or None. Raises what Connection.hear() raises.
    """
    conversation = connection.conversation
    opening = [wire.RSET] if conversation.stage is Stage.MAIL else []
    for command in (*opening, wire.STARTTLS):
        await connection.send(command)
        turn = await connection.receive_reply(until=until)
        written += connection.lines_of(turn)
        if not turn.reply.positive:
            return turn
    try:
        version = await connection.start_tls(until=until)
    except (ReadTimedOut, ConnectionLost, RemoteProtocolError) as error:
        words = f"(handshake failed: {str(error) or 'no answer in time'})"
        written.append((trio.current_time(), True, words))
        raise
    written.append((connection.received_at, True, f"({version}, certificate not judged)"))
    await connection.send(wire.ehlo(helo_name))
    turn = await connection.receive_reply(until=until)
    written += connection.lines_of(turn)
    return None if turn.reply.positive else turn
