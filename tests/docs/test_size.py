"""The pages for users stay few words: a newcomer reads them, and a repeated fact is one to keep true twice."""

import pytest

from mailprobe.api.pages import documents
from tests.docs.pages import ROOT

WORDS_MAX = 30_000  # of all pages but those below
LINES_MAX = 300  # of a page
# Tables that other tests compare with the code, row by row; they are looked up and not read.
REFERENCE = {"settings", "routes", "errors", "metrics"}
REFERENCE_WORDS_MAX = 4_500


def words_of(names: set[str]) -> int:
    return sum(len(documents.markdown_of(name).split()) for name in names)


def test_the_pages_for_users_can_be_read() -> None:
    names = set(documents.names())
    assert names > REFERENCE
    assert words_of(names - REFERENCE) <= WORDS_MAX
    assert words_of(REFERENCE) <= REFERENCE_WORDS_MAX


@pytest.mark.parametrize("name", documents.names())
def test_a_page_is_ten_screens_at_most(name: str) -> None:
    assert len(documents.markdown_of(name).splitlines()) <= LINES_MAX


def test_the_folder_has_pages_alone() -> None:
    """What is made from the code, and what contributors read, is in dev/."""
    assert {path.suffix for path in (ROOT / "docs").iterdir()} == {".md"}
