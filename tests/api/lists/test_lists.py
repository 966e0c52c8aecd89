"""Lists as jobs: sent, verified in the background, paced, paused, fetched and called back."""

import csv
import gzip
import io
import json
import random
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
import trio
import trio.lowlevel
import xlsxwriter
from msgspec.structs import replace
from python_calamine import CalamineWorkbook

from mailprobe.api.admission.turns import FairTurns
from mailprobe.api.lists import downloads
from mailprobe.api.lists import worker as list_worker
from mailprobe.api.lists.worker import LEASE_S, open_lists
from mailprobe.api.operations.list_jobs import ListResponse
from mailprobe.api.quota.list_limits import ACCOUNT_DOWNLOADS_MAX, ROWS_MAX, ListLimits
from mailprobe.api.quota.plans import PLANS
from mailprobe.api.reader import chunks
from mailprobe.bench.world.faults import Late
from mailprobe.bench.world.mail_host import MailHost
from tests.api.jobs.test_worker import Receiver, working
from tests.api.service_fixture import LazyApp, RunningService, open_shop
from tests.seeds import seeds

LISTS = "/v1/lists"
HOOK = "https://hooks.shop.test/lists"
CSV = {"content-type": "text/csv"}
PEOPLE = "name,email\nAnn,known@friendly.test\nBob,nobody@friendly.test\n,\nAnn again,known@friendly.test\n"


@asynccontextmanager
async def working_lists(shop: RunningService, seed: int = 0) -> AsyncIterator[Any]:
    async with open_lists(
        shop.service.quota, rng=random.Random(seed), wake_jobs=lambda: None
    ) as queue:
        shop.service = replace(shop.service, lists=queue)
        shop.app = LazyApp(shop.service)
        yield queue


@asynccontextmanager
async def open_list_shop(tier: Any = "scale", **more: Any) -> AsyncIterator[RunningService]:
    async with open_shop(tier, **more) as shop, working_lists(shop):
        yield shop


async def send(
    shop: RunningService, text: str | bytes = PEOPLE, query: str = "", **more: Any
) -> Any:
    octets = text.encode() if isinstance(text, str) else text
    headers = {**CSV, **more.pop("headers", {})}
    return await shop.request("POST", LISTS + query, octets=octets, headers=headers, **more)


async def ended(shop: RunningService, list_id: str, within_s: float = 600, **more: Any) -> Any:
    """The list once it has ended. One that takes hours is asked for once in a few minutes."""
    began = trio.current_time()
    with trio.fail_after(within_s):
        while True:
            got = await shop.request("GET", f"{LISTS}/{list_id}", **more)
            if got.body["status"] not in ("running", "reading"):
                return got.body
            await trio.sleep(max(1, (trio.current_time() - began) / 20))


def causes_of(shown: Any) -> list[str]:
    """What a list that was shown waits for."""
    return [each["cause"] for each in shown["waits_for"]]


async def rows_of(shop: RunningService, list_id: str, query: str = "", **more: Any) -> list[Any]:
    got = await shop.request("GET", f"{LISTS}/{list_id}/results{query}", **more)
    assert got.status == 200
    return [json.loads(line) for line in got.octets.split(b"\n")[:-1]]


def many(count: int, domain: str = "friendly.test") -> str:
    return "email\n" + "".join(f"known{number}@{domain}\n" for number in range(count))


