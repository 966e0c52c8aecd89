"""The text of a number in a workbook: all its digits, or a date, time or duration in ISO 8601."""

import datetime
from decimal import Decimal

DAY_S = 86_400
EPOCH = datetime.datetime(1899, 12, 30)
EPOCH_1904 = datetime.datetime(1904, 1, 1)


def number_text(text: str, kind: str) -> str:
    """Return a number as text by its format's kind (see Package.styles()). Raises ValueError."""
    if not kind:
        if text.lstrip("-").isdigit():
            return text
        number = float(text)
        return (
            format(Decimal(repr(number)).to_integral_value(), "f")
            if number.is_integer()
            else repr(number)
        )
    seconds = round(float(text) * DAY_S, 3)
    if kind == "duration" or seconds < 0:
        return _duration(seconds)
    try:
        moment = (EPOCH_1904 if kind.endswith("1904") else EPOCH) + datetime.timedelta(
            seconds=seconds
        )
    except OverflowError:
        return text
    if seconds < DAY_S:
        return moment.time().isoformat()
    # Excel counts a 29 February 1900, which did not exist: earlier days are off by one.
    if not kind.endswith("1904") and seconds < 60 * DAY_S:
        moment += datetime.timedelta(days=1)
    return moment.date().isoformat() if seconds % DAY_S == 0 else moment.isoformat(" ")


def _duration(seconds: float) -> str:
    sign, whole = "-" if seconds < 0 else "", abs(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(int(minutes), 60)
    part = f"{rest:06.3f}".rstrip("0").rstrip(".") if rest % 1 else f"{int(rest):02}"
    return f"{sign}{hours}:{minutes:02}:{part}"
