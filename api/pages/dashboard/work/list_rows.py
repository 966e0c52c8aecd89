"""Stored rows of a list, read for its pages."""

import codecs
import csv
import io
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import trio

from mailprobe.storage.list_records import StoredList
from mailprobe.storage.store import Store

from ....listfile.columns import PROSE
from ....lists.downloads import pieces
from ....lists.results import csv_line, rows_of_chunks
from ....results.chunk_lines import results_in
from ....results.list_reading import ListReading
from ....results.row_result import domain_of

CHUNKS_AT_ONCE = 10
DOMAINS_MAX = 10
REPLACED = "\N{REPLACEMENT CHARACTER}"
DOMAIN_ROWS_MIN = 2  # a domain with one address says nothing
CHUNKS_READ_MAX = 200  # 20,000 addresses
BAD = frozenset({"undeliverable", "invalid"})


async def csv_of_rows(store: Store, stored: StoredList) -> AsyncGenerator[bytes, None]:
    """The rows as they were sent, as CSV with a header."""
    yield csv_line(await store.list_columns(stored.id))
    async for rows, _ in rows_of_chunks(store, stored):
        async for octets in pieces(stored.account_id, (csv_line(row.cells) for row in rows)):
            yield octets


async def text_of_rows(
    store: Store, stored: StoredList, reading: ListReading, delimiter: str, *, is_recoded: bool
) -> AsyncGenerator[bytes, None]:
    """The rows of a text in its own octets again, so that they can be read otherwise.

    `delimiter` is declared as the one to read it by. Raises UnicodeError if
    another encoding reads them and a text has replacement characters: their octets are lost.
    """
    encoder = codecs.getincrementalencoder(reading.encoding)()  # a byte order mark comes once
    unreadable = _unreadable(reading.encoding)

    def octets_of(cells: Sequence[str]) -> bytes:
        line = _line(cells, reading.delimiter)
        if is_recoded and REPLACED in line:
            raise UnicodeError
        if unreadable is None:
            return encoder.encode(line)
        return unreadable.join(map(encoder.encode, line.split(REPLACED)))

    columns = await store.list_columns(stored.id)
    head = encoder.encode(f"sep={delimiter}\r\n" if delimiter else "")
    head += b"" if is_of_lines(reading) else octets_of(columns)
    if head:  # nothing would be taken for the end
        yield head
    async with aclosing(rows_of_chunks(store, stored)) as chunks:
        async for rows, _ in chunks:
            lines = (octets_of(row.cells) for row in rows)
            async with aclosing(pieces(stored.account_id, lines)) as parts:
                async for octets in parts:
                    yield octets


def is_of_lines(reading: ListReading) -> bool:
    """Whether each line is a row, the first one too: an address, or a text that may have some."""
    return not reading.delimiter and reading.columns in ([], [PROSE])


def _unreadable(encoding: str) -> bytes | None:
    """An octet that the encoding leaves undefined, whatever follows; None if it has none or needs none."""
    try:
        REPLACED.encode(encoding)
    except UnicodeError:
        decoder = codecs.getincrementaldecoder(encoding)
        for octet in (bytes([number]) for number in range(0x80, 0x100)):
            if decoder("replace").decode(octet) == REPLACED:
                return octet
    return None


def _line(cells: Sequence[str], delimiter: str) -> str:
    if not delimiter:
        return "".join(cells[:1]) + "\r\n"
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter).writerow(cells)
    return file.getvalue()


async def worst_domains(store: Store, list_id: str) -> list[tuple[str, int, int]]:
    """The domains with the most bad addresses: domain, bad, answered.

    Of the first 20,000 addresses: a page must not read a million rows.
    """
    answered: Counter[str] = Counter()
    bad: Counter[str] = Counter()

    def count(found: Sequence[tuple[int, str]]) -> None:
        for _, lines in found:
            for result in results_in(lines).values():
                domain = domain_of(result.email)
                answered[domain] += 1
                bad[domain] += result.status in BAD

    for first in range(0, CHUNKS_READ_MAX, CHUNKS_AT_ONCE):
        found = await store.list_results(list_id, range(first, first + CHUNKS_AT_ONCE))
        await trio.to_thread.run_sync(count, found)
        if len(found) < CHUNKS_AT_ONCE:
            break
    worst = [(name, bad[name], number) for name, number in answered.items() if bad[name]]
    worst = [each for each in worst if each[2] >= DOMAIN_ROWS_MIN]
    return sorted(worst, key=lambda each: (-each[1], each[0]))[:DOMAINS_MAX]
