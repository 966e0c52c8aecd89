"""POST /v1/bounces: what came back is answered from the next request on, to its account alone."""

import json
import logging
from base64 import b64encode
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import trio

from mailprobe.api.bounces.events import Event
from tests.api.service_fixture import RunningService

GONE = "known@friendly.test"
EVENT = {
    "RecordType": "Bounce",
    "Type": "HardBounce",
    "Email": GONE,
    "Details": "550 5.1.1 unknown",
}
REPORT = (
    b"Content-Type: multipart/report; report-type=delivery-status; boundary=b\r\n\r\n"
    b"--b\r\nContent-Type: text/plain\r\n\r\nSorry.\r\n"
    b"--b\r\nContent-Type: message/delivery-status\r\n\r\n"
    b"Reporting-MTA: dns; mx.far.test\r\n\r\n"
    b"Final-Recipient: rfc822; known@friendly.test\r\nAction: failed\r\nStatus: 5.1.1\r\n"
    b"Diagnostic-Code: smtp; 550 5.1.1 User unknown\r\n\r\n"
    b"--b\r\nContent-Type: message/rfc822\r\n\r\nSubject: hello\r\n\r\nHello\r\n--b--\r\n"
)


async def feed(shop: RunningService, body: Any = EVENT, **more: Any) -> Any:
    octets = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await shop.request("POST", "/v1/bounces", octets=octets, **more)


async def status(shop: RunningService) -> str:
    result = (await shop.verify(GONE)).body["status"]
    assert isinstance(result, str)
    return result


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (EVENT, "application/json"),
        (REPORT, "message/rfc822"),
        (
            REPORT.partition(b"\r\n\r\n")[2],
            "multipart/report; report-type=delivery-status; boundary=b",
        ),
    ],
)
async def test_a_bounce_is_answered_at_once_and_once(
    autojump_clock, shop, body: Any, content_type: str
):
    assert await status(shop) == "deliverable"
    for _ in range(2):  # services repeat their posts
        got = await feed(shop, body, headers={"content-type": content_type})
        assert (got.status, got.body) == (200, {"recorded": 1, "soft": 0, "ignored": 0})
    assert await status(shop) == "undeliverable"
    got = await shop.request("POST", "/v1/email/verify?evidence=1", {"email": GONE})
    assert got.body["evidence"]["reason"] == "bounced"


async def test_other_bounces_and_those_of_a_test_key_change_nothing(autojump_clock, shop):
    full = {**EVENT, "Type": "SoftBounce", "Details": "452 4.2.2 mailbox full"}
    assert (await feed(shop, full)).body == {"recorded": 0, "soft": 1, "ignored": 0}
    spam = {**EVENT, "Details": "550 5.7.1 rejected as spam"}
    assert (await feed(shop, spam)).body == {"recorded": 0, "soft": 0, "ignored": 1}
    assert (await feed(shop, key=await shop.new_key("sk_test_"))).body["recorded"] == 1
    assert await status(shop) == "deliverable"


async def test_events_are_judged_one_at_a_time_and_another_accounts_in_between(
    autojump_clock, shop, monkeypatch
):
    """Each event takes up to a millisecond: together they would delay each turn of the loop."""
    judged: list[str] = []

    def kind(event: Event) -> str:
        judged.append(event.address)
        return "temporary"

    monkeypatch.setattr(Event, "kind", property(kind))
    events = [{"event": "bounce", "email": f"a{number}@b.test"} for number in range(50)]
    other = await shop.store.create_account("bob@example.org", "scale")
    key = await shop.new_key("sk_live_", other.id)
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(feed, shop, events)
        while len(judged) < 8:
            await trio.lowlevel.checkpoint()
        before = len(judged)
        await feed(shop, [{"event": "bounce", "email": "neighbour@b.test"}], key=key)
        assert judged.index("neighbour@b.test") - before < 20
    assert len(judged) == 4 * 50 + 1


