"""The rules of alerts: which thresholds an account has reached, and the mail for each.

Pure: usage and time come from the ledger. There is one mail at 75, 90 and 100 % of what
the plan includes, one when the overage reaches the soft cap, and one when the hard cap
refuses a request. Each is sent at most once per period, so a message is named after its
period and threshold. The figures are those of the crossing, however late the mail is sent.
"""

import email.policy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from hashlib import sha256
from html import escape
from textwrap import fill
from typing import Literal

import msgspec

from mailprobe.api.quota.plans import MICROS_PER_EUR, PricingPlan
from mailprobe.api.quota.pricing import cents_up, overage_micros
from mailprobe.engine.address import Address, NotAnAddress, parse
from mailprobe.storage.periods import month_bounds
from mailprobe.storage.records import Account, Ledger, Tier

Kind = Literal["75", "90", "100", "soft_cap", "hard_cap", "test"]
# Units of a month (free), billable verifications of a billing period.
Measure = Literal["quota", "volume"]

COLUMNS = 72  # per line: quoted twice, a line still fits in 78 (RFC 5322 2.1.1)


class Unwritable(ValueError):
    """No mail can be made from this outbox message; the text says why."""


@dataclass(frozen=True, slots=True)
class Figures:
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


@dataclass(frozen=True, slots=True)
class Alert:
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
        spend_micros=overage_micros(plan, ledger.period_billable),
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


def to_body(alert: Alert) -> bytes:
    return msgspec.json.encode(alert)


def from_body(body: bytes) -> Alert:
    """Decode an alert from a message's body. Raises Unwritable."""
    try:
        return msgspec.json.decode(body, type=Alert)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unwritable(f"the message cannot be read: {error}") from None


# -- the mail ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AlertText:
    """The texts for a threshold; templates filled from `_facts()`."""

    subject: str
    happened: str
    means: str
    to_do: str


_QUOTA_NEARS = AlertText(
    "mailprobe: {percent} % of the free monthly quota used",
    "At least {percent} % of the {included} verifications that the free tier allows a month are "
    "used: {used} so far.",
    "A request for more addresses than are left is refused with 429 monthly_quota_exceeded until "
    "{end}, when the next month's {included} begin. Nothing is charged.",
    "Spread what is left over the rest of the month, or change to a paid plan, which has no "
    "monthly quota.",
)
_VOLUME_NEARS = AlertText(
    "mailprobe: {percent} % of the included verifications used",
    "At least {percent} % of the {included} billable verifications that the {tier} plan includes "
    "in a billing period are used: {used} so far.",
    "Beyond the {included}, each billable verification costs {price} until the period ends on "
    "{end}. {bound}",
    "You need not do anything. To bound what the overage may cost, set a hard cap, or change to "
    "a larger plan.",
)

_TEST = AlertText(
    "mailprobe: a test of your alerts",
    "This is the test mail that somebody asked for on the page Limits.",
    "Alerts reach you at this address. One comes at 75, 90 and 100 % of what the plan includes, "
    "and one at each spend cap, where the plan has prices.",
    "There is nothing to do.",
)

