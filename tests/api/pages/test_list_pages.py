"""The pages of a list: its preview, its progress, the table of its results, and their download."""

import re
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
import trio.testing
from msgspec.structs import replace

from mailprobe.api.lists.results import disposition
from mailprobe.api.lists.stages import progress_of, standing_of
from mailprobe.api.operations.list_jobs import ListResponse
from mailprobe.api.pages.dashboard.work.list_preview import Preview, preview_of
from mailprobe.api.pages.dashboard.work.list_states import state_of, waits_of
from mailprobe.api.pages.dashboard.work.list_table import table_query
from mailprobe.api.results.list_reading import ListReading, encode_reading
from mailprobe.api.results.stored_row import StoredRow, encode_row
from mailprobe.engine.verdict import Reason
from mailprobe.storage.list_records import (
    NO_WAITS,
    HostWait,
    ListChunk,
    ListState,
    ListWaits,
    StoredList,
)
from tests.api.lists.test_lists import LISTS, ended, open_list_shop, send
from tests.api.pages.test_dashboard import signed_in
from tests.storage.fixed_clock import NOON

SANDBOX = "email,Who\n" + "".join(
    f"{word}+{n}@sandbox.test,Ann {n}\n"
    for word in ("deliverable", "undeliverable", "greylisted")
    for n in range(60)
)
STORED = StoredList(
    "id", "account", "people.csv", "running", None, 1000, 1000, 100, {}, NOON, None, None, "",
    ran_at=NOON, blank_rows=0,
)  # fmt: skip


def text_of(octets: bytes) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", octets.decode()))


