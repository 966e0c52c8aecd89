"""Where a list is on its way, what it waits for, and how long it takes: for pages and the API. Pure."""

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Struct

from mailprobe.storage.list_records import NO_WAITS, HostWait, ListWaits, StoredList

from ..quota.list_charge import FREE_SHARE
from ..results.waiting import HostStanding
from ..schema import Instant, says

ListStatus = Literal["reading", "running", "paused", "done", "failed", "cancelled"]
UNDER_WAY: frozenset[ListStatus] = frozenset({"reading", "running"})
ListStage = Literal["asking", "waiting"]
ListWaitCause = Literal["minute", "plan", "recheck", "hosts", "self_protection", "paused"]


class WaitingHost(Struct, frozen=True):
    """Addresses that wait for one mail host, and about when none does any more."""

    host: Annotated[str, says("The name of the mail host.")]
    addresses: Annotated[int, says("How many addresses wait.")]
    refusals_in_10_min: Annotated[
        int,
        says(
            "How many refused addresses the host takes in ten minutes; 0 where something else is "
            "the reason."
        ),
    ]
    reason: Annotated[str, says("Why, in one word.")]
    until: Annotated[Instant, says("When they are asked again, or the first of them.")]
    done_about: Annotated[Instant, says("About when none of them waits any more.")]


class ListWait(Struct, frozen=True):
    """What addresses of a list wait for. `hosts` are those at which most wait, of `hosts_count`."""

    cause: Annotated[
        ListWaitCause,
        says(
            "`minute`: the key's limit. `plan`: the month or the cap is used up. `recheck`: "
            "temporary failures are asked again. `hosts`: mail hosts take no more now. `self_protection`: the service "
            "reaches no mail host. `paused`: by the operator of the service."
        ),
    ]
    addresses: Annotated[int, says("How many addresses wait.")]
    until: Annotated[Instant | None, says("When they are asked again, or the first of them.")] = (
        None
    )
    hosts_count: Annotated[int, says("How many mail hosts they wait for.")] = 0
    hosts: Annotated[
        tuple[WaitingHost, ...], says("The mail hosts at which most wait, at most ten.")
    ] = ()


# The code of the error that lets a running list wait -> the cause.
CAUSES: dict[str, ListWaitCause] = {
    "rate_limit_exceeded": "minute",
    "probing_unavailable": "self_protection",
    "paused": "paused",
}
PLAN_CODES = ("monthly_quota_exceeded", "payment_required")  # they pause a list


class ListStanding(Struct, frozen=True):
    """What a list does: `stage` only while it runs. `waits_until`: nothing is asked before."""

    status: ListStatus
    stage: ListStage | None = None
    waits_for: tuple[ListWait, ...] = ()

    @property
    def waits_until(self) -> datetime | None:
        if self.stage != "waiting":
            return None
        return min((each.until for each in self.waits_for if each.until), default=None)


class Progress(Struct, frozen=True):
    """The rate is since the list was started or resumed last; None: nothing is under way."""

    per_s: float
    left_s: float | None


def standing_of(found: StoredList, waits: ListWaits, now: datetime) -> ListStanding:
    """What it does and what it waits for."""
    if found.state == "loading":
        return ListStanding("reading")
    left = found.addresses - found.answered
    if found.state == "paused":
        is_plan = found.cause in PLAN_CODES
        return ListStanding("paused", waits_for=(ListWait("plan", left),) if is_plan else ())
    if found.state != "running":
        return ListStanding(found.state)
    causes, is_waiting = [], False
    at_hosts = min(left, waits.addresses)
    if found.waits_until is not None and found.waits_until > now:
        cause = CAUSES.get(found.waits_for or "", "minute")
        causes.append(ListWait(cause, left - at_hosts, found.waits_until))
        is_waiting = True
    if at_hosts:
        causes.append(_hosts_of(found, waits, at_hosts, now))
        is_waiting = is_waiting or at_hosts == left
    if not left and found.recheck_at is not None and found.recheck_at > now:
        causes.append(ListWait("recheck", waits.passing, found.recheck_at))
        is_waiting = True
    return ListStanding("running", "waiting" if is_waiting else "asking", tuple(causes))


def _hosts_of(found: StoredList, waits: ListWaits, addresses: int, now: datetime) -> ListWait:
    share = refused_share(found)
    hosts = tuple(
        WaitingHost(
            each.host, each.addresses, each.takes, each.reason, each.until,
            max(now, _standing_of(each).done_at(share)),
        )
        for each in waits.hosts
    )  # fmt: skip
    first = waits.first_until and max(now, waits.first_until)
    return ListWait("hosts", addresses, first, waits.hosts_count, hosts)


def _standing_of(each: HostWait) -> HostStanding:
    return HostStanding(each.host, each.reason, each.takes, each.addresses, each.until)


def refused_share(found: StoredList) -> float:
    """The share of its answered addresses that mail hosts refused."""
    return found.counts.get("undeliverable", 0) / found.answered if found.answered else 0.0


def progress_of(
    found: StoredList, now: datetime, units_per_minute: int, waits: ListWaits = NO_WAITS
) -> Progress:
    """`units_per_minute` is the limit that holds for the list: it takes no more of it.

    What waits for mail hosts takes as long as the last of those hosts at which most wait.
    """
    since = found.ran_at or found.created_at
    took_s = ((found.ended_at or now) - since).total_seconds()
    per_s = (found.answered - found.ran_from) / took_s if took_s > 0 else 0.0
    left = found.addresses - found.answered
    if found.state != "running" or not left:
        return Progress(per_s, None)
    asked = max(0, left - waits.addresses)
    limit_s = asked * 60 / max(1.0, units_per_minute * (1 - FREE_SHARE))
    if asked and not per_s:
        return Progress(per_s, None)
    share = refused_share(found)
    hosts_s = [(_standing_of(each).done_at(share) - now).total_seconds() for each in waits.hosts]
    return Progress(per_s, max(asked / per_s if asked else 0.0, limit_s, *hosts_s, 0.0))
