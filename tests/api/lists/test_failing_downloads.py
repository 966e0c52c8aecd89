"""A download that fails is refused before it has begun; later its connection is cut."""

import errno
import os
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
import trio

from mailprobe.api.listfile.survey import BadList
from mailprobe.api.lists import downloads
from mailprobe.api.lists.results import CHUNKS_READ
from mailprobe.api.reader import workbook
from mailprobe.api.reader.frames import Channel, MakeWorkbook
from mailprobe.storage.list_jobs import lists
from mailprobe.storage.records import SERVICE
from mailprobe.storage.store import Store
from tests.api.lists.test_lists import LISTS, open_list_shop, send
from tests.api.raw_http import serving

# What the maker meets -> status, and the begin of what the client reads.
TROUBLE = {
    BadList("the workbook takes too much"): (
        400, "No workbook can be made of the list: the workbook takes too much."
    ),
    ZeroDivisionError(): (400, "No workbook can be made of the list: the workbook is not made, by our fault."),
    MemoryError(): (400, "No workbook can be made of the list: the workbook takes more than 512 MiB"),
    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)): (507, "The service's disk is full."),
    OSError(errno.EIO, os.strerror(errno.EIO)): (503, "The service is overloaded."),
}  # fmt: skip


def raising(error: BaseException) -> Callable[..., NoReturn]:
    def make_workbook(channel: Channel, file: int, order: MakeWorkbook) -> NoReturn:
        raise error

    return make_workbook


@pytest.mark.parametrize("error", TROUBLE, ids=lambda error: type(error).__name__)
async def test_a_workbook_that_cannot_be_made_is_refused_in_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr(workbook, "make_workbook", raising(error))
    status, words = TROUBLE[error]
    async with open_list_shop() as shop:
        list_id = (await send(shop)).body["list_id"]
        got = await shop.request("GET", f"{LISTS}/{list_id}/results?format=xlsx")
    assert got.status == status
    assert got.body["message"].startswith(words)
    assert "\n" not in got.body["message"]


async def download(rows: int, name: str) -> tuple[int, bool]:
    """Get the results of a new list; the status, and whether the answer is whole."""
    text = "email\n" + "".join(f"a{number}@friendly.test\n" for number in range(rows))
    async with open_list_shop() as shop:
        list_id = (await send(shop, text, "?start=0")).body["list_id"]
        get = f"GET {LISTS}/{list_id}/results?format={name} HTTP/1.1\r\nHost: a\r\n"
        async with serving(shop.app) as server, server.connect() as raw:
            await raw.send(f"{get}Authorization: Bearer {shop.key}\r\n\r\n")
            status, _ = await raw.head()
            rest = await raw.rest()
    return status, rest.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("name", ["csv", "xlsx"])
async def test_a_download_that_fails_later_is_cut(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end must not look like the end of the list."""
    read = Store.chunks

    async def chunks(self: Store, list_id: str, *, first: int, limit: int) -> Any:
        if first > CHUNKS_READ:
            raise RuntimeError("the database is damaged")
        return await read(self, list_id, first=first, limit=limit)

    monkeypatch.setattr(Store, "chunks", chunks)
    monkeypatch.setattr(downloads, "PIECE_OCTETS_MAX", 100)
    assert await download(1_500, name) == ((200, False) if name == "csv" else (500, False))


async def delete_some(store: Store, list_id: str) -> None:
    """The first step of a deletion; delete_list() takes every step."""
    assert not await store.executor.write(lists.delete_step, list_id, SERVICE)


@pytest.mark.parametrize("wholly", [True, False])
async def test_a_download_of_a_list_that_is_deleted_meanwhile_is_cut(
    wholly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while only some of its lines are gone."""
    read = Store.chunks

    async def chunks(self: Store, list_id: str, *, first: int, limit: int) -> Any:
        if first == CHUNKS_READ:
            await (self.delete_list(list_id) if wholly else delete_some(self, list_id))
        return await read(self, list_id, first=first, limit=limit)

    monkeypatch.setattr(Store, "chunks", chunks)
    monkeypatch.setattr(downloads, "PIECE_OCTETS_MAX", 100)
    assert await download(6_000, "csv") == (200, False)
