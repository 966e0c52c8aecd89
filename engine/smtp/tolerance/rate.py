"""The rests of lists at a host that takes only so many recipients in a time. Pure."""

from msgspec import Struct, field

from ..backoff import HostBackoff

SHOWN_BY = 2  # recipients in a row: a rate of one mailbox refuses that one alone
AGAIN_S = 300.0  # until a refused recipient is sent again, or longer where its host rests
UNLIMITED = HostBackoff(1)  # the next failure begins a rest: of a minute, doubled each time


class RecipientRate(Struct, eq=False):
    """The limit of one host. One recipient at a time shows whether it takes more.

    Hosts count by the minute, by ten of them or by the hour, and many count refused recipients.
    """

    rest: HostBackoff = UNLIMITED
    is_limited: bool = False  # it refused one because of a rate, and has judged none since
    _refused: set[str] = field(default_factory=set)  # such recipients in a row

    def refused(self, mailbox: str, now: float) -> float:
        """A list's recipient was refused because of a rate. Returns when to send it again, in seconds."""
        self.is_limited = True
        if not self.rest.active(now):
            self._refused.add(mailbox)
            if len(self._refused) >= SHOWN_BY:
                self.rest = self.rest.after_failure(now, refused=True)
                self._refused.clear()
        return max(AGAIN_S, self.rest.until - now)

    def judged(self, now: float) -> None:
        """A recipient was accepted, or refused for good."""
        self._refused.clear()
        if now >= self.rest.until:
            self.rest, self.is_limited = UNLIMITED, False
