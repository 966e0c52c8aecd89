"""A mail host's defences against address harvesting: counts of a source, and bans. Pure.

The host counts over all connections of a source (its address), and times are on its own
clock, which is an argument. A ban holds at the next connection, and at the next command of
the connections that are open.
"""

from collections import deque
from math import inf

from msgspec import Struct, field

HOUR_S = 3600.0
FIND_S = 600.0  # fail2ban's findtime, and its bantime
SOURCES_MAX = 1_000  # sources of one host; a later one is counted with the first


class Defence(Struct, frozen=True):
    """When a host bans a source; None switches a rule off.

    A reply that begins with 421, or a ban at the greeting, closes the connection.
    """

    # in one session
    refusal_banned: int | None = None  # its refused recipient of this number bans (MDaemon)
    refusals_before_max: int | None = None
    # ^ a recipient after more refused ones is not judged, but bans (Exim's rcpt_fail_count)
    # within an hour
    hour_refusals_max: int | None = None  # one refused recipient more bans (Kerio, Cisco)
    half_bad_after: int | None = None  # more recipients, at least half of them refused (Forcepoint)
    bad_messages_percent: int | None = None  # so many of its messages, each with
    message_recipients_max: int = 10  # more recipients than this, of which
    message_refusals_max: int = 5  # more than this are refused (Trend Micro)

    jail_refusals_max: int | None = None  # one refused recipient more bans (see `Jail`)

    ban_s: float = HOUR_S
    ban_delay_s: float = 0.0  # from the refusal until the ban holds: a jail reads the log
    ban_reply: str = "550 5.7.1 Too many unknown recipients from your address, blocked"
    # ^ empty: it hangs up without a word
    bans_recipients: bool = False  # a banned source is greeted, and each RCPT gets the reply

    connections_max: int | None = None  # of one source
    connections_reply: str = "421 4.3.2 Too many connections from your address"
    greet_wait_s: float = 0.0  # before the greeting of a source that has not passed (postscreen)
    teaser: str = ""  # the greeting's first line, sent at once to such a source


class SourceMessage(Struct):
    """One transaction of a source."""

    at_s: float
    is_bad: bool = False


class Jail(Struct):
    """A source's failures as fail2ban counts them (FailData.adjustTime, FailManager.cleanup).

    Each failure counts until no other came for FIND_S. Over a longer time the count is that of
    the rate since the first one.
    """

    count: int = 0
    _first_at_s: float = -inf
    _last_at_s: float = -inf

    def refuse(self, now: float) -> None:
        if now - self._last_at_s >= FIND_S:
            self.count, self._first_at_s = 0, now
        elif (span_s := now - self._first_at_s) > FIND_S:
            self.count = round(self.count / span_s * FIND_S)
            self._first_at_s = now - FIND_S
        self.count += 1
        self._last_at_s = now


class SourceHistory(Struct):
    """What a host remembers of one source."""

    connections_now: int = 0
    recipients: deque[tuple[float, bool]] = field(default_factory=deque)  # (time, refused)
    messages: deque[SourceMessage] = field(default_factory=deque)
    jail: Jail = field(default_factory=Jail)
    banned_from_s: float = -inf
    banned_until_s: float = -inf
    bans: int = 0
    has_passed: bool = False  # it waited for the greeting once

    def is_banned(self, now: float) -> bool:
        return self.banned_from_s <= now < self.banned_until_s

    def ban(self, now: float, ban_s: float, delay_s: float = 0.0) -> None:
        """Ban the source, unless it is banned already or will be in a moment."""
        self.jail = Jail()  # what led to a ban is not counted again
        if now >= self.banned_until_s:
            self.bans += 1
            self.banned_from_s = now + delay_s
            self.banned_until_s = now + delay_s + ban_s

    def refused_since(self, since_s: float) -> int:
        """Refused recipients after this time."""
        count = 0
        for at_s, refused in reversed(self.recipients):
            if at_s <= since_s:
                break
            count += refused
        return count

    def clear(self) -> None:
        """Start again; connections that are open still count."""
        self.recipients.clear()
        self.messages.clear()
        self.jail = Jail()
        self.banned_from_s = self.banned_until_s = -inf
        self.bans, self.has_passed = 0, False


class SessionDefence(Struct):
    """One session's counts, and the rules over them and over its source's."""

    defence: Defence
    source: SourceHistory
    refusals: int = 0
    _message: SourceMessage | None = None
    _message_recipients: int = 0
    _message_refusals: int = 0

    def begin_message(self, now: float) -> None:
        self._message, self._message_recipients, self._message_refusals = SourceMessage(now), 0, 0
        messages = self.source.messages
        messages.append(self._message)
        while messages[0].at_s <= now - HOUR_S:
            messages.popleft()

    def admits(self, now: float) -> bool:
        """Whether another recipient is judged; if not, the source is banned."""
        most = self.defence.refusals_before_max
        if most is not None and self.refusals > most and not self.source.is_banned(now):
            self.source.ban(now, self.defence.ban_s)
        return not self.source.is_banned(now)

    def count(self, now: float, *, refused: bool) -> None:
        """Count a recipient, which may ban the source."""
        recipients = self.source.recipients
        recipients.append((now, refused))
        while recipients[0][0] <= now - HOUR_S:
            recipients.popleft()
        self.refusals += refused
        if refused:
            self.source.jail.refuse(now)
        self._message_recipients += 1
        self._message_refusals += refused
        if self._is_over_limit(now, refused=refused):
            self.source.ban(now, self.defence.ban_s, self.defence.ban_delay_s)

    def _is_over_limit(self, now: float, *, refused: bool) -> bool:
        rules, source = self.defence, self.source
        if rules.refusal_banned is not None and self.refusals >= rules.refusal_banned:
            return True
        most = rules.hour_refusals_max
        if most is not None and source.refused_since(now - HOUR_S) > most:
            return True
        most = rules.jail_refusals_max
        if most is not None and refused and source.jail.count > most:
            return True  # a jail looks at its count when it reads a refusal
        after, asked = rules.half_bad_after, len(source.recipients)
        if after is not None and asked > after and 2 * source.refused_since(-inf) >= asked:
            return True
        percent = rules.bad_messages_percent
        return percent is not None and self._bad_messages_percent() >= percent

    def _bad_messages_percent(self) -> float:
        """The share of the source's messages that are bad, with the present one."""
        rules, messages = self.defence, self.source.messages
        if (
            self._message is not None
            and self._message_recipients > rules.message_recipients_max
            and self._message_refusals > rules.message_refusals_max
        ):
            self._message.is_bad = True
        return 100 * sum(message.is_bad for message in messages) / max(1, len(messages))
