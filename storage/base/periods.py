"""The day, month and billing period of an instant; pure, all in UTC.

Shared, so that every store uses the same boundaries.
"""

from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache

from ..records import Account


def day_of(at: datetime) -> date:
    """Return the UTC day of an instant."""
    return at.date() if at.tzinfo is UTC else at.astimezone(UTC).date()


def day_start(at: datetime) -> datetime:
    """Return the first instant of the instant's UTC day."""
    return _midnight(day_of(at))


def month_of(at: datetime) -> date:
    """Return the first day of the instant's UTC month."""
    return day_of(at).replace(day=1)


def month_bounds(at: datetime) -> tuple[datetime, datetime]:
    """Return the first instant of the month, and the first one after it."""
    return _bounds(month_of(at))


@lru_cache(64)  # needed at each request
def _bounds(first: date) -> tuple[datetime, datetime]:
    after = (first + timedelta(days=31)).replace(day=1)
    return _midnight(first), _midnight(after)


def period_bounds(account: Account, at: datetime) -> tuple[datetime, datetime]:
    """Return the subscription's period as the account has it, else the UTC month: (start, end).

    The billing provider starts the next period: a period that is over stays until the
    account changes.
    """
    if account.current_period_start and account.current_period_end:
        return account.current_period_start, account.current_period_end
    return month_bounds(at)


def period_start_of(account: Account, at: datetime) -> datetime | None:
    """Return the start of the subscription's period that a verification at this instant belongs to.

    A verification after the period's end belongs to the next period, which begins there
    even if the provider's event has not arrived yet. None if there is no subscription, or
    the instant is before the known period.
    """
    start, end = account.current_period_start, account.current_period_end
    if start is None or end is None or at < start:
        return None
    return start if at < end else end


def kept_since(now: datetime, days: int) -> datetime:
    """Return the earliest instant within a retention of so many UTC days, today included."""
    return _midnight(day_of(now) - timedelta(days=days - 1))


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
