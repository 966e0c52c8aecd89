"""Reads the events that mail services post when a mail came back. Pure.

    SES        docs.aws.amazon.com/ses/latest/dg/notification-contents.html, as SNS wraps it
    SendGrid   www.twilio.com/docs/sendgrid/for-developers/tracking-events/event
    Postmark   postmarkapp.com/developer/webhooks/bounce-webhook
    Mailgun    documentation.mailgun.com/docs/mailgun/user-manual/events/webhooks
    Brevo      developers.brevo.com/docs/transactional-webhooks
    Mailjet    dev.mailjet.com/email/guides/webhooks
    Mandrill   mailchimp.com/developer/transactional/docs/webhooks
    SparkPost  developers.sparkpost.com/api/webhooks
    Resend     resend.com/docs/webhooks/emails/bounced

The reason in an event is read as in a report; the service's own word counts only where the
reason says nothing. A body that has no service's form, and a bounce without its address, are
not understood: the sender has to learn that nothing was recorded.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from email.utils import parseaddr
from typing import NamedTuple
from urllib.parse import unquote_plus, urlsplit

import orjson

from .exports import BREVO, POSTMARK, Words, key_of_name
from .kinds import SPARKPOST_CLASSES, Kind, kind_of_bounce

REASON_MAX = 250  # characters of a reason: a reply's first line says it, read within a millisecond
# What a body may have: a thousand events, of which orjson makes objects in some milliseconds.
COUNTS_MAX = {b"{": 5_000, b"[": 5_000, b",": 30_000}
AMAZON = re.compile(r"sns\.[a-z0-9-]{1,40}\.amazonaws\.com(?:\.cn)?")


FORM = b"mandrill_events="


class UnreadableEvents(Exception):
    """The body has no form that is known, or a bounce in it has no address."""


class Event(NamedTuple):
    """An address in an event; `word` is what the service calls the bounce, None: it is none."""

    address: str
    word: Kind | None
    reason: str = ""

    @property
    def kind(self) -> Kind | None:
        return None if self.word is None else kind_of_bounce(self.word, self.reason[:REASON_MAX])


class SubscriptionConfirmation(NamedTuple):
    """A question of SNS whether its topic may post here; `url` confirms, if it is Amazon's."""

    topic: str
    url: str | None


Events = tuple[str, list[Event]]  # the service, and what it says


def read_events(octets: bytes) -> Events | SubscriptionConfirmation:
    """The events of a body in JSON, or in Mandrill's form. Raises UnreadableEvents."""
    if octets.startswith(FORM):
        form = octets[len(FORM) :].partition(b"&")[0]
        octets = unquote_plus(form.decode("ascii", "replace")).encode()
        if octets.strip() == b"[]":  # it tries whether the address answers
            return "mandrill", []
    body = _json(octets)
    if isinstance(body, Mapping) and "Type" in body and "TopicArn" in body:
        if body["Type"] != "Notification":
            return SubscriptionConfirmation(
                _text(body["TopicArn"]), _amazons(_text(body.get("SubscribeURL")))
            )
        if _text(body.get("Message")).startswith("Successfully validated SNS topic"):
            return "ses", []  # at its set-up
        body = _json(_text(body.get("Message")).encode())
    for name, is_of, events in SERVICES:
        if is_of(body):
            found = list(events(body))
            # Text without an at sign is a mistake of the customer: no mailbox bounced.
            if any(event.word is not None and not event.address for event in found):
                raise UnreadableEvents
            return name, found
    raise UnreadableEvents


def _json(octets: bytes) -> object:
    if any(octets.count(piece) > most for piece, most in COUNTS_MAX.items()):
        raise UnreadableEvents
    try:
        return orjson.loads(octets)
    except orjson.JSONDecodeError:
        raise UnreadableEvents from None