async def test_results_are_filtered_searched_paged_and_downloaded(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_list_shop() as shop:
        visitor, key = await signed_in(shop), await shop.new_key("sk_test_")
        made = await send(shop, SANDBOX, "?name=customers.csv.gz", key=key)
        page = f"/lists/{made.body['list_id']}"
        await ended(shop, made.body["list_id"], key=key)
        whole = text_of((await visitor.get(page)).octets)
        for words in ("Keep 60", "Drop 60", "Confirm 60", "No such mailbox 60", "180 addresses"):
            assert words in whole, words
        assert "1 to 50 of 180" in whole
        part = {"hx-request": "true"}
        for query, there, absent in (
            (
                "light=RED_LIGHT",
                ["60 addresses", "undeliverable+0@", "1 to 50 of 60"],
                "greylisted+0@",
            ),
            ("light=RED_LIGHT&page=2", ["undeliverable+59@", "Previous"], "undeliverable+49@"),
            ("order=worst", ["undeliverable+0@"], "greylisted+0@"),
            (
                "light=RED_LIGHT&status=deliverable",
                ["0 addresses", "deliverable 0"],
                "sandbox.test",
            ),
            ("q=ANN+7", ["3 found in all", "greylisted+7@"], "ble+8@"),
            (
                "q=<u>&status=x&page=-1&order=no&from=" + "9" * 99,
                ["0 found", "Show all", "No address matches"],
                "<u>",
            ),
        ):
            got = await visitor.get(f"{page}/table?{query}", **part)
            shown = text_of(got.octets)
            assert got.status == 200
            assert all(words in shown for words in there), (query, shown)
            assert absent not in got.octets.decode(), query
        got = await visitor.get(f"{page}/rows/0/7", **part)
        assert "Keep" in text_of(got.octets)
        assert "Ann 7" in text_of(got.octets)
        assert (await visitor.get(f"{page}/rows/99/7")).status == 404
        got = await visitor.get(f"{page}/results?light=RED_LIGHT&q=ann+7&format=csv")
        assert got.octets.decode().count("\n") == 2
        assert 'filename="customers.verified.csv"' in got.headers["content-disposition"]
        got = await visitor.get(f"{page}/results?light=YELLOW_LIGHT&format=csv")
        assert 'filename="customers.confirm.csv"' in got.headers["content-disposition"]
        assert (await visitor.get(f"{page}/results?format=exe")).status == 404


async def test_a_row_that_bounced_can_be_forgotten_and_shows_what_its_host_says_now(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_list_shop() as shop:
        visitor = await signed_in(shop)
        account = (await shop.caller()).account.id
        await shop.store.record_bounces(account, ["ann@friendly.test"], "ses")
        list_id = (await send(shop, "email\nann@friendly.test\nx@friendly.test\n")).body["list_id"]
        await ended(shop, list_id)
        row = f"/lists/{list_id}/rows/0/0"
        assert b"Forget the bounce" in (await visitor.get(row)).octets
        assert b"Forget the bounce" not in (await visitor.get(f"/lists/{list_id}/rows/0/1")).octets
        got = await visitor.post(f"{row}/conversation", {"once": "a"})
        assert b"Mail to it came back (ses, " in got.octets
        assert b"The mail host accepts it now" in got.octets
        await visitor.post("/bounces/forget", {"email": "ann@friendly.test"})
        assert await shop.store.bounces(account, ["ann@friendly.test"]) == {}


async def test_a_row_shows_the_conversation_of_a_new_verification(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_list_shop() as shop:
        visitor, key = await signed_in(shop), await shop.new_key("sk_test_")
        made = await send(shop, "email\nann@friendly.test\nx@friendly.test\n")
        list_id = made.body["list_id"]
        await ended(shop, list_id)
        row, before = f"/lists/{list_id}/rows/0/0", await shop.rows()
        assert b"Ask again" in (await visitor.get(row)).octets
        part = {"hx-request": "true"}
        for _ in range(2):  # a second click spends nothing
            got = await visitor.post(f"{row}/conversation", {"once": "a"}, **part)
            assert "RCPT TO:&lt;ann@friendly.test&gt;" in got.octets.decode()
            assert b"<!doctype" not in got.octets
            assert re.search(
                r"Now: .*Keep.*deliverable.*\n<p>Mailbox accepted\.", got.octets.decode()
            )
        whole = await visitor.post(f"{row}/conversation", {"once": "a"})
        assert "RCPT TO:&lt;ann@friendly.test&gt;" in whole.octets.decode()
        assert b"Copy as text" in whole.octets
        assert len(await shop.rows()) == len(before) + 1
        await shop.use_up(10**4)
        await shop.change(tier="free")
        got = await visitor.post(f"{row}/conversation", {"once": "b"}, **part)
        assert b"This month" in got.octets
        other = await shop.store.create_account("eve@example.org", "scale")
        eve = await signed_in(shop, await shop.new_key("sk_mgmt_", other.id))
        assert (await eve.post(f"{row}/conversation")).status == 404
        assert (await visitor.post(f"/lists/{list_id}/rows/0/99/conversation")).status == 404
        test_list = (await send(shop, "email\nfull@sandbox.test\n", key=key)).body["list_id"]
        await ended(shop, test_list, key=key)
        of_test = f"/lists/{test_list}/rows/0/0"
        assert b"Ask again" not in (await visitor.get(of_test)).octets
        assert (await visitor.post(f"{of_test}/conversation")).status == 404


async def test_a_list_whose_rows_are_answered_says_what_it_asks_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_list_shop() as shop:
        visitor, key = await signed_in(shop), await shop.new_key("sk_test_")
        list_id = (await send(shop, SANDBOX, "?recheck=1", key=key)).body["list_id"]
        for _ in range(600):
            got = await shop.request("GET", f"{LISTS}/{list_id}", key=key)
            if got.body["recheck_at"]:
                break
            await trio.sleep(1)
        assert (got.body["stage"], got.body["left_s"]) == ("waiting", None)
        [again] = got.body["waits_for"]
        assert (again["cause"], again["addresses"]) == ("recheck", 60)
        assert again["until"] == got.body["waits_until"] == got.body["recheck_at"]
        shown = text_of((await visitor.get(f"/lists/{list_id}")).octets)
        assert "Show all lists" in text_of((await visitor.get("/lists?q=nothing")).octets)
        assert "All answered 180 of 180 addresses answered" in shown
        assert re.search(r"60 Host asks to come back later\. asked again at \d\d:\d\d UTC", shown)


async def test_a_list_at_its_limit_says_until_when_it_waits(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_list_shop("free") as shop:
        visitor = await signed_in(shop)
        many = "email\n" + "".join(f"a{n}@nowhere.invalid\n" for n in range(200))
        list_id = (await send(shop, many)).body["list_id"]
        with trio.fail_after(300):
            while True:
                found = (await shop.request("GET", f"{LISTS}/{list_id}")).body
                if found["stage"] == "waiting":
                    break
                await trio.sleep(0.5)
        [limit] = found["waits_for"]
        assert (limit["cause"], limit["until"]) == ("minute", found["waits_until"])
        assert limit["addresses"] == 200 - found["answered"]
        shown = text_of((await visitor.get(f"/lists/{list_id}")).octets)
        assert re.search(r"Waiting until \d\d:\d\d UTC", shown)
        assert re.search(r"The limit of a minute is used up\. goes on at \d\d:\d\d UTC", shown)


SOON = NOON + timedelta(seconds=20)


@pytest.mark.parametrize(
    ("more", "status", "stage", "causes", "left_s"),
    [
        ({"state": "loading"}, "reading", None, [], None),
        ({}, "running", "asking", [], 1000.0),  # 100 in 10 s; but no more than 54 in a minute
        ({"ran_from": 100}, "running", "asking", [], None),  # nothing since it was resumed
        ({"waits_until": SOON}, "running", "waiting", [("minute", 900)], 1000.0),
        (
            {"waits_until": SOON, "waits_for": "probing_unavailable"},
            "running", "waiting", [("self_protection", 900)], 1000.0,
        ),
        ({"waits_until": NOON}, "running", "asking", [], 1000.0),
        ({"answered": 1000}, "running", "asking", [], None),
        ({"answered": 1000, "recheck_at": NOON}, "running", "asking", [], None),
        ({"answered": 1000, "recheck_at": SOON}, "running", "waiting", [("recheck", 0)], None),
        ({"state": "paused"}, "paused", None, [], None),
        (
            {"state": "paused", "cause": "monthly_quota_exceeded"},
            "paused", None, [("plan", 900)], None,
        ),
        ({"state": "done"}, "done", None, [], None),
    ],
)  # fmt: skip
def test_where_a_list_is_and_what_it_waits_for(
    more: dict[str, Any],
    status: str,
    stage: str | None,
    causes: list[tuple[str, int]],
    left_s: float | None,
) -> None:
    found, now = replace(STORED, **more), NOON + timedelta(seconds=10)
    standing = standing_of(found, NO_WAITS, now)
    assert (standing.status, standing.stage) == (status, stage)
    assert [(each.cause, each.addresses) for each in standing.waits_for] == causes
    assert standing.waits_until == (SOON if stage == "waiting" else None)
    assert progress_of(found, now, 60).left_s == left_s


def waiting_at(*hosts: tuple[str, int, int, int]) -> ListWaits:
    """Waits at hosts: name, addresses, refusals in ten minutes, minutes from NOON."""
    found = tuple(
        HostWait(host, "host_budget", takes, count, NOON + timedelta(minutes=minutes))
        for host, count, takes, minutes in hosts
    )
    first = min(each.until for each in found)
    return ListWaits(sum(each.addresses for each in found), len(found), first, found)


def test_a_list_of_which_all_that_is_left_waits_at_hosts_is_waiting() -> None:
    found = replace(STORED, counts={"undeliverable": 10, "deliverable": 90})
    some = standing_of(found, waiting_at(("a.test", 41, 16, 5)), NOON)
    assert (some.stage, some.waits_until) == ("asking", None)
    [hosts] = some.waits_for
    assert (hosts.cause, hosts.addresses, hosts.hosts_count) == ("hosts", 41, 1)
    waits = waiting_at(("a.test", 500, 16, 5), ("b.test", 400, 4, 2))
    standing = standing_of(found, waits, NOON)
    assert standing.stage == "waiting"
    assert standing.waits_until == NOON + timedelta(minutes=2)
    [hosts] = standing.waits_for
    # A tenth is refused: 50 at a host that takes 16 in ten minutes, 40 at one that takes 4.
    assert [each.done_about for each in hosts.hosts] == [
        NOON + timedelta(minutes=5 + 30), NOON + timedelta(minutes=2 + 90),
    ]  # fmt: skip
    assert progress_of(found, NOON, 60, waits).left_s == 92 * 60


def response(**more: Any) -> ListResponse:
    """A list of 1,000 addresses of which 100 are answered, as the API shows it."""
    values: dict[str, Any] = {
        "list_id": "id", "name": "people.csv", "status": "running", "created_at": NOON,
        "rows": 1000, "addresses": 1000, "answered": 100, "counts": {}, "per_minute": 60.0,
        "stage": "asking", "patience_s": 0, **more,
    }  # fmt: skip
    return ListResponse(**values)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"status": "paused", "answered": 0}, "Not started"),
        ({"status": "reading", "stage": None}, "Reading the file"),
        ({}, "Asking mail hosts, 10 %"),
        ({"stage": "waiting", "waits_until": SOON}, "Waiting until 12:00 UTC"),
        ({"status": "paused", "stage": None}, "Paused by you at 10 %"),
        (
            {"status": "paused", "stage": None, "cause": "paused_by_operator"},
            "Paused at 10 %: the operator of this service paused it",
        ),
        (
            {"status": "paused", "stage": None, "cause": "monthly_quota_exceeded"},
            "Paused at 10 %: the month's verifications are used up",
        ),
        ({"answered": 1000}, "All answered"),
        ({"status": "done", "answered": 1000, "stage": None}, "Done"),
        ({"status": "cancelled", "stage": None}, "Stopped at 10 %"),
    ],
)  # fmt: skip
def test_a_state_says_by_whom_for_what_and_how_far(more: dict[str, Any], words: str) -> None:
    assert state_of(response(**more)).text == words


