"""The pages as the tests read them: blocks, tables, headings, and words in backticks."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    ROOT / "examples/README.md",
    *(page for folder in ("docs", "dev") for page in sorted((ROOT / folder).glob("*.md"))),
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    begun: tuple[int, str] | None = None
    inside: list[str] = []
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        if not line.startswith("```"):
            inside.append(line)
        elif begun is None:
            begun, inside = (number, line[3:]), []
        else:
            yield Block(page, *begun, "\n".join(inside) + "\n")
            begun = None


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def blocks_in(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


def without_blocks(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def spans_of(page: Path) -> list[str]:
    """What stands in backticks in a page's prose."""
    return re.findall(r"`([^`\n]+)`", without_blocks(page))


SPANS = [(page, span) for page in PAGES for span in spans_of(page)]


def table_of(page: str, *header: str) -> list[list[str]]:
    """The cells of all tables of a page that have this header; the page must have one."""
    rows: list[list[str]] = []
    inside = False
    for line in (ROOT / page).read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if tuple(cells) == header:
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not set(line) <= set("|-"):
            rows.append(cells)
    assert rows, f"{page} has no table of {header}"
    return rows


def bare(cell: str) -> str:
    return cell.strip("`")


def headings_of(page: Path) -> set[str]:
    """A page's headings as the ends of links, the way that hosts of repositories make them."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
