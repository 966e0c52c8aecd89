"""Searches the documentation: SQLite's FTS5 over its sections, in a file that `rendering` has made.

Strangers may search, so a search never holds the event loop: `Searches` runs one at a time, in a
thread, and keeps the answers.
"""

import re
import sqlite3
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path

import trio
from msgspec import Struct

QUERY_CHARACTERS_MAX = 100
WORDS_MAX = 8
RESULTS_MAX = 20
# A shorter beginning is in nearly every section, and costs 50 times as much.
PREFIX_CHARACTERS_MIN = 3
SEARCH_S_MAX = 0.1  # of processor time; the dearest query known takes 30 ms
STEPS_PER_CHECK = 1000  # of SQLite's virtual machine, some 50 us, between two checks of that time
SEARCHES_PER_S = 50  # in one process: rendering the answer takes some 2 ms of the event loop
WAITING_MAX = 16  # searches: at most SEARCH_S_MAX each until theirs begins
ANSWERS_KEPT_MAX = 256  # of some 6 KiB

_WORD = re.compile(r"[\w]+", re.UNICODE)


class SearchResult(Struct, frozen=True):
    """A section that matches."""

    url: str
    page: str  # the page's title
    section: str
    excerpt: str


class SearchTooLong(Exception):
    """The search took more than SEARCH_S_MAX."""


class TooManySearches(Exception):
    """More searches than are answered at this moment."""


def words_of(query: str) -> tuple[str, ...]:
    """The words that are searched for. Two queries with the same ones have the same answer."""
    return tuple(_WORD.findall(query[:QUERY_CHARACTERS_MAX].lower())[:WORDS_MAX])


class SearchIndex:
    """The sections of the documents. Used by one thread at a time; a query takes some ms."""

    def __init__(self, file: Path) -> None:
        url = f"{file.absolute().as_uri()}?mode=ro&immutable=1"
        self._db = sqlite3.connect(url, uri=True, check_same_thread=False)

    def search(self, query: str) -> list[SearchResult]:
        """Return the best sections that have every word of the query, best first.

        Of the last word its beginning is enough. Raises SearchTooLong.
        """
        words = words_of(query)
        if not words:
            return []
        ends_at = time.thread_time() + SEARCH_S_MAX
        self._db.set_progress_handler(lambda: time.thread_time() > ends_at, STEPS_PER_CHECK)
        prefix = "*" if len(words[-1]) >= PREFIX_CHARACTERS_MIN else ""
        try:
            rows = self._db.execute(
                "SELECT url, page, title, snippet(sections, 1, '', '', '…', 24) FROM sections"
                " WHERE sections MATCH ? ORDER BY rank LIMIT ?",
                (" ".join(f'"{word}"' for word in words) + prefix, RESULTS_MAX),
            ).fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                raise
            raise SearchTooLong from None
        return [SearchResult(*row) for row in rows]

    def close(self) -> None:
        self._db.close()


class Searches:
    """Answers searches without holding the event loop. `open_index` runs once, in a thread."""

    def __init__(self, open_index: Callable[[], SearchIndex]) -> None:
        self._open_index = open_index
        self._index: SearchIndex | None = None  # only the thread uses it
        self._one = trio.CapacityLimiter(1)
        self._answers: OrderedDict[tuple[str, ...], list[SearchResult]] = OrderedDict()
        self._searched_at: deque[float] = deque(maxlen=SEARCHES_PER_S)

    async def search(self, query: str) -> list[SearchResult]:
        """What `SearchIndex.search` returns. Raises TooManySearches, SearchTooLong."""
        now = trio.current_time()
        if len(self._searched_at) == SEARCHES_PER_S and now - self._searched_at[0] < 1:
            raise TooManySearches
        self._searched_at.append(now)
        words = words_of(query)
        if words not in self._answers:
            if self._one.statistics().tasks_waiting >= WAITING_MAX:
                raise TooManySearches
            found = await trio.to_thread.run_sync(self._search, query, limiter=self._one)
            self._answers[words] = found
            if len(self._answers) > ANSWERS_KEPT_MAX:
                self._answers.popitem(last=False)
        self._answers.move_to_end(words)
        return self._answers[words]

    def _search(self, query: str) -> list[SearchResult]:
        if self._index is None:
            self._index = self._open_index()
        return self._index.search(query)
