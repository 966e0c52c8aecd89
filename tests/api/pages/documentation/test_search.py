"""The search of the documentation, with words as people and strangers write them."""

import threading
import time
from collections.abc import Iterator

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from mailprobe.api.pages import search
from mailprobe.api.pages.documents import INDEX_FILE
from mailprobe.api.pages.search import (
    RESULTS_MAX,
    WAITING_MAX,
    Searches,
    SearchIndex,
    SearchResult,
    SearchTooLong,
    TooManySearches,
)


@pytest.fixture(scope="module")
def index() -> Iterator[SearchIndex]:
    index = SearchIndex(INDEX_FILE)
    yield index
    index.close()


@pytest.mark.parametrize(
    ("query", "url"),
    [
        ("idempotency", "/docs/api#idempotency"),
        ("rate limit", "/docs/api#limits"),
        ("catch-all", "/docs/verdicts"),
        ("test key", "/docs/sandbox#test-keys"),
        ("webhook signature", "/docs/callbacks"),
    ],
)
def test_the_section_that_is_meant_is_among_the_first(
    index: SearchIndex, query: str, url: str
) -> None:
    assert any(result.url.startswith(url) for result in index.search(query)[:5])


@pytest.mark.parametrize(
    ("query", "url"),
    [
        ("greylisting", "/docs/unknown#greylisting"),
        ("team", "/docs/operating#a-team"),
        ("sdk", "/docs/api#the-api"),
        ("GDPR", "/docs/personal-data"),
        ("lost key", "/docs/operating#lost-key"),
        ("HubSpot", "/docs/recipes#hubspot"),
        ("Mailchimp", "/docs/recipes#mailchimp"),
        ("n8n", "/docs/recipes#n8n"),
    ],
)
def test_a_word_of_people_from_elsewhere_finds_its_section_first(
    index: SearchIndex, query: str, url: str
) -> None:
    assert index.search(query)[0].url.startswith(url)


def test_the_beginning_is_enough_of_the_last_word_from_three_letters(index: SearchIndex) -> None:
    """The beginning of any word was: `a b c d e f g h` took 50 ms of everybody's time."""
    assert index.search("idempot")
    assert index.search("key webho")
    assert not index.search("webho key")
    assert index.search("qua")  # quarter
    assert not index.search("qu")


def test_a_search_is_bounded_in_processor_time(index: SearchIndex, monkeypatch) -> None:
    monkeypatch.setattr(search, "SEARCH_S_MAX", 0.0)
    monkeypatch.setattr(search, "STEPS_PER_CHECK", 1)
    with pytest.raises(SearchTooLong):
        index.search("verify")
    monkeypatch.undo()
    assert index.search("verify")


def test_a_word_that_is_nowhere_finds_nothing(index: SearchIndex) -> None:
    assert index.search("idempotency xylophone") == []
    assert index.search("") == []
    assert index.search("  -- ' \" * ( ) : ^ ") == []


SYNTAX = [
    '"',
    "'",
    "*",
    "(",
    ")",
    "NEAR",
    "AND",
    "OR",
    "NOT",
    ":",
    "^",
    "-",
    "title:",
    "\0",
    "é",
    " ",
]


@given(st.lists(st.sampled_from(SYNTAX) | st.text(max_size=5), max_size=40).map("".join))
def test_no_query_is_read_as_syntax_or_takes_long(index: SearchIndex, query: str) -> None:
    began = time.thread_time()
    assert len(index.search(query)) <= RESULTS_MAX
    assert time.thread_time() - began < 0.5


class SlowIndex(SearchIndex):
    """An index whose searches end only when they may; it counts those that run."""

    def __init__(self) -> None:
        super().__init__(INDEX_FILE)
        self.may_end = threading.Semaphore(0)
        self.running = 0
        self.searched: list[str] = []

    def search(self, query: str) -> list[SearchResult]:
        self.running += 1
        assert self.running == 1
        assert self.may_end.acquire(timeout=30)
        self.searched.append(query)
        self.running -= 1
        return [SearchResult("/docs", "", "", query)]


async def test_eight_clients_that_search_do_not_hold_the_loop() -> None:
    """The loop lets each search end: if one held it, none would."""
    index = SlowIndex()
    searches = Searches(lambda: index)
    async with trio.open_nursery() as nursery:
        for client in range(8):
            nursery.start_soon(searches.search, f"word{client}")
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(8):
            index.may_end.release()
    assert sorted(index.searched) == [f"word{client}" for client in range(8)]
    for written in ("word3", " WORD3 ", "(word3)"):
        assert await searches.search(written) == [SearchResult("/docs", "", "", "word3")]
    index.close()


async def test_only_so_many_searches_wait() -> None:
    index = SlowIndex()
    searches = Searches(lambda: index)
    async with trio.open_nursery() as nursery:
        for client in range(1 + WAITING_MAX):
            nursery.start_soon(searches.search, f"word{client}")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(TooManySearches):
            await searches.search("another")
        index.may_end.release(1 + WAITING_MAX)
    index.close()
