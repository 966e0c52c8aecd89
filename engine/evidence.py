"""Why a verdict is what it is: what was tried, said and remembered.

Collected only when asked for. Times are milliseconds since the address was
taken up; lines are as they went over the wire, without CRLF.
"""

from typing import Literal

import msgspec


class Tried(msgspec.Struct, frozen=True):
    """One attempt to reach an exchange."""

    exchange: str
    address: str | None  # the IP address; None where the exchange has none that may be used
    result: str  # "answered", or in a few words what went wrong


class Line(msgspec.Struct, frozen=True):
    """One line of the conversation; a reply of several lines is several of these."""

    at_ms: float
    who: Literal["client", "server"]
    text: str


class Evidence(msgspec.Struct):
    """Everything that explains one verdict."""

    exchanges: list[Tried] = []
    conversation: list[Line] = []
    rule: str | None = None  # id of the rule that decided, of replies.toml or of ours
    cached: list[str] = []  # of "mx", "addresses", "catch_all", "connection", "rest"
