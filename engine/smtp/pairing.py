"""Proves that replies are paired with the right recipients.

SMTP replies have no numbers: a reply belongs to the oldest unanswered command (RFC 5321
4.5.2, RFC 2920 3.1). If a host or a middlebox answers one command twice or drops a
reply, every later reply shifts to another recipient. Two things prove that no reply
shifted: a reply that names its recipient, and silence while no command is unanswered,
because a surplus reply would come then. A host that is late with a missing reply is also
silent. If that is possible (a reply was late, or repeats the one before it word for word,
or a random address was accepted), the session sends NOOP first: the missing reply would
be taken for the reply to NOOP, and a refusal can't be one. The session holds a verdict
until the proof comes and probes on meanwhile. So the proof costs `QUIET_S` once in many
recipients, and nothing if the host names recipients.

A host may name a recipient by another address, to which it has renamed it:
<ann@canonical.test> in reply to ann@alias.test. That proves nothing, and contradicts the
order only if the other address is a recipient of the session, too: see `Pairing.proves`.

Sendmail repeats the reply to an earlier recipient of the transaction where both are the same
mailbox, as in a domain that accepts all. Such an acceptance may also be that reply, doubled:
it proves nothing and contradicts nothing, and NOOP follows unless a later reply proves the order.
"""

import re
from collections.abc import Iterable

from msgspec import Struct, field

from .wire import RemoteProtocolError, SmtpReply

HELD_S = 0.5  # a verdict is held no longer than this while more can be sent
QUIET_S = 0.01  # a doubled reply follows at once; networks delay it by up to 10 ms
QUIET_S_MAX = 0.3
QUIET_MARGIN = 1.5  # times the host's usual time for one more reply
DEADLINE_MARGIN_S = 0.3  # a held verdict is proven this long before its address's deadline
RENAMINGS_MAX = 1000  # pairs of domains remembered for one host
EARLY = 0.5  # of the usual time; a reply sooner than that may answer an earlier command

# Each octet is scanned for at most one "<", so the search is linear.
_IN_BRACKETS = re.compile(r"<([^<>\s@]{1,64}@[^<>\s@]{1,255})>")
_APART = re.compile(r'[\s<>()\[\],;:"]+')  # an unquoted local part contains none of them


class OutOfStep(RemoteProtocolError):
    """Replies no longer match commands: unproven verdicts must not be trusted."""


class NamesAnother(OutOfStep):
    """A reply to RCPT names another recipient of the session in angle brackets."""

    def __init__(self, *, same_local: bool, repeated: bool = False) -> None:
        super().__init__("the reply names another recipient")
        self.same_local = same_local  # so it may be this one, renamed
        self.repeated = (
            repeated  # the acceptance of that one, word for word: the mailbox may be one
        )


class Renamings(Struct, eq=False):
    """Pairs of domains, as sent and as one host names them in its replies."""

    _known: set[tuple[str, str]] = field(default_factory=set)

    def __contains__(self, pair: tuple[str, str]) -> bool:
        return pair in self._known

    def learn(self, pairs: set[tuple[str, str]]) -> bool:
        """Add pairs that were proven; True if one of them is new."""
        new = pairs - self._known
        if len(self._known) + len(new) > RENAMINGS_MAX:
            return False
        self._known |= new
        return bool(new)


class Pairing:
    """All recipients of one session, to check the names in a reply against them."""

    __slots__ = (
        *("_accepted", "_domains", "_new", "_quoted", "_renamings", "_sent"),
        *("add", "nameless", "renamed"),
    )

    def __init__(self, renamings: Renamings | None = None) -> None:
        """`renamings`: those of the host, as far as they are proven."""
        self._renamings = Renamings() if renamings is None else renamings
        self.renamed: set[tuple[str, str]] = set()  # pairs of domains, not proven yet
        self._domains: dict[str, list[str]] = {}  # at which a local part was sent
        self._sent: set[str] = set()  # lower case
        # Replies that named the recipient that they accepted; as many as a session has recipients.
        self._accepted: set[tuple[str, ...]] = set()
        self._new: list[str] = []  # not added to it yet: few replies contain a name
        self._quoted = False  # a local part is quoted: it may contain another address
        self.add = self._new.append  # call it with each mailbox sent in RCPT
        # The latest reply that names no recipient. Hosts repeat themselves, and the reader then
        # returns the same object.
        self.nameless: SmtpReply | None = None

    def proves(self, reply: SmtpReply, mailbox: str) -> bool:
        """Return whether the reply to RCPT names its recipient and no other.

        A name proves nothing if another recipient of the session is known to be renamed to it.

        Raises RemoteProtocolError for a code that can't answer RCPT, and NamesAnother if the
        reply names another recipient of the session in angle brackets and not this one,
        unless the host is known to rename this one so.
        """
        if 300 <= reply.code < 400:
            raise RemoteProtocolError(f"{reply.code} in answer to RCPT")
        lines = reply.lines
        text = lines[0] if len(lines) == 1 else " ".join(lines)
        if "@" not in text:
            self.nameless = reply
            return False
        text, mailbox = text.lower(), mailbox.lower()
        asked = self._all_sent()
        names = set(_IN_BRACKETS.findall(text))
        in_brackets = asked & names
        named = in_brackets or asked.intersection(_words(text))
        local, _, domain = mailbox.rpartition("@")
        if mailbox in named or f"<{mailbox}>" in text:
            if len(named) > 1 or self._quoted:
                return False
            if reply.positive:
                self._accepted.add(lines)
            domains = self._domains.get(local, ())
            return len(domains) < 2 or not any((d, domain) in self._renamings for d in domains)
        same_local = {name for name in names if name.rpartition("@")[0] == local}
        pairs = {(domain, name.rpartition("@")[2]) for name in same_local}
        if len(pairs) == 1:
            self.renamed |= pairs
        if in_brackets and not (
            in_brackets <= same_local and all(map(self._renamings.__contains__, pairs))
        ):
            repeated = reply.positive and lines in self._accepted
            raise NamesAnother(same_local=in_brackets <= same_local, repeated=repeated)
        return False

    def pop_renamed(self) -> set[tuple[str, str]]:
        """The renamings seen since, which are proven now."""
        renamed, self.renamed = self.renamed, set()
        return renamed

    def check_names_none(self, reply: SmtpReply, but: Iterable[str]) -> None:
        """Raise OutOfStep if a reply to RSET or MAIL names a recipient of the session.

        Recipients in `but` are allowed: their RCPT comes next.
        """
        text = " ".join(reply.lines)
        if "<" not in text or "@" not in text:
            return
        named = self._all_sent().intersection(_IN_BRACKETS.findall(text.lower()))
        if named.difference(mailbox.lower() for mailbox in but):
            raise OutOfStep("the reply names a recipient before RCPT was sent")

    def _all_sent(self) -> set[str]:
        for mailbox in map(str.lower, self._new):
            if mailbox in self._sent:
                continue
            self._sent.add(mailbox)
            self._quoted = self._quoted or '"' in mailbox
            local, _, domain = mailbox.rpartition("@")
            self._domains.setdefault(local, []).append(domain)
        self._new.clear()
        return self._sent


def _words(text: str) -> list[str]:
    """Return the words that may be addresses; whole words, never a part of a longer address."""
    return [word.rstrip(".") for word in _APART.split(text) if "@" in word]
