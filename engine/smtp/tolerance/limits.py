"""Limits of a mail host that are known before it is asked, and kinds of recipients. Pure."""

from enum import Enum

from msgspec import Struct

WINDOW_S = 600.0  # fail2ban's findtime; other guards count by the hour or by the session
GUARDED_S = WINDOW_S + 10.0  # it looks every five seconds for what is older
HOUR_S = 3600.0
DAY_S = 86_400.0
BUDGET_RULE = "budget.refusals"  # of an address that was not sent for want of tolerance
BAN_RULE = "ban.recognised"  # of an address without an answer, as the host has banned us


class RefusalLimits(Struct, frozen=True):
    """What is known of a host before it is asked: a row of `operators.toml`, or nothing.

    None: learned. `tolerance` and `ceiling` count refusals in WINDOW_S, `hour` in an hour,
    `session` in one session. `share` of an hour's recipients must stay below its limit.
    `slow`: the host answers a refused recipient seconds later.
    """

    session: int | None = None
    tolerance: int | None = None
    ceiling: int | None = None
    hour: int | None = None
    share: float | None = None
    slow: bool = False

    @property
    def is_counted(self) -> bool:
        """Is an hour or a share limited?"""
        return self.hour is not None or self.share is not None


UNKNOWN = RefusalLimits()


class Kind(Enum):
    """What a recipient is sent for."""

    LIST = "list"
    REQUEST = "request"
    NAME = "random name"  # tests whether its domain accepts all, for a list or several addresses
    LONE_NAME = "random name of one request"  # or a control that is to be refused
    CONTROL = "control"  # the host accepted it before: free

    __hash__ = object.__hash__  # Enum's own hash is slow Python code

    def __init__(self, words: str) -> None:
        self.is_name = words.startswith("random name")
        self.is_of_list = words in {"list", "random name"}


class Growth(Enum):
    """May the tolerance be raised for this work, now?"""

    NOW = "now"
    PROVE = "prove"  # as soon as an address that was accepted before is accepted again
    NOT = "not"