ALERT_TEXTS: Mapping[tuple[Measure, Kind], AlertText] = {
    ("quota", "75"): _QUOTA_NEARS,
    ("quota", "90"): _QUOTA_NEARS,
    ("quota", "100"): AlertText(
        "mailprobe: 100 % of the free monthly quota used",
        "All {included} verifications that the free tier allows a month are used.",
        "Requests are refused with 429 monthly_quota_exceeded until {end}, when the next month's "
        "{included} begin. Nothing is charged.",
        "Wait until then, or change to a paid plan, which has no monthly quota.",
    ),
    ("quota", "test"): _TEST,
    ("volume", "test"): _TEST,
    ("volume", "75"): _VOLUME_NEARS,
    ("volume", "90"): _VOLUME_NEARS,
    ("volume", "100"): AlertText(
        "mailprobe: 100 % of the included verifications used",
        "The {included} billable verifications that the {tier} plan includes in a billing period "
        "are used up: {used} so far.",
        "Each further billable verification costs {price} until the period ends on {end}. {bound}",
        "If this is what you expected, there is nothing to do. To bound what the overage may "
        "cost, set a hard cap, or change to a larger plan.",
    ),
    ("volume", "soft_cap"): AlertText(
        "mailprobe: soft cap of {soft_cap} reached",
        "The overage of this billing period has come to {spend}; your soft cap is {soft_cap}.",
        "A soft cap never blocks: requests are answered as before, and each further billable "
        "verification costs {price} until the period ends on {end}. {bound}",
        "If this is what you expected, there is nothing to do. To bound what the overage may "
        "cost, set a hard cap.",
    ),
    ("volume", "hard_cap"): AlertText(
        "mailprobe: hard cap of {hard_cap} reached, requests refused",
        "A request was refused with 402 payment_required, because it could have taken the overage "
        "of this billing period above your hard cap of {hard_cap}. So far the overage is {spend}.",
        "Every request that could pass the cap is refused with 402 payment_required until the cap "
        "is raised or the next billing period begins, on {end}. What is refused is neither "
        "verified nor charged.",
        "Raise or remove the hard cap, or change to a larger plan; it holds from the next request "
        "on.",
    ),
}
MEASURES: dict[Measure, str] = {"quota": "month", "volume": "billing period"}

HTML = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{subject}</title>
</head>
<body style="font-family: sans-serif; max-width: 40em">
<p><strong>
{happened}
</strong></p>
<h2>What it means</h2>
<p>
{means}
</p>
<h2>What you can do</h2>
<p>
{to_do}
</p>
<p>Plan and caps:
<a href="{dashboard_url}">
{dashboard_url}</a></p>
<h2>The figures</h2>
<table>
{rows}
</table>
<p>
{why}
</p>
<p>
{off}
</p>
<pre>
{command}
</pre>
</body>
</html>
"""
ROW = """\
<tr>
<th align="left">{0}</th>
<td>{1}</td>
</tr>"""

TEXT = """\
{happened}

What it means

{means}

What you can do

{to_do}

Plan and caps: {dashboard_url}

The figures

{rows}

{why}

{off}

  {command}
