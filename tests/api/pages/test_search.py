"""The search of the documentation, with words as people and strangers write them."""

import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailprobe.api.pages.documents import documents
from mailprobe.api.pages.search import RESULTS_MAX, SearchIndex


@pytest.fixture(scope="module")
def index() -> Iterator[SearchIndex]:
    index = SearchIndex(documents())
    yield index
    index.close()


@pytest.mark.parametrize(
    ("query", "url"),
    [
        ("idempotency", "/docs#idempotency"),
        ("rate limit", "/docs#limits"),
        ("catch-all", "/docs/verdicts"),
        ("test key", "/docs/sandbox#test-keys"),
        ("webhook signature", "/docs/callbacks"),
    ],
)
def test_the_section_that_is_meant_is_among_the_first(
    index: SearchIndex, query: str, url: str
) -> None:
    assert any(result.url.startswith(url) for result in index.search(query)[:5])


def test_the_beginning_of_a_word_is_enough(index: SearchIndex) -> None:
    assert index.search("idempot")


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
