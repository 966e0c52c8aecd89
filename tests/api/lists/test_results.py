"""Downloads leave in small pieces, and what they need is read and held in small parts."""

import csv
import gc
import io
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from mailprobe.api.lists.downloads import PIECE_OCTETS_MAX
from mailprobe.api.lists.results import (
    PLACES_MAX,
    ListResults,
    csv_parts,
    ndjson_parts,
)
from mailprobe.api.results.stored_row import StoredRow, encode_row
from mailprobe.engine.verdict import FIELDS
from mailprobe.storage.list_records import ListChunk
from tests.api.lists.test_lists import LISTS, ended, open_list_shop, send
from tests.api.pages.test_dashboard import signed_in

Parts = Callable[[ListResults], AsyncIterator[bytes]]


def result(number: int, email: str) -> str:
    found = [number, email, True, "deliverable", 0.97, None, *[False] * 4, False, True, "mx.test"]
    return json.dumps([*found, None, 7, "accepted", None]) + "\n"


class Chunks:
    """A store with the chunks of one list, which counts how often results are asked for."""

    def __init__(self, columns: Sequence[str], chunks: Sequence[ListChunk]) -> None:
        self.columns = columns
        self.all = chunks
        self.asked: list[int] = []

    async def stored_list(self, _: str) -> object:
        await trio.lowlevel.checkpoint()
        return self

    async def list_columns(self, _: str) -> Sequence[str]:
        await trio.lowlevel.checkpoint()
        return self.columns

    async def chunks(self, _: str, *, first: int, limit: int) -> Sequence[ListChunk]:
        await trio.lowlevel.checkpoint()
        return self.all[first : first + limit]

    async def list_results(self, _: str, places: Sequence[int]) -> list[tuple[int, str]]:
        await trio.lowlevel.checkpoint()
        self.asked.append(len(places))
        return [(place, self.all[place].results) for place in places]


def results_of(store: Chunks) -> ListResults:
    source: Any = SimpleNamespace(id="list", reading=None, account_id="ann")
    fake: Any = store
    return ListResults(fake, source)


@pytest.mark.parametrize("parts", [csv_parts, ndjson_parts])
async def test_a_download_that_ends_early_closes_what_it_reads(
    autojump_clock: trio.testing.MockClock, parts: Callable[[ListResults], Any]
) -> None:
    """What is left open is collected some time later, with a warning, which is an error here."""
    row = encode_row(StoredRow(0, 0, "a@friendly.test", ["a@friendly.test"]))
    store = Chunks(["email"], [ListChunk(0, 1, row, results=result(0, "a@friendly.test"))])
    async with aclosing(parts(results_of(store))) as made:
        while b"a@friendly.test" not in await anext(made):
            pass
    gc.collect()


async def whole(parts: Parts, store: Chunks) -> bytes:
    """All of a download; each of its pieces is small."""
    octets = []
    async for piece in parts(results_of(store)):
        assert 0 < len(piece) <= PIECE_OCTETS_MAX
        octets.append(piece)
    return b"".join(octets)


@pytest.mark.parametrize("parts", [ndjson_parts, csv_parts])
async def test_short_rows_under_a_wide_header_are_padded_a_piece_at_a_time(parts: Parts) -> None:
    columns = ["email", *(f"{number:060}" for number in range(999))]
    rows = [encode_row(StoredRow(0, n, f"a{n}@b.test", [f"a{n}@b.test"])) for n in range(100)]
    lines = "".join(result(n, f"a{n}@b.test") for n in range(100))
    octets = await whole(parts, Chunks(columns, [ListChunk(0, 100, "".join(rows), lines)]))
    if parts is csv_parts:
        table = list(csv.reader(io.StringIO(octets.decode(), newline="")))
        assert {len(row) for row in table} == {1000 + len(table[0]) - 1000}
        assert [row[0] for row in table[1:]] == [f"a{n}@b.test" for n in range(100)]
        return
    found = [json.loads(line) for line in octets.splitlines()]
    assert [row["mailprobe_email"] for row in found] == [f"a{n}@b.test" for n in range(100)]
    assert all(len(row) >= 1000 + len(FIELDS) and row[columns[-1]] == "" for row in found)


async def test_rows_whose_addresses_were_far_away_are_looked_up_together() -> None:
    """500 rows of one chunk, each with an address of another: ten calls, not 500."""
    far = 500
    one = [
        ListChunk(
            n, 1, encode_row(StoredRow(n, 0, f"a{n}@b.test", ["x"])), result(0, f"a{n}@b.test")
        )
        for n in range(far)
    ]
    rows = "".join(encode_row(StoredRow(far - 1 - n, 0, None, ["y"])) for n in range(far))
    store = Chunks(["note"], [*one, ListChunk(far, 0, rows)])
    octets = await whole(ndjson_parts, store)
    found = [json.loads(line)["email"] for line in octets.splitlines()]
    assert found == [
        *(f"a{n}@b.test" for n in range(far)),
        *(f"a{far - 1 - n}@b.test" for n in range(far)),
    ]
    assert len(store.asked) <= far // PLACES_MAX
    assert max(store.asked) <= PLACES_MAX


async def test_a_lists_page_has_no_wide_rows_and_its_download_has_all(
    autojump_clock: trio.testing.MockClock,
) -> None:
    header = ",".join(["email", *(f"column{number}" for number in range(99))])
    row = ",".join(["known@friendly.test", *["z" * 500] * 99])
    async with open_list_shop() as shop:
        list_id = (await send(shop, f"{header}\n{row}\n")).body["list_id"]
        await ended(shop, list_id)
        page = (await (await signed_in(shop)).get(f"/lists/{list_id}")).octets.decode()
        assert "column19" not in page
        assert "z" * 201 not in page
        got = await shop.request("GET", f"{LISTS}/{list_id}/results?format=csv")
        assert b"column98" in got.octets
