"""Refusals that mail hosts take, as processes share them: what is asked, granted and kept.

Rows are by egress and host. A host is the name of an exchange. No row is about a mailbox.
A host's refusals and holders are JSON in its row: so a call reads and writes one row for each host.
What was learned of a host is kept TOLERANCES_KEPT after its last use, TOLERANCES_MAX rows at most;
refusals and leases are removed an hour later at the latest.

The allocation is pure, and one decision for every database. A holder gets half of its share of
what is left, at least 1, so that something is left for those that come later. What was learned is
merged so that the careful one wins.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from math import ceil

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from .base.columns import micros
from .base.lease_holders import is_gone
from .database import Database, Row, StorePart, read, write

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


class LearnedTolerance(Struct, frozen=True):
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


class Refusals(Struct, frozen=True):
    """Refused recipients of one account, so many seconds ago."""

    age_s: float
    account: str
    count: int = 1


class RefusalRequest(Struct, frozen=True):
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
    names: Sequence[str] = ()  # domains whose random names it is to send: it claims them


class RefusalGrant(Struct, frozen=True):
    """What the holder may cause from now on, and what others know of the host."""

    leased: int
    elsewhere: Sequence[Refusals]  # of other holders, within the hour
    learned: LearnedTolerance
    is_contested: bool  # others hold what this holder lacks
    names_elsewhere: Sequence[str] = ()  # domains whose random names others send


class HostTolerance(Struct, frozen=True):
    """One host of an egress, for the operator."""

    egress: str
    host: str
    refused: int  # within WINDOW_S
    refused_hour: int
    tolerance: int  # in force where it was asked last
    learned: LearnedTolerance


def is_sound(asked: Mapping[HostKey, RefusalRequest]) -> bool:
    """May these requests be stored?"""
    requests = asked.values()
    names = [
        *(name for key in asked for name in key),
        *(each.account for request in requests for each in request.refusals),
        *(name for request in requests for name in (request.learned.label, *request.names)),
    ]
    return (
        len(asked) <= HOSTS_MAX
        and all(len(request.refusals) <= REFUSALS_MAX for request in requests)
        and all(len(name) <= NAME_MAX and "\0" not in name for name in names)
    )


# the allocation


ACTIVE_S = 60.0  # a process that asked within it has a share of what is left
SLOT_S = 10.0  # refusals of one account and holder in it are counted together, as the latest
ENTRIES_MAX = 500  # of a host; more are counted together by holder
HOLDERS_MAX = 200  # processes at one host; the longest unused are forgotten
# Two bans in a shorter time are one, seen by two processes: the shortest rest lasts longer.
SAME_BAN_S = 590.0
BANS_MAX = 4
CLAIM_S = 5.0  # of a random name: then others may send one, for as long before it is claimed anew


class Holder(Struct, frozen=True):
    """One process at a host. Instants are in seconds of the store's clock."""

    left: int  # of its lease
    until: float
    asked_at: float
    noted: int  # refusals that it has reported


class ReportedRefusals(Struct, frozen=True):
    """Refusals of one account, reported by one holder, the latest at `at`."""

    at: float
    account: str
    count: int
    by: str  # the holder's token


class HostState(Struct, frozen=True):
    """All that is kept of one host. Bans are instants."""

    learned: LearnedTolerance = UNKNOWN
    bans: tuple[float, ...] = ()
    tolerance: int = 0  # in force where it was asked last
    entries: tuple[ReportedRefusals, ...] = ()
    holders: dict[str, Holder] = field(default_factory=dict)
    # Random names by their domains: the token of who sends each, and until when others leave it.
    names: dict[str, tuple[str, float]] = field(default_factory=dict)


def token_of(holder: str) -> str:
    """A short name of the holder for its refusals."""
    return holder.rpartition("/")[2][:12]


