"""The rules of billing through Stripe: pure, without I/O.

They say what a Stripe event is about, which tier and period an account's subscriptions
give it, what an outbox message reports to the meter, and whether it may be sent again.
An event is only a hint: the caller fetches the current state.

Stripe accepts an identifier of a meter event once within 24 hours, and an event for
35 days (docs.stripe.com/api/billing/meter-event/create). So an event that may have been
accepted is repeated for less than a day, one that certainly was not for less than 35.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from mailprobe.storage.records import EPOCH, OutboxMessage, Tier

from ..outbox.backoff import Backoff, growing
from ..refusals import InvalidRequest

METER_EVENT = "mailprobe_verifications"
SIGNED_WITHIN_S = 300  # the default of Stripe's own libraries
UNCERTAIN_MAX = timedelta(hours=23)  # an hour less than Stripe remembers identifiers
AGE_MAX = timedelta(days=34)  # a day less than Stripe accepts
OUTAGE_PAUSE_MAX_S = 900.0  # the longest delay of a message after Stripe recovers
REFUSED_PAUSE_MAX_S = 3600.0  # while an operator must fix the cause
RETRY_AFTER_MAX_S = 3600.0  # a longer Retry-After is cut to this
WHY_CHARACTERS_MAX = 300


# -- events -------------------------------------------------------------------------------------


class BillingEvent(msgspec.Struct, frozen=True):
    """The trusted part of an event: what it is about. `customer_id` is None without a customer."""

    type: str
    customer_id: str | None
    account_id: str | None  # if the checkout or the metadata names the account

    @property
    def is_of_subscriptions(self) -> bool:
        return self.type.startswith(FOLLOWED)

    @property
    def is_customer_deleted(self) -> bool:
        """The customer was deleted, which ends every subscription and cannot be undone."""
        return self.type == "customer.deleted"


# prefixes of the event types that may change the account
FOLLOWED = (
    "checkout.session.",
    "customer.deleted",
    "customer.subscription.",
    "invoice.",
    "subscription_schedule.",
)


def read_event(octets: bytes, signature: str, secret: str, now: datetime) -> BillingEvent:
    """Verify an event's signature and return what the event is about.

    Raises InvalidRequest, which never contains the expected signature.
    """
    if not _is_signed(octets, signature, secret, now):
        raise InvalidRequest(
            "The event is not signed by the billing provider, or was signed too long ago.",
            "endpoints",
            fix="Set the signing secret of this endpoint; check the clocks.",
        )
    try:
        event = msgspec.json.decode(octets, type=_Event)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest("The event is not JSON, or none of Stripe's.", "endpoints") from None
    about = event.data.object
    customer_id = about.id if about.object == "customer" else _id_of(about.customer)
    named = about.client_reference_id or _account_named(about.metadata)
    return BillingEvent(event.type, customer_id, named)


def _is_signed(octets: bytes, header: str, secret: str, now: datetime) -> bool:
    """Return whether a v1 signature is valid: HMAC-SHA256 over the instant and the received octets.

    There may be several signatures while a secret is being replaced.
    """
    parts = [part.strip().partition("=") for part in header.split(",")]
    instants = [value for name, _, value in parts if name == "t"]
    if len(instants) != 1 or not re.fullmatch(r"[0-9]{1,12}", instants[0], re.ASCII):
        return False
    signed = hmac.new(secret.encode(), f"{instants[0]}.".encode() + octets, hashlib.sha256)
    expected = signed.hexdigest()
    given = [value for name, _, value in parts if name == "v1" and value.isascii()]
    if not any(hmac.compare_digest(expected, each) for each in given):
        return False
    return abs(now.timestamp() - int(instants[0])) <= SIGNED_WITHIN_S


class _About(msgspec.Struct):
    object: str = ""
    id: str | None = None
    customer: Any = None
    client_reference_id: str | None = None
    metadata: Any = None


class _EventData(msgspec.Struct):
    object: _About = msgspec.field(default_factory=_About)


class _Event(msgspec.Struct):
    type: str
    data: _EventData = msgspec.field(default_factory=_EventData)


def _id_of(reported: object) -> str | None:
    """Return the id of a reference, which is an id or, if expanded, the whole object."""
    named = reported.get("id") if isinstance(reported, dict) else reported
    return named if isinstance(named, str) and named else None


def _account_named(metadata: object) -> str | None:
    named = metadata.get("account_id") if isinstance(metadata, dict) else None
    return named if isinstance(named, str) and named else None


# -- subscriptions -> the account ---------------------------------------------------------------

# whether a subscription in this status keeps its tier; one in an unknown status does not
KEEPS_TIER: Mapping[str, bool] = {
    "active": True,
    "trialing": True,
    "past_due": True,  # Stripe still tries to be paid
    "unpaid": False,  # Stripe has stopped trying
    "incomplete": False,  # the first payment is still to come
    "incomplete_expired": False,
    "paused": False,  # the trial ended without a means of payment
    "canceled": False,
}

RANK: Mapping[Tier, int] = {"free": 0, "builder": 1, "scale": 2}

# the fields of an account that never had a subscription
NO_SUBSCRIPTION: Mapping[str, object] = {
    "tier": "free",
    "subscription_status": None,
    "current_period_start": None,
    "current_period_end": None,
    "cancel_at_period_end": None,
    "canceled_at": None,
    "cancel_at": None,
    "trial_start": None,
    "trial_end": None,
    "billing_cycle_anchor": None,
}


class _Product(msgspec.Struct):
    metadata: dict[str, str] = msgspec.field(default_factory=dict)


class _Price(msgspec.Struct):
    lookup_key: str | None = None
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    product: str | _Product | None = None


class _Item(msgspec.Struct):
    price: _Price = msgspec.field(default_factory=_Price)
    current_period_start: int | None = None
    current_period_end: int | None = None


class _Items(msgspec.Struct):
    data: list[_Item] = msgspec.field(default_factory=list)


class Subscription(msgspec.Struct, frozen=True):
    """A subscription as Stripe reports it; instants are seconds since 1970."""

    id: str
    status: str
    created: int
    items: _Items
    customer: Any = None
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    current_period_start: int | None = None  # in old API versions; since 2025 each item has one
    current_period_end: int | None = None
    cancel_at_period_end: bool | None = None
    canceled_at: int | None = None
    cancel_at: int | None = None
    trial_start: int | None = None
    trial_end: int | None = None
    billing_cycle_anchor: int | None = None

    @property
    def tier(self) -> Tier | None:
        """The highest tier of its items; None if no price or expanded product names one."""
        tiers = [tier for item in self.items.data if (tier := _tier_of(item.price))]
        return max(tiers, key=RANK.__getitem__, default=None)

    @property
    def is_live(self) -> bool:
        return KEEPS_TIER.get(self.status, False)

    @property
    def account_id(self) -> str | None:
        return _account_named(self.metadata)

    @property
    def period(self) -> tuple[int | None, int | None]:
        """Start and end of the tier's item in seconds since 1970; each item may have its own."""
        items = sorted(self.items.data, key=lambda item: _tier_of(item.price) != self.tier)
        periods = [(item.current_period_start, item.current_period_end) for item in items]
        own = (self.current_period_start, self.current_period_end)
        return next((period for period in (*periods, own) if all(period)), (None, None))


