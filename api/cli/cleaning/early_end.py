"""When a run ends early: nothing but this machine or its network explains a long row of failures. Pure.

A dead host looks like a broken network from here. Two things tell them apart: the number of
hosts that fail, and whether any host has answered. So a row of failures counts only once it
is long and at many hosts, and any other result ends the row. Before the first answer every
failed connection counts; after it only those for which the network is to blame, and those of
one host count once.
"""

from collections import Counter

from msgspec import Struct, field

from mailprobe.engine.verdict import Reason

from ...results.lights import ANSWERED, OURS, UNREACHED
from ...results.row_result import RowResult

# Reasons that say nothing of whether this machine reaches mail hosts.
NEUTRAL: frozenset[Reason] = frozenset(
    {"syntax", "disposable", "smtp_blocked", "no_mx", "bounced", "not_asked", "paused"}
)


def is_failure(result: RowResult, *, reached: bool) -> bool:
    """Whether this machine or its network may explain it; `reached`: a mail host has answered."""
    return result.blame in OURS or (not reached and result.reason in UNREACHED)


class FailuresInARow(Struct):
    """The failures since the last other result. Both limits are reached before a run ends."""

    results_max: int
    hosts_max: int
    reached: bool = False  # a mail host has answered
    results: int = 0
    hosts: set[str] = field(default_factory=set)
    reasons: Counter[Reason] = field(default_factory=Counter)
    since: int = 0  # offset of the first of them in the journal

    def add(self, offset: int, result: RowResult) -> None:
        """Count a result, which the journal has at this offset."""
        if result.reason in NEUTRAL:
            return
        self.reached = self.reached or result.reason in ANSWERED
        if not is_failure(result, reached=self.reached):
            self.clear()
            return
        if not self.results:
            self.since = offset
        if not (self.reached and result.reason in UNREACHED and result.host in self.hosts):
            self.results += 1
            self.reasons[result.reason] += 1
        self.hosts.add(result.host)

    def clear(self) -> None:
        self.results = 0
        self.hosts.clear()
        self.reasons.clear()

    @property
    def are_enough(self) -> bool:
        return self.results >= self.results_max and len(self.hosts) >= self.hosts_max
