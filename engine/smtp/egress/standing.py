"""The record of one egress in this process: its latest answers, and its own failures. No I/O."""

from collections import Counter, deque

from msgspec import Struct, field

from ...net.dialer import NO_BACKOFF, ProxyBackoff

ANSWERS_JUDGED = 200  # the latest ones: older ones say little of its reputation now
ANSWERS_MIN = 20  # fewer may be a few bad hosts in a row
HOSTS_MIN = 5  # that refuse it, one operator's counted once: fewer may have a quarrel of their own

# Not reached one after the other, while another egress reaches hosts: a proxy without a network
# looks so. Ten dead domains in a row are a customer's list; then the rest of 5 s costs nothing.
UNREACHED_MAX = 10


class EgressStanding(Struct, eq=False):
    """The record of one egress. Times are of the caller's clock."""

    # who refused us; None: an ordinary answer
    _answers: deque[str | None] = field(default_factory=deque)
    _refusals: Counter[str] = field(default_factory=Counter)  # of these answers, by host
    _unreached: set[str] = field(default_factory=set)  # hosts since it last worked, up to the limit
    unreached_since: float = float("inf")
    worked_at: float = float("-inf")
    # it could not connect at all: its proxy or its address is gone
    failure: ProxyBackoff = NO_BACKOFF

    def answered(self, host: str, *, refused: bool) -> None:
        """A mail host has answered; `host` is its operator's id, or the end of its name."""
        self._answers.append(host if refused else None)
        if refused:
            self._refusals[host] += 1
        if len(self._answers) > ANSWERS_JUDGED and (oldest := self._answers.popleft()) is not None:
            self._refusals[oldest] -= 1
            if not self._refusals[oldest]:
                del self._refusals[oldest]

    def refusal_share(self) -> float:
        """Of the latest answers; 0 as long as they are too few, or of too few hosts."""
        if len(self._answers) < ANSWERS_MIN or len(self._refusals) < HOSTS_MIN:
            return 0.0
        return self._refusals.total() / len(self._answers)

    @property
    def words(self) -> str:
        """What the share is made of, for the operator."""
        refused, hosts = self._refusals.total(), len(self._refusals)
        return f"{refused} of its latest {len(self._answers)} answers refused us, at {hosts} hosts"

    def forget_answers(self) -> None:
        """Forget its answers: it begins again."""
        self._answers.clear()
        self._refusals.clear()

    @property
    def has_failed(self) -> bool:
        return self.failure is not NO_BACKOFF

    def failed(self, now: float) -> None:
        """It could not connect: leave it alone for a while, longer each time."""
        self.failure = self.failure.after_failure(now)

        self._unreached.clear()

    def worked(self, now: float) -> None:
        """A mail host has answered."""
        self.failure = NO_BACKOFF
        self.worked_at = now
        self._unreached.clear()

    def unreached(self, host: str, now: float) -> bool:
        """A host was not reached; return whether these are too many in a row."""
        if not self._unreached:
            self.unreached_since = now
        if len(self._unreached) < UNREACHED_MAX:
            self._unreached.add(host)
        return len(self._unreached) >= UNREACHED_MAX
