"""A list takes at most twenty times its octets in the store, so no short file fills the disk."""

import gzip
from collections.abc import Sequence
from typing import Any

import pytest
import trio
import trio.testing

from mailprobe.api.lists.upload import STORED_OCTETS
from mailprobe.api.reader.chunks import CHUNK_OCTETS_MAX, STORED_OCTETS_MIN, STORED_TIMES_MAX
from mailprobe.bench.lab.hostile_files import files
from mailprobe.storage.list_records import ListChunk
from tests.api.lists.test_lists import LISTS, open_list_shop, send

HEADERS = {"content-type": "application/octet-stream"}
ROW = f"known@friendly.test,{'x' * 90}\n"
LARGE = {each.name: each.make for each in files() if each.expected == "too large to store"}
ACCEPTED = {  # however little of it is an address, plain text is stored
    "blank lines": b"email\nknown@friendly.test\n" + b"\n" * 100_000,
    "letters": b"email\n" + b"known@friendly.test\n" * 200 + b"a\n" * 100_000,
    "short rows that are compressed": gzip.compress(f"email,n\n{ROW * 5_000}".encode()),
}


@pytest.mark.parametrize("name", LARGE)
async def test_a_file_that_grows_too_much_is_refused_and_leaves_nothing(
    autojump_clock: trio.testing.MockClock, name: str
) -> None:
    octets = LARGE[name]()
    assert len(octets) * STORED_TIMES_MAX < STORED_OCTETS_MIN
    async with open_list_shop() as shop:
        got = await send(shop, octets, headers=HEADERS)
        assert (got.status, got.error) == (400, "invalid_request")
        assert got.body["message"] == (
            "The list cannot be read: list takes more than 20 times its own size to store; "
            "send it as CSV that is not compressed."
        )
        await trio.sleep(60)
        assert (await shop.request("GET", LISTS)).body["lists"] == []


@pytest.mark.parametrize("name", ACCEPTED)
async def test_plain_text_and_small_lists_are_stored(
    autojump_clock: trio.testing.MockClock, name: str
) -> None:
    async with open_list_shop() as shop:
        got = await send(shop, ACCEPTED[name])
        assert got.status == 202, got.body


async def test_a_transaction_stores_few_wide_chunks(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The account's other uploads wait for it, and a store gives up a wait of half a second."""
    stored: list[int] = []
    wide = "email,note\n" + "".join(f"a{n}@friendly.test,{'x' * 30_000}\n" for n in range(200))
    async with open_list_shop() as shop:
        add = shop.store.store.add_chunks

        async def add_chunks(list_id: str, chunks: Sequence[ListChunk], **more: Any) -> bool:
            stored.append(sum(len(chunk.rows) for chunk in chunks))
            return bool(await add(list_id, chunks, **more))

        monkeypatch.setattr(shop.store.store, "add_chunks", add_chunks)
        assert (await send(shop, wide)).status == 202
    assert sum(stored) > len(wide)
    assert max(stored) <= STORED_OCTETS + CHUNK_OCTETS_MAX
