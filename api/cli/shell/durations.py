"""A time as an option takes it, with its limit."""

from ...errors import Misuse


def seconds_of(time: str, option: str, *, seconds_max: float) -> float:
    """The time in seconds. Raises Misuse, also for more than `seconds_max`, which are whole days."""
    from ...setting_values import read_seconds  # the engine's, which no help needs

    seconds = read_seconds(time)
    if seconds is None or seconds > seconds_max:
        raise Misuse(
            f"{option} is {time!r}: it takes a time of at most {seconds_max / 86400:.0f}d,"
            " such as 30s, 5m, 1h or 1d"
        )
    return seconds