async def test_the_key_may_be_a_password(autojump_clock, shop):
    """SNS posts without one first, and waits to be asked."""

    async def with_header(value: str) -> Any:
        return await feed(shop, key=None, headers={"authorization": value})

    asked = await feed(shop, key=None)
    assert asked.status == 401
    assert "Basic" in asked.headers["www-authenticate"]
    key = await shop.new_key("sk_live_")
    right = b64encode(f"aws:{key}".encode()).decode()
    assert (await with_header(f"Basic {right}")).body["recorded"] == 1
    for wrong in (b64encode(b"aws:no").decode(), "é", "====", b64encode(key.encode()).decode()):
        assert (await with_header(f"Basic {wrong}")).status == 401
    elsewhere = await shop.request(
        "GET", "/v1/lists", key=None, headers={"authorization": f"Basic {right}"}
    )
    assert elsewhere.status == 401


async def test_a_subscription_is_logged_and_never_opened(autojump_clock, shop, caplog):
    url = "https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription&Token=1"
    body = {"Type": "SubscriptionConfirmation", "TopicArn": "arn:a", "SubscribeURL": url}
    with caplog.at_level(logging.WARNING, "mailprobe.bounces"):
        got = await feed(shop, body, headers={"content-type": "text/plain; charset=UTF-8"})
    assert (got.status, got.body["recorded"]) == (200, 0)
    assert url in caplog.text
    assert not shop.world.dialled


async def test_a_bounce_is_forgotten(autojump_clock, shop):
    for email in (GONE, "a/b+c@friendly.test"):
        await feed(shop, {**EVENT, "Email": email})
        path = f"/v1/bounces/{quote(email.upper(), safe='')}"
        sandbox = await shop.new_key("sk_test_")
        assert (await shop.request("DELETE", path, key=sandbox)).status == 404
        assert (await shop.request("DELETE", path)).status == 204
        again = await shop.request("DELETE", path)
        assert (again.status, again.body["error"]) == (404, "bounce_not_found")
    assert await status(shop) == "deliverable"
    assert (await shop.request("DELETE", "/v1/bounces/none")).status == 404


async def test_a_flag_probes_a_bounced_address(autojump_clock, shop):
    await feed(shop)
    for value, expected in (("0", "undeliverable"), ("1", "deliverable")):
        got = await shop.request("POST", f"/v1/email/verify?ask_bounced={value}", {"email": GONE})
        assert got.body["status"] == expected
    wrong = await shop.request("POST", "/v1/email/verify?ask_bounced=yes", {"email": GONE})
    assert wrong.status == 400


async def test_events_of_delivered_mail_are_ignored(autojump_clock, shop):
    """Services that post all events must not get an error: they would stop to post."""
    sent = [{"event": "delivered", "email": GONE}, {"event": "bounce", "email": GONE, "reason": ""}]
    assert (await feed(shop, sent[:1])).body == {"recorded": 0, "soft": 0, "ignored": 1}
    assert (await feed(shop, sent)).body == {"recorded": 0, "soft": 0, "ignored": 1}
    assert await status(shop) == "deliverable"


async def test_the_form_of_mandrill_is_taken(autojump_clock, shop):
    events = [{"event": "hard_bounce", "msg": {"email": GONE, "bounce_description": "bad_mailbox"}}]
    body = urlencode({"mandrill_events": json.dumps(events)}).encode()
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert (await feed(shop, body, headers=form)).body["recorded"] == 1
    assert await status(shop) == "undeliverable"


@pytest.mark.parametrize(
    ("body", "content_type", "code"),
    [
        (b"{}", "application/json", 400),
        ([{"event": "odd", "email": GONE}], "application/json", 400),
        ({"event": "hard_bounce", "email": GONE}, "application/json", 400),
        ([{"event": "bounce"}], "application/json", 400),
        (b"Subject: hello\r\n\r\nHello", "message/rfc822", 400),
        ([{"event": "bounce", "email": f"{n}@a.test"} for n in range(1001)], "text/json", 400),
        (b" " * (1024 * 1024 + 1), "application/json", 413),
    ],
)
async def test_other_bodies_are_refused(
    autojump_clock, shop, body: Any, content_type: str, code: int
):
    got = await feed(shop, body, headers={"content-type": content_type})
    assert got.status == code
    assert set(got.body) == {"error", "message", "action", "docs"}
