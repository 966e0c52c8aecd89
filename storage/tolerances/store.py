"""The part of the store that shares the refusals that mail hosts take.

A host's refusals and holders are JSON in its row: so a call reads and writes one row for each host.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import cache

from ..base.columns import micros
from ..base.lease_holders import is_gone
from ..database import Database, Row
from ..store_part import StorePart
from ..transaction import read, write
from .allocation import (
    Holder,
    HostState,
    ReportedRefusals,
    lease,
    refused,
    with_ban_ages,
)
from .records import (
    DAY_S,
    HOUR_S,
    SHOWN_MAX,
    TOLERANCES_KEPT,
    TOLERANCES_MAX,
    UNKNOWN,
    WINDOW_S,
    HostKey,
    HostTolerance,
    LearnedTolerance,
    RefusalGrant,
    RefusalRequest,
    is_sound,
)

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
    found, at = [], micros(now) / MICROS
    for egress, host, *kept in rows:
        state = _state_of(tuple(kept))
        found.append(
            HostTolerance(
                egress,
                host,
                refused(state, at, WINDOW_S),
                refused(state, at, HOUR_S),
                state.tolerance,
                with_ban_ages(state, at),
            )
        )
    return found


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
    )


encode = json.JSONEncoder(separators=(",", ":")).encode
LEARNED = frozenset(LearnedTolerance.__dataclass_fields__) - {"ban_ages_s"}
STANDARD = asdict(UNKNOWN)


def _columns_of(state: HostState) -> dict[str, str]:
    learned: dict[str, object] = {
        name: value
        for name in sorted(LEARNED)
        if (value := getattr(state.learned, name)) != STANDARD[name]
    }
    learned["in_force"] = state.tolerance
    if state.bans:
        learned["bans"] = state.bans
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
    """Refusals that mail hosts take, and what was learned of hosts. See tolerances.records."""

    lease_refusals = write(lease_refusals)
    host_tolerances = read(host_tolerances)
