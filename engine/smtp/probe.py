"""What is asked of a mail host, and what became of it. Values and records; no I/O.

A `Probe` is one address on its way through layer 4. It is settled exactly
once, by the first of: an answer, a failure with nothing left to try, the
overall clock, or its asker's leaving. What comes later finds it settled and
changes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mailprobe.engine.dns.messages import MailExchange
from mailprobe.engine.evidence import (
    CONVERSATION_LINES_MAX,
    ConnectionAttempt,
    ConversationLine,
    shown,
)
from mailprobe.engine.verdict import Outcome

ADDRESSES_MAX = 5  # of exchanges, tried for one question
CONVERSATIONS_MAX = 2  # a greeting of 4xx or 5xx is one
OBJECTIONS_MAX = 2  # times a host may ask that the question be put by itself


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a conversation came to nothing."""

    outcome: Outcome  # TIMED_OUT, CONVERSATION_FAILED, REFUSED_BY_POLICY, RESOLVER_FAILED
    rule: str
    words: str  # for the evidence
    about_us: bool = False  # the host spoke against us: it wants rest
    hung_up: bool = False  # the connection was closed or reset
    replied: bool = False  # it counts as a conversation, not only as an address tried
    temporary: bool = False  # a greeting of 4yz: there may be one connection too many


@dataclass(slots=True, eq=False)
class ProbeNotes:
    """What is written down where a question is to be explained; times are trio's clock."""

    tried: list[ConnectionAttempt] = field(default_factory=list)
    lines: list[tuple[float, bool, str]] = field(default_factory=list)  # when, by us?, text
    cut: bool = False  # something was said that is not written down
    cached: list[str] = field(default_factory=list)
    lookup_took: bool = False  # just now, for this very question
    session: Any = None  # of the latest conversation (session.Session)
    session_lines: int = 0  # of what was said there before any question, so many are in `lines`

    def add_line(self, at: float, by_us: bool, text: str) -> None:
        """A line that was said; as much of it, and as many, as evidence may hold."""
        if len(self.lines) >= CONVERSATION_LINES_MAX:
            self.cut = True
            return
        kept = shown(text)
        self.cut = self.cut or len(kept) < len(text)
        self.lines.append((at, by_us, kept))

    def lines_since(self, began: float) -> list[ConversationLine]:
        """The conversation in the order of the wire; what we wrote together stands together."""
        in_order = sorted(self.lines, key=lambda line: line[0])
        return [
            ConversationLine(round((at - began) * 1000, 1), "client" if by_us else "server", text)
            for at, by_us, text in in_order
        ]


class Probe(msgspec.Struct, eq=False):
    """One address, asked about by one asker, against the overall clock."""

    mailbox: str  # as it stands in RCPT
    domain: str
    asker: str
    exchanges: list[MailExchange]  # in the order in which they are to be tried
    on_settled: Callable[["Probe"], None]
    owner: Any = None  # whatever the asker wants to find again
    smtputf8: bool = False
    notes: ProbeNotes | None = None
    behind: int = 0  # how many more the asker holds back for the same exchange

    deadline: float = float("inf")  # trio's clock
    exchange_index: int = -1  # of the exchange being tried
    pool: Any = None  # of the host at which it waits or is asked (pool.Pool)
    domain_here: Any = None  # what is known of its domain at that host (catchall.Domain)
    addresses_tried: int = 0
    conversations: int = 0
    objections: int = 0
    sender_refused_by: Any = None  # the pool whose host refused one kind of sender for it
    retried: bool = False  # after a reused connection failed it
    hedge: Any = None  # the pool of the exchange after it, where it waits as well
    hedge_index: int = -1  # of that exchange; it stays when the hedge has failed
    hedge_cause: Cause | None = None  # why it has
    rerouted: bool = False  # its reply was late while others waited; it is asked once more
    unproven: bool = False  # a reply to it was not proven to be its own; it is asked once more
    accepted: bool = False  # by RCPT; only the catch-all test is awaited
    cause: Cause | None = None  # of the last failure

    outcome: Outcome | None = None  # set once
    rule: str = ""

    @property
    def settled(self) -> bool:
        return self.outcome is not None

    @property
    def exhausted(self) -> bool:
        """No address and no conversation is left to it."""
        return self.addresses_tried >= ADDRESSES_MAX or self.conversations >= CONVERSATIONS_MAX
