"""Lists of a service whose cells have several addresses or something around them, and several columns."""

import csv
import io

import pytest
import trio.testing

from mailprobe.api.reader import chunks
from tests.api.lists.test_lists import LISTS, ended, open_list_shop, rows_of, send

CELLS = """name,email,second
Ann,mailto:known@friendly.test,nobody@friendly.test
Bob,"nobody@friendly.test; known2@friendly.test",
Cy,known3 (at) friendly.test,known@friendly.test
Dee,n/a,
Eve,,=known4@friendly.test
"""


async def test_all_addresses_of_a_cell_are_verified(autojump_clock: trio.testing.MockClock) -> None:
    async with open_list_shop() as shop:
        made = (await send(shop, CELLS, query="?column=email")).body
        assert (made["columns"], made["addresses"]) == (["email"], 4)
        done = await ended(shop, made["list_id"])
        noted = [done[name] for name in ("unwrapped_rows", "doubtful_rows", "several_rows")]
        assert noted == [1, 1, 1]
        rows = await rows_of(shop, made["list_id"])
        assert [(row["mailprobe_email"], row["light"], row["others"]) for row in rows] == [
            ("known@friendly.test", "GREEN_LIGHT", None),
            ("known2@friendly.test", "GREEN_LIGHT",
             "nobody@friendly.test RED_LIGHT; known2@friendly.test GREEN_LIGHT"),
            ("known3 (at) friendly.test", "YELLOW_LIGHT", None),
            (None, None, None),
            (None, None, None),
        ]  # fmt: skip
        assert rows[2]["suggestion"] == "known3@friendly.test"
        stored = await shop.store.stored_list(made["list_id"])
        assert stored is not None
        assert stored.blank_rows == 2


async def test_each_column_of_a_list_has_its_own_results(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an address was first in an earlier chunk."""
    monkeypatch.setattr(chunks, "CHUNK_UNITS", 2)
    async with open_list_shop() as shop:
        made = (await send(shop, CELLS, query="?column=email&column=second")).body
        assert made["columns"] == ["email", "second"]
        await ended(shop, made["list_id"])
        rows = await rows_of(shop, made["list_id"])
        assert [(row["email_light"], row["second_light"]) for row in rows] == [
            ("GREEN_LIGHT", "RED_LIGHT"),
            ("GREEN_LIGHT", None),
            ("YELLOW_LIGHT", "GREEN_LIGHT"),
            (None, None),
            (None, "RED_LIGHT"),
        ]
        stored = await shop.store.stored_list(made["list_id"])
        assert stored is not None
        assert stored.blank_rows == 1
        for kept, cell in (
            ("", "'=known4@friendly.test"),
            ("&formulas=keep", "=known4@friendly.test"),
        ):
            path = f"{LISTS}/{made['list_id']}/results?format=csv{kept}"
            got = await shop.request("GET", path)
            table = list(csv.DictReader(io.StringIO(got.octets.decode(), newline="")))
            assert table[4]["second"] == cell
            assert table[4]["second_email"] == "'=known4@friendly.test"
        only = await rows_of(shop, made["list_id"], "?only=red")
        assert [row["name"] for row in only] == ["Eve"]
        bad = await shop.request("GET", f"{LISTS}/{made['list_id']}/results?formulas=x")
        assert bad.status == 400


async def test_a_column_without_addresses_is_refused_unless_it_is_named(
    autojump_clock: trio.testing.MockClock,
) -> None:
    table = "email,n\n" + "Ann Lee,1\n" * 5 + "known@friendly.test,2\n"
    async with open_list_shop() as shop:
        refused = await send(shop, table)
        assert refused.status == 400
        assert "fewer than half are addresses (others: “Ann Lee”)" in refused.body["message"]
        assert "--column" not in refused.body["message"]
        assert (await send(shop, table, query="?column=email")).status == 202


UNCLEAR: dict[str, tuple[str | bytes, str, str]] = {
    "no column has addresses": ("name,n\nAnn,1\nBob,2\n", "", "column"),
    "several columns have addresses": ("one,two\na@x.test,b@x.test\n", "", "column"),
    "few cells of the column are addresses": ("email,n\n" + "Ann Lee,1\n" * 3, "", "column"),
    "a column that is missing": ("email\na@x.test\n", "?column=e-mail", "column"),
    "lines of prose": ("Hello there\nwrite to us\nsoon\n", "", "column"),
    "a sheet of a table": ("email\na@x.test\n", "?sheet=2", "sheet"),
    "octets of no encoding that is known": (b"email,n\na@x.test,\x81\x8d\n", "?encoding=cp1252", "encoding"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNCLEAR)
async def test_a_list_that_is_refused_names_the_parameter_that_settles_it(
    autojump_clock: trio.testing.MockClock, case: str
) -> None:
    text, query, parameter = UNCLEAR[case]
    async with open_list_shop() as shop:
        refused = await send(shop, text, query)
        assert refused.status == 400
        assert f"the query parameter {parameter} " in refused.body["action"]
        assert "--" not in refused.body["message"]


async def test_an_encoding_is_named_and_what_is_not_clear_is_guessed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    unclear = "First,Second\nknown@friendly.test,nobody@friendly.test\n"
    async with open_list_shop() as shop:
        western = "name,email\nJos\u00e9,known@friendly.test\n".encode("cp1252")
        made = await send(shop, western, "?start=0&encoding=cp1250")
        got = await shop.request("GET", f"{LISTS}/{made.body['list_id']}/results?format=csv")
        assert "Jos\u00e9" in got.octets.decode()
        got = await send(shop, western, "?encoding=rot13")
        assert (got.status, "encoding must be one of utf-8, " in got.body["message"]) == (400, True)
        got = await send(shop, unclear)
        assert (got.status, "several columns of addresses" in got.body["message"]) == (400, True)
        got = await send(shop, unclear, "?guess=1&start=0")
        assert (got.status, got.body["columns"], got.body["addresses"]) == (202, ["First"], 1)


async def test_columns_that_have_addresses_too_are_named_by_the_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    google = "E-mail 1 - Value,E-mail 2 - Value\nknown@friendly.test,nobody@friendly.test\n"
    async with open_list_shop() as shop:
        made = (await send(shop, google, "?start=0")).body
        assert made["columns"] == ["E-mail 1 - Value"]
        assert made["further_columns"] == ["E-mail 2 - Value"]
        made = (await send(shop, google, "?start=0&column=1&column=2")).body
        assert (len(made["columns"]), made["further_columns"]) == (2, [])


@pytest.mark.parametrize("media_type", ["application/json", "application/octet-stream"])
async def test_each_item_of_an_array_is_a_row(
    autojump_clock: trio.testing.MockClock, media_type: str
) -> None:
    array = '[{"email": "known@friendly.test"},\n {"email": "nobody@friendly.test"}]'
    async with open_list_shop() as shop:
        made = await send(shop, array, headers={"Content-Type": media_type})
        assert (made.status, made.body["columns"]) == (202, ["email"])
        await ended(shop, made.body["list_id"])
        rows = await rows_of(shop, made.body["list_id"])
        assert [row["light"] for row in rows] == ["GREEN_LIGHT", "RED_LIGHT"]
