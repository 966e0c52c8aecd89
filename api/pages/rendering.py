"""Renders the documents of `docs/` into the files that are served: `make docs`.

Each page becomes a file of JSON with its HTML, and all sections one search index. It is done when a
checkout is set up and when a wheel or a source distribution is built, if a page has changed since.
The serving process reads the files alone. It needs markdown-it-py and Pygments, and of this
project nothing that needs another package: a build has no more.

`python -m mailprobe.api.pages.rendering -` renders one page from standard input to standard output.
"""

import json
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from . import examples
from .page import PageLink, RenderedPage

HERE = Path(__file__).parent
SOURCE = HERE / "documents"
TARGET = HERE / "rendered"
CONTENTS, INDEX = "contents.json", "search.db"
PROGRAM = ("rendering.py", "markdown.py", "examples.py", "page.py")
ROOT = "/docs"
HOME = "start"  # at ROOT itself

# The groups of the navigation; a test holds them against the folder.
GROUPS: Mapping[str, Sequence[str]] = {
    "Start": (
        "start",
        "quickstart-form",
        "quickstart-nightly",
        "quickstart-list",
        "quickstart-assistant",
        "verdicts",
        "unknown",
    ),
    "Use": (
        "api",
        "routes",
        "errors",
        "list-jobs",
        "callbacks",
        "bounces",
        "live",
        "management",
        "forms",
        "sandbox",
        "dashboard",
        "tools",
        "library",
        "clean",
        "lists",
        "recipes",
    ),
    "Run": (
        "production",
        "settings",
        "operating",
        "deployment",
        "backup",
        "upgrade",
        "runbook",
        "observability",
        "metrics",
        "scale",
        "egress",
        "probes",
        "security",
        "personal-data",
        "billing",
    ),
}
NAMES = tuple(name for group in GROUPS.values() for name in group)


def render_documents(target: Path = TARGET) -> None:
    """Write the files, unless they are made of these pages already.

    Raises ImportError if a package is missing.
    """
    made_of = digest()
    if is_current(made_of, target):
        (target / CONTENTS).touch()  # newer than its pages, for make
        return
    target.mkdir(exist_ok=True)
    pages = {name: _page(name, examples.marked) for name in NAMES}
    written = {CONTENTS, INDEX}
    for name, page in pages.items():
        with_key = None
        if examples.takes_key(markdown_of(name)):
            with_key = _page(name, examples.marked_with_key).html
        written.add(f"{name}.json")
        _write(target / f"{name}.json", {**_served(page), "html_with_key": with_key})
    _write_index(target / INDEX, pages)
    groups = {group: [[name, title_of(name)] for name in names] for group, names in GROUPS.items()}
    for left in target.iterdir():
        if left.name not in written:
            left.unlink()
    _write(target / CONTENTS, {"made_of": made_of, "groups": groups})  # last: all others are there


def is_current(made_of: str, target: Path = TARGET) -> bool:
    """Whether the files are made of these pages by this program."""
    try:
        return bool(json.loads((target / CONTENTS).read_text("utf-8"))["made_of"] == made_of)
    except (OSError, ValueError, KeyError):
        return False


def digest() -> str:
    """What the files are made of."""
    found = sha256()
    for path in (*(HERE / name for name in PROGRAM), *sorted(SOURCE.glob("*.md"))):
        text = path.read_bytes()
        found.update(f"{path.name} {len(text)}\n".encode() + text)
    return found.hexdigest()


def markdown_of(name: str) -> str:
    """The text of the page of this name, which exists."""
    return (SOURCE / f"{name}.md").read_text("utf-8")


def title_of(name: str) -> str:
    """The first heading of a page."""
    return markdown_of(name).partition("\n")[0].removeprefix("# ")


def url_of(name: str) -> str:
    return ROOT if name == HOME else f"{ROOT}/{name}"


def link(target: str) -> PageLink | None:
    """Where a link between pages leads, such as `engine.md#limits`; None for what is not served."""
    path, mark, anchor = target.partition("#")
    name = path.removesuffix(".md")
    if not path.endswith(".md") or name not in NAMES:
        return None
    return PageLink(url_of(name) + mark + anchor, title_of(name))


def _page(name: str, fill: Callable[[str], str]) -> RenderedPage:
    from .markdown import render

    markdown = markdown_of(name)
    page = render(markdown, link, fill)
    blocks = "".join(re.findall(r"^ *```.*?^ *```", markdown, re.DOTALL | re.MULTILINE))
    for mark in examples.MARKS:
        if fill(blocks).count(mark) != page.html.count(mark):
            raise ValueError(f"{name}.md: an example is coloured so that {mark} is divided")
    return page


def _served(page: RenderedPage) -> dict[str, object]:
    """A page without the text of its sections, which is in the index."""
    sections = [
        {"level": each.level, "title": each.title, "anchor": each.anchor} for each in page.sections
    ]
    return {"html": page.html, "sections": sections}


def _write(path: Path, value: object) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(value, ensure_ascii=False), "utf-8")
    draft.replace(path)


def _write_index(path: Path, pages: Mapping[str, RenderedPage]) -> None:
    """The sections of all pages in SQLite's FTS5."""
    draft = path.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    db = sqlite3.connect(draft)
    db.execute(
        "CREATE VIRTUAL TABLE sections USING fts5"
        " (title, text, page UNINDEXED, url UNINDEXED, tokenize = 'porter unicode61')"
    )
    # In this form FTS5 sorts before anything else is computed of a row.
    db.execute("INSERT INTO sections (sections, rank) VALUES ('rank', 'bm25(8.0, 1.0)')")
    db.executemany(
        "INSERT INTO sections (title, text, page, url) VALUES (?, ?, ?, ?)", _rows(pages)
    )
    db.execute("INSERT INTO sections (sections) VALUES ('optimize')")
    db.commit()
    db.close()
    draft.replace(path)


def _rows(pages: Mapping[str, RenderedPage]) -> Iterator[tuple[str, str, str, str]]:
    for name, page in pages.items():
        for each in page.sections:
            yield each.title, each.text, page.title, f"{url_of(name)}#{each.anchor}"


def main() -> None:
    if sys.argv[1:] == ["-"]:
        from .markdown import render

        page = render(sys.stdin.buffer.read().decode(), link)
        sys.stdout.buffer.write(json.dumps(asdict(page)).encode())
    else:
        render_documents()


if __name__ == "__main__":
    main()
