"""Words about the addresses of a list that wait for their mail hosts. Pure."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from math import ceil

from msgspec import Struct

from ..terminal import plain
from .lights import WORDS

HOSTS_SHOWN = 3  # those at which most wait
WINDOW = timedelta(minutes=10)  # in which a host takes so many refusals
SHARE_LEAST = 0.05  # of a list's addresses are refused, before it has shown its own share

Clock = Callable[[datetime], str]


class HostStanding(Struct, frozen=True):
    """Addresses that wait for one host: why, and until when the first of them.

    `takes`: refusals that it takes in ten minutes; 0 where it waits for something else.
    """

    host: str
    reason: str
    takes: int
    addresses: int
    until: datetime

    def done_at(self, share: float) -> datetime:
        """About when none waits any more, if this share of them is refused."""
        if not self.takes:
            return self.until
        refusals = self.addresses * min(1.0, max(SHARE_LEAST, share))
        return self.until + (max(1, ceil(refusals / self.takes)) - 1) * WINDOW


def waiting_words(
    addresses: int,
    total: int,
    hosts_count: int,
    hosts: Sequence[HostStanding],
    *,
    clock: Clock,
    share: float,
) -> str:
    """Say how many of the list's `total` addresses wait, at which hosts, why and until when.

    412 of 20,000 wait at 3 hosts: hoster.net takes 16 refusals in 10 minutes (41 wait, done about
    14:50), ...
    """
    at = "1 host" if hosts_count == 1 else f"{hosts_count:,} hosts"
    wait = "waits" if addresses == 1 else "wait"
    shown = ", ".join(_host_words(each, clock, share) for each in hosts[:HOSTS_SHOWN])
    more = hosts_count - min(len(hosts), HOSTS_SHOWN)
    rest = f", and {more:,} more" if more > 0 else ""
    return f"{addresses:,} of {total:,} {wait} at {at}: {shown}{rest}"


def _host_words(each: HostStanding, clock: Clock, share: float) -> str:
    wait = "waits" if each.addresses == 1 else "wait"
    if not each.takes:
        words = WORDS.get(each.reason, each.reason)
        return f"{plain(each.host)}: {words} ({each.addresses:,} {wait} until {clock(each.until)})"
    return (
        f"{plain(each.host)} takes {each.takes} refusals in 10 minutes "
        f"({each.addresses:,} {wait}, done about {clock(each.done_at(share))})"
    )