def _amazons(url: str) -> str | None:
    """The URL, if it is of SNS: no other may be opened by anybody who reads it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    is_theirs = parts.scheme == "https" and AMAZON.fullmatch(parts.netloc) and url.isprintable()
    return url if is_theirs else None


def _ses_events(posted: object) -> Iterator[Event]:
    body = _mapping(posted)
    name = body.get("notificationType", body.get("eventType"))
    if not isinstance(name, str):
        raise UnreadableEvents
    if name not in SES_RECIPIENTS:
        yield Event("", None)
        return
    bounce = _fields(body, name[0].lower() + name[1:])
    word: Kind = "temporary"  # transient, late, or on a suppression list
    # NoEmail means that SES found no address in the bounce.
    if bounce.get("bounceType") == "Permanent" and (
        bounce.get("bounceSubType") in ("General", "NoEmail")
    ):
        word = "unknown"
    recipients = bounce.get(SES_RECIPIENTS[name])
    if not isinstance(recipients, list):
        raise UnreadableEvents
    for each in map(_mapping, recipients):
        reason = f"{_text(each.get('diagnosticCode'))}\n\n{_text(each.get('status'))}"
        yield Event(parseaddr(_text(each.get("emailAddress")))[1], word, reason)


def _sendgrid_events(posted: object) -> Iterator[Event]:
    for each in _listed(posted):
        name = each.get("event")
        word: Kind | None = None
        if name == "bounce" and each.get("type") != "blocked":
            is_invalid = each.get("bounce_classification") in ("Invalid Address", "invalid")
            word = "no_mailbox" if is_invalid else "unknown"
        elif name in ("bounce", "blocked", "dropped", "deferred"):
            word = "temporary"
        reason = f"{_text(each.get('reason'))}\n\n{_text(each.get('status'))}"
        yield Event(_text(each.get("email")), word, reason)


def _postmark_events(posted: object) -> Iterator[Event]:
    body = _mapping(posted)
    word: Kind | None = None
    if body.get("RecordType") == "Bounce":
        word = _kind_in(POSTMARK, body.get("Type"))
    yield Event(_text(body.get("Email")), word, _text(body.get("Details")))


def _mailgun_events(posted: object) -> Iterator[Event]:
    event = _fields(_mapping(posted), "event-data")
    if not isinstance(event.get("event"), str):
        raise UnreadableEvents
    status = _fields(event, "delivery-status")
    word: Kind | None = None
    if event["event"] in ("failed", "rejected"):
        is_final = event.get("severity") == "permanent" and event.get("reason") in (
            "bounce",
            "generic",
        )
        word = "unknown" if is_final else "temporary"
    words = " ".join(_text(status.get(name)) for name in ("code", "message", "description"))
    reason = f"{words}\n\n{_text(status.get('enhanced-code'))}"
    yield Event(_text(event.get("recipient")), word, reason)


def _brevo_events(posted: object) -> Iterator[Event]:
    for each in _listed(posted):
        word = _kind_in(BREVO, each.get("event"))
        yield Event(_text(each.get("email")), word, _text(each.get("reason")))


def _mailjet_events(posted: object) -> Iterator[Event]:
    for each in _listed(posted):
        name, word = each.get("event"), None
        if name == "bounce" and each.get("hard_bounce") in (True, 1):
            word = MAILJET_ERRORS.get(_text(each.get("error")), "unknown")
        elif name in ("bounce", "blocked"):  # blocked: it was not sent
            word = "temporary"
        yield Event(_text(each.get("email")), word, _text(each.get("comment")))


def _mandrill_events(posted: object) -> Iterator[Event]:
    for each in _listed(posted):
        message, word = _fields(each, "msg"), MANDRILL_EVENTS.get(_text(each.get("event")))
        if word == "unknown" and _text(message.get("bounce_description")) in (
            "bad_mailbox",
            "invalid_domain",
        ):
            word = "no_mailbox"
        yield Event(_text(message.get("email")), word, _text(message.get("diag")))


def _sparkpost_events(posted: object) -> Iterator[Event]:
    for each in _listed(posted):
        for event in map(_mapping, _fields(each, "msys").values()):
            name, word = event.get("type"), None
            address = _text(event.get("raw_rcpt_to")) or _text(event.get("rcpt_to"))
            if name == "bounce" or (name == "out_of_band" and address):  # that may not name it
                word = SPARKPOST_CLASSES.get(_text(event.get("bounce_class")))
            elif name in ("delay", "policy_rejection", "generation_rejection"):
                word = "temporary"
            yield Event(address, word, _text(event.get("raw_reason") or event.get("reason")))


def _resend_events(posted: object) -> Iterator[Event]:
    body = _mapping(posted)
    name, fields = body["type"], _fields(body, "data")
    if name not in ("email.bounced", "email.delivery_delayed", "email.suppressed"):
        yield Event("", None)
        return
    bounce, recipients = _fields(fields, "bounce"), fields.get("to")
    texts = recipients if isinstance(recipients, list) else [recipients]
    codes = bounce.get("diagnosticCode")
    said = [*(codes if isinstance(codes, list) else [codes]), bounce.get("message")]
    word: Kind = "temporary"
    if name == "email.bounced" and bounce.get("type") in (None, "Permanent"):
        word = "unknown"
    if name == "email.bounced" and bounce.get("subType") in SUPPRESSED:
        word = "temporary"
    # Of several recipients it does not say which one it means.
    reason = "\n\n".join(map(_text, said)) if len(texts) == 1 else ""
    for text in texts:
        yield Event(parseaddr(_text(text))[1], word, reason)


SES_RECIPIENTS = {"Bounce": "bouncedRecipients", "DeliveryDelay": "delayedRecipients"}
SUPPRESSED = ("Suppressed", "OnAccountSuppressionList")
MAILJET_ERRORS: dict[str, Kind] = {
    "user unknown": "no_mailbox", "mailbox inactive": "no_mailbox", "invalid domain": "no_mailbox",
    "no mail host": "no_mailbox", "quota exceeded": "temporary", "greylisted": "temporary",
    "system issue": "temporary", "protocol issue": "temporary", "connection issue": "temporary",
    "preblocked": "temporary", "blacklisted": "temporary", "duplicate in campaign": "temporary",
    "sender blocked": "refused", "content blocked": "refused", "policy issue": "refused",
    "relay/access denied": "refused", "spam reporter": "refused",
}  # fmt: skip
MANDRILL_EVENTS: dict[str, Kind] = {
    "hard_bounce": "unknown", "soft_bounce": "temporary", "deferral": "temporary",
    "reject": "temporary",
}  # fmt: skip
# The names of events, by which a list of them is one service's.
SENDGRID_NAMES = frozenset(
    {"processed", "dropped", "delivered", "deferred", "bounce", "blocked", "open", "click"}
    | {"spamreport", "unsubscribe", "group_unsubscribe", "group_resubscribe"}
    | {"account_status_change"}
)
BREVO_NAMES = {
    "hard_bounce", "soft_bounce", "invalid_email", "deferred", "blocked", "error", "request", "sent", "delivered", "click", "opened", "unique_opened", "proxy_open",
    "unique_proxy_open", "spam", "complaint", "unsubscribe", "unsubscribed", "list_addition",
    "contact_updated", "contact_deleted",
}  # fmt: skip
MAILJET_NAMES = frozenset({"sent", "open", "click", "bounce", "blocked", "spam", "unsub"})
MAILJET_FIELDS = frozenset({"MessageID", "Message_GUID", "mj_campaign_id", "mj_contact_id"})
BREVO_FIELDS = frozenset({"message-id", "ts_event", "ts_epoch", "camp_id", "date_event"})


def _is_of(*names: str) -> Callable[[object], bool]:
    return lambda body: isinstance(body, Mapping) and any(name in body for name in names)


def _are(is_one: Callable[[Mapping[str, object]], bool]) -> Callable[[object], bool]:
    """Whether a body is such an event, or a list of nothing else."""

    def are(body: object) -> bool:
        listed = body if isinstance(body, list) else [body]
        return bool(listed) and all(isinstance(each, Mapping) and is_one(each) for each in listed)

    return are


def _is_sendgrids(body: object) -> bool:
    """Events of a new name may be among them: one that is known is enough."""
    if not isinstance(body, list) or not _are(lambda each: "event" in each)(body):
        return False
    return any(each["event"] in SENDGRID_NAMES for each in body if isinstance(each["event"], str))


def _is_resends(body: object) -> bool:
    return isinstance(body, Mapping) and (
        isinstance(body.get("data"), Mapping)
        and _text(body.get("type")).partition(".")[0]
        in ("email", "contact", "domain", "suppression")
    )


def _is_mandrills(body: object) -> bool:
    is_one = _are(
        lambda each: (
            ("event" in each and isinstance(each.get("msg"), Mapping))
            or each.get("type") in ("blacklist", "whitelist", "allowlist", "denylist")
        )
    )
    return isinstance(body, list) and is_one(body)


# The first that fits: those that any list of events might be are the last.
SERVICES: tuple[tuple[str, Callable[[object], bool], Callable[[object], Iterator[Event]]], ...] = (
    ("ses", _is_of("notificationType", "eventType"), _ses_events),
    ("postmark", _is_of("RecordType"), _postmark_events),
    ("mailgun", _is_of("event-data"), _mailgun_events),
    ("resend", _is_resends, _resend_events),
    ("sparkpost", _are(lambda each: isinstance(each.get("msys"), Mapping)), _sparkpost_events),
    ("mandrill", _is_mandrills, _mandrill_events),
    (
        "mailjet",
        _are(
            lambda each: each.get("event") in MAILJET_NAMES and bool(MAILJET_FIELDS & each.keys())
        ),
        _mailjet_events,
    ),
    (
        "brevo",
        _are(lambda each: each.get("event") in BREVO_NAMES and bool(BREVO_FIELDS & each.keys())),
        _brevo_events,
    ),
    ("sendgrid", _is_sendgrids, _sendgrid_events),
)


def _kind_in(words: Words, value: object) -> Kind | None:
    saying = words.get(key_of_name(_text(value)))
    return None if saying == "none" else saying


def _listed(posted: object) -> list[Mapping[str, object]]:
    return [_mapping(each) for each in (posted if isinstance(posted, list) else [posted])]


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _fields(body: Mapping[str, object], name: str) -> Mapping[str, object]:
    return _mapping(body.get(name))


def _text(value: object) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
