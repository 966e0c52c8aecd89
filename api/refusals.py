"""Refusals: every reason to reject a request, as an exception with its fields.

Pure. The table in `errors` has the status and texts of each.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

# Anchors of the headings in docs/api.md: the targets of an error's `docs` link.
Section = Literal[
    "audit", "authentication", "batch", "bounces", "endpoints", "errors", "forms", "idempotency", "jobs", "limits", "lists", "live", "management",
    "request", "request-bodies", "spend-caps", "streaming", "tools",
]  # fmt: skip


class Refusal(Exception):
    """A rejected request. The subclass is the reason, its fields are the details."""


@dataclass(eq=False)
class NoSuchRoute(Refusal):
    """No operation has this path."""

    also: str = ""  # a sentence on what has it


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
class OriginNotAllowed(Refusal):
    """The request comes from no page of the publishable key's origins."""

    why: str = "The publishable key is not for pages of this origin."


@dataclass(eq=False)
class ProofRequired(Refusal):
    """Forms need a proof of work, and the request has none that is good, in time and unused."""


@dataclass(eq=False)
class FormBusy(Refusal):
    """The visitor, or the publishable key, has used its checks of the minute."""

    retry_s: int


@dataclass(eq=False)
class FormOff(Refusal):
    """The account's quota or cap leaves no check; a visitor does not learn which."""


@dataclass(eq=False)
class ProbingUnavailable(Refusal):
    """This machine reaches no mail host, and the operator wants no answers meanwhile."""


@dataclass(eq=False)
class PayloadTooLarge(Refusal):
    """The body has more bytes than are read."""

    octets_max: int


@dataclass(eq=False)
class UpgradeRequired(Refusal):
    """The path takes WebSockets, and the request asks for none."""


@dataclass(eq=False)
class UnsupportedCoding(Refusal):
    """The body is compressed, or coded in another way."""

    coding: str


@dataclass(eq=False)
class SlowBody(Refusal):
    """The body was not complete in time."""

    seconds_max: int


@dataclass(eq=False)
class SlowUpload(Refusal):
    """An upload does not keep the least rate."""

    kib_min: int
    seconds: int


@dataclass(eq=False)
class InvalidRequest(Refusal):
    """The request does not fit the operation. `was_json`: the body was at least JSON.

    `parameter` is the query parameter to set otherwise, which is what to do then.
    """

    why: str
    section: Section = "request"
    was_json: bool = False
    fix: str = "Correct the request as the API description says, then send it again."
    parameter: str = ""

    def __post_init__(self) -> None:
        if self.parameter:
            self.fix = f"Set the query parameter {self.parameter} as it fits, then send it again."


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
    also: str = ""  # a sentence on another limit that would also refuse the request


@dataclass(eq=False)
class NeverFits(RateLimited):
    """More units at once than the limit of a whole minute."""


@dataclass(eq=False)
class QuotaExhausted(Refusal):
    """The free tier's monthly quota does not cover these units."""

    limit: int
    used: int
    asked_at: datetime
    reset_at: datetime
    units: int


@dataclass(eq=False)
class KeyNotFound(Refusal):
    """The account has no such active standard key."""


@dataclass(eq=False)
class JobNotFound(Refusal):
    """The account has no such job, or it is no longer kept."""


@dataclass(eq=False)
class ListNotFound(Refusal):
    """The account has no such list, or it is no longer kept."""


@dataclass(eq=False)
class BounceNotFound(Refusal):
    """No bounce of this address is kept for the account."""


@dataclass(eq=False)
class TooManyLists(Refusal):
    """The account has as many lists as it may have that have not ended."""

    lists_max: int


@dataclass(eq=False)
class TooManyKeptLists(Refusal):
    """The account has as many lists as it may have, whatever their state."""

    lists_max: int


@dataclass(eq=False)
class ListsTooLarge(Refusal):
    """The account's lists would take more room than its tier allows."""

    mib_max: int


@dataclass(eq=False)
class TooManyKeys(Refusal):
    """The account has as many standard keys as its tier allows."""

    keys_max: int


@dataclass(eq=False)
class KeysTooFast(RateLimited):
    """The account has made as many keys in the last minute as it may make."""


@dataclass(eq=False)
class ListsTooFast(RateLimited):
    """The account has sent as many lists in the last minute as it may send."""


@dataclass(eq=False)
class TooManyJobs(Refusal):
    """The account has as many jobs as it may have whose callback is not delivered."""

    jobs_max: int


@dataclass(eq=False)
class NoBillingAccount(Refusal):
    """The account has nothing to show in a billing portal."""


@dataclass(eq=False)
class ProviderUnavailable(Refusal):
    """The billing provider is unavailable."""


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
    """The service is at its capacity."""


@dataclass(eq=False)
class StorageFull(Refusal):
    """A disk of the service is full."""


@dataclass(eq=False)
class UsageUnknown(Refusal):
    """The store is unavailable."""


@dataclass(eq=False)
class OurFault(Refusal):
    """An unexpected error; the log has it under the request's id."""

    request_id: str
