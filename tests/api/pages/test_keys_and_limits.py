"""What the pages of keys and limits show: uses, makers, what was typed, and the test mail."""

import random
import re
from datetime import timedelta

import trio
from msgspec.structs import replace

from mailprobe.api.alerts.sender import open_alerts
from mailprobe.api.alerts.smtp_relay import SendResult
from mailprobe.api.quota.plans import PLANS
from mailprobe.api.serve import create_app
from tests.api.alerts.alerts_fixture import Mailbox
from tests.api.pages.test_dashboard import signed_in
from tests.api.service_fixture import PLACES, open_shop


async def rows_of(visitor) -> list[list[str]]:
    page = (await visitor.get("/keys")).octets.decode()
    rows = re.findall(r"<tr[^>]*>(<td[^>]*>.*?)</tr>", page, re.DOTALL)
    return [
        [re.sub("<[^>]+>", "", cell).split("\n")[0] for cell in re.split("<td[^>]*>", row)[1:6]]
        + [row]
        for row in rows
    ]


async def test_a_key_shows_its_kind_its_last_use_and_by_what_it_was_made(autojump_clock):
    async with open_shop() as shop:
        visitor = await signed_in(shop)
        await visitor.post("/keys", {"label": "checkout", "kind": "test"})
        await shop.manage("POST", "/keys", {"label": "by the API"})
        await shop.verify()
        await shop.service.key_uses.save(shop.store.note_key_uses)
        used, checkout, other, signs_in = await rows_of(visitor)
        assert (used[2], used[3]) == ("live", "in the last hour")
        assert signs_in[2] == "in the last hour"
        assert "Revoke" not in signs_in[-1]
        assert (checkout[0], checkout[2], checkout[3]) == ("checkout", "test", "not yet")
        assert ">dashboard</td>" in checkout[-1]
        assert ">another key</td>" in other[-1]
        shop.clock.set(shop.clock() + timedelta(hours=3))
        assert (await rows_of(visitor))[0][3] == "3 h ago"


async def test_a_use_is_written_once_an_hour_and_never_in_a_requests_way(autojump_clock):
    async with open_shop() as shop:
        shop.store.away = {"note_key_uses"}
        for _ in range(3):
            assert (await shop.verify()).status == 200
        shop.store.away = False
        noted = []
        for wait_s in (0, 0, 3500, 200):
            await trio.sleep(wait_s)
            before = (await shop.caller()).key.used_at
            await shop.verify()
            await shop.service.key_uses.save(shop.store.note_key_uses)
            noted.append((await shop.caller()).key.used_at != before)
        assert noted == [True, False, False, True]


async def test_a_form_of_a_page_keeps_what_was_typed(autojump_clock):
    fields = {"kind": "pk_test_", "label": "news", "origins": "https://shop.test", "rate": "30"}
    for name, value in (("origins", "*"), ("rate", "x"), ("label", "a" * 101)):
        async with open_shop() as shop:
            visitor = await signed_in(shop)
            got = await visitor.post("/keys", {**fields, name: value})
            page = got.octets.decode()
            assert got.status == 400
            assert page.count('aria-invalid="true"') == 1
            for kept in ({**fields, name: value}).values():
                assert f'value="{kept}"' in page
            assert 'value="pk_test_" checked' in page
            assert "No key was made" in page


async def test_a_test_mail_is_sent_at_most_once_a_minute_and_the_page_says_how_it_went(
    autojump_clock,
):
    box = Mailbox(results=[SendResult("450 later from relay.internal")])
    async with open_shop() as shop:
        alerts = open_alerts(
            shop.store, PLANS, PLACES, now=shop.clock, url=None, sender="alerts@mailprobe.test",
            rng=random.Random(1), mailer=box,
        )  # fmt: skip
        async with alerts as sender:
            shop.app = create_app(replace(shop.service, alerts=sender, operators=frozenset()))
            visitor = await signed_in(shop)
            assert b"Send me a test" in (await visitor.get("/caps")).octets
            for _ in range(2):
                assert (await visitor.post("/caps/test")).headers["location"] == "/dashboard/caps"
            await trio.sleep(30)
            assert len(box.tries) == 1
            part = (await visitor.get("/caps/test")).octets
            assert b"did not take the test mail" in part
            assert b"relay.internal" not in part  # that is the operator's
            assert b"hx-get" in part
            await trio.sleep(60 * 1.25 + 20)
            part = (await visitor.get("/caps/test")).octets
            assert b"was sent" in part
            assert b"hx-get" not in part
            assert [mail["Subject"] for mail in box.taken] == ["mailprobe: a test of your alerts"]
            await visitor.post("/caps/test")
            await trio.sleep(5)
            assert len(box.taken) == 2
            assert box.taken[0]["Message-ID"] != box.taken[1]["Message-ID"]


async def test_no_test_is_offered_where_no_alert_would_come(autojump_clock):
    async with open_shop() as shop:
        visitor = await signed_in(shop)
        assert b"This service sends no mail" in (await visitor.get("/caps")).octets
        assert (await visitor.post("/caps/test")).status == 303
        assert await shop.store.messages("alert", limit=9) == []


async def test_saved_limits_are_shown_after_a_redirect(autojump_clock):
    async with open_shop() as shop:
        visitor = await signed_in(shop)
        got = await visitor.post("/caps", {"hard": "20", "soft": "10", "alerts": "on"})
        assert (got.status, got.headers["location"]) == (303, "/dashboard/caps?saved=1")
        page = (await visitor.get("/caps?saved=1")).octets
        assert b"Saved." in page
        assert b'value="20.00"' in page
