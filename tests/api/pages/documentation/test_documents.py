"""The pages that are served: all of `docs/`, with links and anchors that exist."""

import re
from pathlib import Path
from typing import get_args

import pytest

from mailprobe.api.operations.table import OPERATIONS
from mailprobe.api.pages import documents
from mailprobe.api.refusals import Section

DOCS = Path(__file__).parents[4] / "docs"


def test_every_page_of_the_folder_is_in_one_group() -> None:
    assert sorted(documents.names()) == sorted(path.stem for path in DOCS.glob("*.md"))


@pytest.mark.parametrize("name", documents.names())
def test_every_link_between_pages_opens_its_section(name: str) -> None:
    page = documents.document(name)
    assert page is not None
    for url in re.findall(r'href="([^"]+)"', page.page.html):
        if not url.startswith(("/", "#")):
            assert url.startswith("https://"), url
            continue
        path, _, anchor = url.partition("#")
        named = name if not path else path.removeprefix("/docs").strip("/") or documents.HOME
        target = documents.document(named)
        assert target is not None, url
        assert not anchor or anchor in {each.anchor for each in target.page.sections}, url


def test_the_links_of_error_bodies_open_their_section() -> None:
    guide = documents.document("api")
    assert guide is not None
    anchors = {each.anchor for each in guide.page.sections}
    assert {operation.section for operation in OPERATIONS} | set(get_args(Section)) <= anchors


def test_the_start_page_leads_to_every_page() -> None:
    start = documents.document(documents.HOME)
    assert start is not None
    linked = set(re.findall(r'href="/docs/([a-z-]+)"', start.page.html))
    assert linked == set(documents.names()) - {documents.HOME}


def test_a_name_from_outside_opens_no_other_file() -> None:
    for name in ("../README", "..", "", "api.md", "/etc/passwd", "API"):
        assert documents.document(name) is None
