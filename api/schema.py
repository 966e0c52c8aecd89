"""The types of all request and response bodies, except those of the engine.

Handlers receive and return these types, and the API description is made from them, so
the two cannot differ.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct

BODY_OCTETS_MAX = 2 * 1024 * 1024
BODY_S_MAX = 10  # seconds, from a request's head to the end of its body

Instant = Annotated[datetime, Meta(tz=True)]

# -- requests ---------------------------------------------------------------------------------


def says(text: str) -> Meta:
    """What a field is, for the API description."""
    return Meta(description=text)


class AddressBody(Struct, frozen=True):
    """A body with addresses to verify."""

    def texts(self) -> Sequence[str]:
        """The addresses; one unit each."""
        raise NotImplementedError


# -- responses ----------------------------------------------------------------------------------


ListStatus = Literal["reading", "running", "paused", "done", "failed", "cancelled"]
ListStage = Literal["asking", "waiting"]
# minute: the key's limit. plan: the month or the cap is used up. recheck: what time may cure.
# hosts: mail hosts take no more now. paused: by the operator of the service.
ListWaitCause = Literal["minute", "plan", "recheck", "hosts", "self_protection", "paused"]


class WaitingHost(Struct, frozen=True):
    """Addresses that wait for one mail host, and about when none does any more."""

    host: str
    addresses: int
    refusals_in_10_min: int
    reason: str
    until: Instant
    done_about: Instant


class ListWait(Struct, frozen=True):
    """What addresses of a list wait for. `hosts` are those at which most wait, of `hosts_count`."""

    cause: ListWaitCause
    addresses: int
    until: Instant | None = None
    hosts_count: int = 0
    hosts: tuple[WaitingHost, ...] = ()


class ListResponse(Struct, frozen=True, kw_only=True):
    """A list. `counts` has its answered addresses by status; `cause` says why it waits or failed."""

    list_id: str
    name: str
    status: ListStatus
    created_at: Instant
    rows: int
    addresses: int
    answered: int
    counts: dict[str, int]
    per_minute: float
    left_s: float | None = None
    cause: str | None = None
    ended_at: Instant | None = None
    recheck_at: Instant | None = None
    stage: ListStage | None
    waits_until: Instant | None = None
    waits_for: tuple[ListWait, ...] = ()
    patience_s: int
    columns: list[str] = []
    unwrapped_rows: int = 0
    doubtful_rows: int = 0
    several_rows: int = 0


class ListsResponse(Struct, frozen=True):
    """The account's lists, newest first, at most a hundred."""

    lists: list[ListResponse]


class ListCallback(Struct, frozen=True):
    """The body of a list's callback."""

    list_id: str
    status: Literal["done"]
    rows: int
    addresses: int
    counts: dict[str, int]
    created_at: Instant
    ended_at: Instant
