"""The log of a mail host about its clients, for tests to check.

Everything is bounded, because a bench sends a host a hundred thousand commands: totals
stay exact, transcripts are kept of the newest sessions.
"""

from collections import Counter, deque
from collections.abc import Callable

from msgspec import Struct, field

from .host_behaviours import ClientHistory
from .host_defences import SOURCES_MAX, SourceHistory

SESSIONS_KEPT = 1_000
COMMANDS_KEPT = 2_000  # commands of one session
RECENT_KEPT = 10_000  # times of recipients
RECIPIENTS_KEPT = 50_000  # different mailboxes; later ones are counted under "…"


class LoggedCommand(Struct):
    """One command of the client and its reply; times are on trio's clock."""

    at_s: float
    line: str  # without its CRLF
    reply: str | None = None  # the right reply, before any fault
    answered_at_s: float | None = None  # when the last octet was sent
    fault: str | None = None  # the class name of the fault


class HostLogSession(Struct):
    """One connection, from its acceptance to its end."""

    number: int  # from 1
    opened_at_s: float
    source: str = ""  # the client's address; all clients in memory are one
    commands_seen: list[LoggedCommand] = field(default_factory=list)
    turnarounds: int = 0  # writes of the client that held a command: the number of round trips
    commands: int = 0
    refusals: int = 0  # recipients that got a 4xx or 5xx
    recipients: list[str] = field(default_factory=list)  # every mailbox that RCPT named
    quit: bool = False
    # "" while open, then "quit", "client", "host", "reset" or "end" (of the world).
    closed: str = ""
    mistakes: list[str] = field(default_factory=list)  # things that a prober must never do

    def log_command(self, at_s: float, line: str) -> LoggedCommand:
        self.commands += 1
        spoken = LoggedCommand(at_s, line)
        if len(self.commands_seen) < COMMANDS_KEPT:
            self.commands_seen.append(spoken)
        return spoken

    def blame(self, mistake: str) -> None:
        if len(self.mistakes) < 100:
            self.mistakes.append(mistake)

    def replies(self) -> dict[str, list[str]]:
        """The replies to each mailbox that RCPT named, in order."""
        reported: dict[str, list[str]] = {}
        for spoken in self.commands_seen:
            if spoken.reply is not None and (mailbox := rcpt_mailbox(spoken.line)) is not None:
                reported.setdefault(mailbox, []).append(spoken.reply)
        return reported


class HostLog(Struct):
    """All that one mail host has seen."""

    sessions: deque[HostLogSession] = field(default_factory=lambda: deque(maxlen=SESSIONS_KEPT))
    sessions_seen: int = 0
    connected: dict[int, Callable[[], bool]] = field(default_factory=dict)  # by its session's id
    connections_now: int = 0
    connections_peak: int = 0
    recipients: Counter[str] = field(default_factory=Counter)  # RCPT mailboxes
    first_recipient_at_s: dict[str, float] = field(default_factory=dict)  # for greylisting
    # Those that were answered, for limits in a time.
    recipients_at_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_KEPT))
    answered: Counter[str] = field(default_factory=Counter)  # for replies that follow each other
    history: ClientHistory = field(default_factory=ClientHistory)  # all clients are one
    sources: dict[str, SourceHistory] = field(default_factory=dict)  # by address

    def open_session(
        self, now: float, source: str = "", is_connected: Callable[[], bool] = lambda: True
    ) -> HostLogSession:
        """`is_connected` tells whether the client has not ended its half of this connection.

        The peak counts connections for which it is true. On a busy machine this host may accept a
        connection before it reads that an earlier one has ended, and the client is not to blame.
        """
        self.sessions_seen += 1
        self.connections_now += 1
        self.source(source).connections_now += 1
        session = HostLogSession(self.sessions_seen, now, source)
        self.sessions.append(session)
        self.connected[id(session)] = is_connected
        if self.connections_now > self.connections_peak:
            still_there = sum(is_connected() for is_connected in self.connected.values())
            self.connections_peak = max(self.connections_peak, still_there)
        return session

    def close_session(self, session: HostLogSession) -> None:
        self.connected.pop(id(session), None)
        self.connections_now -= 1
        self.source(session.source).connections_now -= 1
        session.closed = session.closed or "end"

    def source(self, address: str) -> SourceHistory:
        """What the host remembers of the clients at this address."""
        if address not in self.sources and len(self.sources) >= SOURCES_MAX:
            address = next(iter(self.sources))
        return self.sources.setdefault(address, SourceHistory())

    def count(self, mailbox: str, now: float) -> None:
        if mailbox not in self.recipients and len(self.recipients) >= RECIPIENTS_KEPT:
            mailbox = "…"
        self.recipients[mailbox] += 1
        self.first_recipient_at_s.setdefault(mailbox, now)

    def count_in(self, rate_s: float, now: float) -> int:
        """Count one more recipient, and return how many there were in so many seconds."""
        self.recipients_at_s.append(now)
        return sum(at_s > now - rate_s for at_s in self.recipients_at_s)

    def times_answered(self, mailbox: str) -> int:
        """How often it was answered before; counts this time."""
        if len(self.answered) >= RECIPIENTS_KEPT:
            self.answered.clear()
        self.answered[mailbox] += 1
        return self.answered[mailbox] - 1

    @property
    def bans(self) -> int:
        return sum(source.bans for source in self.sources.values())

    @property
    def mistakes(self) -> list[str]:
        return [mistake for session in self.sessions for mistake in session.mistakes]

    @property
    def turnarounds(self) -> int:
        return sum(session.turnarounds for session in self.sessions)

    def clear(self) -> None:
        """Start again; connections that are open still count."""
        self.sessions.clear()
        self.recipients.clear()
        self.first_recipient_at_s.clear()
        self.answered.clear()
        self.history = ClientHistory()
        for source in self.sources.values():
            source.clear()
        self.connections_peak = self.connections_now
        self.sessions_seen = 0


def rcpt_mailbox(line: str) -> str | None:
    """The mailbox that a RCPT command names, or None for another command."""
    if line[:8].upper() != "RCPT TO:":
        return None
    start, end = line.find("<"), line.rfind(">")
    return line[start + 1 : end] if 0 <= start < end else line[8:].strip()