def read_subscription(reported: Mapping[str, object]) -> Subscription:
    """Decode a subscription. Raises msgspec.ValidationError if it is none."""
    return msgspec.convert(reported, Subscription)


def _tier_of(price: _Price) -> Tier | None:
    product = price.product.metadata if isinstance(price.product, _Product) else {}
    said = (price.lookup_key, price.metadata.get("tier"), product.get("tier"))
    return next((tier for tier in RANK if tier in said), None)


def account_fields(subscriptions: Sequence[Subscription]) -> dict[str, object] | None:
    """Return the fields of Account that follow from its customer's subscriptions.

    The highest live tier counts; without one the account is free and shows its newest
    subscription. Subscriptions without a tier belong to another product. If one of
    them is live and none has a tier, its price lacks the tier: returns None.
    """
    ours = [one for one in subscriptions if one.tier]
    live = [one for one in ours if one.is_live]
    if live:
        best = max(live, key=lambda one: (RANK[one.tier or "free"], one.created))
        return _fields(best) | _lasting(best)
    if not ours and any(one.is_live for one in subscriptions):
        return None
    ended = ours or subscriptions
    if not ended:
        return dict(NO_SUBSCRIPTION)
    return _fields(max(ended, key=lambda one: one.created))


def _fields(one: Subscription) -> dict[str, object]:
    """Return Account's fields as after the end: free tier and no period, so the UTC month counts."""
    return {
        **NO_SUBSCRIPTION,
        "subscription_status": one.status,
        "cancel_at_period_end": one.cancel_at_period_end,
        "canceled_at": _instant(one.canceled_at),
        "cancel_at": _instant(one.cancel_at),
        "trial_start": _instant(one.trial_start),
        "trial_end": _instant(one.trial_end),
        "billing_cycle_anchor": _instant(one.billing_cycle_anchor),
    }


