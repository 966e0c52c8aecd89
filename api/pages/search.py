"""Searches the documentation: SQLite's FTS5 over its sections, in memory."""

import re
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

from mailprobe.api.pages.documents import Document

QUERY_CHARACTERS_MAX = 100
WORDS_MAX = 8
RESULTS_MAX = 20

_WORD = re.compile(r"[\w]+", re.UNICODE)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A section that matches."""

    url: str
    page: str  # the page's title
    section: str
    excerpt: str


class SearchIndex:
    """The sections of some documents. Used by one thread at a time; a query takes under 1 ms."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._db = sqlite3.connect(":memory:", check_same_thread=False)
        self._db.execute(
            "CREATE VIRTUAL TABLE sections USING fts5"
            " (title, text, page UNINDEXED, url UNINDEXED, tokenize = 'porter unicode61')"
        )
        self._db.executemany(
            "INSERT INTO sections (title, text, page, url) VALUES (?, ?, ?, ?)",
            (
                (section.title, section.text, each.page.title, f"{each.url}#{section.anchor}")
                for each in documents
                for section in each.page.sections
            ),
        )

    def search(self, query: str) -> list[SearchResult]:
        """Return the best sections that have every word of the query, or begin of one, best first."""
        words = _WORD.findall(query[:QUERY_CHARACTERS_MAX])[:WORDS_MAX]
        if not words:
            return []
        rows = self._db.execute(
            "SELECT url, page, title, snippet(sections, 1, '', '', '…', 24) FROM sections"
            " WHERE sections MATCH ? ORDER BY bm25(sections, 8.0, 1.0) LIMIT ?",
            (" ".join(f'"{word}"*' for word in words), RESULTS_MAX),
        )
        return [SearchResult(*row) for row in rows]

    def close(self) -> None:
        self._db.close()
