"""The report of a list by a link: what it shows, to whom, and until when."""

import re
from datetime import timedelta

import pytest
import trio.testing

from mailprobe.storage.list_jobs.shared_reports import REPORTS_MAX
from tests.api.lists.test_lists import ended, open_list_shop, send
from tests.api.pages.test_dashboard import PageClient, signed_in
from tests.api.service_fixture import HttpAnswer, RunningService

Clock = trio.testing.MockClock
LIST = "name,email\nAnn Lee,ann@friendly.test\nBob,bob@friendly.test\nNo,a@nowhere.invalid\n"


async def shared(shop: RunningService, visitor: PageClient, list_id: str, days: str = "7") -> str:
    """Make a link; return its path below the dashboard."""
    await visitor.get(f"/lists/{list_id}/share")
    got = await visitor.post(f"/lists/{list_id}/share", {"days": days})
    found = re.search(rb"https://api\.test/dashboard(/shared\?token=[\w-]+)", got.octets)
    assert found, got.octets
    return found[1].decode()


async def test_a_link_shows_counts_and_no_address(autojump_clock: Clock) -> None:
    async with open_list_shop() as shop:
        visitor, list_id = await signed_in(shop), (await send(shop, LIST)).body["list_id"]
        await ended(shop, list_id)
        link = await shared(shop, visitor, list_id)
        stranger = PageClient(shop)
        got = await stranger.get(link)
        assert got.status == 200
        text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", got.octets.decode()))
        for words in (
            "Keep 2",
            "66.7 %",
            "Drop 1",
            "33.3 %",
            "Domain takes no mail",
            "3 addresses",
        ):
            assert words in text, (words, text)
        for word in ("friendly", "nowhere", "Ann Lee", "Bob", shop.account.email, "csrf", list_id):
            assert word not in got.octets.decode(), word
        assert got.headers["x-robots-tag"] == "noindex, nofollow"
        assert got.headers["referrer-policy"] == "no-referrer"
        assert got.headers["cache-control"] == "no-store"
        assert "set-cookie" not in got.headers
        for path in ("", f"/lists/{list_id}", f"/lists/{list_id}/share"):
            assert (await stranger.get(path)).status == 303, path


@pytest.mark.parametrize("way", ["its time", "its owner", "its list", "its account"])
async def test_a_link_that_has_ended_shows_nothing(way: str, autojump_clock: Clock) -> None:
    async with open_list_shop() as shop:
        visitor, list_id = await signed_in(shop), (await send(shop, LIST)).body["list_id"]
        await ended(shop, list_id)
        link = await shared(shop, visitor, list_id, "1")
        assert (await visitor.get(link)).status == 200
        match way:
            case "its time":
                shop.clock.set(shop.clock() + timedelta(days=1, seconds=1))
            case "its owner":
                page = (await visitor.get(f"/lists/{list_id}/share")).octets.decode()
                [action] = re.findall(r'action="/dashboard(/lists/[^"]+/end)"', page)
                assert (await visitor.post(action)).status == 303
                assert (await visitor.post(action)).status == 404
            case "its list":
                await visitor.post(f"/lists/{list_id}/delete")
            case "its account":
                await shop.store.delete_account(shop.account.id)
        await gone(await PageClient(shop).get(link))


async def gone(got: HttpAnswer) -> None:
    assert got.status == 404
    assert b"no longer works" in got.octets
    assert got.headers["x-robots-tag"] == "noindex, nofollow"


async def test_a_guess_opens_nothing(autojump_clock: Clock) -> None:
    async with open_list_shop() as shop:
        visitor, list_id = await signed_in(shop), (await send(shop, LIST)).body["list_id"]
        await ended(shop, list_id)
        link = await shared(shop, visitor, list_id)
        [stored] = await shop.store.shared_reports(list_id)
        for token in (
            "",
            "x",
            link[-32:-1],
            link[-32:] + "x",
            list_id,
            str(stored.number),
            "a" * 9999,
        ):
            await gone(await PageClient(shop).get(f"/shared?token={token}"))
        await gone(await PageClient(shop).get("/shared"))


async def test_only_the_account_of_a_list_makes_and_ends_its_links(autojump_clock: Clock) -> None:
    async with open_list_shop() as shop:
        visitor, list_id = await signed_in(shop), (await send(shop, LIST)).body["list_id"]
        await ended(shop, list_id)
        await shared(shop, visitor, list_id)
        other = await shop.store.create_account("eve@example.org", "scale")
        eve = await signed_in(shop, await shop.new_key("sk_mgmt_", other.id))
        assert (await eve.get(f"/lists/{list_id}/share")).status == 404
        assert (await eve.post(f"/lists/{list_id}/share", {"days": "7"})).status == 404
        [report] = await shop.store.shared_reports(list_id)
        assert (await eve.post(f"/lists/{list_id}/share/{report.number}/end")).status == 404
        for days in ("", "0", "365", "-1", "7.0"):
            got = await visitor.post(f"/lists/{list_id}/share", {"days": days})
            assert got.status == 404, days
        assert await shop.store.shared_reports(list_id) == [report]
        for number in range(REPORTS_MAX - 1):
            await shop.store.share_report(list_id, str(number), for_s=60)
        got = await visitor.post(f"/lists/{list_id}/share", {"days": "7"})
        assert (got.status, b"as many links" in got.octets) == (400, True)
