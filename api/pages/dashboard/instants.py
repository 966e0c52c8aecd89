"""Instants as people say them: how long ago, or at what time, with the exact one beside it.

They are written in UTC; the script of the pages rewrites times and dates in the zone of the reader.
"""

from datetime import datetime, timedelta

from markupsafe import Markup

MINUTE, HOUR, DAY = 60, 3600, 86400
DAYS_SAID = 14  # older ones by their date


def when(now: datetime, instant: datetime) -> Markup:
    """A time element: `12 min ago`, and the exact instant where the pointer rests on it."""
    is_far = abs(instant - now).days > DAYS_SAID
    return _time(instant, phrase_of(instant - now, instant), "date" if is_far else "")


def clock(instant: datetime) -> Markup:
    """A time element of today or so: `15:04 UTC`."""
    return _time(instant, f"{instant:%H:%M} UTC", "clock")


def _time(instant: datetime, words: str, rewritten: str) -> Markup:
    """A time element; what the script may rewrite says as what."""
    exact = f"{instant:%Y-%m-%d %H:%M:%S} UTC"
    as_what = Markup(' data-as="{}"').format(rewritten) if rewritten else ""
    return Markup('<time datetime="{}" title="{}"{}>{}</time>').format(
        instant.isoformat(), exact, as_what, words
    )


def phrase_of(from_now: timedelta, instant: datetime) -> str:
    """The distance of an instant in words, or its date if it is far."""
    seconds = abs(from_now.total_seconds())
    if seconds < MINUTE:
        return "now" if seconds < 1 else _turned(f"{seconds:.0f} s", from_now)
    if seconds < HOUR:
        return _turned(f"{seconds // MINUTE:.0f} min", from_now)
    if seconds < DAY:
        return _turned(f"{seconds // HOUR:.0f} h", from_now)
    days = abs(from_now).days
    if days > DAYS_SAID:
        return f"{instant:%Y-%m-%d}"
    return _turned("1 day" if days == 1 else f"{days} days", from_now)


def _turned(words: str, from_now: timedelta) -> str:
    return f"in {words}" if from_now > timedelta() else f"{words} ago"
