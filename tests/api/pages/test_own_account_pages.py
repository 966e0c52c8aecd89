"""An own account sees nothing of plans, prices and limits: it has none."""

import pytest

from tests.api.lists.test_lists import open_list_shop, send
from tests.api.pages.test_dashboard import signed_in
from tests.api.service_fixture import open_shop

FOREIGN = (b"2147483647", b"2,147,483,647", b" EUR", b"cap in euros", b"Projected", b"on scale")


@pytest.mark.parametrize("path", ["", "/keys", "/caps", "/lists", "/try"])
async def test_a_page_of_an_own_account_has_no_plan_and_no_largest_number(autojump_clock, path):
    async with open_shop() as shop:
        await shop.change(tier="own")
        page = (await (await signed_in(shop)).get(path)).octets
        assert [words for words in FOREIGN if words in page] == []
        assert b'href="/dashboard/caps"' not in page


async def test_the_survey_of_an_own_account_has_no_cost(autojump_clock):
    async with open_list_shop() as shop:
        await shop.change(tier="own")
        made = await send(shop, "email\nann@friendly.test\n", query="?start=0")
        page = (await (await signed_in(shop)).get(f"/lists/{made.body['list_id']}")).octets
        assert b"Verify 1 address" in page
        assert b"Left in the plan" not in page
        assert [words for words in FOREIGN if words in page] == []


async def test_a_plan_is_seen_by_the_account_that_has_it(autojump_clock):
    async with open_shop("scale") as shop:
        page = (await (await signed_in(shop)).get("")).octets
        assert b"on scale" in page
        assert b'href="/dashboard/caps"' in page
