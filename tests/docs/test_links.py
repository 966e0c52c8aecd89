"""Links, files, tests and settings that a page names exist."""

import re
from pathlib import Path

import pytest

from mailprobe.api.settings import TABLE
from tests.docs.pages import PAGES, ROOT, SPANS, headings_of, without_blocks


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", without_blocks(page)):
        if link.startswith("https://"):
            continue
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), link
        assert target.exists(), link
        assert not heading or heading in headings_of(target), link


def test_files_and_tests_that_are_named_exist() -> None:
    made = {"examples/list.verified.csv"}
    for page, span in SPANS:
        path, _, test = span.partition("::")
        if not re.fullmatch(r"(engine|api|storage|bench|tests|docs|dev|examples)/[\w./-]*", path):
            continue
        if path in made or (page.parent / path).exists():
            continue
        assert (ROOT / path).exists(), f"{page.name}: {span}"
        if test:
            assert f"def {test}(" in (ROOT / path).read_text("utf-8"), f"{page.name}: {span}"


def test_settings_that_are_named_exist() -> None:
    known = {row.variable for row in TABLE} | {"MAILPROBE_CONFIG", "MAILPROBE_"}
    for page in PAGES:
        named = set(re.findall(r"MAILPROBE_\w*", page.read_text("utf-8")))
        assert named <= known, page.name
