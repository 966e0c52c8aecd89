"""A page of the documentation, as it is kept and served. Pure, and needs no other package."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PageLink:
    """Where a link between pages leads, and the title of that page."""

    url: str
    title: str


@dataclass(frozen=True, slots=True)
class PageSection:
    """A heading with the text below it, up to the next heading."""

    level: int  # 1 is the page's title
    title: str
    anchor: str
    text: str = ""  # without markup; what is served has it in the search index alone


@dataclass(frozen=True, slots=True)
class RenderedPage:
    """A page as HTML, and its sections in their order."""

    html: str
    sections: Sequence[PageSection]

    @property
    def title(self) -> str:
        return self.sections[0].title if self.sections else ""
