"""Refusals that mail hosts take, as processes share them: what is asked, granted and kept.

Rows are by egress and host. A host is the name of an exchange. No row is about a mailbox.
What was learned of a host is kept TOLERANCES_KEPT after its last use, TOLERANCES_MAX rows at most;
refusals and leases are removed an hour later at the latest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

TOLERANCES_KEPT = timedelta(days=30)
TOLERANCES_MAX = 100_000  # rows; the longest unused go first
WINDOW_S = 600.0  # in which a host's tolerance counts refusals
HOUR_S = 3600.0
DAY_S = 86_400.0
HOSTS_MAX = 200  # in one call: some milliseconds
REFUSALS_MAX = 4_096  # in one request
NAME_MAX = 320  # characters of an egress, a host or an account; more is a fault of the caller
SHOWN_MAX = 2_000  # hosts

HostKey = tuple[str, str]  # egress and host


@dataclass(frozen=True, slots=True)
class LearnedTolerance:
    """What was learned of a host. Ages are in seconds."""

    tolerance: int = 0  # refusals in WINDOW_S; 0: never raised
    ceiling: int = 512
    hour: int | None = None
    took: int = 0
    hour_took: int = 0
    asked: int = 0
    refused: int = 0
    careful: bool = False  # learned from a ban
    shared: bool = False
    label: str = ""
    ban_ages_s: tuple[float, ...] = ()


UNKNOWN = LearnedTolerance()


@dataclass(frozen=True, slots=True)
class Refusals:
    """Refused recipients of one account, so many seconds ago."""

    age_s: float
    account: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class RefusalRequest:
    """What a process tells of a host, and wants of it.

    `held` is what it has left of its lease; what it does not name is given back. Repeating a
    request changes nothing but the lease's end: `noted` is the number of refusals that the
    holder reported before the first of `refusals`.
    """

    held: int
    is_wanted: bool  # more than it holds, if there is any
    tolerance: int  # in force there
    hour: int | None = None
    noted: int = 0
    refusals: Sequence[Refusals] = ()
    learned: LearnedTolerance = UNKNOWN


@dataclass(frozen=True, slots=True)
class RefusalGrant:
    """What the holder may cause from now on, and what others know of the host."""

    leased: int
    elsewhere: Sequence[Refusals]  # of other holders, within the hour
    learned: LearnedTolerance
    is_contested: bool  # others hold what this holder lacks


@dataclass(frozen=True, slots=True)
class HostTolerance:
    """One host of an egress, for the operator."""

    egress: str
    host: str
    refused: int  # within WINDOW_S
    refused_hour: int
    tolerance: int  # in force where it was asked last
    learned: LearnedTolerance


def is_sound(asked: Mapping[HostKey, RefusalRequest]) -> bool:
    """May these requests be stored?"""
    names = [name for key in asked for name in key]
    names += [each.account for request in asked.values() for each in request.refusals]
    names += [request.learned.label for request in asked.values()]
    return (
        len(asked) <= HOSTS_MAX
        and all(len(request.refusals) <= REFUSALS_MAX for request in asked.values())
        and all(len(name) <= NAME_MAX and "\0" not in name for name in names)
    )
