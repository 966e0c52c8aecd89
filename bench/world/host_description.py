"""The description of a scripted mail host: its replies, mailboxes, delays, limits and faults.

The description is frozen; what the host has seen is in its `record`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from re import Pattern

from .faults import ReplyFault
from .host_behaviours import Turning
from .host_defences import Defence
from .host_log import HostLog

EHLO_LINES = (
    "PIPELINING",
    "SIZE 10240000",
    "ETRN",
    "ENHANCEDSTATUSCODES",
    "8BITMIME",
    "DSN",
    "SMTPUTF8",
    "CHUNKING",
)


class HostAddress(Enum):
    """What happens to a connection before the host can send anything."""

    OPEN = "open"
    REFUSED = "refused"  # no process listens there
    SILENT = "silent"  # the connect is never answered
    UNREACHABLE = "unreachable"  # no route (in memory only)


@dataclass(frozen=True, slots=True)
class HostDescription:
    """How a mail host behaves; the defaults are a friendly Postfix.

    `replies` is keyed by a whole address, a local part or "@domain", in lower case.
    `faults` is keyed by a verb, by a verb with its number in the session ("RCPT 3"), by
    a whole address or by a local part. The verb CONNECT stands for the banner, TLS for
    the handshake: the fault replaces it, and the host then hangs up. In replies `{name}`,
    `{rcpt}` and the recipient's `{local}` part are filled in. A reply to recipients beyond
    a limit that begins with 421, or is empty, closes the connection.
    """

    name: str = "mx.host.test"
    address: HostAddress = HostAddress.OPEN
    connect_s: float = 0.0  # until the connect succeeds (in memory only)

    # replies
    banner: str = "220 {name} ESMTP Postfix"
    refused_sources: frozenset[str] = frozenset()  # clients' addresses that it does not greet
    source_reply: str = "554 5.7.1 Service unavailable; client host is blocked using bl.test"
    ehlo_lines: tuple[str, ...] = EHLO_LINES
    ehlo_reply: str | None = None  # in place of the lines above, "502 …" to want HELO
    helo_reply: str = "250 {name}"
    mail_reply: str = "250 2.1.0 Ok"
    mail_again_reply: str | None = None  # to a MAIL after `mails_accepted` of them; 421 hangs up
    mails_accepted: int = 1
    stale_reply: str | None = None  # to a MAIL after `stale_s` without a command; 421 hangs up
    stale_s: float = 1.0
    null_sender_reply: str | None = None  # a refusal of `MAIL FROM:<>`
    named_sender_reply: str | None = None  # a refusal of every other sender
    judges_sender_at_rcpt: bool = False  # these two refusals are replies to RCPT
    tls_demanded_at: str | None = None  # "MAIL" or "RCPT": refused until TLS is in use
    tls_demand: str = "530 5.7.0 Must issue a STARTTLS command first"
    starttls_reply: str = "220 2.0.0 Ready to start TLS"  # where `ehlo_lines` offer STARTTLS
    encoding: str = "utf-8"  # of its replies; "latin-1" in the field

    # mailboxes; every host has those that begin with "known"
    mailboxes: frozenset[str] = frozenset()
    domains: frozenset[str] | None = None  # None: it accepts mail for any domain
    replies: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    default_known: str = "250 2.1.5 Ok"
    default_unknown: str = "550 5.1.1 <{rcpt}>: Recipient address rejected: User unknown"
    relay_reply: str = "554 5.7.1 <{rcpt}>: Relay access denied"
    catch_all: bool | frozenset[str] = False  # or the domains that are
    greylist_s: float | None = None  # an address is refused for this time after its first RCPT
    greylist_tries: int | None = None  # so many first RCPTs of an address are refused
    greylist_reply: str = "450 4.7.1 <{rcpt}>: Recipient address rejected: Greylisted"

    accepts: Pattern[str] | None = None  # of local parts: it accepts all that match as a whole
    shape_reply: str | None = None  # to a local part that looks random, whoever exists
    turn: Turning | None = None  # stops judging after refusals, or after a time
    defence: Defence | None = None  # bans sources that name unknown recipients
    renames: Mapping[str, str] = field(default_factory=dict)  # domain -> the one in its replies
    one_mailbox: bool = False  # accepted as the transaction's first one, by its name (Sendmail)

    # delays
    latency_s: float = 0.0  # from a command to its reply: the round trip
    reply_s: float = 0.0  # work for each reply, one after the other
    unknown_delay_s: float = 0.0  # a tarpit: before each refusal of an unknown mailbox
    sleeps_on: bool = False  # it notices only after its delays that the client hung up
    slow_s: Mapping[str, float] = field(default_factory=dict)
    # ^ beginning of a local part -> delay of its reply; infinite: no reply

    # limits
    one_command_a_write: bool = False  # OpenSMTPD
    recipients_max: int | None = None  # in one transaction
    recipients_reply: str = "452 4.5.3 Error: too many recipients"
    session_recipients_max: int | None = None  # in one connection, likewise
    session_recipients_reply: str = "550 5.7.1 Maximum recipients per connection exceeded"
    counts_accepted_only: bool = False  # toward both limits, as Postfix and sendmail do
    rate_max: int | None = None  # recipients of all connections in `rate_s`, also refused ones
    rate_s: float = 60.0
    rate_reply: str = "450 4.7.1 Error: too many recipients from probe.test[192.0.2.1]"
    transactions_max: int | None = None
    refusals_free: int | None = None  # refusals before each takes `refusal_delay_s`: Postfix, 10
    refusal_delay_s: float = 1.0
    refusals_max: int | None = None  # then 421: Postfix, 20
    nonmail_max: int | None = None  # EHLO, RSET and the like, then 554: Exim, 11 in all
    commands_max: int | None = None  # then 421
    connections_max: int | None = None
    connections_reply: str = "421 4.7.0 Error: too many connections from you"
    idle_s: float | None = None  # without a command: then 421, and the host hangs up

    # faults
    faults: Mapping[str, ReplyFault] = field(default_factory=dict)
    troubled_sessions: int | None = None  # only this many sessions have faults, the first ones
    weather: tuple[tuple[float, ReplyFault], ...] = ()  # (probability at each reply, fault)
    splits: bool = False  # replies are sent in random pieces

    record: HostLog = field(init=False, default_factory=HostLog, compare=False, repr=False)

    def offers(self, keyword: str) -> bool:
        return self.ehlo_reply is None and any(
            line.split(" ", 1)[0].upper() == keyword for line in self.ehlo_lines
        )

    def has_mailbox(self, local: str) -> bool:
        return local.startswith("known") or local in self.mailboxes
