"""Are replies still paired with the right recipients? And the verdicts that await the proof.

SMTP numbers nothing: a reply belongs to the oldest unanswered command (RFC 5321 4.5.2,
RFC 2920 3.1). A host or a middlebox that answers one command twice, or swallows an
answer, shifts every later reply to another recipient. Two things prove that no reply
was shifted: a reply that names the recipient it was given to, and silence while no
command is unanswered, for a surplus reply would break it. But a host that owes a reply and
is slow with it is silent, too. Where that may be (a reply was late, or is word for word the
one before it, or a random address was accepted), NOOP is asked first: what the host owes
would be taken for its reply, and a refusal is none. Until the proof has come,
a verdict is held back. The conversation goes on meanwhile, so the proof costs
`QUIET_S` once in many recipients, and nothing where the host names recipients.
"""

import re
from collections.abc import Iterable

from mailprobe.engine.smtp.probe import Probe
from mailprobe.engine.smtp.wire import RemoteProtocolError, SmtpReply
from mailprobe.engine.verdict import Outcome

HELD_S = 0.5  # a verdict is not kept from its caller for longer, if more can be asked
QUIET_S = 0.01  # a doubled reply follows at once; networks between reorder within 10 ms
QUIET_S_MAX = 0.3
QUIET_MARGIN = 1.5  # times as long as this host takes for one more reply
DEADLINE_MARGIN_S = 0.3  # a held verdict is proven so long before its address's clock ends
EARLY = 0.5  # of the usual time: a reply that comes sooner may answer an earlier command

# Each octet is looked at for one "<" at the most, so the search is linear.
_IN_BRACKETS = re.compile(r"<([^<>\s@]{1,64}@[^<>\s@]{1,255})>")
_APART = re.compile(r'[\s<>()\[\],;:"]+')  # none of them is in a local part that isn't quoted


class OutOfStep(RemoteProtocolError):
    """Replies and commands can't be paired any more: what is not proven is not to be trusted."""


class Pairing:
    """All recipients of one session, to tell whose a reply is by the names in it."""

    __slots__ = ("_new", "_quoted", "_sent", "add", "nameless")

    def __init__(self) -> None:
        self._sent: set[str] = set()  # lower case
        self._new: list[str] = []  # not among them yet: few replies name anybody
        self._quoted = False  # a local part is: it may contain another one's whole address
        self.add = self._new.append  # a mailbox that is asked about
        self.nameless: SmtpReply | None = None  # the latest that proves nothing to anybody:
        # hosts repeat themselves, and the reader returns the same object then

    def proves(self, reply: SmtpReply, mailbox: str) -> bool:
        """Say whether the reply to RCPT names the recipient that it is taken for, and no other.

        Raises TheirMistake for a code that can't answer RCPT, and OutOfStep where the reply
        names another recipient of the session in angle brackets, and not this one.
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
        in_brackets = asked.intersection(_IN_BRACKETS.findall(text))
        named = in_brackets or asked.intersection(_words(text))
        if mailbox in named or f"<{mailbox}>" in text:
            return len(named) <= 1 and not self._quoted
        if in_brackets:
            raise OutOfStep("it speaks of another recipient")
        return False

    def check_names_none(self, reply: SmtpReply, but: Iterable[str]) -> None:
        """Raise OutOfStep where a reply to RSET or MAIL names a recipient of the session.

        Those in `but` are yet to be asked about, if they weren't before.
        """
        text = " ".join(reply.lines)
        if "<" not in text or "@" not in text:
            return
        named = self._all_sent().intersection(_IN_BRACKETS.findall(text.lower()))
        if named.difference(mailbox.lower() for mailbox in but):
            raise OutOfStep("it speaks of a recipient before one was asked about")

    def _all_sent(self) -> set[str]:
        for mailbox in self._new:
            self._sent.add(mailbox.lower())
            self._quoted = self._quoted or '"' in mailbox
        self._new.clear()
        return self._sent


def _words(text: str) -> list[str]:
    """What may be an address in the text: whole words, so that none is part of a longer one."""
    return [word.rstrip(".") for word in _APART.split(text) if "@" in word]


class UnprovenPairings:
    """Verdicts of one session that are held back until its replies are proven in step."""

    __slots__ = ("quiet_s", "until", "verdicts")

    def __init__(self) -> None:
        self.verdicts: list[tuple[Probe, Outcome, str]] = []
        self.until = float("inf")  # then it is time for a silence
        self.quiet_s = QUIET_S  # how long a silence proves what is held

    def hold(self, verdicts: list[tuple[Probe, Outcome, str]], now: float) -> None:
        """Hold back these verdicts, at least one, of replies that came at `now`."""
        until = self.until if self.verdicts else now + HELD_S
        for probe, _, _ in verdicts:
            latest = probe.deadline - DEADLINE_MARGIN_S
            if latest < until:
                until = latest
        self.until = until
        self.verdicts += verdicts

    def expect_surplus(self, within_s: float) -> None:
        """A surplus reply would come so long after the one before it."""
        self.quiet_s = max(self.quiet_s, min(QUIET_MARGIN * within_s, QUIET_S_MAX))

    def release_all(self) -> list[tuple[Probe, Outcome, str]]:
        self.quiet_s = QUIET_S
        verdicts = self.verdicts
        if verdicts:
            self.verdicts, self.until = [], float("inf")
        return verdicts