def _lasting(one: Subscription) -> dict[str, object]:
    start, end = one.period
    return {
        "tier": one.tier,
        "current_period_start": _instant(start),
        "current_period_end": _instant(end),
    }


def _instant(seconds: int | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


# -- meter events -------------------------------------------------------------------------------


class MeterEvent(msgspec.Struct, frozen=True):
    """A number of billable verifications of a customer; Stripe counts each identifier once."""

    customer_id: str
    value: int
    identifier: str  # Stripe's limit is 100 characters; these are 47
    at: int  # seconds since 1970


class Failure(msgspec.Struct, frozen=True):
    """Why a request failed. If not `certain`, Stripe may still have executed it.

    `general` failures are not about one message: all others would fail too.
    """

    why: str
    certain: bool
    general: bool = True
    retry_after_s: float = 0.0


def identifier_of(message: OutboxMessage) -> str:
    return f"{message.account_id}-{message.name}"


def meter_event(message: OutboxMessage, customer_id: str) -> MeterEvent:
    return MeterEvent(customer_id, message.count, identifier_of(message), int(message.name))


def slot_of(message: OutboxMessage) -> datetime:
    return EPOCH + timedelta(seconds=int(message.name))


_UNCERTAIN = re.compile(r"in doubt since (\S+): ")


def uncertain_since(message: OutboxMessage) -> datetime | None:
    """Return the earliest instant at which Stripe may have accepted a claimed message, or None.

    An attempt records in `error` since when its result is in doubt. A claim without a
    result (its process was killed) is in doubt too: it began when the message was due, or later.
    """
    found = _UNCERTAIN.match(message.error or "")
    if found:
        return datetime.fromisoformat(found[1])
    if message.fence - 1 > message.tries:
        return message.due_at
    return None


def held_for(message: OutboxMessage, now: datetime) -> str | None:
    """Return why the message must not be sent and needs an operator; None if it may be sent."""
    doubted = uncertain_since(message)
    if doubted is not None and now - doubted > UNCERTAIN_MAX:
        return f"in doubt since {doubted.isoformat()}: Stripe may have it, or not"
    if now - slot_of(message) > AGE_MAX:
        return "too old to be taken by Stripe"
    return None


def reported(message: OutboxMessage, failure: Failure, tried_at: datetime) -> str:
    """Return the text to store for a failed attempt; `uncertain_since` reads its doubt later."""
    doubted = uncertain_since(message)
    if doubted is None and not failure.certain:
        doubted = tried_at
    doubt = f"in doubt since {doubted.isoformat()}: " if doubted else ""
    return (doubt + failure.why)[:WHY_CHARACTERS_MAX]


def meter_backoff(most_s: float) -> Backoff:
    """Return the rule of pauses that double up to `most_s`, each up to half shorter at random."""
    return Backoff(growing(2.0, most_s), spread=(0.5, 1.0), retry_after_s_max=RETRY_AFTER_MAX_S)


AFTER_OUTAGE = meter_backoff(OUTAGE_PAUSE_MAX_S)
AFTER_REFUSAL = meter_backoff(REFUSED_PAUSE_MAX_S)


def read_retry_after(header: str | None) -> float:
    """Return the header's seconds, or 0.0. Stripe sends no dates."""
    return float(header) if header and re.fullmatch(r"[0-9]{1,6}", header, re.ASCII) else 0.0