def test_a_list_says_what_waits_for_each_host_and_until_when() -> None:
    """One line for each cause, with its count."""
    found = replace(STORED, addresses=20_000)
    waits = waiting_at(("hoster.net", 41, 16, 50))
    standing = standing_of(found, waits, NOON)
    [line] = waits_of(response(waits_for=standing.waits_for), Counter(), NOON)
    assert (line.addresses, line.what) == (41, "hoster.net takes 16 refusals in 10 minutes.")
    assert (line.then, line.at) == ("done about", NOON + timedelta(minutes=50))
    many = ListWaits(9, 5, NOON, waiting_at(*[(f"{name}.test", 1, 4, 1) for name in "abc"]).hosts)
    lines = waits_of(response(waits_for=standing_of(found, many, NOON).waits_for), Counter(), NOON)
    assert (lines[-1].addresses, lines[-1].what) == (6, "At 2 more mail hosts.")
    changed = HostWait("a.test", "host_changed", 0, 2, NOON + timedelta(hours=1))
    waits = ListWaits(2, 1, changed.until, (changed,))
    [line] = waits_of(
        response(waits_for=standing_of(found, waits, NOON).waits_for), Counter(), NOON
    )
    assert (line.what, line.then) == ("a.test: host contradicts itself.", "goes on at")
    assert line.at == changed.until
    again = Counter[Reason]({"greylisted": 3})
    ended = response(answered=1000, recheck_at=SOON)
    [line] = waits_of(ended, again, NOON)
    assert (line.then, line.at) == ("asked again at", SOON)
    assert waits_of(response(), Counter(), NOON) == []


