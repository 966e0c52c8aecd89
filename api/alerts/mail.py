"""The mail of an alert, in plain text and HTML with the same content. Its texts are in texts.toml."""

import re
from collections.abc import Mapping
from datetime import datetime
from email.message import EmailMessage
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from textwrap import fill

import msgspec

from mailprobe.engine.address import Address, NotAnAddress
from mailprobe.storage.records import Account

from ..quota.plans import MICROS_PER_EUR, cents_up
from . import smtp_relay
from .smtp_relay import instant_text, recipient_of
from .thresholds import Alert, Measure, Unwritable, message_name

COLUMNS = 72  # per line: quoted twice, a line still fits in 78 (RFC 5322 2.1.1)
MEASURES: dict[Measure, str] = {"quota": "month", "volume": "billing period"}


class AlertText(msgspec.Struct, frozen=True):
    """The texts for some measures and thresholds; templates filled from `facts_of()`."""

    reasons: tuple[str, ...]
    subject: str
    happened: str
    means: str
    to_do: str


class _AlertTexts(msgspec.Struct, frozen=True):
    text: tuple[AlertText, ...]


@cache
def alert_texts() -> Mapping[str, AlertText]:
    """The texts by measure and threshold, such as `quota 75`."""
    octets = files("mailprobe.api.alerts").joinpath("texts.toml").read_bytes()
    texts = msgspec.toml.decode(octets, type=_AlertTexts).text
    return {reason: each for each in texts for reason in each.reasons}


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
    words = _texts(alert)
    parts = {**words, **_frame(alert, account), "dashboard_url": dashboard_url}
    name = message_name(alert)
    message = headed(account, words["subject"], alert.figures.at, name, sender)
    rows = _rows(alert, account)
    message.set_content(_text(parts, rows))
    message.add_alternative(_html(parts, rows), subtype="html")
    message.set_boundary(f"=_{_known_by(account, name)}")  # the default is random
    return message


def headed(account: Account, subject: str, at: datetime, name: str, sender: str) -> EmailMessage:
    """A mail to the account without its text; `name` is the message's. Raises Unwritable."""
    message_id = f"<alert.{_known_by(account, name)}@{sender.rpartition('@')[2]}>"
    return smtp_relay.headed(_recipient(account), subject, at, sender, message_id)


def _known_by(account: Account, name: str) -> str:
    return sha256(f"{account.id} {name}".encode()).hexdigest()[:32]


def _recipient(account: Account) -> Address:
    try:
        return recipient_of(account.email)
    except NotAnAddress as error:
        raise Unwritable(f"the account's address cannot be written to: {error}") from None


def _texts(alert: Alert) -> dict[str, str]:
    texts = alert_texts().get(f"{alert.figures.measure} {alert.kind}")
    if texts is None:
        raise Unwritable(f"there are no texts for {alert.kind} of a {alert.figures.measure}")
    facts = facts_of(alert)
    return {
        "subject": texts.subject.format_map(facts),
        "happened": texts.happened.format_map(facts),
        "means": texts.means.format_map(facts).rstrip(),
        "to_do": texts.to_do.format_map(facts),
    }


def facts_of(alert: Alert) -> dict[str, str]:
    """Return the values for the templates, each with its unit."""
    f = alert.figures
    hard_cap = _cap(f.hard_cap_micros)
    return {
        "percent": alert.kind,
        "tier": f.tier,
        "used": f"{f.used:,}",
        "included": f"{f.included:,}",
        "end": instant_text(f.period_end),
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
            f"{instant_text(f.period_start)} to {instant_text(f.period_end)}",
        ),
        ("Used", f"{f.used:,} of {f.included:,}{percent}"),
    ]
    if f.measure == "volume":
        rows += [
            ("Overage", _eur(f.spend_micros)),
            ("Soft cap", _cap(f.soft_cap_micros)),
            ("Hard cap", _cap(f.hard_cap_micros)),
        ]
    return [*rows, ("As of", instant_text(f.at))]


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