"""

# spaces that must not be wrapped: amount and unit, status and code, date and time
_TOGETHER = re.compile(r" (?=(?:EUR|UTC|%|[0-9]{2}:[0-9]{2})\b)|(?<=\b402) |(?<=\b429) ")
_GLUE = "\N{NO-BREAK SPACE}"  # textwrap does not break at it


def compose(alert: Alert, account: Account, *, dashboard_url: str, sender: str) -> EmailMessage:
    """Return the mail; equal arguments always give the same octets.

    Repeated copies have the same Message-ID. Plain text and HTML have the same content,
    and the HTML loads nothing from the network. Raises Unwritable.
    """
    recipient = _recipient(account)
    words = _texts(alert)
    parts = {**words, **_frame(alert, account), "dashboard_url": dashboard_url}
    known_by = sha256(f"{account.id} {message_name(alert)}".encode()).hexdigest()[:32]
    policy = email.policy.SMTPUTF8 if recipient.needs_smtputf8 else email.policy.SMTP
    message = EmailMessage(policy)
    message["From"] = f"mailprobe <{sender}>"
    message["To"] = recipient.mailbox
    message["Subject"] = words["subject"]
    message["Date"] = alert.figures.at
    message["Message-ID"] = f"<alert.{known_by}@{sender.rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"  # RFC 3834 5: prevents automatic replies
    rows = _rows(alert, account)
    message.set_content(_text(parts, rows))
    message.add_alternative(_html(parts, rows), subtype="html")
    message.set_boundary(f"=_{known_by}")  # the default is random
    return message


def _recipient(account: Account) -> Address:
    try:
        return parse(account.email)
    except NotAnAddress as error:
        raise Unwritable(f"the account's address cannot be written to: {error}") from None


def _texts(alert: Alert) -> dict[str, str]:
    said = ALERT_TEXTS.get((alert.figures.measure, alert.kind))
    if said is None:
        raise Unwritable(f"there are no words for {alert.kind} of a {alert.figures.measure}")
    facts = _facts(alert)
    return {
        "subject": said.subject.format_map(facts),
        "happened": said.happened.format_map(facts),
        "means": said.means.format_map(facts).rstrip(),
        "to_do": said.to_do.format_map(facts),
    }


def _facts(alert: Alert) -> dict[str, str]:
    """Return the values for the templates, each with its unit."""
    f = alert.figures
    hard_cap = _cap(f.hard_cap_micros)
    return {
        "percent": alert.kind,
        "tier": f.tier,
        "used": f"{f.used:,}",
        "included": f"{f.included:,}",
        "end": _instant(f.period_end),
        "price": _price(f.price_micros),
        "spend": _eur(f.spend_micros),
        "soft_cap": _cap(f.soft_cap_micros),
        "hard_cap": hard_cap,
        "bound": "No hard cap is set, so no request is refused for that."
        if f.hard_cap_micros is None
        else f"A request that could take the overage above your hard cap of {hard_cap} is refused "
        "with 402 payment_required.",
    }


def _frame(alert: Alert, account: Account) -> dict[str, str]:
    """Return the texts that are in every mail."""
    return {
        "why": f"You get this mail because alerts are on for account {account.id}. Each "
        f"threshold is reported at most once a {MEASURES[alert.figures.measure]}.",
        "off": "To get no more of them, ask the operator of this service, who turns them off with:",
        "command": f"mailprobe account set {account.id} --alerts off",
    }


def _rows(alert: Alert, account: Account) -> list[tuple[str, str]]:
    f = alert.figures
    percent = f" ({f.used * 100 // f.included} %)" if f.included else ""
    rows = [
        ("Account", account.id),
        ("Plan", f.tier),
        (
            MEASURES[f.measure].capitalize(),
            f"{_instant(f.period_start)} to {_instant(f.period_end)}",
        ),
        ("Used", f"{f.used:,} of {f.included:,}{percent}"),
    ]
    if f.measure == "volume":
        rows += [
            ("Overage", _eur(f.spend_micros)),
            ("Soft cap", _cap(f.soft_cap_micros)),
            ("Hard cap", _cap(f.hard_cap_micros)),
        ]
    return [*rows, ("As of", _instant(f.at))]


def _text(parts: Mapping[str, str], rows: list[tuple[str, str]]) -> str:
    wide = max(len(name) for name, _ in rows) + 2
    table = "\n".join(f"{name:<{wide}}{value}" for name, value in rows)
    filled = {name: _filled(part) for name, part in parts.items()}
    return TEXT.format_map({**filled, "rows": table})


def _html(parts: Mapping[str, str], rows: list[tuple[str, str]]) -> str:
    table = "\n".join(ROW.format(escape(name), escape(value)) for name, value in rows)
    filled = {name: _filled(escape(part)) for name, part in parts.items()}
    return HTML.format_map({**filled, "rows": table})


def _filled(text: str) -> str:
    glued = _TOGETHER.sub(_GLUE, text)
    lines = fill(glued, COLUMNS, break_long_words=False, break_on_hyphens=False)
    return lines.replace(_GLUE, " ")


def _instant(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _cap(micros: int | None) -> str:
    return "none" if micros is None else _eur(micros)


def _eur(micros: int) -> str:
    euros, cents = divmod(cents_up(micros), 100)
    return f"{euros:,}.{cents:02} EUR"


def _price(micros: int) -> str:
    """Format micro-euros as EUR exactly, with at least two decimals."""
    euros, rest = divmod(micros, MICROS_PER_EUR)
    decimals = f"{rest:06}".rstrip("0").ljust(2, "0")
    return f"{euros:,}.{decimals} EUR"