def previewed(rows: Sequence[tuple[str | None, list[str]]], **more: Any) -> Preview:
    state: ListState = "paused"
    lines = "".join(
        encode_row(StoredRow(None if address is None else 0, n, address, cells))
        for n, (address, cells) in enumerate(rows)
    )
    found = replace(STORED, state=state, rows=len(rows), **more)
    return preview_of(found, ["name", "mail", "note"], [ListChunk(0, 1, lines)])


def test_a_preview_tells_columns_apart_and_warns() -> None:
    good = previewed(
        [
            ("a@b.test", ["Ann", " a@b.test ", ""]),
            (None, ["", "", ""]),
            (None, ["Ann", "a@b.test"]),
            ("c@d.test", ["Ann", "c@d.test"]),
        ],
        addresses=2, blank_rows=1,
    )  # fmt: skip
    assert (good.duplicates, good.blank_rows) == (1, 1)
    [mail] = good.choices
    assert (mail.number, mail.name, mail.example, mail.addresses) == (2, "mail", "a@b.test", 3)
    assert [(each.name, each.example) for each in good.others] == [("name", "Ann"), ("note", "")]
    assert good.columns == [("name", False), ("mail", True), ("note", False)]
    assert good.warnings == []
    same = previewed([("a@b.test", ["Ann", "a@b.test"]), (None, ["Bob", "a@b.test"])], addresses=1)
    assert "same address in every row" in same.warnings[0]
    names = previewed([("Ann", ["Ann", "x"]), ("Bob", ["Bob", "y"])], addresses=2)
    assert names.warnings == [
        "The column name has no e-mail addresses in the first rows. Choose another one."
    ]
    few = previewed(
        [("Ann", ["", "Ann"]), ("Bob", ["", "Bob"]), ("a@b.test", ["", "a@b.test"])], addresses=3
    )
    assert few.warnings == [
        "The column mail has more other cells than addresses, such as “Ann”, “Bob”."
    ]
    reading = ListReading(["mail"], [1], proposed=["note"], unwrapped=1, doubtful=2, several=3)
    noted = previewed(
        [("a@b.test", ["Ann", "<a@b.test>"])], addresses=1, reading=encode_reading(reading)
    )
    assert [(each.name, each.is_ticked) for each in noted.choices] == [
        ("mail", True),
        ("note", True),
    ]
    assert len(noted.notes) == 4
    several = previewed([("a@b.test", ["Ann", "a@b.test"])], addresses=2, reading=encode_reading(
        ListReading(["mail", "note"], [1, 2])
    ))  # fmt: skip
    assert several.duplicates == 0
    blank = previewed([(None, ["Ann"])], addresses=0, blank_rows=1)
    assert "No row has an address" in blank.warnings[0]
    earlier = previewed([("a@b.test", ["a@b.test"])], addresses=1, blank_rows=None)
    assert (earlier.duplicates, earlier.blank_rows) == (0, None)


