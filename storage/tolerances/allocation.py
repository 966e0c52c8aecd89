"""Allocation of a host's refusals to processes: one decision for every store. Pure.

A holder gets half of its share of what is left, at least 1, so that something is left for
those that come later. What was learned is merged so that the careful one wins.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from math import ceil

from .records import (
    DAY_S,
    HOUR_S,
    UNKNOWN,
    WINDOW_S,
    LearnedTolerance,
    RefusalGrant,
    RefusalRequest,
    Refusals,
)

ACTIVE_S = 60.0  # a process that asked within it has a share of what is left
SLOT_S = 10.0  # refusals of one account and holder in it are counted together, as the latest
ENTRIES_MAX = 500  # of a host; more are counted together by holder
HOLDERS_MAX = 200  # processes at one host; the longest unused are forgotten
# Two bans in a shorter time are one, seen by two processes: the shortest rest lasts longer.
SAME_BAN_S = 590.0
BANS_MAX = 4


@dataclass(frozen=True, slots=True)
class Holder:
    """One process at a host. Instants are in seconds of the store's clock."""

    left: int  # of its lease
    until: float
    asked_at: float
    noted: int  # refusals that it has reported


@dataclass(frozen=True, slots=True)
class ReportedRefusals:
    """Refusals of one account, reported by one holder, the latest at `at`."""

    at: float
    account: str
    count: int
    by: str  # the holder's token


@dataclass(frozen=True, slots=True)
class HostState:
    """All that is kept of one host. Bans are instants."""

    learned: LearnedTolerance = UNKNOWN
    bans: tuple[float, ...] = ()
    tolerance: int = 0  # in force where it was asked last
    entries: tuple[ReportedRefusals, ...] = ()
    holders: dict[str, Holder] = field(default_factory=dict)


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
    known = state.holders.get(holder)
    noted = 0 if known is None else known.noted
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
    last = max(noted, asked.noted + len(asked.refusals))
    holders = {**others, holder: Holder(leased, now + lease_s, now, last)}
    if len(holders) > HOLDERS_MAX:
        recent = sorted(holders.items(), key=lambda item: -item[1].asked_at)
        holders = dict(recent[:HOLDERS_MAX])
    kept = HostState(learned, bans, tolerance, tuple(entries), holders)
    elsewhere = [
        Refusals(max(0.0, now - each.at), each.account, each.count)
        for each in entries
        if each.by != by
    ]
    is_contested = asked.is_wanted and not leased and leased_out > 0
    return kept, RefusalGrant(leased, elsewhere, with_ban_ages(kept, now), is_contested)


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
