"""Which day, month and billing period an instant lies in; pure, all in UTC.

One place, so that every store cuts time at the same edges.
"""

from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache

from mailprobe.storage.records import Account

FOREVER = datetime.max.replace(tzinfo=UTC)  # when a lease ends that has no end


def day_of(at: datetime) -> date:
    return at.date() if at.tzinfo is UTC else at.astimezone(UTC).date()


def month_of(at: datetime) -> date:
    """The month's first day, which names it."""
    return day_of(at).replace(day=1)


def month_bounds(at: datetime) -> tuple[datetime, datetime]:
    """The first instant of the month, and the first that is past it."""
    return _bounds(month_of(at))


@lru_cache(64)  # asked for at each request
def _bounds(first: date) -> tuple[datetime, datetime]:
    after = (first + timedelta(days=31)).replace(day=1)
    return _midnight(first), _midnight(after)


def period_bounds(account: Account, at: datetime) -> tuple[datetime, datetime]:
    """The subscription's period as the account has it, else the month.

    Rolling the subscription's period forward is the billing provider's business:
    one that is over stays until the account says otherwise.
    """
    if account.current_period_start and account.current_period_end:
        return account.current_period_start, account.current_period_end
    return month_bounds(at)


def period_start_of(account: Account, at: datetime) -> datetime | None:
    """The start of the subscription's period that a verification at this instant belongs to.

    One that ends after the period's end belongs to the next, which begins there
    even where the provider's word of it is still on its way. None: there is no
    subscription, or the instant lies before what is known of it.
    """
    start, end = account.current_period_start, account.current_period_end
    if start is None or end is None or at < start:
        return None
    return start if at < end else end


def kept_since(now: datetime, days: int) -> datetime:
    """Rows older than this are past a retention of so many days: today and those before it."""
    return _midnight(day_of(now) - timedelta(days=days - 1))


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
