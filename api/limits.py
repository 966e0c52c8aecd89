"""What the whole process bears, and what an answer says of the caller's own limits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from math import ceil

import trio

from api.plans import Plan
from api.policy import WINDOW, limit_of_account, next_month, units_in, used_last_minute
from storage.records import Ledger

BODY_OCTETS_MAX = 2 * 1024 * 1024
BODY_S_MAX = 10  # from a request's head to the end of its body
ROOM_S = 0.02  # as long as a request waits for room: a refusal wants to be quick


class Capacity:
    """Addresses under way, counted in this process.

    A request is let in while there is room at all, so that one of fifty gets its
    turn as well as one of one; the bound is passed by less than one request.
    """

    def __init__(self, addresses_max: int) -> None:
        self.addresses_max = addresses_max
        self.addresses = 0
        self._asked = 0  # by requests that are being weighed just now
        self._left = trio.Event()

    @property
    def full(self) -> bool:
        return self.addresses >= self.addresses_max

    @contextmanager
    def asking(self, addresses: int) -> Iterator[Callable[[], bool]]:
        """Is there room for these beside all others that ask? To be called while weighing.

        Many requests may be weighed in one transaction, before any of them is let in.
        """
        self._asked += addresses
        try:
            yield lambda: self.addresses + self._asked - addresses < self.addresses_max
        finally:
            self._asked -= addresses

    def enter(self, addresses: int) -> None:
        self.addresses += addresses

    def leave(self, addresses: int) -> None:
        self.addresses -= addresses
        if addresses and not self.full:
            self._left.set()
            self._left = trio.Event()

    async def wait_for_room(self) -> bool:
        """Is there room, now or within a moment?"""
        with trio.move_on_after(ROOM_S):
            while self.full:
                await self._left.wait()
        return not self.full


def standing(plan: Plan, ledger: Ledger, granted: int = 0) -> dict[str, str]:
    """RateLimit and RateLimit-Policy (draft-ietf-httpapi-ratelimit-headers-10).

    `r` is what is left after the units just granted, `t` the seconds until more is.
    """
    limit = plan.rate_limit_per_min
    left = max(0, limit - used_last_minute(ledger) - granted)
    if (all_keys := limit_of_account(plan, ledger)) is not None:
        left = min(left, max(0, all_keys - units_in(ledger, ledger.account_window) - granted))
    oldest = next((at for at, _ in ledger.window if at > ledger.asked_at - WINDOW), ledger.asked_at)
    more_s = ceil((oldest + WINDOW - ledger.asked_at).total_seconds())
    policies = [f'"minute";q={limit};w=60']
    limits = [f'"minute";r={left};t={more_s}']
    if plan.monthly_quota is not None:
        month_left = max(0, plan.monthly_quota - ledger.month_units - granted)
        month_ends = next_month(ledger.asked_at)
        days = (month_ends - timedelta(days=1)).day
        more_s = ceil((month_ends - ledger.asked_at).total_seconds())
        policies.append(f'"month";q={plan.monthly_quota};w={days * 86_400}')
        limits.append(f'"month";r={month_left};t={more_s}')
    return {"RateLimit-Policy": ", ".join(policies), "RateLimit": ", ".join(limits)}