def lease(
    state: HostState,
    holder: str,
    asked: RefusalRequest,
    now: float,
    *,
    lease_s: float,
    is_gone: Callable[[str], bool],
) -> tuple[HostState, RefusalGrant]:
    """Note what the holder reports, and lease refusals to it."""
    by = token_of(holder)
    others = {
        # A clock that was ahead has no effect for longer than a lease.
        name: replace(each, until=min(each.until, now + lease_s), asked_at=min(each.asked_at, now))
        for name, each in state.holders.items()
        if name != holder and now - HOUR_S < each.asked_at and not is_gone(name)
    }
    noted = state.holders[holder].noted if holder in state.holders else 0
    new = asked.refusals[max(0, noted - asked.noted) :]
    entries = _counted_together(
        [
            *(each for each in state.entries if now - HOUR_S < each.at),
            *(
                ReportedRefusals(now - max(0.0, each.age_s), each.account, each.count, by)
                for each in new
            ),
        ],
        now,
    )
    bans = _merged_bans(state.bans, (now - age for age in asked.learned.ban_ages_s), now)
    learned = merged(state.learned, asked.learned)
    tolerance = _in_force(learned, asked)
    leased_out = sum(each.left for each in others.values() if each.until > now)
    free = max(0, _left(tolerance, _least(learned.hour, asked.hour), entries, now) - leased_out)
    processes = 1 + sum(now - each.asked_at < ACTIVE_S for each in others.values())
    leased = min(asked.held, free)
    if asked.is_wanted and free:
        leased = max(leased, min(free, max(1, free // (2 * processes))))
    noted = max(noted, asked.noted + len(asked.refusals))
    holders = {**others, holder: Holder(leased, now + lease_s, now, noted)}
    recent = sorted(holders.items(), key=lambda item: -item[1].asked_at)[:HOLDERS_MAX]
    # A claim is not prolonged: whose own budget is spent would keep a name from all others.
    named = dict.fromkeys(asked.names, (by, now + CLAIM_S)) | {
        name: (by, min(claim[1], now + CLAIM_S))
        for name in asked.names
        if (claim := state.names.get(name, ("", 0.0)))[0] == by and now < claim[1] + CLAIM_S
    }
    taken = {
        name: (whose, min(until, now + CLAIM_S))
        for name, (whose, until) in state.names.items()
        if whose != by and until > now
    }
    kept = HostState(learned, bans, tolerance, tuple(entries), dict(recent), named | taken)
    elsewhere = [
        Refusals(max(0.0, now - each.at), each.account, each.count)
        for each in entries
        if each.by != by
    ]
    is_contested = asked.is_wanted and not leased and leased_out > 0
    return kept, RefusalGrant(
        leased, elsewhere, with_ban_ages(kept, now), is_contested, list(taken)
    )


def with_ban_ages(state: HostState, now: float) -> LearnedTolerance:
    """What was learned, with the bans of the last day."""
    ages = tuple(max(0.0, now - at) for at in state.bans if now - at < DAY_S)
    return replace(state.learned, ban_ages_s=ages)


def refused(state: HostState, now: float, within_s: float) -> int:
    """Refusals of all processes within this time."""
    return sum(each.count for each in state.entries if now - within_s < each.at)


def merged(one: LearnedTolerance, two: LearnedTolerance) -> LearnedTolerance:
    """What both know together, but for the bans."""
    if one.careful == two.careful:
        tolerance = (min if one.careful else max)(one.tolerance, two.tolerance)
    else:
        tolerance = one.tolerance if one.careful else two.tolerance
    counted = max(one, two, key=lambda each: each.asked)
    return LearnedTolerance(
        tolerance=tolerance,
        ceiling=min(one.ceiling, two.ceiling),
        hour=_least(one.hour, two.hour),
        took=max(one.took, two.took),
        hour_took=max(one.hour_took, two.hour_took),
        asked=counted.asked,
        refused=counted.refused,
        careful=one.careful or two.careful,
        shared=one.shared or two.shared,
        label=two.label or one.label,
    )


def _in_force(learned: LearnedTolerance, asked: RefusalRequest) -> int:
    if learned.careful:
        return min(learned.tolerance, learned.ceiling)
    return min(max(asked.tolerance, learned.tolerance), learned.ceiling)


def _left(tolerance: int, hour: int | None, entries: Iterable[ReportedRefusals], now: float) -> int:
    listed = list(entries)
    left = tolerance - sum(each.count for each in listed if now - WINDOW_S < each.at)
    if hour is not None:
        left = min(left, hour - sum(each.count for each in listed))
    return max(0, left)


def _least(one: int | None, two: int | None) -> int | None:
    known = [each for each in (one, two) if each is not None]
    return min(known) if known else None


def _merged_bans(
    known: Iterable[float], reported: Iterable[float], now: float
) -> tuple[float, ...]:
    """The bans of the last day, the earliest first; what two processes saw of one counts once."""
    bans: list[float] = []
    for at in sorted(min(at, now) for at in (*known, *reported)):
        if now - at < DAY_S and (not bans or at - bans[-1] >= SAME_BAN_S):
            bans.append(at)
    return tuple(bans[-BANS_MAX:])


def _counted_together(entries: list[ReportedRefusals], now: float) -> list[ReportedRefusals]:
    """The entries in order, fewer of them: each counts as its latest refusal. Never too few refusals.

    An instant that a clock wrote that was ahead counts as of now.
    """
    slots: dict[tuple[int, str, str], ReportedRefusals] = {}
    for each in entries:
        at = min(each.at, now)
        slot = (ceil(at / SLOT_S), each.account, each.by)
        known = slots.get(slot)
        count = each.count if known is None else known.count + each.count
        slots[slot] = ReportedRefusals(
            at if known is None else max(at, known.at), each.account, count, each.by
        )
    found = sorted(slots.values(), key=lambda each: each.at)
    surplus = len(found) - ENTRIES_MAX
    if surplus <= 0:
        return found
    old, kept = found[: surplus + ENTRIES_MAX // 4], found[surplus + ENTRIES_MAX // 4 :]
    totals: dict[str, ReportedRefusals] = {}
    for each in old:
        count = totals[each.by].count if each.by in totals else 0
        totals[each.by] = ReportedRefusals(each.at, "", count + each.count, each.by)
    return [*sorted(totals.values(), key=lambda each: each.at), *kept]


# the methods of the store


TABLE = "host_tolerances"
MICROS = 1_000_000
# The instant of the last use is rounded, so that a use changes no index.
USED_EVERY = 3_600 * MICROS
NEED = (
    f"INSERT INTO {TABLE} (egress, host, learned, refusals, holders, used_at)"
    " VALUES (:egress, :host, '{}', '[]', '{}', 0) ON CONFLICT (egress, host) DO NOTHING"
)
READ = (
    f"SELECT learned, refusals, holders, used_at FROM {TABLE}"
    " WHERE egress = :egress AND host = :host"
)
KEEP = (
    f"UPDATE {TABLE} SET learned = :learned, refusals = :refusals, holders = :holders,"
    " used_at = :used_at WHERE egress = :egress AND host = :host"
)
SURPLUS = (  # of the longest unused, and of those used in the same hour
    f"used_at <= (SELECT used_at FROM {TABLE} ORDER BY used_at DESC LIMIT 1 OFFSET :rows)"
)


def lease_refusals(
    db: Database, holder: str, asked: Mapping[HostKey, RefusalRequest], *, lease_s: float
) -> Mapping[HostKey, RefusalGrant]:
    """Note what the holder reports of hosts, and lease refusals to it for `lease_s`.

    Over all holders, refusals within WINDOW_S and leases together are at most the host's
    tolerance. A lease ends earlier if its process ran on this machine and has ended. Durations
    cross, not instants. Raises ValueError for more than HOSTS_MAX, or names that are too long.
    """
    if not is_sound(asked):
        raise ValueError("too many hosts or refusals, or a name that may not be stored")
    keys = sorted(asked)  # in one order, so that no two calls wait for each other
    names = [{"egress": egress, "host": host} for egress, host in keys]
    db.change_each(NEED, names)
    found = db.all_each(READ + db.FOR_UPDATE, names)
    now = micros(db.now())
    gone = cache(is_gone)  # each holder is judged once
    granted, rows = {}, []
    for key, named, ((*kept, used_at),) in zip(keys, names, found, strict=True):
        state, granted[key] = lease(
            _state_of(tuple(kept)),
            holder,
            asked[key],
            now / MICROS,
            lease_s=lease_s,
            is_gone=gone,
        )
        rounded = now - now % USED_EVERY
        # An instant that a clock wrote that was ahead does not last.
        used = used_at if rounded <= used_at <= now else rounded
        rows.append({**named, **_columns_of(state), "used_at": used})
    db.change_each(KEEP, rows)
    return granted


def host_tolerances(
    db: Database, egress: str | None = None, *, limit: int = SHOWN_MAX
) -> list[HostTolerance]:
    """Return the hosts asked within a day by this egress, or by any; the latest used first."""
    now = db.now()
    of_egress = "" if egress is None else "egress = :egress AND"
    rows = db.all(
        f"SELECT egress, host, learned, refusals, holders FROM {TABLE} WHERE {of_egress}"
        " used_at >= :since ORDER BY used_at DESC, egress, host LIMIT :limit",
        {
            "egress": egress,
            "since": micros(now - timedelta(seconds=DAY_S)) - USED_EVERY,
            "limit": min(limit, SHOWN_MAX),
        },
    )
    at = micros(now) / MICROS
    states = [(egress, host, _state_of(tuple(kept))) for egress, host, *kept in rows]
    return [
        HostTolerance(
            egress,
            host,
            refused(state, at, WINDOW_S),
            refused(state, at, HOUR_S),
            state.tolerance,
            with_ban_ages(state, at),
        )
        for egress, host, state in states
    ]


def drop_unused(db: Database, now: datetime, most: int) -> bool:
    """Delete hosts past their retention, and the surplus; return whether there may be more."""
    old = {"at": micros(now - TOLERANCES_KEPT)}
    dropped = db.delete_some(TABLE, "used_at <= :at", old, most)
    surplus = db.delete_some(TABLE, SURPLUS, {"rows": TOLERANCES_MAX}, most)
    return most in (dropped, surplus)


def drop_refusals(db: Database, now: datetime, most: int) -> bool:
    """Delete the refusals and leases of hosts that were not used since; return whether there may be more."""
    rows = db.all(
        f"SELECT egress, host FROM {TABLE} WHERE holders <> '{{}}' AND used_at <= :at"
        f" LIMIT :most{db.SKIP_LOCKED}",
        {"at": micros(now - timedelta(seconds=HOUR_S)) - USED_EVERY, "most": most},
    )
    db.change_each(
        f"UPDATE {TABLE} SET refusals = '[]', holders = '{{}}'"
        " WHERE egress = :egress AND host = :host",
        [{"egress": egress, "host": host} for egress, host in rows],
    )
    return len(rows) == most


def _state_of(row: Row) -> HostState:
    learned, refusals, holders = map(json.loads, row)
    return HostState(
        LearnedTolerance(**{name: learned[name] for name in learned.keys() & LEARNED}),
        tuple(learned.get("bans", ())),
        learned.get("in_force", 0),
        tuple(ReportedRefusals(*each) for each in refusals),
        {name: Holder(*each) for name, each in holders.items()},
        {name: (by, until) for name, (by, until) in learned.get("names", {}).items()},
    )


encode = json.JSONEncoder(separators=(",", ":")).encode
LEARNED = frozenset(LearnedTolerance.__struct_fields__) - {"ban_ages_s"}
STANDARD = asdict(UNKNOWN)


def _columns_of(state: HostState) -> dict[str, str]:
    learned: dict[str, object] = {
        name: value
        for name in sorted(LEARNED)
        if (value := getattr(state.learned, name)) != STANDARD[name]
    }
    learned["in_force"] = state.tolerance
    learned |= {"bans": state.bans} if state.bans else {}
    learned |= {"names": state.names} if state.names else {}
    refusals = [(each.at, each.account, each.count, each.by) for each in state.entries]
    holders = {
        name: (each.left, each.until, each.asked_at, each.noted)
        for name, each in state.holders.items()
    }
    return {
        "learned": encode(learned),
        "refusals": encode(refusals) if refusals else "[]",
        "holders": encode(holders),
    }


class ToleranceStore(StorePart):
    """Refusals that mail hosts take, and what was learned of hosts."""

    lease_refusals = write(lease_refusals)
    host_tolerances = read(host_tolerances)