def test_a_preview_shows_the_cells_that_are_read_otherwise_than_they_stand() -> None:
    cells = ["a@b.test", "mailto:a@b.test", "a@b.test; c@b.test", "a (at) b.test", "n/a", ""]
    shown = previewed([(None, ["", cell]) for cell in cells], reading=encode_reading(
        ListReading(["mail"], [1])
    ))  # fmt: skip
    assert [(each.row, each.asked, each.why) for each in shown.odd_cells] == [
        (2, "a@b.test", "what stands around it is left out"),
        (3, "a@b.test, c@b.test", "2 addresses"),
        (4, "", "doubtful: a@b.test is suggested"),
        (5, "", "says that there is none"),
    ]


def test_a_preview_of_many_columns_has_those_of_addresses_wherever_they_are() -> None:
    row = [*[f"x{n}" for n in range(40)], "a@b.test"]
    lines = encode_row(StoredRow(0, 0, "a@b.test", row))
    names = [*[f"Column {n}" for n in range(40)], "Mail"]
    reading = encode_reading(ListReading(["Mail"], [40]))
    found = replace(STORED, state="paused", rows=1, addresses=1, reading=reading)
    shown = preview_of(found, names, [ListChunk(0, 1, lines)])
    assert [(each.number, each.is_ticked) for each in shown.choices] == [(41, True)]
    assert (len(shown.others), shown.columns_count, len(shown.columns)) == (40, 41, 20)
    assert shown.columns[-1] == ("Mail", True)
    assert shown.rows == [[*row[:19], "a@b.test"]]


def test_a_preview_compares_fewer_rows_of_many_columns() -> None:
    for width, compared in ((3, 500), (1_000, 20)):
        lines = encode_row(StoredRow(0, 0, "a@b.test", ["<a@b.test>"] * width)) * 600
        found = replace(STORED, state="paused", rows=600, addresses=1)
        names = [f"Column {n}" for n in range(width)]
        shown = preview_of(found, names, [ListChunk(0, 1, lines)])
        assert shown.rows_compared == compared
        assert {each.addresses for each in shown.choices} == {compared}


def test_a_download_is_named_after_the_upload() -> None:
    for name, file in (
        ("customers.csv", "customers.verified.csv"),
        ("list", "list.verified.csv"),
        ("a/b\\c.xlsx", "c.verified.csv"),
        ('x"; y\r\n.csv', "x_; y__.verified.csv"),
        (".csv", "list.verified.csv"),
    ):
        assert f'filename="{file}"' in disposition(name, "csv")
    assert "filename*=UTF-8''K%C3%A4ufer.verified.csv" in disposition("Käufer.csv", "csv")


def test_the_query_of_a_table_ignores_what_it_does_not_know() -> None:
    query = table_query({"light": "blue", "page": "0", "q": "x" * 999, "order": "best"})
    assert (query.light, query.page, len(query.text), query.order) == ("", 1, 100, "best")
    assert query.url(page=2).endswith("order=best&page=2")
