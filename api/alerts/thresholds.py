"""The rules of alerts: the thresholds that an account has reached, and their messages in the outbox.

Pure: usage and time come from the ledger. There is one mail at 75, 90 and 100 % of what
the plan includes, one when the overage reaches the soft cap, and one when the hard cap
refuses a request. Each is sent at most once per period, so a message is named after its
period and threshold. The figures are those of the crossing, however late the mail is sent.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal, TypeVar

import msgspec

from mailprobe.storage.records import Account, Ledger, Tier
from mailprobe.storage.usage import month_bounds

from ..quota.plans import PricingPlan

Message = TypeVar("Message")
Kind = Literal["75", "90", "100", "soft_cap", "hard_cap", "test"]
# Units of a month (free), billable verifications of a billing period.
Measure = Literal["quota", "volume"]


class Unwritable(ValueError):
    """No mail can be made from this outbox message; the text says why."""


class Figures(msgspec.Struct, frozen=True):
    """An account's usage, limits and prices when a threshold was crossed."""

    tier: Tier
    measure: Measure
    at: datetime
    period_start: datetime
    period_end: datetime
    used: int
    included: int
    price_micros: int  # micro-euros per billable verification beyond `included`
    spend_micros: int  # the period's overage so far
    soft_cap_micros: int | None
    hard_cap_micros: int | None


class Alert(msgspec.Struct, frozen=True):
    """A threshold that was reached; `test`: none was, the account's owner wants to see a mail."""

    kind: Kind
    figures: Figures


# -- what is reached ---------------------------------------------------------------------------


def _percent(share: int) -> Callable[[Figures], bool]:
    # a plan that includes nothing has no percentages
    return lambda f: f.included > 0 and f.used * 100 >= f.included * share


def _soft_cap(f: Figures) -> bool:
    """Return whether the soft cap is reached; a cap of 0 is reached by the first micro-euro."""
    return f.soft_cap_micros is not None and f.spend_micros >= max(1, f.soft_cap_micros)


REACHED: dict[Kind, Callable[[Figures], bool]] = {
    "75": _percent(75),
    "90": _percent(90),
    "100": _percent(100),
    "soft_cap": _soft_cap,
}


def crossed(plan: PricingPlan, ledger: Ledger, account: Account, *, capped: bool) -> list[Alert]:
    """Return an alert for every threshold reached now, lowest first.

    Only settled usage counts: reserved units may be given back. `capped` means that
    a request has just been refused because of the account's current hard cap.

    If the billing period is over and the provider has not reported the next one, the
    ledger counts both together. That is a share of neither, so only a hard-cap alert
    is possible then.
    """
    if plan.tier == "own":
        return []  # it has no limit and no price, so no threshold
    figures = _figures(plan, ledger, account)
    alerts: list[Alert] = []
    if figures.at < figures.period_end:
        alerts = [Alert(kind, figures) for kind, reached in REACHED.items() if reached(figures)]
    if capped and figures.measure == "volume" and figures.hard_cap_micros is not None:
        alerts.append(Alert("hard_cap", figures))
    return alerts


def _figures(plan: PricingPlan, ledger: Ledger, account: Account) -> Figures:
    measure: Measure = "volume"
    used, start, end = ledger.period_billable, ledger.period_start, ledger.period_end
    if plan.monthly_quota is not None:
        measure, used = "quota", ledger.month_units - ledger.reserved
        start, end = month_bounds(ledger.asked_at)  # not the dates left by a former subscription
    return Figures(
        tier=plan.tier,
        measure=measure,
        at=ledger.asked_at,
        period_start=start,
        period_end=end,
        used=used,
        included=plan.monthly_calls,
        price_micros=plan.price_micros_per_call,
        spend_micros=plan.overage_micros(ledger.period_billable),
        soft_cap_micros=account.soft_cap_micros,
        hard_cap_micros=account.hard_cap_micros,
    )


def trial(plan: PricingPlan, ledger: Ledger, account: Account) -> Alert:
    """Return the alert of a test mail, with the figures of now."""
    return Alert("test", _figures(plan, ledger, account))


# -- in the outbox -----------------------------------------------------------------------------

TEST = "test "  # what the names of test mails begin with


def message_name(alert: Alert) -> str:
    """Return the message's name, unique per account: period start, measure and threshold.

    A month's quota and a billing period may begin together but are separate: an account
    that goes from free to paid gets alerts for both. A test mail is named after its minute, so
    that there is one a minute at most.
    """
    if alert.kind == "test":
        return f"{TEST}{alert.figures.at.astimezone(UTC):%Y-%m-%dT%H:%MZ}"
    start = alert.figures.period_start.astimezone(UTC).isoformat().replace("+00:00", "Z")
    measure = "quota " if alert.figures.measure == "quota" else ""
    return f"{start} {measure}{alert.kind}"


def read_body(body: bytes, kind: type[Message]) -> Message:
    """Return what a message's body says: an alert, or a list that is done. Raises Unwritable."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unwritable(f"the message cannot be read: {error}") from None
