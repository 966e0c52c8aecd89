"""A time as an option takes it: `30s`, `5m`, `1h` or `2d`."""

import re

from mailprobe.api.errors import Misuse

SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_of(time: str, option: str, *, seconds_max: float) -> float:
    """The time in seconds. Raises Misuse, also for more than `seconds_max`, which are whole days."""
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([smhd])", time)
    seconds = float(found[1]) * SECONDS[found[2]] if found else seconds_max + 1
    if seconds > seconds_max:
        raise Misuse(
            f"{option} is {time!r}: it takes a time of at most {seconds_max / 86400:.0f}d,"
            " such as 30s, 5m, 1h or 1d"
        )
    return seconds
