"""Opens one connection: dial, banner, EHLO, and TLS if the host demands it."""

import errno

import trio

from ...net.tcp import EgressFailed
from ...verdict import Outcome
from .. import wire
from ..connection import SmtpConnection
from ..host_policy import start_tls
from ..probe import EGRESS_FAILED_RULE, Cause
from ..replies.rules import Step
from ..session.failure_causes import CONNECTION_ERRORS, cause_of
from ..session.session import SmtpSession
from ..wire import RemoteProtocolError
from .host import Host
from .serving import ConnectionEgress, ServedSession

# Errors of our own network, not of the host.
UNREACHABLE = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EACCES, errno.EPERM}
)


async def greet(
    host: Host, egress: ConnectionEgress, address: str, lines: list[tuple[float, bool, str]]
) -> ServedSession | Cause | None:
    """Connect, read the banner, send EHLO, or HELO if that is refused.

    Adds the lines of the conversation to `lines`, also before a failure.

    The caller holds a permit of the address. The session keeps it; otherwise it is
    released once the connection is closed. None if the permit was revoked meanwhile.
    """
    connection = None
    greeted: ServedSession | Cause | None = None
    began = trio.current_time()
    try:
        with egress.permits.holding(address):
            with trio.fail_after(host.clocks.read_s):
                stream = await egress.network.dial(address, host.egress.settings.smtp_port)
            connection = SmtpConnection(egress.network.open_channel(stream), host.clocks.read_s)
            lines.append((began, True, "(connect)"))
            greeted = await _introduce(host, egress, connection, address, lines)
            if isinstance(greeted, Cause):
                lines += connection.conversation.unanswered_lines()
    except trio.TooSlowError:
        greeted = Cause(Outcome.TIMED_OUT, "clock.connect", "no answer to connect")
    except EgressFailed as error:
        greeted = Cause(Outcome.NO_EGRESS, EGRESS_FAILED_RULE, str(error))
    except OSError as error:
        words = str(error) or "can't connect"
        rule = "connect.unreachable" if error.errno in UNREACHABLE else "connect.failed"
        greeted = Cause(Outcome.CONVERSATION_FAILED, rule, words)
    finally:
        if isinstance(greeted, Cause) and connection is not None:
            egress.tasks.start(_close, host, egress, connection, address)
        elif not isinstance(greeted, ServedSession):
            if connection is not None:
                with trio.CancelScope(shield=True):
                    await connection.close()
            egress.permits.release(address)
    return greeted


async def _introduce(
    host: Host,
    egress: ConnectionEgress,
    connection: SmtpConnection,
    address: str,
    preamble: list[tuple[float, bool, str]],
) -> ServedSession | Cause:
    step = Step.BANNER
    try:
        turn = await connection.receive_reply()
        preamble += connection.conversation.lines_of(turn)
        if not turn.reply.positive:
            return _refused(host, Step.BANNER, turn)
        host.identity.recognise(" ".join(turn.reply.lines))
        step = Step.HELLO
        turn = await connection.exchange(wire.ehlo(host.egress.settings.helo_name), preamble)
        if turn.reply.code >= 500:
            turn = await connection.exchange(wire.helo(host.egress.settings.helo_name), preamble)
    except CONNECTION_ERRORS as error:
        return cause_of(error, step, spoke=step is not Step.BANNER)
    if not turn.reply.positive:
        return _refused(host, Step.HELLO, turn)
    host.identity.recognise(" ".join(turn.reply.lines))
    if (cause := await _start_tls(host, connection, preamble)) is not None:
        return cause
    if connection.conversation.unread:
        return cause_of(RemoteProtocolError("it spoke without being asked"), Step.HELLO)
    host.introduced(connection.conversation)
    session = SmtpSession(host, connection.conversation, address, preamble)
    return ServedSession(host, egress, session, connection, address)


async def _start_tls(
    host: Host, connection: SmtpConnection, preamble: list[tuple[float, bool, str]]
) -> Cause | None:
    """Start TLS if the host is known to demand it. Returns the cause of a failure, or None."""
    if not (host.terms.tls and connection.conversation.state.offer.starttls):
        return None
    try:
        refusal = await start_tls(connection, host.egress.settings.helo_name, preamble)
    except CONNECTION_ERRORS as error:
        host.terms.tls_failed()
        return cause_of(error, Step.STARTTLS)
    if refusal is None:
        return None
    host.terms.tls_failed()
    return _refused(host, Step.STARTTLS, refusal)


def _refused(host: Host, step: Step, turn: wire.CommandReply) -> Cause:
    reading = host.read(step, turn.reply)
    words = f"{step.value} refused: {turn.reply.code} {turn.reply.text[:80]}"
    return Cause(
        Outcome.CONVERSATION_FAILED,
        reading.rule,
        words,
        about_us=reading.about_us,
        replied=True,
        temporary=step is Step.BANNER and turn.reply.code < 500,
        greeting=step is Step.BANNER,
    )


async def _close(
    host: Host, egress: ConnectionEgress, connection: SmtpConnection, address: str
) -> None:
    """Send QUIT in the background; the probes do not wait for it."""
    is_done = True
    try:
        with egress.permits.holding(address):
            is_done = await connection.quit()
    finally:
        if not is_done:
            egress.left_connections.add(host, connection, address)
        else:
            with trio.CancelScope(shield=True):
                await connection.close()
            egress.permits.release(address)
