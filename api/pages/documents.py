"""The documents of `docs/`: which there are, in which group, and each as HTML.

They are read from the package once and rendered at their first use; some thirty pages take 100 ms
in all. `/docs` is the start page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mailprobe.api.pages.examples import Places
from mailprobe.api.pages.markdown import PageLink, RenderedPage, render

FOLDER = Path(__file__).parent / "documents"
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


@dataclass(frozen=True, slots=True)
class Document:
    """One page: its name in URLs, its Markdown, and its HTML."""

    name: str
    markdown: str
    page: RenderedPage

    @property
    def url(self) -> str:
        return url_of(self.name)


@cache
def document(name: str) -> Document | None:
    """Return the page of this name, or None if there is none."""
    if name not in names():
        return None
    markdown = markdown_of(name)
    return Document(name, markdown, render(markdown, link))


@cache
def markdown_of(name: str) -> str:
    """The text of the page of this name, which exists."""
    return (FOLDER / f"{name}.md").read_text("utf-8")


@cache
def filled(name: str, places: Places, has_key: bool) -> RenderedPage:
    """The page of this name, which exists, with the service's URLs, and KEY_MARK for a key."""
    return render(markdown_of(name), link, places.fill_all if has_key else places.fill)


def documents() -> list[Document]:
    """All pages, in the order of the navigation."""
    return [page for name in names() if (page := document(name))]


def names() -> tuple[str, ...]:
    return tuple(name for group in GROUPS.values() for name in group)


def navigation(name: str) -> PageLink:
    """A page as the navigation shows it."""
    return PageLink(url_of(name), _title(name))


def url_of(name: str) -> str:
    return ROOT if name == HOME else f"{ROOT}/{name}"


def link(target: str) -> PageLink | None:
    """Where a link between pages leads, such as `engine.md#limits`; None for what is not served."""
    path, mark, anchor = target.partition("#")
    name = path.removesuffix(".md")
    if not path.endswith(".md") or name not in names():
        return None
    return PageLink(url_of(name) + mark + anchor, _title(name))


@cache
def _title(name: str) -> str:
    """The first heading of a page, without rendering it."""
    return markdown_of(name).partition("\n")[0].removeprefix("# ")