async def test_a_list_is_verified_in_the_background(autojump_clock: trio.testing.MockClock) -> None:
    async with open_list_shop() as shop:
        got = await send(shop, query="?name=people.csv")
        assert (got.status, got.body["status"], got.body["name"]) == (202, "running", "people.csv")
        msgspec.convert(got.body, ListResponse)
        assert (got.body["rows"], got.body["addresses"], got.body["answered"]) == (4, 2, 0)
        done = await ended(shop, got.body["list_id"])
        assert done["status"] == "done"
        assert done["counts"] == {"deliverable": 1, "undeliverable": 1}
        assert done["answered"] == 2
        assert done["ended_at"] is not None
        rows = await rows_of(shop, got.body["list_id"])
        assert [(row["name"], row["email"], row["status"], row["light"]) for row in rows] == [
            ("Ann", "known@friendly.test", "deliverable", "GREEN_LIGHT"),
            ("Bob", "nobody@friendly.test", "undeliverable", "RED_LIGHT"),
            ("", "", None, None),
            ("Ann again", "known@friendly.test", "deliverable", "GREEN_LIGHT"),
        ]
        assert (rows[1]["reason"], rows[1]["blame"]) == ("no_mailbox", "address")
        ledger = await shop.store.ledger(await shop.caller())
        assert (ledger.month_units, ledger.month_billable, ledger.reserved) == (2, 2, 0)
        assert [row.operation for row in await shop.rows()] == ["list", "list"]
        listed = (await shop.request("GET", LISTS)).body["lists"]
        for text, count in (
            (listed[0]["name"].upper(), 1),
            (listed[0]["list_id"][:5], 1),
            ("%", 0),
        ):
            found = await shop.request("GET", f"{LISTS}?search={quote(text)}")
            assert len(found.body["lists"]) == count, text
        assert [each["list_id"] for each in listed] == [got.body["list_id"]]


async def test_results_come_in_each_format(autojump_clock: trio.testing.MockClock) -> None:
    async with open_list_shop() as shop:
        list_id = (await send(shop)).body["list_id"]
        await ended(shop, list_id)
        got = await shop.request("GET", f"{LISTS}/{list_id}/results?format=csv")
        assert got.headers["content-type"].startswith("text/csv")
        assert got.headers["x-content-type-options"] == "nosniff"
        table = list(csv.DictReader(io.StringIO(got.octets.decode(), newline="")))
        assert [row["status"] for row in table] == [
            "deliverable",
            "undeliverable",
            "",
            "deliverable",
        ]
        got = await shop.request("GET", f"{LISTS}/{list_id}/results?format=xlsx&only=green")
        sheet = CalamineWorkbook.from_filelike(io.BytesIO(got.octets)).get_sheet_by_index(0)
        assert [row[:2] for row in sheet.to_python()] == [
            ["name", "email"], ["Ann", "known@friendly.test"], ["Ann again", "known@friendly.test"],
        ]  # fmt: skip
        assert len(await rows_of(shop, list_id, "?only=red")) == 1
        for query in ("?format=pdf", "?only=blue", "?format=csv&format=xlsx"):
            got = await shop.request("GET", f"{LISTS}/{list_id}/results{query}")
            assert (got.status, got.error) == (400, "invalid_request")


def workbook(rows: list[list[Any]]) -> bytes:
    file = io.BytesIO()
    with xlsxwriter.Workbook(file) as book:
        page = book.add_worksheet("people")
        for number, row in enumerate(rows):
            page.write_row(number, 0, row)
    return file.getvalue()


SENT: dict[str, tuple[str, str | bytes]] = {
    "lines": ("text/plain", "known@friendly.test\nnobody@friendly.test\n"),
    "objects": ("application/x-ndjson", '{"email":"known@friendly.test"}\n"nobody@friendly.test"\n'),
    "a workbook": (
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        workbook([["email"], ["known@friendly.test"], ["nobody@friendly.test"]]),
    ),
    "tabs": ("text/tab-separated-values", "n\temail\n1\tknown@friendly.test\n2\tnobody@friendly.test\n"),
    "unnamed": ("application/octet-stream", "email;n\nknown@friendly.test;1\nnobody@friendly.test;2\n"),
}  # fmt: skip


@pytest.mark.parametrize("case", SENT)
async def test_each_format_is_read(autojump_clock: trio.testing.MockClock, case: str) -> None:
    media_type, text = SENT[case]
    async with open_list_shop() as shop:
        got = await send(shop, text, headers={"content-type": media_type})
        assert got.status == 202, got.octets
        done = await ended(shop, got.body["list_id"])
        assert done["counts"] == {"deliverable": 1, "undeliverable": 1}
        rows = await rows_of(shop, got.body["list_id"])
        assert [row["status"] for row in rows] == ["deliverable", "undeliverable"]


