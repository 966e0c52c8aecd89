"""A page of the answered addresses of a list: counted by marks, read from few chunks."""

from typing import Any

import pytest
import trio.testing

from mailprobe.api.lists import table
from mailprobe.api.lists.table import (
    PAGE_ROWS,
    Marks,
    Order,
    places_of_page,
    read_marks,
    read_rows,
    search_rows,
)
from mailprobe.api.results.row_filter import RowFilter
from tests.api.lists.test_lists import ended, open_list_shop, send
from tests.api.service_fixture import RunningService

GREEN, RED = frozenset({"GREEN_LIGHT"}), frozenset({"RED_LIGHT"})
EACH = 130  # addresses of each kind, over three chunks


async def cleaned(shop: RunningService) -> Any:
    """A list of a test key in which living and dead mailboxes alternate, by its id."""
    key = await shop.new_key("sk_test_")
    text = "email,Who\n" + "".join(
        f'deliverable+{n}@sandbox.test,"Ä {n}% ""_"\nundeliverable+{n}@sandbox.test,Bob {n}\n'
        for n in range(EACH)
    )
    list_id = (await send(shop, f"{text},nobody\n", key=key)).body["list_id"]
    await ended(shop, list_id, key=key)
    return await shop.store.stored_list(list_id)


async def addresses(
    shop: RunningService, list_id: str, marks: Marks, only: RowFilter, order: Order, offset: int
) -> list[str]:
    rows = await read_rows(shop.store, list_id, places_of_page(marks, only, order, offset))
    return [row.address.partition("@")[0] for row in rows]


async def test_pages_are_filtered_and_ordered(autojump_clock: trio.testing.MockClock) -> None:
    good, bad = ([f"{word}+{n}" for n in range(EACH)] for word in ("deliverable", "undeliverable"))
    both = [name for pair in zip(good, bad, strict=True) for name in pair]
    async with open_list_shop() as shop:
        made = await cleaned(shop)
        assert (made.rows, made.addresses, made.blank_rows) == (2 * EACH + 1, 2 * EACH, 1)
        marks = await read_marks(shop.store, made)
        assert sorted(marks.counts.values()) == [EACH, EACH]
        pages: list[tuple[RowFilter, Order, list[str]]] = [
            (RowFilter(), "file", both),
            (RowFilter(RED), "file", bad),
            (RowFilter(GREEN, reasons=frozenset({"accepted"})), "best", good),
            (RowFilter(GREEN, frozenset({"invalid"})), "file", []),
            (RowFilter(), "best", good + bad),
            (RowFilter(), "worst", bad + good),
        ]
        for only, order, whole in pages:
            for offset in (0, 50, 100, 120, 129, 130, 210, 250, 300, 10**9):
                found = await addresses(shop, made.id, marks, only, order, offset)
                assert found == whole[offset : offset + PAGE_ROWS], (only, order, offset)


async def test_a_search_goes_on_where_it_ended(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all columns, whatever the characters; it reads the matching chunks only."""
    async with open_list_shop() as shop:
        made = await cleaned(shop)
        marks = await read_marks(shop.store, made)
        for text, lights, count in (
            ("bob 7", frozenset(), 11),
            ("ble+1@", frozenset(), 2),
            ("ble+1@", RED, 1),
            ('ä 12% "_', frozenset(), 1),
            ("%", frozenset(), EACH),
            ("sandbox.test", RED, EACH),
            ("\\", frozenset(), 0),
            ("nobody", frozenset(), 0),  # no address
            ("[", frozenset(), 0),
        ):
            only, found = RowFilter(lights, text=text), 0
            first: int | None = 0
            while first is not None:
                part = await search_rows(shop.store, made.id, marks, only, first)
                found, first = found + len(part.rows), part.next_place
                assert len(part.rows) < PAGE_ROWS + 100
            assert found == count, text
        monkeypatch.setattr(table, "SEARCH_S", -1)
        monkeypatch.setattr(table, "PLACES_SEARCHED_MAX", 1)
        part = await search_rows(shop.store, made.id, marks, RowFilter(text="no such"), 0)
        assert part == table.FoundRows([], 1)


async def test_results_of_an_earlier_version_are_marked_when_they_are_seen(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr("mailprobe.api.quota.list_charge.marks_of", lambda *_: {})
        async with open_list_shop() as shop:
            made = await cleaned(shop)
            assert await shop.store.list_marks(made.id, first=0) == []
            marks = await read_marks(shop.store, made)
            assert sorted(marks.counts.values()) == [EACH, EACH]
            assert len(await shop.store.list_marks(made.id, first=0)) == 3
