"""What the pages of a list read of its stored rows."""

import csv
import io
from collections import Counter
from collections.abc import AsyncGenerator

from mailprobe.api.cli.source import domain_of
from mailprobe.api.lists.rows import results_of, rows_of
from mailprobe.storage.lists.records import LAST_PLACE, StoredList
from mailprobe.storage.store import Store

CHUNKS_AT_ONCE = 10
DOMAINS_MAX = 10
DOMAIN_ROWS_MIN = 2  # a domain with one address says nothing
CHUNKS_READ_MAX = 200  # 20,000 addresses
BAD = frozenset({"undeliverable", "invalid"})


async def csv_of_rows(store: Store, stored: StoredList) -> AsyncGenerator[bytes, None]:
    """The rows as they were sent, as CSV with a header."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(stored.columns)
    place = 0
    while True:
        chunks = await store.chunks(stored.id, first=place, limit=CHUNKS_AT_ONCE)
        for chunk in chunks:
            writer.writerows(row.cells for row in rows_of(chunk))
        yield text.getvalue().encode()
        text.seek(0)
        text.truncate()
        if len(chunks) < CHUNKS_AT_ONCE:
            return
        place = chunks[-1].place + 1


async def worst_domains(store: Store, list_id: str) -> list[tuple[str, int, int]]:
    """The domains with the most bad addresses: domain, bad, answered.

    Of the first 20,000 addresses: a page must not read a million rows.
    """
    answered: Counter[str] = Counter()
    bad: Counter[str] = Counter()
    for first in range(0, CHUNKS_READ_MAX, CHUNKS_AT_ONCE):
        chunks = await store.chunks(list_id, first=first, limit=CHUNKS_AT_ONCE)
        for chunk in chunks:
            if chunk.place == LAST_PLACE:
                continue
            for result in results_of(chunk).values():
                domain = domain_of(result.email)
                answered[domain] += 1
                bad[domain] += result.status in BAD
        if len(chunks) < CHUNKS_AT_ONCE:
            break
    found = [(name, bad[name], count) for name, count in answered.items() if bad[name]]
    found = [each for each in found if each[2] >= DOMAIN_ROWS_MIN]
    return sorted(found, key=lambda each: (-each[1], each[0]))[:DOMAINS_MAX]
