"""A time as an option or a setting takes it: `30s`, `5m`, `1h` or `2d`, and `0`. Pure."""

import re

SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def read_seconds(time: str) -> float | None:
    """The time in seconds; None if the text is not one."""
    if time == "0":
        return 0.0
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([smhd])", time)
    return float(found[1]) * SECONDS[found[2]] if found else None
