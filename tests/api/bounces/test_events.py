"""What mail services post: whose mailbox does not exist, by their documentation's own examples."""

import json
import time
from typing import Any
from urllib.parse import quote_plus

import pytest

from mailprobe.api.bounces.events import SubscriptionConfirmation, UnreadableEvents, read_events
from mailprobe.api.bounces.reports import reported_in

GONE = "smtp; 550 5.1.1 user unknown"
SPAM = "550 5.7.1 Message rejected as spam by content filtering"


def ses(kind: str, subtype: str, diagnostic: str | None = GONE, **fields: str) -> dict[str, Any]:
    return {
        "notificationType": "Bounce",
        "bounce": {
            "bounceType": kind,
            "bounceSubType": subtype,
            "bouncedRecipients": [
                {"emailAddress": "jane@example.com", "status": "5.1.1", "action": "failed"}
                | ({} if diagnostic is None else {"diagnosticCode": diagnostic})
                | fields
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


SUPPRESSED_BY_SES = (
    "Amazon SES did not send the message to this address because it is on the suppression list"
    " for your account. For more information about removing addresses from the suppression list,"
    " see https://docs.aws.amazon.com/ses/"
)
CASES: list[tuple[Any, str, str | None]] = [
    (wrapped(ses("Permanent", "General")), "ses", "no_mailbox"),
    (ses("Permanent", "NoEmail", None), "ses", "no_mailbox"),
    (ses("Permanent", "NoEmail", None, status=""), "ses", "unknown"),
    (ses("Permanent", "General", emailAddress="Jane <jane@example.com>"), "ses", "no_mailbox"),
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


def brevo(event: str, reason: str = "") -> dict[str, Any]:
    return {
        "event": event, "email": "jane@example.com", "id": 7, "ts_event": 1604933654,
        "message-id": "<1@relay.example.com>", "subject": "hard bounce", "reason": reason,
    }  # fmt: skip


def mailjet(event: str, error: str, *, is_hard: bool = True, comment: str = "") -> dict[str, Any]:
    return {
        "event": event, "time": 1, "MessageID": 19421777836302490, "email": "jane@example.com",
        "mj_campaign_id": 7, "blocked": False, "hard_bounce": is_hard,
        "error_related_to": "recipient", "error": error, "comment": comment,
    }  # fmt: skip


def mandrill(event: str, description: str, diagnostic: str) -> list[dict[str, Any]]:
    message = {
        "email": "jane@example.com", "sender": "news@example.org", "state": "bounced",
        "bounce_description": description, "diag": diagnostic,
    }  # fmt: skip
    return [{"event": event, "msg": message, "_id": "1", "ts": 1}]


def sparkpost(type: str, number: str, reason: str = GONE) -> list[dict[str, Any]]:
    event = {
        "type": type, "bounce_class": number, "raw_reason": reason, "reason": "5xx",
        "rcpt_to": "jane@example.com", "friendly_from": "news@example.org",
    }  # fmt: skip
    return [{"msys": {"message_event": event}}]


def resend(
    subtype: str, *texts: str, type: str = "email.bounced", message: str = "a hard bounce"
) -> dict[str, Any]:
    bounce = {
        "type": "Permanent",
        "subType": subtype,
        "message": message,
        "diagnosticCode": [*texts],
    }
    return {
        "type": type, "created_at": "2026-03-12T10:00:00Z",
        "data": {"email_id": "1", "from": "Us <us@example.org>", "to": ["Jane <jane@example.com>"], "bounce": bounce},
    }  # fmt: skip


CASES += [
    (brevo("hard_bounce", "550 5.5.0 mailbox unavailable"), "brevo", "no_mailbox"),
    (brevo("hard_bounce", SPAM), "brevo", "refused"),
    ([brevo("invalid_email")], "brevo", "no_mailbox"),
    (brevo("soft_bounce", GONE), "brevo", "temporary"),
    (brevo("blocked", "blocked : due to blacklist user"), "brevo", "temporary"),
    (brevo("unique_opened"), "brevo", None),
    (mailjet("bounce", "user unknown"), "mailjet", "no_mailbox"),
    ([mailjet("bounce", "user unknown", is_hard=False)], "mailjet", "temporary"),
    (mailjet("blocked", "user unknown"), "mailjet", "temporary"),
    (mailjet("bounce", "content blocked"), "mailjet", "refused"),
    (mailjet("bounce", "odd"), "mailjet", "unknown"),
    (mailjet("bounce", "", comment=GONE), "mailjet", "no_mailbox"),
    ([mailjet("open", "")], "mailjet", None),
    (mandrill("hard_bounce", "bad_mailbox", ""), "mandrill", "no_mailbox"),
    (mandrill("hard_bounce", "general", GONE), "mandrill", "no_mailbox"),
    (mandrill("hard_bounce", "general", ""), "mandrill", "unknown"),
    (mandrill("hard_bounce", "bad_mailbox", SPAM), "mandrill", "refused"),
    (mandrill("soft_bounce", "mailbox_full", GONE), "mandrill", "temporary"),
    (mandrill("reject", "", GONE), "mandrill", "temporary"),
    (mandrill("send", "", ""), "mandrill", None),
    (sparkpost("bounce", "10"), "sparkpost", "no_mailbox"),
    (sparkpost("out_of_band", "10", ""), "sparkpost", "no_mailbox"),
    (sparkpost("bounce", "30", "550 no"), "sparkpost", "unknown"),
    (sparkpost("bounce", "25"), "sparkpost", "temporary"),
    (sparkpost("bounce", "51"), "sparkpost", "refused"),
    (sparkpost("bounce", "60"), "sparkpost", None),
    (sparkpost("delivery", "10"), "sparkpost", None),
    (resend("General", GONE), "resend", "no_mailbox"),
    (resend("General"), "resend", "unknown"),
    (resend("NoEmail"), "resend", "unknown"),
    (
        resend("General", f"smtp; {GONE}", message="They gave no reason. " * 20),
        "resend",
        "no_mailbox",
    ),
    (resend("Suppressed", GONE), "resend", "temporary"),
    (resend("General", GONE, type="email.delivery_delayed"), "resend", "temporary"),
    (sendgrid(event="delivered"), "sendgrid", None),
    (ses("Permanent", "General", f"{SUPPRESSED_BY_SES} 5.1.1"), "ses", "temporary"),
]


@pytest.mark.parametrize(("body", "source", "kind"), CASES)
def test_an_event_has_its_service_and_its_kind(body: Any, source: str, kind: str | None) -> None:
    read = read_events(json.dumps(body).encode())
    assert not isinstance(read, SubscriptionConfirmation)
    assert (read[0], [(each.address, each.kind) for each in read[1]]) == (
        source,
        [("jane@example.com", kind)],
    )


def test_the_form_of_mandrill_is_read() -> None:
    body = (
        b"mandrill_events="
        + quote_plus(json.dumps(mandrill("hard_bounce", "bad_mailbox", GONE))).encode()
    )
    assert read_events(body) == read_events(
        json.dumps(mandrill("hard_bounce", "bad_mailbox", GONE)).encode()
    )
    assert read_events(b"mandrill_events=%5B%5D") == ("mandrill", [])


def test_a_bounce_of_several_recipients_says_of_none_that_it_does_not_exist() -> None:
    body = resend("NoEmail", GONE)
    body["data"]["to"].append("bob@example.com")
    read = read_events(json.dumps(body).encode())
    assert not isinstance(read, SubscriptionConfirmation)
    assert [event.kind for event in read[1]] == ["unknown", "unknown"]


def test_a_recipient_that_is_no_address_costs_the_other_events_nothing() -> None:
    invalid = sendgrid(event="dropped", email="not an email address", reason="Invalid")
    read = read_events(json.dumps([*invalid, *sendgrid(reason=GONE)]).encode())
    assert not isinstance(read, SubscriptionConfirmation)
    assert read[1][1].kind == "no_mailbox"


def test_a_delay_of_ses_is_temporary_for_each_address() -> None:
    late = {"emailAddress": "jane@example.com", "status": "4.4.1"}
    body = {"eventType": "DeliveryDelay", "deliveryDelay": {"delayedRecipients": [late]}}
    read = read_events(json.dumps(body | {"mail": {}}).encode())
    assert not isinstance(read, SubscriptionConfirmation)
    assert [(each.address, each.kind) for each in read[1]] == [("jane@example.com", "temporary")]


def test_the_notice_that_ses_has_validated_its_topic_says_nothing() -> None:
    text = "Successfully validated SNS topic for Amazon SES event publishing."
    assert read_events(json.dumps(wrapped({}) | {"Message": text}).encode()) == ("ses", [])


def test_services_may_try_whether_the_address_answers() -> None:
    for body in (b'[{"msys":{}}]', b'{"RecordType":"Open","Email":"jane@example.com"}'):
        read = read_events(body)
        assert not isinstance(read, SubscriptionConfirmation)
        assert all(event.kind is None for event in read[1])


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
def test_a_subscription_is_recognized_and_its_url_checked(url: str, is_amazons: bool) -> None:
    body = {"Type": "SubscriptionConfirmation", "TopicArn": "arn:a", "SubscribeURL": url}
    read = read_events(json.dumps(body).encode())
    assert read == SubscriptionConfirmation("arn:a", url if is_amazons else None)


@pytest.mark.parametrize(
    "octets",
    [
        *(b"", b"{}", b"[1]", b'"a"', b"\xff", b"[" * 100_000, b'[{"email":"a@b.test"}]'),
        b'{"Type":"Notification","TopicArn":"a","Message":"no JSON"}',
    ],
)
def test_other_bodies_are_no_events(octets: bytes) -> None:
    with pytest.raises(UnreadableEvents):
        read_events(octets)


@pytest.mark.parametrize(
    "octets",
    [
        b'[{"event":null,"email":[1],"reason":{"a":1}}]',
        b'[{"event":"bounce","email":[1]}]',
        b'[{"event":"bounce"}]',
        b'[{"event":"thing","email":"a@b.test"}]',
        b"[]",
        b'{"notificationType":1,"bounce":[],"mail":null}',
        b'{"notificationType":"Bounce","bounce":[]}',
        b'{"notificationType":"Bounce","bounce":{"bouncedRecipients":[1,null]}}',
        b'{"RecordType":"Bounce","Type":"HardBounce","Email":true}',
        b'{"event-data":7}',
        b'{"event":"bounce","MessageID":1,"hard_bounce":true}',
        b'[{"event":"hard_bounce","msg":{"email":null}}]',
        b'[{"msys":{"message_event":{"type":"bounce","bounce_class":"10"}}}]',
        b'{"type":"email.bounced","data":{"to":{}}}',
        b"mandrill_events=%5B%7B",
        b"mandrill_events",
        b'{"event":"user.created","email":"a@b.test"}',
    ],
)
def test_an_unreadable_body_is_refused(octets: bytes) -> None:
    """The service that posts it would learn of no mistake, and nothing would be recorded."""
    with pytest.raises(UnreadableEvents):
        read_events(octets)


def test_a_report_is_read_by_its_status_alone() -> None:
    """An address in the text of a mail is nobody's report."""
    text = b"From: mailer-daemon@far.test\r\nSubject: failure notice\r\n\r\n<ann@far.test>: 550 5.1.1 gone"
    assert reported_in(text) == {}
    assert reported_in(b"\xff" * 70_000) == {}


def test_a_forwarded_mail_counts_for_the_address_that_it_was_sent_to() -> None:
    posted = (
        b"Content-Type: multipart/report; report-type=delivery-status; boundary=b\r\n\r\n--b\r\n\r\n"
        b"  ann@far.test\r\n    (generated from info@near.test)\r\n    550 5.1.1 User unknown\r\n"
        b"--b\r\nContent-Type: message/delivery-status\r\n\r\nReporting-MTA: dns; x.test\r\n\r\n"
        b"Final-Recipient: rfc822; ann@far.test\r\nAction: failed\r\nStatus: 5.1.1\r\n\r\n--b--\r\n"
    )
    assert reported_in(posted) == {"info@near.test": "no_mailbox"}


NESTED = b"".join(
    b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n" % (n, n) for n in range(600)
)
EVENTS = [{"event": "bounce", "email": "a@a.test", "reason": "550 mailbox a " * 35}] * 1000


def test_a_hostile_body_costs_little() -> None:
    """The parts of this mail take 8 s to read, the objects of this list 0.2 s."""
    began = time.process_time()
    assert reported_in(NESTED) == {}
    with pytest.raises(UnreadableEvents):
        read_events(b"[" + b"{}," * 300_000 + b"{}]")
    read = read_events(json.dumps(EVENTS).encode())
    assert not isinstance(read, SubscriptionConfirmation)
    assert {each.kind for each in read[1][:20]} <= {"unknown", "no_mailbox"}
    assert time.process_time() - began < 1
