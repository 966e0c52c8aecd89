"""The interface of a ledger of refusals: a process reports its use of mail hosts and is granted more."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

CEILING = 512  # refusals in ten minutes: the highest tolerance that is learned


class HostRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of a host for 30 days, by egress and exchange name. Ages are in seconds."""

    tolerance: int = 0  # 0: never raised
    ceiling: int = CEILING
    hour: int | None = None
    took: int = 0
    hour_took: int = 0
    asked: int = 0
    refused: int = 0
    careful: bool = False
    shared: bool = False
    label: str = ""
    ban_ages_s: tuple[float, ...] = ()  # of the bans of a day


class NotedRefusals(msgspec.Struct, frozen=True):
    """Refused recipients of one account, so many seconds ago."""

    age_s: float
    account: str
    count: int = 1


class RefusalReport(msgspec.Struct, frozen=True):
    """What this process reports of a host, and wants of it.

    `held` is what is left of its lease: the rest is given back. `noted` is the number
    of refusals that were reported before the first of `refusals`. `names` are the domains whose
    random names it is to send.
    """

    held: int
    is_wanted: bool
    tolerance: int
    hour: int | None
    noted: int
    refusals: Sequence[NotedRefusals]
    learned: HostRecord
    names: Sequence[str] = ()


class LeaseGrant(msgspec.Struct, frozen=True):
    """What this process may cause from now on, and what others know of the host."""

    leased: int
    elsewhere: Sequence[NotedRefusals]  # of other processes, within the hour
    learned: HostRecord
    is_contested: bool  # other processes hold what is lacking
    names_elsewhere: Sequence[str] = ()  # domains whose random names other processes send


class LeaseKeeper(Protocol):
    """Has the leases of one egress; implemented by RefusalLeases. Synchronous."""

    def due(self) -> Iterable[str]:
        """Yield the hosts of the next call, except those of a call under way."""
        ...

    def active(self) -> Sequence[str]:
        """The hosts that the store is to hear of before the end."""
        ...

    def request(self, host: str, *, at_end: bool = False) -> RefusalReport:
        """Return what the call says of this host; then `granted` or `failed` follows.

        `at_end`: everything is given back.
        """
        ...

    def granted(self, host: str, grant: LeaseGrant, began: float) -> None:
        """The call that `began` then got this answer."""
        ...

    def failed(self, host: str) -> None:
        """The call got no answer; it may have had its effect."""
        ...


class RefusalLedger(Protocol):
    """What processes share of hosts' refusals. Synchronous; never notifies from within a call."""

    def open_for(self, egress: str, keeper: LeaseKeeper) -> None:
        """Lease the refusals of this egress for this keeper from now on."""
        ...

    def wake(self) -> None:
        """A host is due now."""
        ...
