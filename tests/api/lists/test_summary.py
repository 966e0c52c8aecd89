"""`GET /v1/lists/{id}/summary`: the results of a list, counted by light, status and reason."""

from collections import Counter

import trio

from tests.api.lists.test_lists import LISTS, ended, open_list_shop, rows_of, send

EMAILS = [
    *(f"known{number}@friendly.test" for number in range(4)),
    *("nobody@friendly.test", "bob@gmial.com", "no address", "KNOWN0@friendly.test"),
]


async def test_a_summary_counts_what_the_rows_say(autojump_clock: trio.testing.MockClock) -> None:
    async with open_list_shop() as shop:
        list_id = (await send(shop, "email\n" + "\n".join(EMAILS))).body["list_id"]
        done = await ended(shop, list_id)
        got = (await shop.request("GET", f"{LISTS}/{list_id}/summary")).body
        rows = {row["email"]: row for row in await rows_of(shop, list_id)}.values()
        assert (got["list_id"], got["addresses"], got["answered"]) == (
            list_id,
            len(rows),
            len(rows),
        )
        for name, column in (("lights", "light"), ("statuses", "status"), ("reasons", "reason")):
            assert +Counter(got[name]) == Counter(row[column] for row in rows), name
        assert {name: n for name, n in got["statuses"].items() if n} == done["counts"]
        assert len(got["lights"]) == 3
        assert next(iter(got["reasons"])) == "accepted"


async def test_a_summary_is_there_before_the_first_result(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_list_shop() as shop:
        list_id = (await send(shop, query="?start=0")).body["list_id"]
        got = (await shop.request("GET", f"{LISTS}/{list_id}/summary")).body
        assert (got["addresses"], got["answered"], got["reasons"]) == (2, 0, {})
        assert {*got["lights"].values(), *got["statuses"].values()} == {0}


async def test_a_summary_belongs_to_the_kind_of_the_lists_key(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_list_shop() as shop:
        list_id = (await send(shop)).body["list_id"]
        test_key = await shop.new_key("sk_test_")
        got = await shop.request("GET", f"{LISTS}/{list_id}/summary", key=test_key)
        assert (got.status, got.body["error"]) == (404, "list_not_found")