BAD: dict[str, tuple[str, str | bytes, str]] = {
    "nothing": ("text/csv", b"", "is empty"),
    "no addresses": ("text/csv", "name\nAnn\nBob\n", "no column of addresses"),
    "a PDF": ("application/octet-stream", b"%PDF-1.4", "is a PDF"),
    "no workbook": ("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", b"x", "not an XLSX"),
    "a type that is none": ("image/png", "x", "Content-Type is 'image/png'"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
async def test_an_upload_that_is_no_list_is_400_and_leaves_nothing(
    autojump_clock: trio.testing.MockClock, case: str
) -> None:
    media_type, text, words = BAD[case]
    async with open_list_shop() as shop:
        got = await send(shop, text, headers={"content-type": media_type})
        assert (got.status, got.error) == (400, "invalid_request")
        assert words in got.body["message"]
        assert "/tmp" not in got.body["message"]
        await trio.sleep(1)
        assert (await shop.request("GET", LISTS)).body["lists"] == []


async def test_a_list_that_is_too_long_or_too_large_is_refused(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_list_shop("free") as shop:
        got = await send(shop, many(ROWS_MAX["free"] + 1))
        assert got.status == 400
        assert "more than 1,000 rows" in got.body["message"]
        monkeypatch.setattr(ListLimits, "rows_max", 50)
        assert "more than 50 rows" in (await send(shop, many(51))).body["message"]
        monkeypatch.setattr(ListLimits, "octets_max", 100)
        got = await send(shop, many(50))
        assert (got.status, got.error) == (413, "payload_too_large")
        assert got.body["action"].startswith("Send less at a time")  # it is no batch of addresses
        await trio.sleep(1)
        assert (await shop.request("GET", LISTS)).body["lists"] == []


async def test_odd_characters_in_cells_stay(autojump_clock: trio.testing.MockClock) -> None:
    cells = ["a\u2028b", "c\x0bd\x1ce", "\x85", '"', "\\", "\u0000", "\U0001f600"]
    lines = [json.dumps({"n": cell, "email": "known@friendly.test"}) for cell in cells]
    lines.append(json.dumps({"n": "", "email": "odd\u2028text@friendly.test"}))
    async with open_list_shop() as shop:
        media_type = "application/x-ndjson"
        got = await send(shop, "\n".join(lines), headers={"content-type": media_type})
        assert (await ended(shop, got.body["list_id"]))["status"] == "done"
        rows = await rows_of(shop, got.body["list_id"])
        assert [row["n"] for row in rows] == [*cells, ""]
        assert rows[-1]["status"] == "invalid"


async def test_a_client_that_hangs_up_leaves_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_list_shop() as shop:
        pieces = [(0.0, b"email\n"), (1.0, b"known@friendly.test\n"), (100.0, b"x@friendly.test\n")]
        await send(shop, b"", pieces=pieces, hang_up_at=5)
        await trio.sleep(1)
        assert (await shop.request("GET", LISTS)).body["lists"] == []


async def test_the_minute_paces_a_list_and_leaves_room_for_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_list_shop("builder") as shop:
        list_id = (await send(shop, many(250))).body["list_id"]
        await trio.sleep(30)
        assert (await shop.verify()).status == 200
        found = (await shop.request("GET", f"{LISTS}/{list_id}")).body
        assert found["status"] == "running"
        assert 50 <= found["answered"] <= 90
        began = trio.current_time()
        done = await ended(shop, list_id)
        assert done["status"] == "done"
        assert trio.current_time() - began < 240
        refused = [row for row in await shop.rows() if row.failed_check == "rate_limit_exceeded"]
        assert refused == []
        assert (await shop.store.ledger(await shop.caller())).month_units == 251


async def test_a_used_up_quota_pauses_a_list_and_it_goes_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    plans = {**PLANS, "free": replace(PLANS["free"], rate_limit_per_min=1_000, monthly_calls=30)}
    async with open_list_shop("free", plans=plans) as shop:
        list_id = (await send(shop, many(40))).body["list_id"]
        found = await ended(shop, list_id)
        assert (found["status"], found["cause"]) == ("paused", "monthly_quota_exceeded")
        assert found["answered"] == 30
        await shop.change(tier="scale")
        got = await shop.request("POST", f"{LISTS}/{list_id}/resume")
        assert (got.status, got.body["status"], got.body["cause"]) == (200, "running", None)
        assert (await ended(shop, list_id))["answered"] == 40
        assert (await shop.store.ledger(await shop.caller())).month_units == 40


async def test_a_list_is_paused_resumed_cancelled_and_deleted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_list_shop("builder") as shop:
        list_id = (await send(shop, many(300))).body["list_id"]
        await trio.sleep(5)
        got = await shop.request("POST", f"{LISTS}/{list_id}/pause")
        assert (got.status, got.body["status"]) == (200, "paused")
        await trio.sleep(10)
        answered = (await shop.request("GET", f"{LISTS}/{list_id}")).body["answered"]
        await trio.sleep(200)
        assert (await shop.request("GET", f"{LISTS}/{list_id}")).body["answered"] == answered
        got = await shop.request("POST", f"{LISTS}/{list_id}/pause")
        assert (got.status, got.body["status"]) == (200, "paused")
        await shop.request("POST", f"{LISTS}/{list_id}/resume")
        await trio.sleep(90)
        got = await shop.request("POST", f"{LISTS}/{list_id}/cancel")
        assert got.body["status"] == "cancelled"
        more = got.body["answered"]
        assert more > answered
        got = await shop.request("POST", f"{LISTS}/{list_id}/resume")
        assert (got.status, got.body["status"]) == (200, "cancelled")
        assert len(await rows_of(shop, list_id)) == 300
        assert (await shop.request("DELETE", f"{LISTS}/{list_id}")).status == 204
        for method, path in (("GET", ""), ("GET", "/results"), ("DELETE", ""), ("POST", "/pause")):
            got = await shop.request(method, f"{LISTS}/{list_id}{path}")
            assert (got.status, got.error) == (404, "list_not_found")


async def test_a_list_of_another_account_is_not_there(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_list_shop() as shop:
        list_id = (await send(shop)).body["list_id"]
        other = await shop.store.create_account("eve@shop.test", "scale")
        key = await shop.new_key("sk_live_", other.id)
        assert (await shop.request("GET", LISTS, key=key)).body["lists"] == []
        for method, path in (
            *(("GET", ""), ("GET", "/summary"), ("GET", "/results"), ("DELETE", "")),
            *(("POST", "/pause"), ("POST", "/resume"), ("POST", "/cancel")),
        ):
            got = await shop.request(method, f"{LISTS}/{list_id}{path}", key=key)
            assert (got.status, got.error) == (404, "list_not_found")
        assert (await shop.request("GET", f"{LISTS}/nothing")).status == 404
        assert (await send(shop, key=None)).status == 401


async def test_an_account_has_a_limited_number_of_lists(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ListLimits, "active_max", 1)
    async with open_list_shop("builder") as shop:
        list_id = (await send(shop, many(300))).body["list_id"]
        got = await send(shop)
        assert (got.status, got.error) == (429, "list_limit_reached")
        await shop.request("POST", f"{LISTS}/{list_id}/cancel")
        assert (await send(shop)).status == 202


async def test_the_end_is_called_back_and_signed(autojump_clock: trio.testing.MockClock) -> None:
    receiver = Receiver()
    async with open_shop("scale") as shop, working(shop, receiver), working_lists(shop):
        headers = {"webhook-secret": "whsec_c2VjcmV0c2VjcmV0"}
        list_id = (await send(shop, query=f"?webhook={HOOK}", headers=headers)).body["list_id"]
        done = await ended(shop, list_id)
        await trio.sleep(20)
        ((_, host, sent, body),) = receiver.calls
        assert host == "hooks.shop.test"
        assert json.loads(body) == {
            "list_id": list_id, "status": "done", "rows": 4, "addresses": 2,
            "counts": {"deliverable": 1, "undeliverable": 1},
            "created_at": done["created_at"], "ended_at": json.loads(body)["ended_at"],
        }  # fmt: skip
        assert "webhook-signature" in sent
        job = (await shop.request("GET", f"/v1/jobs/{list_id}")).body
        assert (job["status"], job["result"], len(job["attempts"])) == ("done", None, 1)
        assert (await shop.store.ledger(await shop.caller())).month_units == 2


@pytest.mark.parametrize("query", ["?webhook=http://x.test/", "?webhook=https://127.0.0.1/"])
async def test_a_wrong_webhook_is_400(autojump_clock: trio.testing.MockClock, query: str) -> None:
    async with open_list_shop() as shop:
        assert (await send(shop, query=query)).status == 400
        got = await send(shop, query=f"?webhook={HOOK}", headers={"webhook-secret": "x"})
        assert got.status == 400


async def test_a_test_key_has_its_answers_and_costs_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_list_shop() as shop:
        key = await shop.new_key("sk_test_")
        text = "email\nok@sandbox.test\nfull@sandbox.test\n"
        list_id = (await send(shop, text, key=key)).body["list_id"]
        done = await ended(shop, list_id, key=key)
        assert done["status"] == "done"
        assert done["answered"] == 2
        assert (await shop.store.ledger(await shop.caller())).month_units == 0
        assert await shop.rows() == []
        rows = await rows_of(shop, list_id, key=key)
        assert rows[0]["status"] == "deliverable"


async def test_duplicates_across_chunks_have_the_result_of_the_first(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_UNITS", 3)
    monkeypatch.setattr(chunks, "CHUNK_ROWS_MAX", 5)
    emails = [f"{('known', 'gone')[n % 2]}{n % 7}@friendly.test" for n in range(40)]
    emails[10:22] = [""] * 12
    async with open_list_shop() as shop:
        text = "n,email\n" + "".join(f"{n},{email}\n" for n, email in enumerate(emails))
        list_id = (await send(shop, text, "?patience_s=0")).body["list_id"]
        done = await ended(shop, list_id)
        different = {email for email in emails if email}
        assert (done["rows"], done["addresses"]) == (40, len(different))
        rows = await rows_of(shop, list_id)
        assert [row["n"] for row in rows] == [str(n) for n in range(40)]
        for row, email in zip(rows, emails, strict=True):
            assert row["mailprobe_email"] == (email or None)
            expected = "deliverable" if email.startswith("known") else "undeliverable"
            assert row["status"] == (expected if email else None)


@pytest.mark.parametrize("seed", range(seeds(40)))
async def test_killed_processes_answer_and_count_each_row_once(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Five kills each, so fifty in all; the last process finishes the list."""
    monkeypatch.setattr(chunks, "CHUNK_UNITS", 20)
    rng = random.Random(seed)
    async with open_shop("scale") as shop:
        async with working_lists(shop):
            await trio.lowlevel.checkpoint()
            list_id = (await send(shop, many(400, "slow.test"))).body["list_id"]
        for kill in range(5):
            with monkeypatch.context() as killed, trio.move_on_after(rng.uniform(0.2, 4)):
                killed.setattr(list_worker, "DRAIN_S", 0)
                async with working_lists(shop, kill):
                    await trio.sleep_forever()
            await trio.sleep(rng.choice([0, LEASE_S + 1]))
        async with working_lists(shop):
            done = await ended(shop, list_id)
        assert (done["status"], done["answered"]) == ("done", 400)
        rows = await rows_of(shop, list_id)
        assert len({row["email"] for row in rows}) == len(rows) == 400
        assert Counter(row["status"] for row in rows)["deliverable"] >= 1
        assert all(row["status"] for row in rows)
        await trio.sleep(30)
        ledger = await shop.store.ledger(await shop.caller())
        assert (ledger.month_units, ledger.reserved) == (400, 0)


async def test_an_unavailable_store_loses_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with open_list_shop() as shop:
        list_id = (await send(shop, many(60, "slow.test"))).body["list_id"]
        await trio.sleep(1)
        shop.store.away = True
        await trio.sleep(40)
        shop.store.away = False
        done = await ended(shop, list_id)
        assert (done["status"], done["answered"]) == ("done", 60)
        assert (await shop.store.ledger(await shop.caller())).month_units == 60


async def test_a_list_that_unpacks_to_too_much_is_refused(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mailprobe.api.operations.list_uploads.UNPACKED_OCTETS_MAX", 1 << 20)
    monkeypatch.setattr("mailprobe.api.listfile.workbook.strings.STRINGS_OCTETS_MAX", 1_000)
    async with open_list_shop() as shop:
        got = await send(shop, gzip.compress(b"email\n" + b"a" * (2 << 20)))
        assert (got.status, "unpacks to more than 1 MiB" in got.body["message"]) == (400, True)
        texts = workbook([["email"], *([f"known{n}@friendly.test"] for n in range(100))])
        media_type = "application/octet-stream"
        got = await send(shop, texts, headers={"content-type": media_type})
        assert (got.status, "of text; save its sheet as CSV" in got.body["message"]) == (400, True)
        got = await send(shop, gzip.compress(PEOPLE.encode()))
        assert got.status == 202


async def test_a_full_disk_is_507_and_leaves_nothing(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_list_shop() as shop:
        with monkeypatch.context() as patch:
            full = partial(open, "/dev/full", "r+b", buffering=0)
            patch.setattr(tempfile, "TemporaryFile", lambda **_: full())
            got = await send(shop)
            assert (got.status, got.error) == (507, "storage_full")
        await trio.sleep(1)
        assert (await shop.request("GET", LISTS)).body["lists"] == []


async def test_rows_of_long_cells_make_small_chunks(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_OCTETS_MAX", chunks.LINE_OCTETS_MAX + 1_000)
    async with open_list_shop() as shop:
        row = f"{'x' * 900},,{'é' * 100},,,"  # blank cells at the end of a row are not stored
        text = "email,n,a,b,c,d,e\n"
        text += "".join(f"known{n}@friendly.test,{row}\n" for n in range(10))
        list_id = (await send(shop, text)).body["list_id"]
        await ended(shop, list_id)
        stored = await shop.store.chunks(list_id, first=0, limit=50)
        assert len(stored) >= 5
        assert all(len(chunk.rows.encode()) <= chunks.LINE_OCTETS_MAX + 1_000 for chunk in stored)
        assert all(chunk.rows.endswith('éé"]}\n') for chunk in stored)
        assert len(await rows_of(shop, list_id)) == 10


async def test_many_downloads_take_turns_and_end(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = FairTurns(inf, account_max=ACCOUNT_DOWNLOADS_MAX)  # virtual time passes meanwhile
    monkeypatch.setattr(downloads, "download_turns", turns)
    async with open_list_shop() as shop:
        list_id = (await send(shop, many(400))).body["list_id"]
        await ended(shop, list_id)
        sizes = []

        async def download(query: str) -> None:
            got = await shop.request("GET", f"{LISTS}/{list_id}/results{query}")
            sizes.append(len(got.octets.splitlines()))

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(download, "")
                nursery.start_soon(download, "?format=csv")
            with trio.move_on_after(0.001):  # one hangs up
                await download("?format=xlsx")
            assert (await shop.verify()).status == 200
        assert sorted(sizes) == [400] * 10 + [401] * 10
        got = await shop.request("GET", f"{LISTS}/{list_id}/results?only=red&format=csv")
        assert len(got.octets.splitlines()) == 1


async def test_a_list_may_wait_until_it_is_resumed(autojump_clock):
    async with open_list_shop() as shop:
        made = await send(shop, query="?start=0")
        assert (made.status, made.body["status"]) == (202, "paused")
        await trio.sleep(60)
        assert await shop.rows() == []
        list_id = made.body["list_id"]
        await shop.request("POST", f"{LISTS}/{list_id}/resume")
        assert (await ended(shop, list_id))["answered"] == 2
        assert (await send(shop, query="?start=2")).status == 400


async def test_a_list_asks_again_what_time_may_cure(autojump_clock):
    """Five minutes later a greylisting host accepts; nothing is counted twice."""
    async with open_list_shop() as shop:
        shop.world.add("grey.test", MailHost(mailboxes=frozenset({"ann", "bob"}), greylist_s=200))
        shop.world.add("down.test", MailHost(banner="421 4.3.2 come back later"))
        text = "email\n" + "".join(f"{name}@grey.test\n" for name in ("ann", "bob", "eve"))
        text += "ann@friendly.test\nann@down.test\n"
        list_id = (await send(shop, text, "?recheck=1")).body["list_id"]
        began = trio.current_time()
        await trio.sleep(60)
        got = await shop.request("GET", f"{LISTS}/{list_id}")
        assert got.body["recheck_at"] is not None
        assert got.body["status"] == "running"
        assert got.body["counts"] == {"deliverable": 1, "unknown": 4}
        got_end = await ended(shop, list_id, within_s=2_000)
        assert got_end["counts"] == {"deliverable": 3, "undeliverable": 1, "unknown": 1}
        assert got_end["answered"] == 5
        assert 900 <= trio.current_time() - began <= 960
        statuses = [row["status"] for row in await rows_of(shop, list_id)]
        assert statuses == ["deliverable", "deliverable", "undeliverable", "deliverable", "unknown"]
        assert sum(row.units for row in await shop.rows()) == 5


async def test_a_list_waits_for_slow_hosts_when_it_asks_again_unless_it_keeps_the_clocks(
    autojump_clock,
):
    async with open_list_shop() as shop:
        for strict, status in (("0", "deliverable"), ("1", "unknown")):
            domain = f"slow{strict}.test"
            slow = MailHost(mailboxes=frozenset({"ann"}), faults={"CONNECT": Late(6.0)})
            shop.world.add(domain, slow)
            query = f"?recheck=1&strict_clocks={strict}"
            list_id = (await send(shop, f"email\nann@{domain}\n", query)).body["list_id"]
            await trio.sleep(60)
            got = await shop.request("GET", f"{LISTS}/{list_id}")
            assert got.body["counts"] == {"unknown": 1}
            assert (await ended(shop, list_id, within_s=2_000))["counts"] == {status: 1}


async def test_without_smtp_a_list_asks_no_mail_host_in_any_pass(autojump_clock):
    async with open_list_shop() as shop:
        test: dict[str, Any] = {"key": await shop.new_key("sk_test_")}
        for more, address in (({}, "ann@friendly.test"), (test, "deliverable@sandbox.test")):
            text = f"email\n{address}\nbad\n"
            made = await send(shop, text, "?smtp=0&recheck=1", **more)
            await ended(shop, made.body["list_id"], within_s=2_000, **more)
            rows = await rows_of(shop, made.body["list_id"], **more)
            assert [row["reason"] for row in rows] == ["not_asked", "syntax"]
        assert not shop.world.dialled
        assert (await send(shop, query="?smtp=no")).status == 400


async def test_without_it_a_list_ends_with_what_it_has(autojump_clock):
    async with open_list_shop() as shop:
        shop.world.add("grey.test", MailHost(greylist_s=200))
        list_id = (await send(shop, "email\nann@grey.test\n")).body["list_id"]
        assert (await ended(shop, list_id, within_s=60))["counts"] == {"unknown": 1}
