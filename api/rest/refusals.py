"""How we say no: every reason, as an exception with the particulars that its words need.

Pure; what is said of each, and with which status, is the table in `errors`.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

# Sections of docs/api.md, by the anchors of their headings: where `docs` of an error leads.
Section = Literal[
    "authentication", "batch", "endpoints", "errors", "idempotency", "limits", "management",
    "request", "request-bodies", "spend-caps", "streaming", "tools",
]  # fmt: skip


class Refusal(Exception):
    """We say no. The subclass is the reason, its fields are the particulars."""


@dataclass(eq=False)
class NoSuchRoute(Refusal):
    """The path leads nowhere."""


@dataclass(eq=False)
class MethodNotAllowed(Refusal):
    """The path is right, the method is not."""

    method: str
    allow: str


@dataclass(eq=False)
class MissingKey(Refusal):
    """No Authorization header."""

    kind: str = "API"


@dataclass(eq=False)
class InvalidKey(Refusal):
    """Not a key, not a known one, revoked, or of a kind that never verifies."""

    why: str = "The API key is not known or has been revoked."


@dataclass(eq=False)
class WrongKeyType(Refusal):
    """A standard key on a management route."""


@dataclass(eq=False)
class PayloadTooLarge(Refusal):
    """More octets than we read."""

    octets_max: int


@dataclass(eq=False)
class UnsupportedCoding(Refusal):
    """The body is compressed, or coded in another way."""

    coding: str


@dataclass(eq=False)
class SlowBody(Refusal):
    """The body was not complete in time."""

    seconds_max: int


@dataclass(eq=False)
class InvalidRequest(Refusal):
    """What was sent is not what the operation takes. `was_json`: the body at least was JSON."""

    why: str
    section: Section = "request"
    was_json: bool = False
    fix: str = "Correct the request as the API description says, then send it again."


@dataclass(eq=False)
class HardCapReached(Refusal):
    """The projected overage is above the account's hard cap."""

    hard_cap_eur: float | None
    current_overage_eur: float


@dataclass(eq=False)
class RateLimited(Refusal):
    """Too many units in the last minute. Passes from `reset_at` on."""

    limit: int
    asked_at: datetime
    reset_at: datetime
    units: int
    window: str = "1m"
    also: str = ""  # another limit that stands in the way, so that nobody waits in vain


@dataclass(eq=False)
class NeverFits(RateLimited):
    """More units at once than the limit of a whole minute."""


@dataclass(eq=False)
class QuotaExhausted(Refusal):
    """The free tier's month has no room for these units."""

    limit: int
    used: int
    asked_at: datetime
    reset_at: datetime
    units: int


@dataclass(eq=False)
class KeyNotFound(Refusal):
    """The account has no such active standard key."""


@dataclass(eq=False)
class TooManyKeys(Refusal):
    """The account has as many standard keys as its tier allows."""

    keys_max: int


@dataclass(eq=False)
class KeysTooFast(RateLimited):
    """The account has made as many keys in the last minute as it may make."""


@dataclass(eq=False)
class TooManyJobs(Refusal):
    """The account has as many jobs as it may have whose callback is not delivered."""

    jobs_max: int


@dataclass(eq=False)
class NoBillingAccount(Refusal):
    """There is nothing that a billing portal could show."""


@dataclass(eq=False)
class ProviderUnavailable(Refusal):
    """The billing provider cannot be asked just now."""


@dataclass(eq=False)
class IdempotencyReused(Refusal):
    """The idempotency key came with another request before."""


@dataclass(eq=False)
class IdempotencyRunning(Refusal):
    """The first request with the idempotency key has no answer yet."""


@dataclass(eq=False)
class AnswerLost(Refusal):
    """The first request with the idempotency key was answered; the answer was too large to keep."""


@dataclass(eq=False)
class Overloaded(Refusal):
    """As much is under way as we bear."""


@dataclass(eq=False)
class UsageUnknown(Refusal):
    """The store cannot be asked just now."""


@dataclass(eq=False)
class OurFault(Refusal):
    """A bug of ours; the log has it under the request's id."""

    request_id: str
