"""Reads the events that mail services post when a mail came back. Pure.

    SES       docs.aws.amazon.com/ses/latest/dg/notification-contents.html, as SNS wraps it
    SendGrid  www.twilio.com/docs/sendgrid/for-developers/tracking-events/event
    Postmark  postmarkapp.com/developer/webhooks/bounce-webhook
    Mailgun   documentation.mailgun.com/docs/mailgun/user-manual/events/webhooks

The reason in an event is read as in a report; the service's own word counts only where the
reason says nothing.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import orjson

from mailprobe.api.bounces.kinds import Kind, kind_of_reason

REASON_MAX = 250  # characters of a reason: a reply's first line says it, read within a millisecond
# What a body may have: a thousand events, of which orjson makes objects in some milliseconds.
COUNTS_MAX = {b"{": 5_000, b"[": 5_000, b",": 30_000}
AMAZON = re.compile(r"sns\.[a-z0-9-]{1,40}\.amazonaws\.com(?:\.cn)?")


class NotEvents(Exception):
    """The body has no form that is known."""


class Event(NamedTuple):
    """An address in an event; `otherwise` is its kind if the reason says nothing."""

    address: str
    is_final: bool  # False: delayed, on a suppression list, or no bounce at all
    reason: str
    otherwise: Kind

    @property
    def kind(self) -> Kind:
        if not self.is_final:
            return "temporary"
        return kind_of_reason(self.reason[:REASON_MAX]) or self.otherwise


class SubscriptionConfirmation(NamedTuple):
    """A question of SNS whether its topic may post here; `url` confirms, if it is Amazon's."""

    topic: str
    url: str | None


Events = tuple[str, list[Event]]  # the service, and what it says


def read_events(octets: bytes) -> Events | SubscriptionConfirmation:
    """The events of a body in JSON. Raises NotEvents."""
    body = _json(octets)
    if isinstance(body, Mapping) and "Type" in body and "TopicArn" in body:
        if body["Type"] != "Notification":
            return SubscriptionConfirmation(
                _text(body["TopicArn"]), _amazons(_text(body.get("SubscribeURL")))
            )
        body = _json(_text(body.get("Message")).encode())
    for name, is_of, events in SERVICES:
        if is_of(body):
            return name, list(events(body))
    raise NotEvents


def _json(octets: bytes) -> object:
    if any(octets.count(piece) > most for piece, most in COUNTS_MAX.items()):
        raise NotEvents
    try:
        return orjson.loads(octets)
    except orjson.JSONDecodeError:
        raise NotEvents from None


def _amazons(url: str) -> str | None:
    """The URL, if it is of SNS: no other may be opened by anybody who reads it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    is_theirs = parts.scheme == "https" and AMAZON.fullmatch(parts.netloc) and url.isprintable()
    return url if is_theirs else None


def _ses_events(body: Any) -> Iterator[Event]:
    bounce = _fields(body, "bounce")
    subtype = bounce.get("bounceSubType")
    is_final = bounce.get("bounceType") == "Permanent" and subtype in ("General", "NoEmail")
    recipients = bounce.get("bouncedRecipients")
    for each in recipients if isinstance(recipients, list) else ():
        if isinstance(each, Mapping):
            reason = f"{_text(each.get('diagnosticCode'))}\n\n{_text(each.get('status'))}"
            otherwise: Kind = "no_mailbox" if subtype == "NoEmail" else "unknown"
            yield Event(_text(each.get("emailAddress")), is_final, reason, otherwise)


def _sendgrid_events(body: Any) -> Iterator[Event]:
    for each in body:
        is_final = each.get("event") == "bounce" and each.get("type") != "blocked"
        reason = f"{_text(each.get('reason'))}\n\n{_text(each.get('status'))}"
        is_invalid = each.get("bounce_classification") == "Invalid Address"
        yield Event(
            _text(each.get("email")), is_final, reason, "no_mailbox" if is_invalid else "unknown"
        )


def _postmark_events(body: Any) -> Iterator[Event]:
    is_final = body.get("Type") in ("HardBounce", "BadEmailAddress")
    yield Event(_text(body.get("Email")), is_final, _text(body.get("Details")), "no_mailbox")


def _mailgun_events(body: Any) -> Iterator[Event]:
    event = _fields(body, "event-data")
    status = _fields(event, "delivery-status")
    is_final = (
        event.get("event") == "failed"
        and event.get("severity") == "permanent"
        and event.get("reason") in ("bounce", "generic")
    )
    words = " ".join(_text(status.get(name)) for name in ("code", "message", "description"))
    reason = f"{words}\n\n{_text(status.get('enhanced-code'))}"
    yield Event(_text(event.get("recipient")), is_final, reason, "unknown")


def _is_of(*names: str) -> Callable[[object], bool]:
    return lambda body: isinstance(body, Mapping) and any(name in body for name in names)


def _is_sendgrids(body: object) -> bool:
    return isinstance(body, list) and all(
        isinstance(each, Mapping) and "event" in each for each in body
    )


SERVICES: tuple[tuple[str, Callable[[object], bool], Callable[[object], Iterator[Event]]], ...] = (
    ("ses", _is_of("notificationType", "eventType"), _ses_events),
    ("postmark", _is_of("RecordType"), _postmark_events),
    ("mailgun", _is_of("event-data"), _mailgun_events),
    ("sendgrid", _is_sendgrids, _sendgrid_events),
)


def _fields(body: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = body.get(name)
    return found if isinstance(found, Mapping) else {}


def _text(value: object) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
