"""Counts on from what mail hosts have refused to a run that was interrupted, in the one that continues it.

A mail host bans a client by what it has refused within minutes or an hour, and does not know that
a process ended meanwhile. The journal has the answers with their times; what each of them has cost
at its host is given to the engine when it meets the host, as refusals of another process.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import trio
from msgspec import Struct, field

from mailprobe.engine.verdict import Reason

from ...results.row_result import RowResult, domain_of

if TYPE_CHECKING:  # the engine imports DNS, HTTP and SMTP
    from mailprobe.engine.smtp.tolerance.host import Tolerance

HOUR_S = 3600.0  # no guard that we know counts for longer
# Reasons of results for which the host has refused the recipient.
REFUSED: frozenset[Reason] = frozenset(
    ("no_mailbox", "disabled", "full", "policy", "unconfirmed", "host_changed")
)


@runtime_checkable
class CountingOpener(Protocol):
    """An OpenSource whose engine counts on from what mail hosts have refused to an earlier run."""

    def count_on(self, earlier: "EarlierRefusals") -> None: ...


class EarlierRefusals(Struct):
    """The refusals of the last hour, by mail host. Times are on the clock of the results.

    They are counted at each egress: the journal does not tell by which they came.
    """

    account: str  # for which the engine asks
    now: Callable[[], float] = time.time
    _refused_at: dict[str, list[float]] = field(default_factory=dict)
    _tested: set[str] = field(default_factory=set)  # domains whose random name was refused

    def __bool__(self) -> bool:
        return bool(self._refused_at)

    def add(self, result: RowResult) -> None:
        """Count what an answer has cost. An accepted address has cost its domain's random name."""
        now = self.now()
        at = min(result.answered_at, now)  # the clock may have been ahead
        if now - at >= HOUR_S:
            return
        domain = domain_of(result.email)
        is_test = result.status == "deliverable" and domain not in self._tested
        if is_test:
            self._tested.add(domain)
        if is_test or result.reason in REFUSED:
            self._refused_at.setdefault(result.host, []).append(at)

    def attach(self, host: str, tolerance: "Tolerance") -> None:
        """Count them at a host that the engine meets; see engine.smtp.tolerance.hosts.Attach."""
        ages_s = [self.now() - at for at in self._refused_at.get(host, ())]
        now = trio.current_time()
        elsewhere = [(now - age_s, self.account, 1) for age_s in ages_s if age_s < HOUR_S]
        tolerance.refused_elsewhere((), elsewhere, now)
