"""The documents of `docs/`, as `rendering` left them: which there are, in which group, and each as HTML.

A page is read at its first use. `/docs` is the start page.
"""

import sys
from collections.abc import Mapping, Sequence
from functools import cache

import msgspec
import trio

from .page import PageSection, RenderedPage
from .rendering import CONTENTS, INDEX, TARGET
from .rendering import HOME as HOME
from .rendering import ROOT as ROOT
from .rendering import markdown_of as markdown_of
from .rendering import url_of as url_of

INDEX_FILE = TARGET / INDEX


class Document(msgspec.Struct, frozen=True):
    """One page. `html_with_key` has KEY_MARK in its examples; None: they take no key."""

    html: str
    sections: Sequence[PageSection]
    html_with_key: str | None

    @property
    def page(self) -> RenderedPage:
        return RenderedPage(self.html, self.sections)


class _Contents(msgspec.Struct, frozen=True):
    groups: Mapping[str, Sequence[tuple[str, str]]]


@cache
def contents() -> Mapping[str, Sequence[tuple[str, str]]]:
    """The navigation: of each group the names and the titles of its pages."""
    try:
        octets = (TARGET / CONTENTS).read_bytes()
    except FileNotFoundError:
        raise RuntimeError("the documentation is not rendered: run `make docs`") from None
    return msgspec.json.decode(octets, type=_Contents).groups


@cache
def document(name: str) -> Document | None:
    """Return the page of this name, or None if there is none."""
    if name not in names():
        return None
    return msgspec.json.decode((TARGET / f"{name}.json").read_bytes(), type=Document)


@cache
def names() -> tuple[str, ...]:
    """All pages, in the order of the navigation."""
    return tuple(name for group in contents().values() for name, _ in group)


async def rendered_apart(markdown: str) -> RenderedPage:
    """Render an operator's own page, in a process of its own: it takes a third of a second."""
    command = [sys.executable, "-P", "-m", "mailprobe.api.pages.rendering", "-"]
    done = await trio.run_process(command, stdin=markdown.encode(), capture_stdout=True)
    return msgspec.json.decode(done.stdout, type=RenderedPage)
