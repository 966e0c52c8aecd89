"""The mail when a list is done: asked for, sent once, and in words that cannot break it."""

import random

import pytest
import trio.testing
from msgspec.structs import replace

from mailprobe.api.alerts.list_mail import DoneList, compose_list
from mailprobe.api.alerts.sender import open_alerts
from mailprobe.api.alerts.thresholds import Unwritable, read_body
from mailprobe.api.quota.plans import PLANS
from mailprobe.storage.records import Account
from tests.api.alerts.alerts_fixture import Mailbox
from tests.api.lists.test_lists import ended, open_list_shop, send
from tests.api.pages.test_dashboard import signed_in
from tests.api.service_fixture import PLACES, START, LazyApp

Clock = trio.testing.MockClock
DONE = DoneList("1-2", "people.csv", 3, 2, 0, 1, START)
ANN = Account("ann", "ann@example.org", "scale", START)


@pytest.mark.parametrize("wanted", [True, False])
async def test_a_list_is_mailed_when_it_is_done_if_that_is_wanted(
    wanted: bool, autojump_clock: Clock
) -> None:
    box = Mailbox()
    async with open_list_shop() as shop:
        alerts = open_alerts(
            shop.store, PLANS, PLACES, now=shop.clock, url=None, sender="alerts@mailprobe.test",
            rng=random.Random(1), mailer=box,
        )  # fmt: skip
        async with alerts as sender:
            shop.app = LazyApp(replace(shop.service, alerts=sender))
            visitor = await signed_in(shop)
            list_id = (await send(shop, query="?start=0&name=people.csv")).body["list_id"]
            page = (await visitor.get(f"/lists/{list_id}")).octets
            assert b"Mail ann@example.org when it is done" in page
            await visitor.post(f"/lists/{list_id}/resume", {"mail": "1"} if wanted else {})
            await ended(shop, list_id)
            await trio.sleep(60)
            assert [mail["Subject"] for mail in box.taken] == (
                ["mailprobe: people.csv is done"] if wanted else []
            )
            if wanted:
                text = box.taken[0].get_content()
                assert f"https://dash.test/lists/{list_id}" in text
                assert "Its 2 addresses" in text
                assert "friendly.test" not in text


async def test_the_mail_is_switched_while_a_list_runs(autojump_clock: Clock) -> None:
    async with open_list_shop("free") as shop:
        many = "email\n" + "".join(f"a{n}@nowhere.invalid\n" for n in range(200))
        visitor, list_id = await signed_in(shop), (await send(shop, many)).body["list_id"]
        assert b"when it is done" not in (await visitor.get(f"/lists/{list_id}")).octets
        for value, mails in (("1", True), ("0", False), ("x", False)):
            await visitor.post(f"/lists/{list_id}/mail", {"mail": value})
            found = await shop.store.stored_list(list_id)
            assert found.mails is mails
        other = await shop.store.create_account("eve@example.org", "scale")
        eve = await signed_in(shop, await shop.new_key("sk_mgmt_", other.id))
        assert (await eve.post(f"/lists/{list_id}/mail", {"mail": "1"})).status == 404
        await shop.store.change_list(list_id, "cancelled", before=["running"])
        assert not await shop.store.set_list_mail(list_id, True)


@pytest.mark.parametrize("call", ["list_marks", "enqueue_message", "change_list"])
async def test_an_end_that_is_repeated_makes_one_mail(call: str, autojump_clock: Clock) -> None:
    """As after kill -9: what the end of a list has stored is there, and all of it runs again."""
    async with open_list_shop("scale") as shop:
        list_id = (await send(shop, query="?start=0")).body["list_id"]
        await shop.store.set_list_mail(list_id, True)
        shop.store.away = {call}
        await shop.store.store.change_list(list_id, "running", before=["paused"])
        assert shop.service.lists is not None
        shop.service.lists.wake()
        await trio.sleep(60)
        assert (await shop.store.stored_list(list_id)).state == "running"
        ends = shop.store.calls.count(call)
        assert ends > 1
        shop.store.away = False
        assert (await ended(shop, list_id))["status"] == "done"
        messages = await shop.store.messages("alert", limit=100)
        assert [message.name for message in messages] == [f"list {list_id}"]


def test_the_mail_says_the_counts_and_nothing_breaks_its_head() -> None:
    done = named("people\r\nBcc: eve@evil.test\u2028.csv" + "x" * 500)
    message = compose_list(done, ANN, dashboard_url="https://d.test", sender="a@mailprobe.test")
    assert message["Bcc"] is None
    assert len(message["Subject"]) < 120
    assert message["To"] == "ann@example.org"
    assert message["Auto-Submitted"] == "auto-generated"
    again = compose_list(done, ANN, dashboard_url="https://d.test", sender="a@mailprobe.test")
    assert message.as_bytes() == again.as_bytes()
    text = message.get_content()
    assert "Keep             2" in text
    assert "Drop             1" in text


def named(name: str) -> DoneList:
    return DoneList("1-2", name, 3, 2, 0, 1, START)


def test_a_message_of_another_kind_is_unwritable() -> None:
    with pytest.raises(Unwritable):
        read_body(b'{"list_id": 1}', DoneList)
    nobody = Account("ann", "", "scale", START)
    with pytest.raises(Unwritable):
        compose_list(DONE, nobody, dashboard_url="", sender="a@mailprobe.test")
