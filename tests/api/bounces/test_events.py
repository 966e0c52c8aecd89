"""What mail services post: whose mailbox does not exist, by their documentation's own examples."""

import json
import time
from typing import Any

import pytest

from mailprobe.api.bounces.events import NotEvents, TopicConfirmation, read_events
from mailprobe.api.bounces.reports import reported_in

GONE = "smtp; 550 5.1.1 user unknown"
SPAM = "550 5.7.1 Message rejected as spam by content filtering"


def ses(kind: str, subtype: str, diagnostic: str | None = GONE) -> dict[str, Any]:
    return {
        "notificationType": "Bounce",
        "bounce": {
            "bounceType": kind,
            "bounceSubType": subtype,
            "bouncedRecipients": [
                {"emailAddress": "jane@example.com", "status": "5.1.1", "action": "failed"}
                | ({} if diagnostic is None else {"diagnosticCode": diagnostic})
            ],
        },
        "mail": {"destination": ["jane@example.com"]},
    }


def wrapped(message: dict[str, Any]) -> dict[str, Any]:
    return {
        "Type": "Notification",
        "TopicArn": "arn:aws:sns:us-east-1:123456789012:bounces",
        "Message": json.dumps(message),
    }


def sendgrid(**more: Any) -> list[dict[str, Any]]:
    return [{"email": "jane@example.com", "event": "bounce", "type": "bounce", **more}]


def postmark(type: str, details: str) -> dict[str, Any]:
    return {"RecordType": "Bounce", "Type": type, "Email": "jane@example.com", "Details": details}


def mailgun(severity: str, reason: str, message: str) -> dict[str, Any]:
    status = {"code": 550, "message": message, "description": ""}
    return {
        "signature": {"token": "t"},
        "event-data": {
            "event": "failed", "severity": severity, "reason": reason,
            "recipient": "jane@example.com", "delivery-status": status,
        },
    }  # fmt: skip


CASES: list[tuple[Any, str, str]] = [
    (wrapped(ses("Permanent", "General")), "ses", "no_mailbox"),
    (ses("Permanent", "NoEmail", None), "ses", "no_mailbox"),
    (ses("Permanent", "General", f"smtp; {SPAM}"), "ses", "refused"),
    (ses("Permanent", "OnAccountSuppressionList"), "ses", "temporary"),
    (ses("Transient", "MailboxFull"), "ses", "temporary"),
    (sendgrid(reason="550 5.1.1 The email account does not exist"), "sendgrid", "no_mailbox"),
    (sendgrid(bounce_classification="Invalid Address", reason=""), "sendgrid", "no_mailbox"),
    (sendgrid(type="blocked", reason=GONE), "sendgrid", "temporary"),
    (sendgrid(reason=SPAM, bounce_classification="Content"), "sendgrid", "refused"),
    (sendgrid(event="dropped", reason="Bounced Address"), "sendgrid", "temporary"),
    (postmark("HardBounce", "action: failed"), "postmark", "no_mailbox"),
    (postmark("HardBounce", SPAM), "postmark", "refused"),
    (postmark("SoftBounce", "mailbox full"), "postmark", "temporary"),
    (mailgun("permanent", "bounce", "5.1.1 User unknown"), "mailgun", "no_mailbox"),
    (mailgun("permanent", "suppress-bounce", "5.1.1 User unknown"), "mailgun", "temporary"),
    (mailgun("temporary", "generic", "5.1.1 User unknown"), "mailgun", "temporary"),
    (mailgun("permanent", "bounce", "no"), "mailgun", "unknown"),
]


@pytest.mark.parametrize(("body", "source", "kind"), CASES)
def test_an_event_has_its_service_and_its_kind(body: Any, source: str, kind: str) -> None:
    read = read_events(json.dumps(body).encode())
    assert not isinstance(read, TopicConfirmation)
    assert (read[0], [(each.address, each.kind) for each in read[1]]) == (
        source,
        [("jane@example.com", kind)],
    )


@pytest.mark.parametrize(
    ("url", "is_amazons"),
    [
        ("https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription&Token=1", True),
        ("https://sns.cn-north-1.amazonaws.com.cn/?Token=1", True),
        ("http://sns.us-east-1.amazonaws.com/?Token=1", False),
        ("https://sns.us-east-1.amazonaws.com@169.254.169.254/", False),
        ("https://sns.us-east-1.amazonaws.com.far.test/", False),
        ("https://sns.us-east-1.amazonaws.com:22/", False),
        ("https://[::1/", False),
        ("", False),
    ],
)
def test_a_subscription_is_told_apart_and_its_url_checked(url: str, is_amazons: bool) -> None:
    body = {"Type": "SubscriptionConfirmation", "TopicArn": "arn:a", "SubscribeURL": url}
    read = read_events(json.dumps(body).encode())
    assert read == TopicConfirmation("arn:a", url if is_amazons else None)


@pytest.mark.parametrize(
    "octets",
    [
        *(b"", b"{}", b"[1]", b'"a"', b"\xff", b"[" * 100_000, b'[{"email":"a@b.test"}]'),
        b'{"Type":"Notification","TopicArn":"a","Message":"no JSON"}',
    ],
)
def test_other_bodies_are_no_events(octets: bytes) -> None:
    with pytest.raises(NotEvents):
        read_events(octets)


@pytest.mark.parametrize(
    "octets",
    [
        b'[{"event":null,"email":[1],"reason":{"a":1}}]',
        b'{"notificationType":1,"bounce":[],"mail":null}',
        b'{"notificationType":1,"bounce":{"bouncedRecipients":[1,null]}}',
        b'{"RecordType":"Bounce","Email":true}',
        b'{"event-data":7}',
    ],
)
def test_fields_of_other_types_say_nothing(octets: bytes) -> None:
    read = read_events(octets)
    assert not isinstance(read, TopicConfirmation)
    assert all(each.address == "" and each.kind != "no_mailbox" for each in read[1])


def test_a_report_is_read_by_its_status_alone() -> None:
    """An address in the text of a mail is nobody's report."""
    text = b"From: mailer-daemon@far.test\r\nSubject: failure notice\r\n\r\n<ann@far.test>: 550 5.1.1 gone"
    assert reported_in(text) == {}
    assert reported_in(b"\xff" * 70_000) == {}


NESTED = b"".join(
    b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n" % (n, n) for n in range(600)
)
EVENTS = [{"event": "bounce", "email": "a@a.test", "reason": "550 mailbox a " * 35}] * 1000


def test_a_hostile_body_costs_little() -> None:
    """The parts of this mail take 8 s to read, the objects of this list 0.2 s."""
    began = time.process_time()
    assert reported_in(NESTED) == {}
    with pytest.raises(NotEvents):
        read_events(b"[" + b"{}," * 300_000 + b"{}]")
    read = read_events(json.dumps(EVENTS).encode())
    assert not isinstance(read, TopicConfirmation)
    assert {each.kind for each in read[1][:20]} <= {"unknown", "no_mailbox"}
    assert time.process_time() - began < 1
